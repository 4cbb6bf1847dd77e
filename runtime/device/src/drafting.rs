//! What a drafter takes from steps and gives back, whatever runs it.
//!
//! ```text
//! step of the model   rows captured ──► `context`: pos, live, captured rows    its cache is as far as the model's
//! draft step          anchor and pos ─► `draft`: temp, coin ──► tokens, candidates, probabilities
//! ```

use crate::cache::Cache;
use crate::contract::{Rows, translate_kind};
use crate::error::PrepareError;
use crate::prepare::POSITIONS;
use crate::store::WeightStore;
use artifact::{Artifact, Drafter, own_name};
use engine::{Draft, DraftFacts, ExecutorFacts, Step, StepError, StepOutput};
use ir::{Extent, KernelEntry, KvLayout, Plan, RowsPerSequence, SEQUENCE_ROWS, Scope, TOKEN_ROWS};
use std::sync::Arc;

/// Names of the inputs of a drafter's entries, besides positions and captured rows.
const ANCHOR: &str = "anchor";
const TEMPERATURE: &str = "temp";
const DRAWS: &str = "coin";
const LIVE: &str = "live";

/// Names of the results of a draft: a token for each slot, ids of its candidates, their probabilities.
pub(crate) const DRAFTED: [&str; 3] = ["result.0", "result.1", "result.2"];

/// An input's numbers, row after row.
#[derive(Clone, Debug)]
pub(crate) enum Given {
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<u8>),
}

