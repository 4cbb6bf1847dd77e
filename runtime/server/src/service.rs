//! The engine's thread and the door to it: requests in, one channel of events out for each.

use engine::{Engine, Event, Executor, FinishReason, Progress, Refusal, Request, RequestId, Usage};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// Requests that may wait or run; more are turned away.
const MOST_UNFINISHED: usize = 1024;
/// How long the thread looks for new requests while a device computes.
const POLL: Duration = Duration::from_micros(50);

/// A request and where its answer goes.
struct Order {
    request: Request,
    reply: oneshot::Sender<Result<Generation, Turned>>,
}

/// Why a request was not taken.
#[derive(Debug)]
pub(crate) enum Turned {
    /// It could never run.
    Refused(Refusal),
    /// So many are unfinished.
    Full(usize),
    /// The engine's thread is gone.
    Stopped,
}

/// A running engine. Clones share it; its thread ends when the last is gone and every request is finished.
#[derive(Clone)]
pub struct Service {
    orders: Sender<Order>,
    is_alive: Arc<AtomicBool>,
    limit_tokens: usize,
    vocab: usize,
}

impl Service {
    /// Moves an engine to a thread of its own.
    pub fn start<E: Executor + 'static>(engine: Engine<E>) -> std::io::Result<Service> {
        let (orders, inbox) = channel();
        let is_alive = Arc::new(AtomicBool::new(true));
        let (limit_tokens, vocab) = (engine.limit_tokens(), engine.vocab());
        let alive = Alive(is_alive.clone());
        std::thread::Builder::new().name("engine".into()).spawn(move || {
            let _alive = alive;
            Worker { engine, inbox, clients: HashMap::new() }.run();
        })?;
        Ok(Service { orders, is_alive, limit_tokens, vocab })
    }

    /// Longest sequence, prompt and answer together.
    pub fn limit_tokens(&self) -> usize {
        self.limit_tokens
    }

    /// Entries of the logits.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether the engine's thread runs.
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Queues a request.
    pub(crate) async fn submit(&self, request: Request) -> Result<Generation, Turned> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order { request, reply }).map_err(|_| Turned::Stopped)?;
        answer.await.unwrap_or(Err(Turned::Stopped))
    }
}

/// The events of one request. Dropping it aborts the request before its next step.
#[derive(Debug)]
pub struct Generation(UnboundedReceiver<Event>);

impl Generation {
    /// The next event; `None` after the last, or if the engine is gone.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

/// Tells the service when the thread ends, however it ends.
struct Alive(Arc<AtomicBool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

struct Worker<E: Executor> {
    engine: Engine<E>,
    inbox: Receiver<Order>,
    clients: HashMap<RequestId, UnboundedSender<Event>>,
}

impl<E: Executor> Worker<E> {
    fn run(mut self) {
        let mut progress = Progress::Idle;
        loop {
            if !self.take_orders(progress) {
                return;
            }
            self.abort_abandoned();
            // A defect in an executor costs the requests of that step, not the server.
            let step = catch_unwind(AssertUnwindSafe(|| self.engine.step()));
            progress = step.unwrap_or_else(|_| {
                self.fail_all();
                Progress::Worked
            });
            self.deliver();
        }
    }

    /// Takes what has arrived; waits for it when there is nothing else to do. False when nobody is left.
    fn take_orders(&mut self, progress: Progress) -> bool {
        let first = match progress {
            Progress::Idle => match self.inbox.recv() {
                Ok(order) => Some(order),
                Err(_) => return false,
            },
            Progress::Waiting => match self.inbox.recv_timeout(POLL) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(POLL);
                    None
                }
            },
            Progress::Worked => None,
        };
        if let Some(order) = first {
            self.take(order);
        }
        while let Ok(order) = self.inbox.try_recv() {
            self.take(order);
        }
        true
    }

    fn take(&mut self, order: Order) {
        let answer = if self.clients.len() >= MOST_UNFINISHED {
            Err(Turned::Full(self.clients.len()))
        } else {
            self.engine.submit(order.request).map_err(Turned::Refused).map(|id| {
                let (sender, receiver) = unbounded_channel();
                self.clients.insert(id, sender);
                Generation(receiver)
            })
        };
        // A client that has gone away has dropped its end; `abort_abandoned` sees to the request.
        let _ = order.reply.send(answer);
    }

    fn abort_abandoned(&mut self) {
        let abandoned: Vec<RequestId> = self.clients.iter().filter(|(_, c)| c.is_closed()).map(|(id, _)| *id).collect();
        for id in abandoned {
            self.clients.remove(&id);
            self.engine.abort(id);
        }
    }

    fn fail_all(&mut self) {
        for (request, client) in std::mem::take(&mut self.clients) {
            self.engine.abort(request);
            let reason = FinishReason::Error(
                "E0307: the executor broke off; this is a defect of the server, report it with the request".into(),
            );
            let _ = client.send(Event::Finished { request, reason, usage: Usage::default() });
        }
    }

    fn deliver(&mut self) {
        for event in self.engine.take_events() {
            let id = event.request();
            let is_last = matches!(event, Event::Finished { .. });
            if let Some(client) = self.clients.get(&id) {
                let _ = client.send(event);
            }
            if is_last {
                self.clients.remove(&id);
            }
        }
    }
}
