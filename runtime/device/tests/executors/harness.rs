//! From a module built by hand to executors, and from token ids to logits.

use device::{CpuExecutor, InterpExecutor, Probe, Probed, TensorData, WeightStore, pool_pages_for};
use engine::{Executor, Sampling, SequenceRows, Step, StepOutput, WantedRow};
use ir::{DType, Facts, KernelModule, Module, Plan, Scope};
use std::sync::Arc;
use targets::Target;

/// Seeded weights of any model.
pub struct Seeded {
    pub facts: Facts,
    pub seed: u64,
}

impl WeightStore for Seeded {
    fn f32(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<Arc<Vec<f32>>> {
        let weight = self.facts.weight(scope, name)?;
        let key = numerics::hash_name(&format!("{name}/{layer:?}"));
        let scale = if weight.axes.len() > 1 { 0.7 } else { 1.0 };
        let mut data: Vec<f32> =
            (0..weight.elements()).map(|i| scale * numerics::synthetic(self.seed, key, i)).collect();
        match weight.dtype {
            DType::Bf16 => numerics::round_bf16_in_place(&mut data),
            DType::E4m3 => data.iter_mut().for_each(|x| *x = numerics::round_e4m3(*x)),
            DType::E5m2 => data.iter_mut().for_each(|x| *x = numerics::round_e5m2(*x)),
            DType::Nvfp4 => {
                let blocks = data.as_chunks_mut().0;
                blocks.iter_mut().for_each(|block| *block = numerics::Block::of(block, 1.0).values());
            }
            DType::F32 | DType::I32 | DType::Bool => {}
        }
        Some(Arc::new(data))
    }
}

/// A compiled model.
pub struct Compiled {
    pub kernels: KernelModule,
    pub plan: Plan,
    pub weights: Seeded,
}

/// Buckets that make small steps cross bucket borders.
const TARGET: &str = r#"
name = "test"
description = "small buckets"
arch = "cpu"
[kv]
page_tokens = 4
dtype = "act"
[[bucket]]
rows = "one"
tokens = 1
[[bucket]]
rows = "one"
tokens = 4
[[bucket]]
rows = "ragged"
tokens = 8
sequences = 4
wanted = 8
[[bucket]]
rows = "ragged"
tokens = 600
sequences = 4
wanted = 600
"#;

pub fn compile(module: &Module, seed: u64) -> Compiled {
    compile_caching(module, seed, "act")
}

/// The same with cached rows in that format.
pub fn compile_caching(module: &Module, seed: u64, rows: &str) -> Compiled {
    let text = TARGET.replace("dtype = \"act\"", &format!("dtype = \"{rows}\""));
    let target = Target::from_text(&text, "test.toml").expect("target");
    let kernels = passes::to_kernels(module, &passes::Compile::one_device(&target)).expect("kernel level");
    let plan = passes::plan(&kernels, &passes::Compile::one_device(&target)).expect("plan");
    Compiled { kernels, plan, weights: Seeded { facts: module.facts.clone(), seed } }
}

impl Compiled {
    pub fn pages(&self) -> Vec<usize> {
        pool_pages_for(&self.plan, 800, 4)
    }

    pub fn cpu(&self) -> CpuExecutor {
        CpuExecutor::new(&self.kernels, &self.plan, &self.weights, &self.pages()).expect("cpu executor")
    }

