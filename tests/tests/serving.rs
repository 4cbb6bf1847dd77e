//! The engine over the trained example model: a request's tokens are the same bits alone, in company, in chunks, behind a
//! cached prefix from the device or from the host, and after it had to give its pages back.

use device::checkpoint::{Checkpoint, LoadOptions};
use device::{ExecutorKind, Weights, load_shared};
use engine::{
    Engine, Event, Executor, FinishReason, HostPage, HostTier, Limits, MemoryTier, Policy, Progress, Request,
    RequestId, Sampling, TierError, Transfer,
};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use suites::{Programs, nano};

const REQUESTS: u64 = 200;
const LONGEST: usize = 96;

/// A number below `end` by its name.
fn draw(name: &str, i: u64, end: usize) -> usize {
    (numerics::hash_name(&format!("{name} {i}")) % end as u64) as usize
}

/// Mixed requests: four families that share beginnings, greedy and drawn, some with penalties.
fn requests(vocab: usize) -> Vec<Request> {
    let of = |i: u64| {
        let family = draw("family", i, 4) as u64;
        let shared = draw("shared", i, LONGEST - 40);
        let own = 1 + draw("own", i, 24);
        let mut prompt: Vec<u32> =
            (0..shared as u64).map(|at| draw("base", family * 1000 + at, vocab) as u32).collect();
        prompt.extend((0..own as u64).map(|at| draw("tail", i * 1000 + at, vocab) as u32));
        let temperature = [0.0, 0.0, 0.7, 1.2][draw("temperature", i, 4)];
        let presence_penalty = [0.0, 0.0, 0.5][draw("penalty", i, 3)];
        let sampling = Sampling { temperature, presence_penalty, top_p: 0.95, seed: i, ..Sampling::default() };
        // Only the policy that looks at it makes anything of it.
        let priority = draw("priority", i, 3) as i32;
        Request { prompt, max_tokens: Some(1 + draw("answer", i, 12)), sampling, priority, ..Request::default() }
    };
    (0..REQUESTS).map(of).collect()
}

struct Model {
    artifact: artifact::Artifact,
    weights: Weights,
}

impl Model {
    fn load() -> Model {
        let work = tempfile::tempdir().expect("folder");
        let dir = Programs::built().compile(&nano(), "cpu", work.path());
        let artifact = artifact::Artifact::load(&dir).expect("artifact");
        let checkpoint = Checkpoint::open(&nano()).expect("checkpoint");
        let weights =
            Weights::load(&artifact.recipes, &checkpoint, &LoadOptions::default(), &mut |_| ()).expect("weights");
        Model { artifact, weights }
    }

    /// An engine with memory for so many sequences of the longest kind.
    fn engine(&self, sequences: usize, limits: Limits) -> Engine<Box<dyn Executor>> {
        let pages = device::pool_pages_for(&self.artifact.plan, LONGEST, sequences);
        let executor = load_shared(&self.artifact, &self.weights, ExecutorKind::Cpu, &pages).expect("executor");
        assert!(executor.facts().shared_bytes.is_some(), "both kinds draw from one memory");
        Engine::new(executor, Limits { context_tokens: Some(LONGEST), ..limits }).expect("engine")
    }
}

/// Tokens by request; those that are given up on the way are not among them.
#[derive(Default)]
struct Answers {
    tokens: BTreeMap<RequestId, Vec<u32>>,
    cached_tokens: BTreeMap<RequestId, usize>,
}

impl Answers {
    fn take(&mut self, engine: &mut Engine<Box<dyn Executor>>) {
        for event in engine.take_events() {
            match event {
                Event::Token { request, token, .. } => self.tokens.entry(request).or_default().push(token.id),
                Event::Started { request, cached_tokens } => drop(self.cached_tokens.insert(request, cached_tokens)),
                Event::Finished { reason, .. } => {
                    assert!(matches!(reason, FinishReason::Length | FinishReason::Aborted))
                }
                Event::Scored { .. } => {}
            }
        }
    }
}

/// Submits everything, `apart` steps between two, and runs to the end. Books are checked on the way.
fn run(engine: &mut Engine<Box<dyn Executor>>, apart: usize) -> (Vec<Vec<u32>>, usize) {
    let mut answers = Answers::default();
    let mut ids = Vec::new();
    for (i, request) in requests(engine.vocab()).into_iter().enumerate() {
        // Some come and leave again, in the middle of whatever they do.
        let leaver = Request { prompt: request.prompt.clone(), max_tokens: Some(9), ..Request::default() };
        ids.push(engine.submit(request).expect("a request that fits"));
        if apart > 0 && i % 7 == 0 {
            let id = engine.submit(leaver).expect("a request that fits");
            (0..i % 3).for_each(|_| _ = engine.step());
            engine.abort(id);
        }
        (0..apart).for_each(|_| _ = engine.step());
        answers.take(engine);
    }
    while engine.step() != Progress::Idle {
        answers.take(engine);
    }
    answers.take(engine);
    assert_eq!(engine.check_books(), Ok(()));
    let tokens = ids.iter().map(|id| answers.tokens.remove(id).unwrap_or_default()).collect();
    (tokens, ids.iter().filter_map(|id| answers.cached_tokens.get(id)).sum())
}

