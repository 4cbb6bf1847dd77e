//! A step that breaks the contract is refused with both facts, whatever is wrong with it; the executor stays usable.

use crate::decoder::{VOCAB, decoder};
use crate::harness::{bits, output, run, step, tokens};
use engine::{Executor, Sampling, Step, StepError, Ticket, WantedRow};
use ir::DType;
use proptest::prelude::*;
use std::sync::Arc;

type Damage = fn(&mut Step);

const DAMAGES: &[(&str, Damage)] = &[
    ("no such entry", |s| s.entry = "backward".to_owned()),
    ("at least 1", |s| s.tokens.clear()),
    ("positions", |s| {
        s.positions.pop();
    }),
    ("has token 37", |s| s.tokens[1] = 37),
    ("has token -1", |s| s.tokens[1] = -1),
    ("positions start at 0", |s| s.positions[0] = -1),
    ("consecutive", |s| s.positions[1] = 5),
    ("sequences", |s| s.sequences.clear()),
    ("first row", |s| s.sequences[0].start = 1),
    ("ends at row", |s| s.sequences[0].len = usize::MAX),
    ("must have one", |s| s.sequences[0].len = 0),
    ("its sequences have", |s| s.sequences[0].len = 2),
    ("wants row", |s| s.wanted[0].row = 99),
    ("must ascend", |s| s.wanted.swap(0, 1)),
    ("translation tables", |s| {
        s.translation.pop();
    }),
    ("needs page", |s| Arc::make_mut(&mut s.sequences[0].pages).clear()),
    ("is physical page -1", |s| Arc::make_mut(&mut s.translation[0])[0] = -1),
    ("is physical page 0", |s| Arc::make_mut(&mut s.translation[1])[0] = 0),
    ("is physical page 100000", |s| Arc::make_mut(&mut s.translation[0])[0] = 100_000),
    ("is physical page -1", |s| s.translation[0] = Arc::new([])),
    ("at most 600", |s| s.tokens = vec![1; 601]),
    ("E0205", |s| s.wanted[0].mask = Some([].into())),
    ("E0201", |s| s.wanted[0].mask = Some([0, 0].into())),
    ("E0203", |s| s.wanted[0].sampling.as_mut().expect("sampled").temperature = -1.0),
];

#[test]
fn every_breach_is_told() {
    let model = decoder(DType::Bf16);
    let mut executors: [Box<dyn Executor>; 2] = [Box::new(model.cpu()), Box::new(model.interp())];
    for executor in &mut executors {
        let good = step(&**executor, &[(0, 0, &tokens(3, VOCAB, 1))], 0);
        let before = run(&mut **executor, good.clone());
        for (told, damage) in DAMAGES {
            let mut bad = good.clone();
            damage(&mut bad);
            match executor.submit(bad) {
                Err(StepError::Contract(text)) => assert!(text.contains(told), "`{text}` should say `{told}`"),
                // What is wrong with one row's choice is that row's fault; the others have theirs.
                Ok(ticket) => {
                    let output = executor.poll(ticket).expect("an answer").expect("an answer at once");
                    assert!(output.faults.iter().any(|(row, text)| *row == 0 && text.contains(told)), "{told}");
                    assert!(output.tokens[1..].iter().all(Option::is_some), "{told}");
                }
                other => panic!("{told}: {other:?}"),
            }
        }
        assert_eq!(bits(&run(&mut **executor, good)), bits(&before));
    }
}

