//! The engine's thread and the door to it: requests in, one channel of events out for each client.

use crate::door::{Door, Load, Turned};
use crate::log::{Log, seconds};
use crate::metrics::{Metrics, Stage};
use crate::rate::Rate;
use crate::writer::{Outlet, Writers};
use engine::{Engine, Event, Executor, FinishReason, Progress, Request, RequestId, Usage};
use serde_json::json;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// How long the thread looks for new requests while a device computes: at least, at most, and by how much of the time that
/// it has computed already. Short steps are noticed soon, and long ones cost few looks.
const POLL: Duration = Duration::from_micros(50);
const LONGEST_POLL: Duration = Duration::from_millis(1);
const POLLS: u32 = 32;
/// How often whoever waits looks whether the engine is stuck while it becomes so.
const LOOKS: u32 = 64;
/// Most events that are handed over at once.
const BATCH: usize = 256;
/// What requests are told whose step broke off.
const BROKE_OFF: &str = "E0307: the executor broke off; this is a defect of the server, report it with the request";

/// What the engine's thread is asked for.
enum Order {
    /// Several continuations for one client, all of them or none.
    Submit { asked: Asked, reply: oneshot::Sender<Result<Taken, Turned>> },
    /// Gives requests up; the answer is how many.
    Abort { whom: Whom, reply: oneshot::Sender<usize> },
    /// Ends a request that has said all its client wants, such as one that came to a stop string.
    Enough { id: RequestId },
    /// Forgets what is kept of finished requests; false while some are unfinished.
    Flush { reply: oneshot::Sender<bool> },
    /// Ends the thread, and with it what the engine keeps outside of memory.
    End,
}

/// Requests that come together.
struct Asked {
    requests: Vec<Request>,
    rid: String,
    /// Whether they only look whether the engine works: a full queue takes them as well.
    is_probe: bool,
}

impl Asked {
    /// How many places it takes in the queue.
    fn places(&self) -> usize {
        if self.is_probe { 0 } else { self.requests.len() }
    }
}

/// Requests that were taken: their names in the engine, and where their events come out.
struct Taken {
    ids: Vec<RequestId>,
    group: Arc<Group>,
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

/// A running engine. Clones share it; its thread ends when the last is gone and every request is finished.
#[derive(Clone)]
pub struct Service {
    orders: Sender<Order>,
    state: Arc<State>,
    limit_tokens: usize,
    vocab: usize,
    most_running: usize,
    door: Door,
}

/// What is known of the thread from outside.
struct State {
    is_alive: AtomicBool,
    is_busy: AtomicBool,
    started: Instant,
    /// When the thread last went round, in milliseconds after `started`.
    round_ms: AtomicU64,
    /// How many found no room in the last step.
    stalled: AtomicUsize,
    /// Answers that were asked for since the load was published.
    on_their_way: AtomicUsize,
    metrics: Metrics,
    log: Option<Log>,
}

impl State {
    /// A request finds no place, or has waited too long; its name, where it is known.
    fn turned_away(&self, rid: Option<&str>, why: &str) {
        self.metrics.turned_away();
        if let Some(log) = &self.log {
            log.write("rejected", json!({"rid": rid, "reason": why, "num_queue_reqs": self.metrics.queued()}));
        }
    }
}

impl Service {
    /// Moves an engine to a thread of its own.
    pub fn start<E: Executor + 'static>(engine: Engine<E>) -> std::io::Result<Service> {
        Service::behind(engine, Door::default())
    }

