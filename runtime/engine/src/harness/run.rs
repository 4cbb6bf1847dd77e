//! Running a script and checking everything on the way.

use super::script::{Action, Draw, Script, Setting};
use crate::sim::{Clock, Link, Sim, TimedTier};
use crate::toy::{INJECTED, Toy, hashed};
use crate::{
    DraftCosts, DraftLimits, Engine, Event, ExecutorFacts, FinishReason, HostPage, HostTier, Limits, Line, MemoryTier,
    Namespace, Progress, Request, RequestId, Sampling, Step, TierError, Transfer, sample,
};
use ir::{DType, KvLayout};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Ids of the toy's vocabulary; few, so that prompts meet.
const VOCAB: usize = 11;
/// A token that ends answers.
const STOP: u32 = 7;
/// Calls in which everything must come to rest once nothing new arrives.
const PATIENCE: usize = 200_000;
/// What a call of the engine takes, and what a step takes besides its rows, in nanoseconds of virtual time.
const CALL_NS: u64 = 10_000;
const STEP_NS: f64 = 5_000.0;

/// What a script did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Calls of [`Engine::step`].
    pub steps: u64,
    /// Requests that ended.
    pub requests: u64,
    /// Tokens of prompts that were cached.
    pub cached_tokens: u64,
    /// Times a request gave its pages back.
    pub preempted: u64,
    /// Requests that started as forks.
    pub forked: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Pages that moved to make room.
    pub moved: u64,
    /// Pages written to the host.
    pub backed_up: u64,
    /// Pages read from there.
    pub loaded: u64,
    /// Prefixes of which layers came while a step ran.
    pub joined: u64,
    /// Blocks verified.
    pub verified: u64,
    /// Drafts that stand.
    pub accepted: u64,
}

impl Outcome {
    /// Adds another script's.
    pub fn add(&mut self, other: &Outcome) {
        self.steps += other.steps;
        self.requests += other.requests;
        self.cached_tokens += other.cached_tokens;
        self.preempted += other.preempted;
        self.forked += other.forked;
        self.evicted += other.evicted;
        self.moved += other.moved;
        self.backed_up += other.backed_up;
        self.loaded += other.loaded;
        self.joined += other.joined;
        self.verified += other.verified;
        self.accepted += other.accepted;
    }
}

/// A host tier behind a link that is late and fails besides.
#[derive(Debug)]
struct Flaky {
    inner: TimedTier<MemoryTier>,
    draw: Draw,
    moods: Arc<[AtomicUsize; 2]>,
}

impl Flaky {
    fn mood(&mut self) -> Option<Result<Transfer, TierError>> {
        let [late, fails] = [0, 1].map(|i| self.moods[i].load(Ordering::Relaxed));
        if self.draw.below(100) < fails {
            return Some(Err(TierError("a failure that was asked for".into())));
        }
        (self.draw.below(10) < late).then_some(Ok(Transfer::Later))
    }
}

impl HostTier for Flaky {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> Result<Transfer, TierError> {
        match self.mood() {
            Some(mood) => mood,
            None => self.inner.write(page, layer, bytes),
        }
    }

    fn prefetch(&mut self, page: HostPage, layer: usize) -> bool {
        self.inner.prefetch(page, layer)
    }

    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError> {
        match self.mood() {
            Some(mood) => mood,
            None => self.inner.read(page, layer, out),
        }
    }