#[test]
fn a_row_axis_that_steps_lack_is_refused_at_load() {
    let mut model = decoder(DType::Bf16);
    let text = serde_json::to_string(&model.kernels).expect("JSON");
    let strange = text.replace(r#""name":"T","extent":"rows""#, r#""name":"N","extent":"rows""#);
    assert_ne!(strange, text);
    model.kernels = serde_json::from_str(&strange).expect("a module");
    let pages = model.pages();
    let cpu = device::CpuExecutor::new(&model.kernels, &model.plan, &model.weights, &pages).err();
    let interp = device::InterpExecutor::new(&model.kernels, &model.plan, &model.weights, &pages).err();
    for error in [cpu, interp] {
        let told = error.expect("no executor for such graphs").to_string();
        assert!(told.starts_with("D0107: `tokens` in graph `first` has rows of axis `N`"), "{told}");
    }
}

#[test]
fn tickets_are_answered_once() {
    let model = decoder(DType::Bf16);
    let mut cpu = model.cpu();
    let step = step(&cpu, &[(0, 0, &[1, 2])], 0);
    let ticket = cpu.submit(step).expect("a good step");
    assert!(matches!(cpu.poll(ticket), Ok(Some(_))));
    assert!(matches!(cpu.poll(ticket), Err(StepError::Contract(_))));
    assert!(matches!(cpu.poll(Ticket(77)), Err(StepError::Contract(_))));
}

#[test]
fn rows_answer_as_they_were_asked() {
    let model = decoder(DType::Bf16);
    let mut cpu = model.cpu();
    let mut step = step(&cpu, &[(0, 0, &[3, 1, 4, 1, 5])], 0);
    let all = output(&mut cpu, step.clone());
    let mut none = step.clone();
    none.wanted.clear();
    assert!(output(&mut cpu, none).tokens.is_empty(), "a prefill chunk may want nothing");
    let greedy = Sampling::default();
    step.wanted = vec![
        WantedRow { row: 1, sampling: None, mask: None, logits: true },
        WantedRow { row: 4, sampling: Some(greedy), mask: Some([1 << 9, 0].into()), logits: false },
    ];
    let some = output(&mut cpu, step);
    assert_eq!(some.logits, [all.logits[1].clone(), None]);
    assert_eq!(some.tokens[0], None);
    assert_eq!(some.tokens[1].as_ref().map(|t| t.id), Some(9));
}

proptest! {
    /// Any numbers in any field: an answer or a refusal, never a panic.
    #[test]
    fn no_step_panics(
        tokens in prop::collection::vec(-2i32..40, 0..9),
        positions in prop::collection::vec(prop_oneof![-2i32..9, Just(i32::MAX), Just(i32::MIN)], 0..9),
        consecutive in any::<bool>(),
        sequences in prop::collection::vec((0usize..9, prop_oneof![0usize..9, Just(usize::MAX)], prop::collection::vec(0u32..30, 0..5)), 0..4),
        translation in prop::collection::vec(prop::collection::vec(-2i32..900, 0..30), 0..3),
        wanted in prop::collection::vec(0usize..9, 0..5),
    ) {
        thread_local!(static CPU: std::cell::RefCell<device::CpuExecutor> = std::cell::RefCell::new(decoder(DType::Bf16).cpu()));
        let n = tokens.len();
        let step = Step {
            entry: "forward".to_owned(),
            positions: if consecutive { (0..n as i32).collect() } else { positions },
            tokens,
            sequences: sequences.into_iter().map(|(start, len, pages)| engine::SequenceRows { start, len, pages: Arc::new(pages) }).collect(),
            translation: translation.into_iter().map(Arc::from).collect(),
            wanted: wanted.into_iter().map(|row| WantedRow { row, sampling: None, mask: None, logits: true }).collect(),
            ..Step::default()
        };
        CPU.with_borrow_mut(|cpu| {
            if let Ok(ticket) = cpu.submit(step) {
                let _ = cpu.poll(ticket);
            }
        });
    }
}

#[test]
fn a_pool_beyond_this_machine_is_an_error_with_its_size() {
    let model = decoder(DType::Bf16);
    let layout = &model.plan.kv[0];
    for pages in [1usize << 50, usize::MAX] {
        let mut asked = model.pages();
        asked[0] = pages;
        let refused = device::CpuExecutor::new(&model.kernels, &model.plan, &model.weights, &asked).map(drop);
        let bytes = u128::from(layout.page_bytes()) * pages as u128;
        let kind = layout.kind.clone();
        assert_eq!(refused, Err(device::PrepareError::PoolMemory { kind, pages, bytes }));
    }
}

#[test]
fn only_the_interpreter_runs_what_is_compiled_for_another_machine() {
    let model = decoder(DType::Bf16);
    let target = artifact::Target { name: "other".to_owned(), arch: "none".to_owned(), facts: Default::default() };
    let provenance = artifact::Provenance { compiler: String::new(), target, missing: Vec::new() };
    let recipes = artifact::recipes(&model.kernels.facts);
    let artifact = artifact::Artifact {
        manifest: artifact::Manifest::new(&model.kernels, provenance),
        memory: artifact::weight_memory(&model.kernels, &recipes).expect("places for weights"),
        recipes,
        kernels: model.kernels.clone(),
        plan: model.plan.clone(),
        device: None,
        drafter: None,
        report: Default::default(),
    };
    let load = |kind| device::load(&artifact, &model.weights, kind, &model.pages()).map(drop);
    let text = load(device::ExecutorKind::Cpu).expect_err("another machine's kernels").to_string();
    assert!(text.starts_with("D0109") && text.contains("`none`") && text.contains("`cpu`"), "{text}");
    assert_eq!(load(device::ExecutorKind::Interp), Ok(()));
}
