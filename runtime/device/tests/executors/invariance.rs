//! A request's logits are the same bits alone, batched, chunked and wherever its pages lie.

use crate::decoder::{VOCAB, decoder};
use crate::harness::{bits, logits, run, step, tokens};
use engine::Executor;
use ir::DType;

#[test]
fn chunks_do_not_matter() {
    for act in [DType::Bf16, DType::F32] {
        let model = decoder(act);
        let prompt = tokens(70, VOCAB, 1);
        let whole = logits(&mut model.cpu(), &prompt, &[70], 0);
        for chunks in [&[1][..], &[2], &[3], &[8], &[9], &[33], &[64, 1], &[5, 1, 60, 1]] {
            assert_eq!(bits(&logits(&mut model.cpu(), &prompt, chunks, 0)), bits(&whole), "{act}, chunks {chunks:?}");
        }
    }
}

/// More than two attention blocks of 256 keys, chunks that end inside them.
#[test]
fn chunks_do_not_matter_across_key_blocks() {
    let model = decoder(DType::F32);
    let prompt = tokens(560, VOCAB, 2);
    let whole = logits(&mut model.cpu(), &prompt, &[560], 0);
    assert_eq!(bits(&logits(&mut model.cpu(), &prompt, &[255, 1, 1, 200], 3)), bits(&whole));
    assert_eq!(bits(&logits(&mut model.cpu(), &prompt, &[550, 1], 0)), bits(&whole));
}

#[test]
fn pages_may_lie_anywhere() {
    let model = decoder(DType::Bf16);
    let prompt = tokens(50, VOCAB, 3);
    let ordered = logits(&mut model.cpu(), &prompt, &[7], 0);
    assert_eq!(bits(&logits(&mut model.cpu(), &prompt, &[7], 1)), bits(&ordered));
    assert_eq!(bits(&logits(&mut model.cpu(), &prompt, &[11], 5)), bits(&ordered));
}

#[test]
fn the_batch_does_not_matter() {
    let model = decoder(DType::Bf16);
    let prompts: Vec<Vec<i32>> = [30usize, 41, 9].iter().map(|n| tokens(*n, VOCAB, *n as u64)).collect();
    let alone: Vec<_> = prompts.iter().map(|p| logits(&mut model.cpu(), p, &[p.len()], 0)).collect();
    let mut cpu = model.cpu();
    let mut found = vec![Vec::new(); 3];
    // Decoding rows beside prefill chunks, sequences that come and go.
    let rounds: [&[(usize, usize)]; 5] = [
        &[(0, 20)],
        &[(0, 1), (1, 17)],
        &[(2, 3), (0, 1), (1, 2)],
        &[(0, 1), (1, 1), (2, 1)],
        &[(1, 21), (2, 5), (0, 7)],
    ];
    for round in rounds {
        let chunks: Vec<_> = round
            .iter()
            .map(|(s, n)| (*s, found[*s].len(), &prompts[*s][found[*s].len()..found[*s].len() + n]))
            .collect();
        let mut rows = run(&mut cpu, step(&model.cpu(), &chunks, 2)).into_iter();
        round.iter().for_each(|(s, n)| found[*s].extend(rows.by_ref().take(*n)));
    }
    for s in 0..3 {
        assert_eq!(found[s].len(), alone[s].len());
        assert_eq!(bits(&found[s]), bits(&alone[s]), "sequence {s}");
    }
}

#[test]
fn threads_do_not_matter() {
    let model = decoder(DType::F32);
    let prompt = tokens(300, VOCAB, 4);
    let of = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| logits(&mut model.cpu(), &prompt, &[300], 0))
    };
    let one = of(1);
    assert_eq!(bits(&of(2)), bits(&one));
    assert_eq!(bits(&of(5)), bits(&one));
}

/// Rows whose logits nobody wants are skipped behind the last store: those that are wanted, and what later rows find in the
/// cache, are the same bits.
#[test]
fn what_is_wanted_does_not_matter() {
    for act in [DType::Bf16, DType::F32] {
        let model = decoder(act);
        let prompts = [tokens(150, VOCAB, 6), tokens(90, VOCAB, 7)];
        let whole = prompts.each_ref().map(|p| bits(&logits(&mut model.cpu(), p, &[p.len()], 0)));
        for wanted in [&[99, 159][..], &[0, 1, 2, 50, 120, 121], &[40], &[]] {
            let mut cpu = model.cpu();
            let mut first = step(&cpu, &[(0, 0, &prompts[0][..100]), (1, 0, &prompts[1][..60])], 0);
            first.wanted.retain(|w| wanted.contains(&w.row));
            for (row, found) in wanted.iter().zip(run(&mut cpu, first)) {
                let (s, at) = if *row < 100 { (0, *row) } else { (1, row - 100) };
                assert_eq!(bits(&[found]), whole[s][at..=at], "{act}, row {row} of {wanted:?}");
            }
            let second = step(&cpu, &[(0, 100, &prompts[0][100..]), (1, 60, &prompts[1][60..])], 0);
            let found = bits(&run(&mut cpu, second));
            assert_eq!(found[..50], whole[0][100..], "{act}, behind {wanted:?}");
            assert_eq!(found[50..], whole[1][60..], "{act}, behind {wanted:?}");
        }
    }
}

/// Few rows, as many as blocks of drafts have, and such as threads cannot share out evenly.
#[test]
fn threads_do_not_matter_to_few_rows() {
    for act in [DType::Bf16, DType::F32] {
        let model = decoder(act);
        let prompt = tokens(70, VOCAB, 5);
        let whole = logits(&mut model.cpu(), &prompt, &[70], 0);
        for threads in [2, 3, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            for chunks in [&[8][..], &[9, 13], &[1, 12, 31, 26]] {
                let found = pool.install(|| logits(&mut model.cpu(), &prompt, chunks, 0));
                assert_eq!(bits(&found), bits(&whole), "{act}, {threads} threads, chunks {chunks:?}");
            }
        }
    }
}

#[test]
fn the_interpreter_reads_the_same_pages() {
    let model = decoder(DType::Bf16);
    let prompt = tokens(26, VOCAB, 8);
    let whole = logits(&mut model.interp(), &prompt, &[26], 0);
    assert_eq!(bits(&logits(&mut model.interp(), &prompt, &[1, 10, 4], 4)), bits(&whole));
}

/// A copied page holds the history: another sequence continues on the copies.
#[test]
fn pages_can_be_copied() {
    let model = decoder(DType::Bf16);
    let prompt = tokens(12, VOCAB, 9);
    let whole = logits(&mut model.cpu(), &prompt, &[12], 0);
    let mut cpu = model.cpu();
    let first = step(&cpu, &[(0, 0, &prompt[..8])], 0);
    run(&mut cpu, first);
    for kind in 0..cpu.facts().kv.len() {
        cpu.copy_pages(kind, &[(1, 201), (2, 202)]).expect("pages that exist");
    }
    let second = step(&cpu, &[(1, 8, &prompt[8..])], 0);
    assert_eq!(bits(&run(&mut cpu, second)), bits(&whole[8..]));
    assert!(cpu.copy_pages(0, &[(1, 801)]).is_err());
    assert!(cpu.copy_pages(7, &[]).is_err());
}
