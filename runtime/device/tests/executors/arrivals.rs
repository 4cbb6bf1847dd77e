//! Layers that come while the step runs: each is taken before it is read, and the bits are those of pages that were there.

use crate::decoder::{VOCAB, decoder};
use crate::harness::{bits, logits, run, step, tokens};
use engine::{Arrivals, Executor, PhysicalPage, Put, StepError, take_all};
use ir::DType;

const SHUFFLE: usize = 3;
/// Positions before the step, which fill pages but for the last.
const BEFORE: usize = 21;

/// Bytes of every layer of some pages, and what an executor has done with them.
struct Copies {
    order: Vec<(usize, usize)>,
    pages: Vec<PhysicalPage>,
    bytes: Vec<Vec<Vec<u8>>>,
    taken: Vec<(usize, usize)>,
    refused: usize,
    /// Damages what is handed over of this layer.
    damages: Option<(usize, usize)>,
}

impl Copies {
    /// Copies of what an executor holds, in the order of the model's layers.
    fn of(executor: &mut dyn Executor, pages: Vec<PhysicalPage>) -> Copies {
        let kv = executor.facts().kv.clone();
        let of_kind = |(kind, layout): (usize, &ir::KvLayout)| {
            layout.layers.iter().enumerate().map(move |(at, layer)| (*layer, kind, at)).collect::<Vec<_>>()
        };
        let mut order: Vec<_> = kv.iter().enumerate().flat_map(of_kind).collect();
        order.sort_unstable();
        let order: Vec<(usize, usize)> = order.into_iter().map(|(_, kind, at)| (kind, at)).collect();
        let layer = |(kind, layer): &(usize, usize)| {
            let page = |page: &PhysicalPage| {
                let mut bytes = Vec::new();
                executor.read_layer(*kind, *layer, *page, &mut bytes).expect("a layer");
                bytes
            };
            pages.iter().map(page).collect()
        };
        let bytes = order.iter().map(layer).collect();
        Copies { order, pages, bytes, taken: Vec::new(), refused: 0, damages: None }
    }
}

impl Arrivals for Copies {
    fn order(&self) -> &[(usize, usize)] {
        &self.order
    }

    fn take(&mut self, kind: usize, layer: usize, put: &mut Put<'_>) -> u64 {
        let place = self.order.iter().position(|of| *of == (kind, layer)).expect("a layer of the model");
        if self.taken.contains(&(kind, layer)) {
            return 0;
        }
        self.taken.push((kind, layer));
        for (page, bytes) in self.pages.iter().zip(&self.bytes[place]) {
            let mut bytes = bytes.clone();
            if self.damages == Some((kind, layer)) {
                bytes.fill(0x3c);
            }
            let done: Result<(), StepError> = put(*page, &bytes);
            self.refused += usize::from(done.is_err());
        }
        0
    }
}

#[test]
fn a_step_takes_each_layer_before_it_reads_it() {
    let model = decoder(DType::F32);
    let prompt = tokens(BEFORE + 5, VOCAB, 9);
    let mut whole = model.cpu();
    logits(&mut whole, &prompt[..BEFORE], &[BEFORE], SHUFFLE);
    let rest = [(0, BEFORE, &prompt[BEFORE..])];
    let next = step(&whole, &rest, SHUFFLE);
    let page_tokens = whole.facts().kv[0].page_tokens as usize;
    let pages: Vec<PhysicalPage> = next.translation[0][..BEFORE.div_ceil(page_tokens)].to_vec();
    let copies = |executor: &mut dyn Executor| Copies::of(executor, pages.clone());
    let mut arrivals = copies(&mut whole);
    assert!(arrivals.order.len() == 3 && arrivals.bytes.iter().flatten().all(|bytes| bytes.iter().any(|b| *b != 0)));
    let expected = bits(&run(&mut whole, next.clone()));

    // Another executor has computed nothing of it; whatever comes late is missed.
    let mut empty = model.cpu();
    assert!(empty.takes_arrivals());
    let ticket = empty.submit_with(next.clone(), &mut arrivals).expect("a step");
    let found = empty.poll(ticket).expect("an answer").expect("at once");
    let found: Vec<Vec<f32>> = found.logits.into_iter().flatten().collect();
    assert_eq!((bits(&found), arrivals.refused), (expected.clone(), 0));
    assert_eq!(arrivals.taken, arrivals.order, "layer by layer");

    // And every layer counts.
    for damaged in arrivals.order.clone() {
        let mut other = model.cpu();
        let mut arrivals = Copies { damages: Some(damaged), ..copies(&mut empty) };
        let ticket = other.submit_with(next.clone(), &mut arrivals).expect("a step");
        let found = other.poll(ticket).expect("an answer").expect("at once");
        let found: Vec<Vec<f32>> = found.logits.into_iter().flatten().collect();
        assert_ne!(bits(&found), expected, "{damaged:?}");
    }
}

#[test]
fn an_executor_that_takes_whole_prefixes_does_so_first() {
    let model = decoder(DType::F32);
    let prompt = tokens(BEFORE + 5, VOCAB, 9);
    let mut whole = model.interp();
    logits(&mut whole, &prompt[..BEFORE], &[BEFORE], SHUFFLE);
    let next = step(&whole, &[(0, BEFORE, &prompt[BEFORE..])], SHUFFLE);
    let page_tokens = whole.facts().kv[0].page_tokens as usize;
    let pages = next.translation[0][..BEFORE.div_ceil(page_tokens)].to_vec();
    let mut arrivals = Copies::of(&mut whole, pages);
    let expected = bits(&run(&mut whole, next.clone()));
    let mut empty = model.interp();
    assert!(!empty.takes_arrivals());
    let ticket = empty.submit_with(next, &mut arrivals).expect("a step");
    let found = empty.poll(ticket).expect("an answer").expect("at once");
    let found: Vec<Vec<f32>> = found.logits.into_iter().flatten().collect();
    assert_eq!((bits(&found), arrivals.refused), (expected, 0));
    // Asked again there is nothing left.
    take_all(&mut arrivals, &mut |_, _, _, _| panic!("everything was taken"));
}