    fn read_now(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<u64, TierError> {
        match self.mood() {
            Some(Err(error)) => Err(error),
            _ => self.inner.read_now(page, layer, out),
        }
    }

    fn forget(&mut self, page: HostPage) {
        self.inner.forget(page);
    }
}

/// Executor facts of a setting. Kinds have pages of different sizes.
fn facts(s: &Setting) -> ExecutorFacts {
    let kinds = std::iter::once(None).chain(s.windows.iter().map(|w| Some(*w as u64)));
    let layout = |(i, window): (usize, Option<u64>)| KvLayout {
        kind: format!("kind {i}"),
        layers: (0..1 + i).collect(),
        lives_in: None,
        first: 0,
        dtype: DType::F32,
        page_tokens: s.page_tokens as u64,
        page_stride: [2, 5, 3][i.min(2)],
        layer_stride: 1,
        token_stride: 1,
        head_stride: 1,
        v_offset: 0,
        heads: 1,
        head_elements: 1,
        window,
    };
    let kv: Vec<KvLayout> = kinds.enumerate().map(layout).collect();
    let sizes: Vec<u64> = kv.iter().map(KvLayout::page_bytes).collect();
    let shared = (s.shared && kv.len() == 2).then(|| (s.pages as u64 + 1) * sizes[0] * 2);
    let pool_pages = match shared {
        Some(total) => sizes.iter().map(|size| (total / size) as usize).collect(),
        None => vec![s.pages + 1; kv.len()],
    };
    ExecutorFacts {
        vocab: VOCAB,
        max_tokens: s.step_tokens,
        max_sequences: 8,
        max_wanted: 8,
        kv,
        pool_pages,
        shared_bytes: shared,
        takes_choices: true,
        draft: None,
    }
}

/// What is known of a request.
struct Known {
    prompt: Vec<u32>,
    limit: usize,
    space: usize,
    answer: Vec<u32>,
    seed: u64,
    /// Of its tokens so far.
    hash: u64,
    talk: usize,
    has_started: bool,
    has_ended: bool,
}

struct Run {
    engine: Engine<Sim<Toy>>,
    /// Calls that a row of a step takes.
    slowness: Arc<AtomicU64>,
    moods: Arc<[AtomicUsize; 2]>,
    known: BTreeMap<RequestId, Known>,
    talks: Vec<Vec<u32>>,
    /// Prefixes that were computed, by namespace and weights.
    seen: HashSet<(usize, usize, u64)>,
    weights: usize,
    drawn: Draw,
    outcome: Outcome,
    page_tokens: usize,
    /// Of all requests: with drafts a draw depends on the blocks, so answers are greedy.
    temperature: f32,
}

/// Runs a script to its end.
pub fn run(script: &Script) -> Result<Outcome, String> {
    let s = &script.setting;
    let model = Box::new(|history: &[u32]| Ok(hashed(VOCAB, history)));
    let (slowness, clock) = (Arc::new(AtomicU64::new(0)), Clock::default());
    let slow = slowness.clone();
    // The shape of the cost model: something for the step, and something for each of its rows.
    let time =
        move |step: &Step| slow.load(Ordering::Relaxed) as f64 * (STEP_NS + 1e3 * step.tokens.len() as f64) / 1e9;
    let mut toy = Toy::new(facts(s), model);
    if s.draft_rows > 1 {
        toy = toy.with_drafter(Box::new(|history| Ok(hashed(VOCAB, history))), s.draft_rows, s.skill, 3);
    }
    let mut sim = Sim::new(toy, Box::new(time), clock.clone());
    sim.set_in_flight(s.in_flight);
    let each = s.row_cost as f64 / 100.0;
    let costs = (s.row_cost > 0).then(|| DraftCosts {
        forward: Line::new(vec![(1, 1.0), (101, 1.0 + 100.0 * each)]),
        draft: Line::new(vec![(1, 0.3)]),
    });
    let limits = Limits {
        running: s.running,
        policy: s.policy,
        most_passed: 4,
        keeps_prefixes: s.keeps,
        draft: DraftLimits { costs, ..DraftLimits::default() },
        ..Limits::default()
    };
    let mut engine = Engine::new(sim, limits)?;
    let moods: Arc<[AtomicUsize; 2]> = Arc::default();
    if s.host_pages > 0 {
        let link = Link { bytes_per_second: 1e6, seconds: s.link_us as f64 / 1e6, ahead_seconds: 0.0 };
        let inner = TimedTier::new(MemoryTier::new(s.host_pages as u64 * 8), clock, link);
        engine = engine.with_host_tier(Box::new(Flaky { inner, draw: Draw(script.seed), moods: moods.clone() }));
    }
    let mut run = Run {
        engine,
        slowness,
        moods,
        known: BTreeMap::new(),
        talks: vec![Vec::new(); 4],
        seen: HashSet::new(),
        weights: 0,
        drawn: Draw(script.seed ^ 1),
        outcome: Outcome::default(),
        page_tokens: s.page_tokens,
        temperature: if s.draft_rows > 1 { 0.0 } else { 0.7 },
    };
    for (i, action) in script.actions.iter().enumerate() {
        run.act(action).map_err(|e| format!("action {i}, {action:?}: {e}"))?;
    }
    run.finish()?;
    Ok(run.outcome)
}

impl Run {
    fn act(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Submit { .. } => return self.submit(action),
            Action::Abort(which) => {
                let open: Vec<RequestId> = self.known.iter().filter(|(_, k)| !k.has_ended).map(|(id, _)| *id).collect();
                if let Some(id) = open.get(which % open.len().max(1)) {
                    self.engine.abort(*id);
                    self.listen()?;
                    self.engine.check_books()?;
                }
            }
            Action::Steps(n) => {
                for _ in 0..*n {
                    if self.step()? == Progress::Idle {
                        break;
                    }
                }
            }
            Action::Delay(slowness) => self.slowness.store(*slowness as u64, Ordering::Relaxed),
            Action::Fail => self.engine.executor_mut().content_mut().fails_next = true,
            Action::Host(late, fails) => {
                self.moods[0].store(*late, Ordering::Relaxed);
                self.moods[1].store(*fails, Ordering::Relaxed);
            }
            Action::Flush => {
                self.engine.flush();
                self.engine.check_books()?;
            }
            Action::Weights => {
                if self.engine.next_weights() {
                    self.weights += 1;
                }
                self.engine.check_books()?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, action: &Action) -> Result<(), String> {
        let Action::Submit { talk, keep, more, answer, n, space, priority } = action else { return Ok(()) };
        let said = &self.talks[*talk];
        let mut prompt = said[..said.len() * keep / 1000].to_vec();
        prompt.extend((0..*more).map(|_| self.drawn.below(VOCAB - 4) as u32));
        let limit = self.engine.limit_tokens();
        // A prompt that is too long starts the conversation anew.
        if prompt.len() + answer > limit {
            prompt.drain(..(prompt.len() + answer - limit).min(prompt.len() - 1));
        }
        let answer = (*answer).min(limit - prompt.len());
        if answer == 0 {
            return Ok(());
        }
        let salt = (*space > 0).then(|| format!("{space}").into());
        let request = |seed| Request {
            prompt: prompt.clone(),
            max_tokens: Some(answer),
            stop: vec![STOP],
            sampling: sampling(self.temperature, seed, 0),
            namespace: Namespace { adapter: None, salt: salt.clone() },
            priority: *priority,
            ..Request::default()
        };
        let ids = self.engine.submit_all((0..*n as u64).map(request).collect()).map_err(|e| e.to_string())?;
        self.talks[*talk].clone_from(&prompt);
        for (seed, id) in ids.into_iter().enumerate() {
            let known = Known {
                seed: seed as u64,
                hash: 0,
                prompt: prompt.clone(),
                limit: answer,
                space: *space,
                answer: Vec::new(),
                talk: *talk,
                has_started: false,
                has_ended: false,
            };
            self.known.insert(id, known);
        }
        self.engine.check_books()
    }

    fn step(&mut self) -> Result<Progress, String> {
        let progress = self.engine.step();
        self.outcome.steps += 1;
        self.engine.executor().clock().advance_by(CALL_NS);
        self.listen()?;
        self.engine.check_books()?;
        Ok(progress)
    }

    fn listen(&mut self) -> Result<(), String> {
        for event in self.engine.take_events() {
            let id = event.request();
            let known = self.known.get_mut(&id).ok_or("an event of nobody")?;
            if known.has_ended {
                return Err(format!("request {} goes on after its end", id.0));
            }
            match event {
                Event::Started { cached_tokens, .. } => {
                    if std::mem::replace(&mut known.has_started, true) {
                        return Err(format!("request {} started twice", id.0));
                    }
                    if !cached_tokens.is_multiple_of(self.page_tokens) || cached_tokens >= known.prompt.len() {
                        return Err(format!("{cached_tokens} of {} tokens are cached", known.prompt.len()));
                    }
                    for (i, token) in known.prompt.iter().enumerate() {
                        let is_known = self.seen.contains(&(known.space, self.weights, mix(known.hash, *token)));
                        known.hash = mix(known.hash, *token);
                        if i < cached_tokens && !is_known {
                            return Err(format!("request {} has {cached_tokens} cached tokens from nowhere", id.0));
                        }
                        self.seen.insert((known.space, self.weights, known.hash));
                    }
                    self.outcome.cached_tokens += cached_tokens as u64;
                }
                Event::Token { token, .. } => {
                    known.answer.push(token.id);
                    known.hash = mix(known.hash, token.id);
                    self.seen.insert((known.space, self.weights, known.hash));
                }
                Event::Scored { .. } => return Err("nobody asked for scores".into()),
                Event::Finished { reason, usage, .. } => {
                    known.has_ended = true;
                    if usage.accepted_tokens > usage.drafted_tokens.min(usage.completion_tokens) {
                        return Err(format!("request {} has {usage:?}", id.0));
                    }
                    if usage.completion_tokens != known.answer.len() || usage.prompt_tokens != known.prompt.len() {
                        return Err(format!("request {} has {usage:?} and {} tokens", id.0, known.answer.len()));
                    }
                    check_answer(known, &reason, id, self.temperature)?;
                    let mut whole = known.prompt.clone();
                    whole.extend(&known.answer);
                    self.talks[known.talk] = whole;
                    self.outcome.requests += 1;
                }
            }
        }
        Ok(())
    }

    /// Nothing new arrives: everything ends, and everything can be given back.
    fn finish(&mut self) -> Result<(), String> {
        self.moods.iter().for_each(|m| m.store(0, Ordering::Relaxed));
        let mut rests = false;
        for _ in 0..PATIENCE {
            // Copies and steps are done at once from here on: what is looked for is an end, not its time.
            self.engine.executor().clock().advance_by(100 * CALL_NS);
            if self.step()? == Progress::Idle {
                rests = true;
                break;
            }
        }
        let scheduler = self.engine.scheduler();
        let (waiting, running) = (scheduler.waiting(), scheduler.running());
        if !rests || waiting + running > 0 || self.known.values().any(|k| !k.has_ended) {
            return Err(format!("no rest after {PATIENCE} steps: {waiting} wait, {running} run"));
        }
        let (kv, counts) = (scheduler.kv(), scheduler.counts());
        if kv.free_pages() != kv.total_pages() {
            return Err(format!("{} of {} pages can be had and nobody holds any", kv.free_pages(), kv.total_pages()));
        }
        self.outcome.preempted = counts.preempted;
        (self.outcome.forked, self.outcome.joined) = (counts.forked, counts.joined);
        self.outcome.evicted = kv.evicted_pages();
        self.outcome.moved = kv.pages().moved();
        self.outcome.backed_up = kv.host_use().backed_up_pages;
        self.outcome.loaded = kv.host_use().loaded_pages;
        let drafts = counts.draft;
        (self.outcome.verified, self.outcome.accepted) = (drafts.verified, drafts.accepted);
        if drafts.accepted > drafts.drafted || drafts.committed < drafts.accepted {
            return Err(format!("drafts do not add up: {drafts:?}"));
        }
        if !self.engine.flush() {
            return Err("a resting engine cannot be emptied".into());
        }
        self.engine.check_books()?;
        let kv = self.engine.scheduler().kv();
        let (held, (bytes, _), host) = (kv.pages().held_ids(), kv.pages().bytes(), kv.host_use().used_bytes);
        if (held, bytes, host) != (0, 0, 0) {
            return Err(format!("{held} pages, {bytes} bytes and {host} bytes on the host are held by nobody"));
        }
        Ok(())
    }
}

/// How tokens are drawn.
fn sampling(temperature: f32, seed: u64, position: u64) -> Sampling {
    Sampling { temperature, seed, position, ..Sampling::default() }
}

/// A hash of tokens, one by one.
fn mix(hash: u64, token: u32) -> u64 {
    (hash ^ (u64::from(token) + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31)
}

/// The answer is a beginning of what the model says alone, as long as its end says.
fn check_answer(known: &Known, reason: &FinishReason, id: RequestId, temperature: f32) -> Result<(), String> {
    let last_stops = known.answer.last() == Some(&STOP);
    let fits = match reason {
        FinishReason::Stop(token) => *token == STOP && last_stops,
        FinishReason::Length => known.answer.len() == known.limit && !last_stops,
        FinishReason::Aborted => !last_stops && known.answer.len() < known.limit,
        FinishReason::Error(text) => text.contains(INJECTED),
    };
    let mut history = known.prompt.clone();
    for (i, token) in known.answer.iter().enumerate() {
        let drawn = sample(&hashed(VOCAB, &history), &sampling(temperature, known.seed, history.len() as u64), None);
        if drawn.as_ref().map(|t| t.id) != Ok(*token) {
            return Err(format!("token {i} of request {} is {token}, alone it is {drawn:?}", id.0));
        }
        history.push(*token);
    }
    let stops = known.answer.iter().filter(|t| **t == STOP).count();
    if !fits || stops > usize::from(last_stops) || known.answer.len() > known.limit {
        return Err(format!("request {} ends with {reason:?} after {:?} of {}", id.0, known.answer, known.limit));
    }
    Ok(())
}