/// Copies that come in no hurry: the second question for a layer is answered, or the first if a step waits for it.
#[derive(Debug)]
struct Late {
    inner: MemoryTier,
    asked: HashSet<(HostPage, usize)>,
    /// Layers that steps have waited for.
    inside: Arc<AtomicU64>,
}

impl Late {
    fn new(bytes: u64) -> (Arc<AtomicU64>, Late) {
        let inside = Arc::new(AtomicU64::new(0));
        (inside.clone(), Late { inner: MemoryTier::new(bytes), asked: HashSet::new(), inside })
    }
}

impl HostTier for Late {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> Result<Transfer, TierError> {
        self.inner.write(page, layer, bytes)
    }

    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError> {
        if self.asked.insert((page, layer)) {
            return Ok(Transfer::Later);
        }
        self.asked.remove(&(page, layer));
        self.inner.read(page, layer, out)
    }

    fn read_now(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<u64, TierError> {
        self.asked.remove(&(page, layer));
        self.inside.fetch_add(1, Ordering::Relaxed);
        self.inner.read(page, layer, out).map(|_| 0)
    }

    fn forget(&mut self, page: HostPage) {
        self.asked.retain(|(other, _)| *other != page);
        self.inner.forget(page);
    }
}

#[test]
fn tokens_do_not_depend_on_company_chunks_caches_or_preemption() {
    let model = Model::load();
    let limits = |running: usize, step_tokens: Option<usize>, keeps_prefixes: bool| Limits {
        running,
        step_tokens,
        keeps_prefixes,
        ..Limits::default()
    };
    let (alone, cached) = run(&mut model.engine(1, limits(1, None, false)), 0);
    assert_eq!((alone.len(), cached), (REQUESTS as usize, 0));
    assert!(alone.iter().all(|tokens| !tokens.is_empty()));
    let batched = run(&mut model.engine(8, limits(8, None, false)), 0);
    assert!(batched == (alone.clone(), 0), "batched");
    for chunk in [8, 13, 32] {
        let (chunked, _) = run(&mut model.engine(8, limits(8, Some(chunk), false)), 0);
        assert!(chunked == alone, "chunks of {chunk}");
    }
    // Joining and leaving, with prefixes kept; then the same again, when all of it is known.
    let mut engine = model.engine(REQUESTS as usize, limits(6, Some(24), true));
    let (joined, first) = run(&mut engine, 2);
    assert!(joined == alone, "joining and leaving");
    let (again, second) = run(&mut engine, 0);
    assert!(again == alone && second > first && first > 0, "prefixes from the device: {first} and {second}");
    // Memory for little more than one request: pages are taken away, and prefixes come from the host.
    let mut engine = model.engine(2, limits(6, Some(24), true)).with_host_tier(Box::new(MemoryTier::new(64 << 20)));
    let (famine, _) = run(&mut engine, 1);
    assert!(famine == alone, "famine");
    let (hosted, _) = run(&mut engine, 0);
    assert!(hosted == alone, "prefixes from the host");
    let scheduler = engine.scheduler();
    assert!(scheduler.kv().host_use().loaded_pages > 0 && scheduler.kv().evicted_pages() > 0);
    // The same from a tier that is late, so that steps begin before the prefixes of their rows are whole.
    let (inside, tier) = Late::new(64 << 20);
    let mut engine = model.engine(2, limits(6, Some(24), true)).with_host_tier(Box::new(tier));
    let (famine, _) = run(&mut engine, 1);
    let (hosted, _) = run(&mut engine, 0);
    assert!(famine == alone && hosted == alone, "layers from the host inside a step");
    let joined = engine.scheduler().counts().joined;
    assert!(joined > 0 && inside.load(Ordering::Relaxed) > joined, "{joined}");
    // Whoever comes later and is worth more takes a place and its pages.
    let mut engine = model.engine(1, Limits { policy: Policy::Priority, ..limits(6, Some(16), true) });
    let (preempted, _) = run(&mut engine, 3);
    assert!(preempted == alone && engine.scheduler().counts().preempted > 0, "preemption");
}
