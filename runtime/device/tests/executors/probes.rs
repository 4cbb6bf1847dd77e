//! Traces and injections on both executors, over chunks.

use crate::decoder::{VOCAB, decoder, traces};
use crate::harness::{bits, tokens};
use device::{Probe, ProbeError, Probed, Tensor, TensorData};
use indexmap::IndexMap;
use ir::DType;

fn both(test: impl Fn(&mut dyn Probed)) {
    let model = decoder(DType::Bf16);
    test(&mut model.cpu());
    test(&mut model.interp());
}

#[test]
fn traced_rows_are_put_one_after_another() {
    both(|executor| {
        let prompt = tokens(21, VOCAB, 1);
        let names: Vec<String> =
            ["first.x", "layers.1.x", "layers.1.ids", "layers.2.out", "last.z"].map(str::to_owned).to_vec();
        let (_, whole) = traces(executor, &prompt, names.clone(), IndexMap::new(), &[21]);
        let (_, parts) = traces(executor, &prompt, names.clone(), IndexMap::new(), &[4, 1, 9]);
        assert_eq!(whole.keys().collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
        assert_eq!(whole["layers.1.ids"].shape, [21, 2]);
        assert!(matches!(whole["layers.1.ids"].data, TensorData::I32(_)));
        assert_eq!(whole["last.z"].shape, [21, VOCAB as usize]);
        assert_eq!(whole, parts);
    });
}

/// What a value was, put back in its place, changes nothing; another value changes what follows and nothing before.
#[test]
fn injected_rows_stand_for_computed_ones() {
    both(|executor| {
        let prompt = tokens(21, VOCAB, 2);
        let names: Vec<String> = ["layers.1.x", "layers.1.h", "layers.2.h"].map(str::to_owned).to_vec();
        let (logits, traced) = traces(executor, &prompt, names.clone(), IndexMap::new(), &[21]);
        let (again, _) = traces(executor, &prompt, Vec::new(), traced.clone(), &[5]);
        assert_eq!(bits(&again), bits(&logits));
        // A shape with axes merged means the same.
        let other =
            Tensor { shape: vec![21, 24], data: TensorData::F32((0..21 * 24).map(|i| (i % 5) as f32 - 2.0).collect()) };
        let inject = IndexMap::from([("layers.1.x".to_owned(), other.clone())]);
        let (changed, seen) = traces(executor, &prompt, names, inject.clone(), &[21]);
        assert_ne!(bits(&changed), bits(&logits));
        assert_eq!(seen["layers.1.x"].data, other.data);
        assert_ne!(seen["layers.2.h"], traced["layers.2.h"]);
        let (in_chunks, _) = traces(executor, &prompt, Vec::new(), inject, &[6]);
        assert_eq!(bits(&in_chunks), bits(&changed));
    });
}

/// An input that a graph only reads is injected for that graph alone.
#[test]
fn an_injected_invariant_ends_with_its_graph() {
    let model = decoder(DType::Bf16);
    let prompt = tokens(13, VOCAB, 3);
    let names: Vec<String> = ["layers.0.c", "layers.2.c", "layers.2.out"].map(str::to_owned).to_vec();
    let zeros = Tensor { shape: vec![13, 4], data: TensorData::F32(vec![0.0; 13 * 4]) };
    let inject = IndexMap::from([("layers.0.c".to_owned(), zeros)]);
    let (_, plain) = traces(&mut model.cpu(), &prompt, names.clone(), IndexMap::new(), &[13]);
    let (_, cpu) = traces(&mut model.cpu(), &prompt, names.clone(), inject, &[13]);
    assert_eq!(cpu["layers.2.c"], plain["layers.2.c"]);
    assert_ne!(cpu["layers.2.out"], plain["layers.2.out"]);
}

#[test]
fn wrong_probes_are_refused_by_name() {
    both(|executor| {
        let probe = Probe { trace: vec!["layers.1.mdi".to_owned()], ..Probe::default() };
        match executor.set_probe(probe) {
            Err(ProbeError::Unknown { nearest, .. }) => assert_eq!(nearest, "layers.1.mid"),
            other => panic!("{other:?}"),
        }
        let short = Tensor { shape: vec![3, 23], data: TensorData::F32(vec![0.0; 69]) };
        let probe = Probe { inject: IndexMap::from([("layers.1.x".to_owned(), short)]), ..Probe::default() };
        assert!(matches!(executor.set_probe(probe), Err(ProbeError::Shape { .. })));
        let long = Tensor { shape: vec![3, 24], data: TensorData::F32(vec![0.0; 72]) };
        let inject = IndexMap::from([("layers.1.x".to_owned(), long)]);
        let probe = |rows| Probe { inject: inject.clone(), rows: Some(rows), ..Probe::default() };
        let refused = executor.set_probe(probe(2)).expect_err("a row too many").to_string();
        assert!(
            refused.starts_with("D0203") && refused.contains("3 rows") && refused.contains("2 tokens"),
            "{refused}"
        );
        assert_eq!(executor.set_probe(probe(3)), Ok(()));
    });
}

/// Nothing is cached before the first position: its row sees itself alone.
#[test]
fn a_sequence_may_start_anywhere() {
    let model = decoder(DType::F32);
    let run = |executor: &mut dyn Probed, first: usize, chunk: usize| {
        executor.set_probe(Probe { start: first, ..Probe::default() }).expect("an empty probe");
        let prompt = tokens(9, VOCAB, 4);
        let mut out = Vec::new();
        for (i, part) in prompt.chunks(chunk).enumerate() {
            let mut step = crate::harness::step(&*executor, &[(0, first + i * chunk, part)], 0);
            // Pages before the first position have no memory.
            step.translation.iter_mut().for_each(|table| std::sync::Arc::make_mut(table)[..first / 4].fill(-1));
            out.extend(crate::harness::run(executor, step));
        }
        out
    };
    let at_zero = run(&mut model.cpu(), 0, 9);
    let at_30 = run(&mut model.cpu(), 30, 9);
    assert_ne!(bits(&at_zero), bits(&at_30));
    assert_eq!(bits(&run(&mut model.cpu(), 30, 2)), bits(&at_30));
    let truth = run(&mut model.interp(), 30, 4);
    let worst = truth.iter().flatten().zip(at_30.iter().flatten()).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(worst < 1e-3, "{worst}");
}
