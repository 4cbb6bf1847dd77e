//! The engine's thread and the door to it: requests in, one channel of events out for each client.

use crate::metrics::Metrics;
use engine::{Engine, Event, Executor, FinishReason, Progress, Refusal, Request, RequestId, Usage};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// Requests that may wait for room unless something else is said; more are turned away.
pub const MOST_QUEUED: usize = 1024;
/// How long the thread looks for new requests while a device computes.
const POLL: Duration = Duration::from_micros(50);
/// Most events that are handed over at once.
const BATCH: usize = 256;
/// What requests are told whose step broke off.
const BROKE_OFF: &str = "E0307: the executor broke off; this is a defect of the server, report it with the request";
/// An engine that has work and makes no step for so long is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// What the engine's thread is asked for.
enum Order {
    /// Several continuations for one client, all of them or none.
    Submit { requests: Vec<Request>, rid: String, reply: oneshot::Sender<Result<Taken, Turned>> },
    /// Gives requests up; the answer is how many.
    Abort { whom: Whom, reply: Option<oneshot::Sender<usize>> },
    /// Forgets what is kept of finished requests; false while some are unfinished.
    Flush { reply: oneshot::Sender<bool> },
}

/// Requests that were taken: their names in the engine, and where their events come out.
struct Taken {
    ids: Vec<RequestId>,
    events: UnboundedReceiver<(usize, Event)>,
}

/// Whose requests are given up.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Whom {
    /// Everybody's.
    All,
    /// Those under this name.
    Named(String),
    /// This one.
    One(RequestId),
}

/// Why a request was not taken.
#[derive(Debug)]
pub(crate) enum Turned {
    /// It could never run.
    Refused(Refusal),
    /// So many wait.
    Full(usize),
    /// The engine's thread is gone.
    Stopped,
}

/// A running engine. Clones share it; its thread ends when the last is gone and every request is finished.
#[derive(Clone)]
pub struct Service {
    orders: Sender<Order>,
    state: Arc<State>,
    limit_tokens: usize,
    vocab: usize,
}

/// What is known of the thread from outside.
struct State {
    is_alive: AtomicBool,
    is_busy: AtomicBool,
    started: Instant,
    /// When the thread last went round, in milliseconds after `started`.
    round_ms: AtomicU64,
    metrics: Metrics,
}

impl Service {
    /// Moves an engine to a thread of its own.
    pub fn start<E: Executor + 'static>(engine: Engine<E>) -> std::io::Result<Service> {
        Service::with_queue(engine, MOST_QUEUED)
    }

    /// The same with at most `queued` requests that wait.
    pub fn with_queue<E: Executor + 'static>(engine: Engine<E>, queued: usize) -> std::io::Result<Service> {
        let (orders, inbox) = channel();
        let state = Arc::new(State {
            is_alive: AtomicBool::new(true),
            is_busy: AtomicBool::new(false),
            started: Instant::now(),
            round_ms: AtomicU64::new(0),
            metrics: Metrics::default(),
        });
        let (limit_tokens, vocab) = (engine.limit_tokens(), engine.vocab());
        let alive = Alive(state.clone());
        std::thread::Builder::new().name("engine".into()).spawn(move || {
            let state = alive.0.clone();
            let _alive = alive;
            Worker { engine, inbox, clients: HashMap::new(), queued, state }.run();
        })?;
        Ok(Service { orders, state, limit_tokens, vocab })
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
        self.state.is_alive.load(Ordering::Acquire)
    }

    /// Whether the engine has work and makes no progress.
    pub fn is_stuck(&self) -> bool {
        let now_ms = self.state.started.elapsed().as_millis() as u64;
        let last_ms = self.state.round_ms.load(Ordering::Acquire);
        self.state.is_busy.load(Ordering::Acquire) && now_ms.saturating_sub(last_ms) > STUCK.as_millis() as u64
    }

    /// Counts and times of this server.
    pub fn metrics(&self) -> &Metrics {
        &self.state.metrics
    }

    /// Queues continuations for one client under a name: all of them, or none.
    pub(crate) async fn submit(&self, requests: Vec<Request>, rid: String) -> Result<Generation, Turned> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Submit { requests, rid, reply }).map_err(|_| Turned::Stopped)?;
        let Taken { ids, events } = answer.await.unwrap_or(Err(Turned::Stopped))?;
        Ok(Generation { events, ids, orders: self.orders.clone() })
    }

    /// Gives requests up; returns how many.
    pub(crate) async fn abort(&self, whom: Whom) -> usize {
        let (reply, answer) = oneshot::channel();
        let sent = self.orders.send(Order::Abort { whom, reply: Some(reply) });
        if sent.is_ok() { answer.await.unwrap_or(0) } else { 0 }
    }

    /// Forgets what is kept of finished requests; false while some are unfinished.
    pub(crate) async fn flush(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Flush { reply }).is_ok() && answer.await.unwrap_or(false)
    }
}

/// The events of one client's requests. Dropping it aborts them before their next step.
pub(crate) struct Generation {
    events: UnboundedReceiver<(usize, Event)>,
    ids: Vec<RequestId>,
    orders: Sender<Order>,
}