    /// The same behind a door of its own.
    pub fn behind<E: Executor + 'static>(engine: Engine<E>, door: Door) -> std::io::Result<Service> {
        Service::logged(engine, door, None)
    }

    /// The same with a log of what it does.
    pub fn logged<E: Executor + 'static>(
        mut engine: Engine<E>,
        door: Door,
        log: Option<Log>,
    ) -> std::io::Result<Service> {
        let (orders, inbox) = channel();
        let state = Arc::new(State {
            is_alive: AtomicBool::new(true),
            is_busy: AtomicBool::new(false),
            started: Instant::now(),
            round_ms: AtomicU64::new(0),
            stalled: AtomicUsize::new(0),
            on_their_way: AtomicUsize::new(0),
            metrics: Metrics::default(),
            log,
        });
        let (limit_tokens, vocab) = (engine.limit_tokens(), engine.vocab());
        let most_running = engine.scheduler().most_running();
        let (alive, writers) = (Alive(state.clone()), Writers::start(door.pause)?);
        let own = door.clone();
        std::thread::Builder::new().name("engine".into()).spawn(move || {
            let state = alive.0.clone();
            let _alive = alive;
            let (events, clients, names, arrivals, taken) = Default::default();
            let (rate, took) = Default::default();
            engine.set_clock(nanoseconds);
            Worker { engine, inbox, events, clients, names, arrivals, taken, door: own, state, rate, writers, took }
                .run();
        })?;
        Ok(Service { orders, state, limit_tokens, vocab, most_running, door })
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

    /// Ends the thread and waits for it, but not longer than that: an engine that is stuck hears nothing.
    pub fn end(&self, within: Duration) {
        let end = Instant::now() + within;
        if self.orders.send(Order::End).is_ok() {
            while self.is_alive() && Instant::now() < end {
                std::thread::sleep(POLL);
            }
        }
    }

    /// Whether the engine has work and makes no progress: a step that does not come back shows once [`Door::stuck`] is over.
    pub fn is_stuck(&self) -> bool {
        let now_ms = self.state.started.elapsed().as_millis() as u64;
        let last_ms = self.state.round_ms.load(Ordering::Acquire);
        self.state.is_busy.load(Ordering::Acquire)
            && now_ms.saturating_sub(last_ms) > self.door.stuck.as_millis() as u64
    }

    /// Whether one more answer finds a place; what runs and waits, if not. The request is then turned away, by its name where
    /// that is known.
    pub(crate) fn admits(&self, rid: Option<&str>) -> Result<(), Load> {
        let metrics = &self.state.metrics;
        let on_their_way = self.state.on_their_way.load(Ordering::Acquire);
        let load = Load { running: metrics.running(), waiting: metrics.queued() + on_their_way };
        let stalled = self.state.stalled.load(Ordering::Acquire);
        if self.door.admits(load, stalled, 1, self.most_running) {
            return Ok(());
        }
        self.state.turned_away(rid, "full");
        Err(load)
    }

    /// Most answers that can be under way together.
    pub(crate) fn most_answers(&self) -> Load {
        self.door.most_answers(self.most_running)
    }

    /// Counts and times of this server.
    pub fn metrics(&self) -> &Metrics {
        &self.state.metrics
    }

    /// Queues continuations for one client under a name: all of them, or none. Where waiting has a limit, this waits with
    /// them until the first has started.
    pub(crate) async fn submit(&self, requests: Vec<Request>, rid: String) -> Result<Generation, Turned> {
        self.ask(Asked { requests, rid, is_probe: false }).await
    }

    /// The same for one request that looks whether the engine works; it is taken where the queue is full, too.
    pub(crate) async fn probe(&self, request: Request, rid: String) -> Result<Generation, Turned> {
        self.ask(Asked { requests: vec![request], rid, is_probe: true }).await
    }

    async fn ask(&self, asked: Asked) -> Result<Generation, Turned> {
        let (reply, answer) = oneshot::channel();
        // Before it is sent, so that it is never taken off first.
        self.state.on_their_way.fetch_add(asked.places(), Ordering::AcqRel);
        self.orders.send(Order::Submit { asked, reply }).map_err(|_| Turned::Stopped)?;
        let answer = self.unless_stuck(answer).await.ok_or(Turned::Stuck)?;
        let Taken { ids, group, events } = answer.unwrap_or(Err(Turned::Stopped))?;
        let (first, orders) = (Vec::new(), self.orders.clone());
        let mut generation = Generation { events, first, ids, orders, group: group.clone() };
        let Some(wait) = self.door.wait else { return Ok(generation) };
        let first = self.unless_stuck(generation.next()).await.ok_or(Turned::Stuck)?;
        generation.first = first.ok_or(Turned::Stopped)?;
        if group.is_late.load(Ordering::Acquire) { Err(Turned::Late(wait)) } else { Ok(generation) }
    }

    /// Gives requests up; returns how many, or nothing if the engine does not answer.
    pub(crate) async fn abort(&self, whom: Whom) -> Option<usize> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Abort { whom, reply }).ok()?;
        self.answered(answer).await
    }

    /// Forgets what is kept of finished requests; false while some are unfinished, nothing if the engine does not answer.
    pub(crate) async fn flush(&self) -> Option<bool> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Flush { reply }).ok()?;
        self.answered(answer).await
    }

    /// The answer of the engine's thread, which comes between two steps.
    async fn answered<T>(&self, answer: oneshot::Receiver<T>) -> Option<T> {
        self.unless_stuck(answer).await?.ok()
    }

    /// Waits until the engine is found stuck, however long that step has taken already when the waiting begins.
    async fn unless_stuck<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let pause = (self.door.stuck / LOOKS).max(Duration::from_millis(1));
        let mut answer = pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return Some(answer),
                () = tokio::time::sleep(pause) => {}
            }
            if self.is_stuck() {
                return None;
            }
        }
    }
}