    pub fn interp(&self) -> InterpExecutor {
        InterpExecutor::new(&self.kernels, &self.plan, &self.weights, &self.pages()).expect("interp executor")
    }
}

/// Runs a prompt in one step on both executors; every named value, and the result, has the interpreter's bits. Calls `seen` with each
/// name.
pub fn same_values(model: &Compiled, prompt: &[i32], what: &str, mut seen: impl FnMut(&str)) {
    let (mut cpu, mut interp) = (model.cpu(), model.interp());
    let names = cpu.value_names();
    let probe = Probe { trace: names.clone(), ..Probe::default() };
    cpu.set_probe(probe.clone()).expect("existing names");
    interp.set_probe(probe).expect("existing names");
    let found = logits(&mut cpu, prompt, &[prompt.len()], 0);
    let truth = logits(&mut interp, prompt, &[prompt.len()], 0);
    let (of_cpu, of_interp) = (cpu.take_trace(), interp.take_trace());
    for name in &names {
        let (Some(a), Some(b)) = (of_cpu.get(name), of_interp.get(name)) else {
            panic!("{what}: {name} was not traced")
        };
        assert_eq!(a.shape, b.shape);
        let same = match (&a.data, &b.data) {
            (TensorData::F32(x), TensorData::F32(y)) => x.iter().zip(y).all(|(x, y)| numerics::same_bits(*x, *y)),
            (x, y) => x == y,
        };
        assert!(same, "{what}: {name} differs\n{a:?}\n{b:?}");
        seen(name);
    }
    assert_eq!(bits(&found), bits(&truth), "{what}");
}

/// Rows of one sequence in a step: its number, first position, tokens.
pub type Chunk<'a> = (usize, usize, &'a [i32]);

/// A step of some chunks; every row's logits are wanted. Sequence s has virtual pages s * 200 onward; `shuffle` decides where they
/// lie.
pub fn step(executor: &dyn Executor, chunks: &[Chunk<'_>], shuffle: usize) -> Step {
    let mut step = Step { entry: "forward".to_owned(), ..Step::default() };
    for (sequence, first, tokens) in chunks {
        let start = step.tokens.len();
        step.tokens.extend_from_slice(tokens);
        step.positions.extend((0..tokens.len()).map(|i| (first + i) as i32));
        let pages = Arc::new((0..200).map(|p| (sequence * 200 + p) as u32).collect());
        step.sequences.push(SequenceRows { start, len: tokens.len(), pages });
    }
    let facts = executor.facts();
    // A bijection of 1 ..= 800, since 800 and the multiplier share no factor.
    let place = |v: usize| if shuffle == 0 { v + 1 } else { (v * 7 + shuffle * 13) % 800 + 1 };
    let table: Arc<[i32]> = (0..800).map(|v| place(v) as i32).collect();
    step.translation = vec![table; facts.kv.len()];
    step.wanted = (0..step.tokens.len())
        .map(|row| WantedRow { row, sampling: Some(Sampling::default()), mask: None, logits: true })
        .collect();
    step
}

/// Runs a step and gives the wanted logits back.
pub fn run(executor: &mut dyn Executor, step: Step) -> Vec<Vec<f32>> {
    let output = output(executor, step);
    output.logits.into_iter().map(|l| l.expect("logits were asked for")).collect()
}

pub fn output(executor: &mut dyn Executor, step: Step) -> StepOutput {
    let ticket = executor.submit(step).expect("a step within the contract");
    executor.poll(ticket).expect("an answer").expect("an answer at once")
}

/// Logits of a whole sequence, fed in chunks of these lengths (the last one repeats).
pub fn logits(executor: &mut dyn Probed, tokens: &[i32], chunks: &[usize], shuffle: usize) -> Vec<Vec<f32>> {
    let mut out = Vec::new();
    let mut lengths = chunks.iter().chain(std::iter::repeat(chunks.last().expect("a chunk length")));
    while out.len() < tokens.len() {
        let first = out.len();
        let end = (first + lengths.next().expect("endless")).min(tokens.len());
        let step = step(&*executor, &[(0, first, &tokens[first..end])], shuffle);
        out.extend(run(executor, step));
    }
    out
}

pub fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Token ids that look random.
pub fn tokens(n: usize, vocab: u64, seed: u64) -> Vec<i32> {
    (0..n as u64).map(|i| (numerics::hash_name(&format!("{seed}/{i}")) % vocab) as i32).collect()
}