impl Generation {
    /// What has happened since the last call, at least one event, each with the index of its request; `None` after the
    /// last, or if the engine is gone.
    pub async fn next(&mut self) -> Option<Vec<(usize, Event)>> {
        let mut batch = Vec::new();
        if self.events.recv_many(&mut batch, BATCH).await == 0 { None } else { Some(batch) }
    }

    /// Gives one of the requests up. Its last event still comes.
    pub fn stop(&self, index: usize) {
        if let Some(id) = self.ids.get(index) {
            // An engine that is gone has stopped already.
            let _ = self.orders.send(Order::Abort { whom: Whom::One(*id), reply: None });
        }
    }
}

/// Tells the service when the thread ends, however it ends.
struct Alive(Arc<State>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.is_alive.store(false, Ordering::Release);
    }
}

/// One request's client.
struct Client {
    events: UnboundedSender<(usize, Event)>,
    index: usize,
    rid: Arc<str>,
    since: Instant,
    /// When its last token came.
    last: Option<Instant>,
}

struct Worker<E: Executor> {
    engine: Engine<E>,
    inbox: Receiver<Order>,
    clients: HashMap<RequestId, Client>,
    queued: usize,
    state: Arc<State>,
}

impl<E: Executor> Worker<E> {
    fn run(mut self) {
        let mut progress = Progress::Idle;
        loop {
            self.publish(progress);
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

    /// Writes down what others may want to know.
    fn publish(&self, progress: Progress) {
        let scheduler = self.engine.scheduler();
        self.state.metrics.load(scheduler);
        if progress != Progress::Waiting {
            self.state.is_busy.store(progress == Progress::Worked, Ordering::Release);
            self.state.round_ms.store(self.state.started.elapsed().as_millis() as u64, Ordering::Release);
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

    /// Does what is asked for. A client that has gone away has dropped its end of the answer, and misses nothing.
    fn take(&mut self, order: Order) {
        match order {
            Order::Submit { requests, rid, reply } => {
                let answer = self.submit(requests, &rid);
                let _ = reply.send(answer);
            }
            Order::Abort { whom, reply } => {
                let count = self.abort(&whom);
                self.deliver();
                if let Some(reply) = reply {
                    let _ = reply.send(count);
                }
            }
            Order::Flush { reply } => {
                let _ = reply.send(self.engine.flush());
            }
        }
    }

    fn submit(&mut self, requests: Vec<Request>, rid: &str) -> Result<Taken, Turned> {
        let waiting = self.engine.scheduler().waiting();
        if waiting.saturating_add(requests.len()) > self.queued.max(requests.len()) {
            self.state.metrics.turned_away();
            return Err(Turned::Full(waiting));
        }
        // One that is refused leaves none of the others behind.
        let ids = self.engine.submit_all(requests).map_err(Turned::Refused)?;
        let (events, receiver) = unbounded_channel();
        let (rid, since): (Arc<str>, _) = (rid.into(), Instant::now());
        for (index, id) in ids.iter().enumerate() {
            self.clients.insert(*id, Client { events: events.clone(), index, rid: rid.clone(), since, last: None });
        }
        Ok(Taken { ids, events: receiver })
    }

    /// Gives requests up; returns how many.
    fn abort(&mut self, whom: &Whom) -> usize {
        let is_meant = |id: &RequestId, client: &Client| match whom {
            Whom::All => true,
            Whom::Named(rid) => *client.rid == **rid,
            Whom::One(one) => id == one,
        };
        let meant: Vec<RequestId> = self.clients.iter().filter(|(id, c)| is_meant(id, c)).map(|(id, _)| *id).collect();
        meant.iter().for_each(|id| self.engine.abort(*id));
        meant.len()
    }

    fn abort_abandoned(&mut self) {
        let abandoned: Vec<RequestId> =
            self.clients.iter().filter(|(_, c)| c.events.is_closed()).map(|(id, _)| *id).collect();
        for id in abandoned {
            self.engine.abort(id);
        }
    }

    fn fail_all(&mut self) {
        self.engine.recover(BROKE_OFF);
        for (request, client) in std::mem::take(&mut self.clients) {
            self.engine.abort(request);
            let reason = FinishReason::Error(BROKE_OFF.into());
            let _ = client.events.send((client.index, Event::Finished { request, reason, usage: Usage::default() }));
        }
    }

    fn deliver(&mut self) {
        for event in self.engine.take_events() {
            let id = event.request();
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let now = Instant::now();
            match &event {
                Event::Started { .. } => self.state.metrics.left_queue(now - client.since),
                Event::Scored { .. } => {}
                Event::Token { .. } => {
                    self.state.metrics.token(client.since, client.last.replace(now), now);
                }
                Event::Finished { reason, usage, .. } => {
                    self.state.metrics.finished(client.since, now, reason, usage);
                }
            }
            let is_last = matches!(event, Event::Finished { .. });
            let _ = client.events.send((client.index, event));
            if is_last {
                self.clients.remove(&id);
            }
        }
    }
}