/// The events of one client's requests. Dropping it aborts them before their next step.
pub(crate) struct Generation {
    events: UnboundedReceiver<(usize, Event)>,
    /// Events that were looked at already.
    first: Vec<(usize, Event)>,
    ids: Vec<RequestId>,
    orders: Sender<Order>,
    group: Arc<Group>,
}

/// The engine is gone, and nothing comes any more.
pub(crate) struct Gone;

impl Generation {
    /// What has happened since the last call, at least one event, each with the index of its request; `None` after the
    /// last, or if the engine is gone.
    pub async fn next(&mut self) -> Option<Vec<(usize, Event)>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The same; the task is woken when there is more.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<(usize, Event)>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut self.first)));
        }
        let mut batch = Vec::new();
        let count = ready!(self.events.poll_recv_many(context, &mut batch, BATCH));
        Poll::Ready((count > 0).then_some(batch))
    }

    /// Appends what is there already, possibly nothing; nobody is woken for more.
    pub fn next_now(&mut self, batch: &mut Vec<(usize, Event)>) -> Result<(), Gone> {
        batch.append(&mut self.first);
        while batch.len() < BATCH {
            match self.events.try_recv() {
                Ok(event) => batch.push(event),
                Err(TryRecvError::Disconnected) if batch.is_empty() => return Err(Gone),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Whoever says what happens wants to be called after steps that leave something, once the channel was looked at.
    pub fn tell(&self, outlet: Weak<dyn Outlet>) {
        let _ = self.group.outlet.set(outlet);
        fence(Ordering::SeqCst);
    }

    /// Names of the requests in the engine.
    pub fn ids(&self) -> &[RequestId] {
        &self.ids
    }

    /// Ends one of the requests, which has said enough. Its last event still comes.
    pub fn stop(&self, index: usize) {
        if let Some(id) = self.ids.get(index) {
            // An engine that is gone has stopped already.
            let _ = self.orders.send(Order::Enough { id: *id });
        }
    }
}

/// Name of one of several requests that were submitted under a name: by it that one alone can be given up.
pub(crate) fn name_of(rid: &str, index: usize) -> String {
    format!("{rid}_{index}")
}

/// The clock that the engine's durations are measured with.
fn nanoseconds() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGAN.elapsed().as_nanos() as u64
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
    group: Arc<Group>,
    /// When it left the queue, and when its first and its last token came.
    left: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
    /// It has said enough.
    is_enough: bool,
}

impl Client {
    /// Counts what has happened to it.
    fn note(&mut self, event: &Event, begun: Instant, now: Instant, state: &State) {
        let (since, metrics) = (self.group.since, &state.metrics);
        match event {
            Event::Started { .. } => {
                self.left = Some(begun);
                metrics.left_queue(begun - since);
            }
            Event::Scored { .. } => {}
            Event::Token { .. } => {
                if self.first.is_none() {
                    self.first = Some(now);
                    metrics.stage(Stage::Prompt, now - self.left.unwrap_or(since));
                }
                metrics.token(since, self.last.replace(now), now);
            }
            Event::Finished { reason, usage, .. } => {
                let is_given_up = *reason == FinishReason::Aborted && !self.is_enough;
                metrics.finished(since, now, is_given_up, usage);
                if let Some(first) = self.first {
                    metrics.stage(Stage::Answer, now - first);
                }
                if let Some(log) = &state.log {
                    log.write("request", self.fields(now, reason, usage));
                }
            }
        }
    }

    /// What the log says of a request that is over.
    fn fields(&self, now: Instant, reason: &FinishReason, usage: &Usage) -> serde_json::Value {
        let since = self.group.since;
        let (word, error) = match reason {
            FinishReason::Stop(_) => ("stop", None),
            FinishReason::Length => ("length", None),
            FinishReason::Aborted if self.is_enough => ("stop", None),
            FinishReason::Aborted => ("abort", None),
            FinishReason::Error(text) => ("error", Some(text)),
        };
        json!({
            "rid": self.group.rid,
            "choice": self.index,
            "finish_reason": word,
            "error": error,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
            "queue_time_seconds": self.left.map(|left| seconds(left - since)),
            "time_to_first_token_seconds": self.first.map(|first| seconds(first - since)),
            "e2e_request_latency_seconds": seconds(now - since),
        })
    }
}

/// What was submitted together.
struct Group {
    rid: String,
    /// Whether each of its requests has a name besides.
    is_several: bool,
    /// Whether it only looks whether the engine works: nobody counts it.
    is_probe: bool,
    since: Instant,
    /// One of its requests has left the queue.
    has_started: AtomicBool,
    /// None has, and it was turned away for that.
    is_late: AtomicBool,
    /// Who is called after steps that leave something for it.
    outlet: OnceLock<Weak<dyn Outlet>>,
    /// Differs from group to group.
    number: u64,
}

impl Group {
    /// Who is called, if anybody is. An event that was sent before is seen by whoever comes in between.
    fn outlet(&self) -> Option<Arc<dyn Outlet>> {
        if self.outlet.get().is_none() {
            fence(Ordering::SeqCst);
        }
        self.outlet.get()?.upgrade()
    }
}

struct Worker<E: Executor> {
    engine: Engine<E>,
    inbox: Receiver<Order>,
    /// Memory for what a step leaves.
    events: Vec<Event>,
    clients: HashMap<RequestId, Client>,
    /// Names of unfinished requests, and how many have each.
    names: HashMap<String, usize>,
    /// What has come, in order, where waiting has a limit.
    arrivals: VecDeque<Arc<Group>>,
    /// Answers that were asked for, and have been heard of, since the load was published.
    taken: usize,
    door: Door,
    state: Arc<State>,
    rate: Rate,
    writers: Writers,
    /// Memory for what evictions and loads took.
    took: [Vec<u64>; 2],
}

impl<E: Executor> Drop for Worker<E> {
    /// Streams that are called hear that nothing comes any more.
    fn drop(&mut self) {
        let groups: Vec<Arc<Group>> = std::mem::take(&mut self.clients).into_values().map(|c| c.group).collect();
        for group in groups {
            if let Some(outlet) = group.outlet() {
                self.writers.call(outlet, group.number, false);
            }
        }
        self.writers.go(None);
    }
}

impl<E: Executor> Worker<E> {
    fn run(mut self) {
        let (mut progress, mut since) = (Progress::Idle, Instant::now());
        loop {
            self.publish(progress);
            if progress != Progress::Waiting {
                since = Instant::now();
            }
            if !self.take_orders(progress, (since.elapsed() / POLLS).clamp(POLL, LONGEST_POLL)) {
                return;
            }
            // Before a step begins; looking at every client is too much for each look at the device.
            if progress != Progress::Waiting {
                self.abort_abandoned();
            }
            self.turn_late_away();
            self.begin_step(progress);
            let begun = Instant::now();
            // A defect in an executor costs the requests of that step, not the server.
            let step = catch_unwind(AssertUnwindSafe(|| self.engine.step()));
            progress = step.unwrap_or_else(|_| {
                self.fail_all();
                Progress::Worked
            });
            self.deliver(begun);
        }
    }

    /// Writes down what others may want to know.
    fn publish(&mut self, progress: Progress) {
        self.state.stalled.store(self.engine.scheduler().passed_over(), Ordering::Release);
        let (metrics, is_idle, now) = (&self.state.metrics, progress == Progress::Idle, Instant::now());
        metrics.load(self.engine.scheduler());
        self.state.on_their_way.fetch_sub(std::mem::take(&mut self.taken), Ordering::AcqRel);
        let [evictions, loads] = &mut self.took;
        self.engine.take_durations(evictions, loads);
        metrics.durations(evictions, loads);
        let is_due = self.rate.look(now, metrics.generated(), !is_idle);
        metrics.rate(self.rate.per_second());
        if let (Some(log), true) = (&self.state.log, is_due) {
            log.write("load", metrics.load_fields());
        }
        if is_idle {
            metrics.rate(0.0);
            metrics.rests(now);
            self.state.is_busy.store(false, Ordering::Release);
        }
    }

    /// Writes down when a step begins, before it does: it may never come back.
    fn begin_step(&self, progress: Progress) {
        if progress != Progress::Waiting {
            self.state.round_ms.store(self.state.started.elapsed().as_millis() as u64, Ordering::Release);
        }
        self.state.is_busy.store(true, Ordering::Release);
    }

    /// Takes what has arrived; waits for it when there is nothing else to do. False when nobody is left.
    fn take_orders(&mut self, progress: Progress, poll: Duration) -> bool {
        let first = match progress {
            Progress::Idle => {
                self.writers.go(None);
                let Ok(order) = self.inbox.recv() else { return false };
                let (now, metrics) = (Instant::now(), &self.state.metrics);
                metrics.wakes(now);
                self.rate.look(now, metrics.generated(), true);
                Some(order)
            }
            // What comes meanwhile is for the step after this one.
            Progress::Waiting => {
                self.engine.executor_mut().wait_for_step(poll);
                None
            }
            Progress::Worked => None,
        };
        if first.is_some_and(|order| !self.take(order)) {
            return false;
        }
        while let Ok(order) = self.inbox.try_recv() {
            if !self.take(order) {
                return false;
            }
        }
        true
    }

    /// Does what is asked for; false where that is to end. A client that has gone away has dropped its end of the answer, and
    /// misses nothing.
    fn take(&mut self, order: Order) -> bool {
        match order {
            Order::End => return false,
            Order::Submit { asked, reply } => {
                let places = asked.places();
                let answer = self.submit(asked);
                // Those that are taken count on until they are published; who is turned away may come again at once.
                match &answer {
                    Ok(_) => self.taken += places,
                    Err(_) => drop(self.state.on_their_way.fetch_sub(places, Ordering::AcqRel)),
                }
                let _ = reply.send(answer);
            }
            Order::Abort { whom, reply } => {
                let count = self.abort(&whom);
                self.deliver(Instant::now());
                let _ = reply.send(count);
            }
            Order::Enough { id } => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.is_enough = true;
                    self.engine.abort(id);
                    // Its name is free for what its client sends next.
                    self.deliver(Instant::now());
                }
            }
            Order::Flush { reply } => {
                let _ = reply.send(self.engine.flush());
            }
        }
        true
    }

    fn submit(&mut self, asked: Asked) -> Result<Taken, Turned> {
        let Asked { requests, rid, is_probe } = asked;
        if let Some(taken) = self.taken(&rid, requests.len()) {
            return Err(Turned::Named(taken));
        }
        let (scheduler, all) = (self.engine.scheduler(), requests.len());
        let load = Load { running: scheduler.running(), waiting: scheduler.waiting() };
        let most = self.door.most_answers(scheduler.most_running());
        if all > most.all() {
            return Err(Turned::TooMany(all, most));
        }
        if !is_probe && !self.door.admits(load, scheduler.passed_over(), all, most.running) {
            self.state.turned_away(Some(&rid), "full");
            return Err(Turned::Full(all, load));
        }
        // One that is refused leaves none of the others behind.
        let ids = self.engine.submit_all(requests).map_err(Turned::Refused)?;
        let (events, receiver) = unbounded_channel();
        let (has_started, is_late) = Default::default();
        let is_several = ids.len() > 1;
        let since = Instant::now();
        let (outlet, number) = (OnceLock::new(), ids.first().map_or(0, |id| id.0));
        let group =
            Arc::new(Group { rid: rid.clone(), is_several, is_probe, since, has_started, is_late, outlet, number });
        for (index, id) in ids.iter().enumerate() {
            let (events, group) = (events.clone(), group.clone());
            self.clients
                .insert(*id, Client { events, index, group, left: None, first: None, last: None, is_enough: false });
        }
        if !ids.is_empty() {
            self.names.insert(rid, ids.len());
        }
        if self.door.wait.is_some() && !is_probe {
            self.arrivals.push_back(group.clone());
        }
        Ok(Taken { ids, group, events: receiver })
    }

    /// A request is finished: its name is free once all under it are.
    fn remove(&mut self, id: RequestId) -> Option<Client> {
        let client = self.clients.remove(&id)?;
        if let Entry::Occupied(mut count) = self.names.entry(client.group.rid.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(client)
    }

    /// The name of so many answers, or of one of them, that something has which is not finished.
    fn taken(&self, rid: &str, answers: usize) -> Option<String> {
        let is_answer = |base: &str, index: &str| {
            let is_so = |c: &Client| c.group.is_several && c.group.rid == base && c.index.to_string() == index;
            self.clients.values().any(is_so)
        };
        if self.names.contains_key(rid) || rid.rsplit_once('_').is_some_and(|(base, index)| is_answer(base, index)) {
            return Some(rid.to_owned());
        }
        let each = (0..if answers > 1 { answers } else { 0 }).map(|index| name_of(rid, index));
        each.into_iter().find(|name| self.names.contains_key(name))
    }

    /// Gives up what has waited too long.
    fn turn_late_away(&mut self) {
        let Some(wait) = self.door.wait else { return };
        while let Some(group) = self.arrivals.front() {
            let has_gone = group.has_started.load(Ordering::Acquire) || !self.names.contains_key(&group.rid);
            if !has_gone && group.since.elapsed() < wait {
                return;
            }
            let Some(group) = self.arrivals.pop_front() else { return };
            if has_gone {
                continue;
            }
            group.is_late.store(true, Ordering::Release);
            self.state.turned_away(Some(&group.rid), "late");
            let of_group = |(_, client): &(&RequestId, &Client)| Arc::ptr_eq(&client.group, &group);
            let late: Vec<RequestId> = self.clients.iter().filter(of_group).map(|(id, _)| *id).collect();
            late.iter().for_each(|id| self.engine.abort(*id));
        }
    }

    /// Gives requests up; returns how many.
    fn abort(&mut self, whom: &Whom) -> usize {
        let is_meant = |id: &RequestId, client: &Client| match whom {
            Whom::All => true,
            Whom::Named(rid) if self.names.contains_key(rid) => client.group.rid == *rid,
            Whom::Named(rid) => client.group.is_several && name_of(&client.group.rid, client.index) == *rid,
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
        self.names.clear();
        for (request, client) in std::mem::take(&mut self.clients) {
            self.engine.abort(request);
            let reason = FinishReason::Error(BROKE_OFF.into());
            let _ = client.events.send((client.index, Event::Finished { request, reason, usage: Usage::default() }));
            if let Some(outlet) = client.group.outlet() {
                self.writers.call(outlet, client.group.number, false);
            }
        }
    }

    /// Hands on what has happened. Requests that started did so when the step `begun`: an executor that computes at once has
    /// read the first of their prompts since.
    fn deliver(&mut self, begun: Instant) {
        let mut events = std::mem::take(&mut self.events);
        self.engine.drain_events(&mut events);
        // All of a step came at once.
        let now = Instant::now();
        for event in events.drain(..) {
            let id = event.request();
            let Some(client) = self.clients.get_mut(&id) else { continue };
            if matches!(event, Event::Started { .. }) {
                client.group.has_started.store(true, Ordering::Release);
            }
            let is_first = client.first.is_none();
            if !client.group.is_probe {
                client.note(&event, begun, now, &self.state);
            }
            let is_last = matches!(event, Event::Finished { .. });
            let can_wait = matches!(event, Event::Token { .. }) && !is_first;
            let _ = client.events.send((client.index, event));
            if let Some(outlet) = client.group.outlet() {
                self.writers.call(outlet, client.group.number, can_wait);
            }
            if is_last {
                self.remove(id);
            }
        }
        self.events = events;
        self.writers.go(Some(now));
    }
}