/// Inputs by name.
pub(crate) type Inputs = Vec<(&'static str, Given)>;

/// What is known of a drafter before it runs.
#[derive(Debug)]
pub(crate) struct Plans {
    /// Facts for the engine.
    pub facts: DraftFacts,
    /// Entry that brings its cache up to date, and the name of the input that holds captured rows.
    pub context: String,
    pub captured: String,
    /// Layouts of the kinds that live in pages of the model's, with the places of those kinds.
    pub guests: Vec<(KvLayout, usize)>,
    /// All kinds as its kernels number them: the model's, which it does not use, its own, and those that live in others.
    pub kinds: Vec<KvLayout>,
}

fn mismatch(plan: impl Into<String>, kernels: &str) -> PrepareError {
    PrepareError::Mismatch { plan: plan.into(), kernels: kernels.to_owned() }
}

impl Plans {
    /// Finds the entries of a drafter by what they take.
    pub fn new(artifact: &Artifact, drafter: &Drafter) -> Result<Plans, PrepareError> {
        let longest = drafter.longest().ok_or_else(|| mismatch("has a drafter", "have no length of block for it"))?;
        let (kernels, plan) = (&longest.kernels, &longest.plan);
        let captures = &kernels.facts.captures;
        let (context, captured) = match captures.as_slice() {
            [one] => context(&kernels.entries, &one.name),
            _ => None,
        }
        .ok_or_else(|| mismatch("captures rows for a drafter", "have not one entry that takes them"))?;
        let draft = kernels.entries.iter().find(|e| takes(e, ANCHOR, SEQUENCE_ROWS));
        let draft = draft.ok_or_else(|| mismatch("drafts", "have no entry that takes an anchor of each sequence"))?;
        known(draft, &[ANCHOR, POSITIONS, TEMPERATURE, DRAWS])?;
        let candidates = results(draft)?;
        let sequences = plan.entries.iter().filter(|e| e.name == draft.name).flat_map(|e| &e.buckets);
        let sequences = sequences.map(|b| b.bucket.sequences).max().unwrap_or(0);
        let mut guests = Vec::new();
        for kind in &plan.kv {
            let Some(home) = &kind.lives_in else { continue };
            let host = artifact.plan.kv.iter().position(|k| k.kind == *home);
            let host =
                host.ok_or_else(|| mismatch(format!("keeps `{}` in `{home}`", kind.kind), "know no such kind"))?;
            guests.push((kind.clone(), host));
        }
        let unused = |k: &KvLayout| KvLayout { kind: format!("target.{}", k.kind), layers: Vec::new(), ..k.clone() };
        let own = drafter.own_kinds().cloned();
        let kinds = artifact.plan.kv.iter().map(unused).chain(own).chain(guests.iter().map(|(k, _)| k.clone()));
        Ok(Plans {
            kinds: kinds.collect(),
            guests,
            context,
            captured,
            facts: DraftFacts {
                entry: draft.name.clone(),
                blocks: drafter.blocks.iter().filter_map(|b| usize::try_from(b.tokens).ok()).collect(),
                sequences: usize::try_from(sequences).unwrap_or(usize::MAX),
                candidates,
            },
        })
    }

    /// A plan as its kernels are prepared: with all kinds.
    pub fn plan(&self, plan: &Plan) -> Plan {
        Plan { kv: self.kinds.clone(), ..plan.clone() }
    }

    /// Adds the pages of kinds that live in others to those that a step was checked for.
    pub fn add_guests(
        &self,
        rows: &mut Rows,
        step: &Step,
        facts: &ExecutorFacts,
        start: usize,
    ) -> Result<(), StepError> {
        for (layout, host) in &self.guests {
            let (Some(table), Some(pages)) = (step.translation.get(*host), facts.pool_pages.get(*host)) else {
                return Err(StepError::Contract(format!("it has no table for KV kind {host}")));
            };
            rows.pages.push(translate_kind(step, layout, table, *pages, start)?);
        }
        Ok(())
    }

    /// The inputs of a draft step and its rows a block; the step was checked as any other.
    pub fn drafting(&self, step: &Step) -> Result<(usize, Inputs), StepError> {
        let refuse = |text: String| Err(StepError::Contract(text));
        let block = step.sequences.first().map_or(0, |s| s.len);
        if !self.facts.blocks.contains(&block) || step.sequences.iter().any(|s| s.len != block) {
            return refuse(format!(
                "it drafts blocks of {:?} rows, a step has equally many for each sequence, one of {:?}",
                step.sequences.iter().map(|s| s.len).collect::<Vec<_>>(),
                self.facts.blocks
            ));
        }
        if step.sequences.len() > self.facts.sequences || step.drafts.len() != step.sequences.len() {
            return refuse(format!(
                "it drafts for {} sequences with {} temperatures; at most {} run, each with one",
                step.sequences.len(),
                step.drafts.len(),
                self.facts.sequences
            ));
        }
        if !step.wanted.is_empty() || !step.blocks.is_empty() {
            return refuse("it drafts and wants logits; these are steps of their own".to_owned());
        }
        if let Some((s, row)) = step.drafts.iter().enumerate().find(|(_, row)| row.coins.len() + 1 != block) {
            let (found, needed) = (row.coins.len(), block - 1);
            return refuse(format!("sequence {s} has {found} draws for {needed} slots"));
        }
        let anchors = step.sequences.iter().filter_map(|s| step.tokens.get(s.start).copied()).collect();
        let coins = step.drafts.iter().flat_map(|row| row.coins.iter().copied()).collect();
        let inputs = vec![
            (ANCHOR, Given::I32(anchors)),
            (POSITIONS, Given::I32(step.positions.clone())),
            (TEMPERATURE, Given::F32(step.drafts.iter().map(|row| row.temperature).collect())),
            (DRAWS, Given::F32(coins)),
        ];
        Ok((block, inputs))
    }

    /// What was proposed: tokens and ids as integers, and probabilities.
    pub fn drafts(&self, block: usize, tokens: &[i32], ids: &[i32], q: &[f32]) -> Vec<Draft> {
        let (slots, k) = (block - 1, self.facts.candidates);
        let whole = |x: &[i32]| x.iter().map(|id| u32::try_from(*id).unwrap_or(u32::MAX)).collect::<Vec<u32>>();
        let each = tokens.chunks_exact(slots).zip(ids.chunks_exact(slots * k)).zip(q.chunks_exact(slots * k));
        each.map(|((tokens, ids), q)| Draft {
            tokens: whole(tokens),
            candidates: whole(ids),
            probabilities: q.to_vec(),
        })
        .collect()
    }
}

/// The plans of an artifact's drafter, and cache memory of both.
pub(crate) fn prepared(artifact: &Artifact, pool_pages: &[usize]) -> Result<(Plans, Cache), PrepareError> {
    let drafter = artifact.drafter.as_ref();
    let drafter = drafter.ok_or_else(|| mismatch("has no drafter", "are asked to draft"))?;
    let plans = Plans::new(artifact, drafter)?;
    let pools = crate::finish::pools(&Plan { kv: artifact.kv(), ..artifact.plan.clone() }, pool_pages)?;
    let pools = pools.with_guests(&plans.guests);
    Ok((plans, pools))
}

/// The inputs of the entry that brings a drafter's cache up to date, captured rows aside.
pub(crate) fn following(step: &Step, output: &StepOutput) -> Inputs {
    let live = engine::lasting_rows(step, output).into_iter().map(u8::from).collect();
    vec![(POSITIONS, Given::I32(step.positions.clone())), (LIVE, Given::Bool(live))]
}

fn takes(entry: &KernelEntry, name: &str, rows: &str) -> bool {
    let graph = &entry.first().graph;
    let input = graph.inputs.iter().find(|id| graph.input_name(**id) == Some(name));
    input.and_then(|id| graph.tensor(*id)).is_some_and(|ty| ty.row_axes().eq([rows]))
}

/// Refuses an entry that takes what no step brings.
fn known(entry: &KernelEntry, names: &[&str]) -> Result<(), PrepareError> {
    let graph = &entry.first().graph;
    let odd = graph.inputs.iter().filter_map(|id| graph.input_name(*id)).find(|name| !names.contains(name));
    match odd {
        Some(name) => Err(mismatch(
            format!("runs entry `{}`", entry.name),
            &format!("take `{name}`, which no step brings; it may take {}", names.join(", ")),
        )),
        None => Ok(()),
    }
}

/// The entry that takes captured rows, and its name for them.
fn context(entries: &[KernelEntry], capture: &str) -> Option<(String, String)> {
    entries.iter().find_map(|entry| {
        let graph = &entry.first().graph;
        let input = graph.inputs.iter().find(|id| graph.tensor(**id).is_some_and(|ty| ty.axis(capture).is_some()))?;
        let name = graph.input_name(*input)?;
        known(entry, &[name, POSITIONS, LIVE]).ok()?;
        takes(entry, name, TOKEN_ROWS).then(|| (entry.name.clone(), name.to_owned()))
    })
}

/// Candidates of a slot, by the entry's results.
fn results(entry: &KernelEntry) -> Result<usize, PrepareError> {
    let graph = &entry.last().graph;
    let lengths = DRAFTED.map(|wanted| {
        let (_, id) = graph.outputs.iter().find(|(name, _)| name == wanted)?;
        let fixed = graph.tensor(*id)?.axes.iter().filter_map(|a| match a.extent {
            Extent::Fixed(n) => usize::try_from(n).ok(),
            Extent::Rows => None,
        });
        Some(fixed.collect::<Vec<_>>())
    });
    match &lengths {
        [Some(tokens), Some(ids), Some(q)] if ids == q && ids.len() == 2 && tokens.as_slice() == &ids[..1] => {
            Ok(ids[1])
        }
        _ => Err(mismatch(
            format!("runs entry `{}`", entry.name),
            "do not leave a token, candidates and their probabilities for each slot",
        )),
    }
}

/// Rows of a sequence in a bucket of blocks.
pub(crate) fn block_of(bucket: &ir::Bucket) -> Option<usize> {
    match bucket.rows {
        RowsPerSequence::Block(n) => usize::try_from(n).ok(),
        RowsPerSequence::One | RowsPerSequence::Ragged => None,
    }
}

/// A drafter's weights: its own, and those that it borrows.
pub(crate) struct Lent<'w> {
    pub own: &'w dyn WeightStore,
    pub model: &'w dyn WeightStore,
}

impl WeightStore for Lent<'_> {
    fn f32(&self, scope: Scope, name: &str, layer: Option<usize>) -> Option<Arc<Vec<f32>>> {
        match own_name(name) {
            own if own == name => self.own.f32(scope, name, layer),
            lent => self.model.f32(scope, lent, layer),
        }
    }
}
