//! Translation validation: the interpreter runs a model before and after every pass and compares bits.
//!
//! ```text
//! model ─ flatten ─► graphs ─ canonicalise, rotate the seam, … ─► graphs ─ select kernels ─► regions
//!   │                  │                                            │                         │
//!   └────── run ───────┴──────────────── run ───────────────────────┴────────── run ──────────┘   equal bits?
//! ```
//!
//! A pass is compared with what it was given, so a difference is the fault of one pass. What a pass declares decides
//! what is demanded: `Exact`, equal bits; `Refines`, equal bits of the *old* graphs once they have the *new* orders;
//! `Relaxed`, nothing: the change is measured. A plan runs launch by launch on an arena of real bytes (`plan.rs`).
//!
//! Models of full size would take years; [`shrink`] makes a small one of the same text. `trial.rs` says what is run,
//! `compare.rs` what is compared.

mod allowed;
mod compare;
mod plan;
mod ranks;
mod shrink;
mod trial;
mod witness;

pub use compare::{Comparison, Difference, Origin, Place};
pub use shrink::{Shrunk, Small, shrink};
pub use trial::{CachedRows, Program, Record, Trial};

use crate::error::unverified;
use crate::{Compile, Kind, PASSES, Pass, PassError, PassInfo, Run};
use interp::NoHooks;
use ir::{KernelModule, Model, Module, Plan};

/// What validation found, pass by pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// Passes in the order in which they ran.
    pub passes: Vec<Validated>,
    /// Numbers that a run of the model leaves, over all seeds: results and cache contents.
    pub values: u64,
    /// Of them, numbers that are infinite or NaN, and so say little.
    pub not_finite: u64,
}

/// One pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Validated {
    /// The pass.
    pub pass: PassInfo,
    /// Numbers compared.
    pub values: u64,
    /// What came out.
    pub verdict: Verdict,
}

/// What a pass turned out to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing to bits.
    Equal,
    /// Old graphs with the new orders leave equal bits; `moved` numbers differ from those of the open orders.
    Refined {
        /// How many numbers.
        moved: u64,
    },
    /// It declares a relaxation, and this is its size.
    Measured {
        /// How many numbers changed.
        moved: u64,
        /// The middle one of the changes.
        median: f32,
        /// The largest change.
        largest: f32,
    },
    /// It changed bits and does not say so.
    Differs(Box<Difference>),
    /// What it left cannot be run, or has no witness.
    Stopped(String),
}

impl Verdict {
    /// Whether the pass keeps what it declares.
    pub fn holds(&self) -> bool {
        !matches!(self, Verdict::Differs(_) | Verdict::Stopped(_))
    }
}

impl Validation {
    /// Whether every pass keeps what it declares.
    pub fn holds(&self) -> bool {
        self.passes.iter().all(|p| p.verdict.holds())
    }
}

/// Validates every pass of the pipeline on a (small) model with seeds 1 to `seeds`.
pub fn validate(model: &Model, compile: &Compile<'_>, seeds: u64) -> Result<Validation, PassError> {
    validate_passes(model, compile, seeds, &PASSES)
}

/// Validates these passes, run in this order; the first makes flat graphs.
pub fn validate_passes(
    model: &Model,
    compile: &Compile<'_>,
    seeds: u64,
    passes: &[Pass],
) -> Result<Validation, PassError> {
    ir::verify_model(model).map_err(|e| unverified("the front end", &e))?;
    let mut found = Validation { passes: Vec::new(), values: 0, not_finite: 0 };
    let mut state: Option<(Module, Vec<Trial>, Vec<Record>)> = None;
    let mut kernels: Option<KernelModule> = None;
    for pass in passes {
        let mut witness = None;
        let next = match (pass.run, &state) {
            (Run::Flatten(run), _) => run(model)?,
            (Run::Graph(run), Some((module, ..))) => run(module, &mut Vec::new())?,
            (Run::Target(run), Some((module, ..))) => run(module, compile)?,
            (Run::Refine(run), Some((module, ..))) => {
                let refined = run(module, compile)?;
                witness = refined.witness;
                refined.module
            }
            (Run::Select(run), Some((module, ..))) => {
                let selected = run(module, compile)?;
                ir::verify_kernels(&selected).map_err(|e| unverified(pass.info.name, &e))?;
                kernels.insert(selected).to_module()
            }
            (Run::Kernels(run), Some(_)) => {
                let Some(before) = &kernels else { continue };
                let after = run(before, compile)?;
                ir::verify_kernels(&after).map_err(|e| unverified(pass.info.name, &e))?;
                kernels.insert(after).to_module()
            }
            (Run::Plan(run), Some((_, trials, records))) => {
                let Some(kernels) = &kernels else { continue };
                let plan = run(kernels, compile)?;
                ir::verify_plan(&plan, kernels).map_err(|e| unverified(pass.info.name, &e))?;
                crate::check_plan::check(&plan, kernels)?;
                found.passes.push(judge_plan(pass.info, kernels, &plan, trials, records));
                continue;
            }
            (_, None) => continue,
        };
        ir::verify_module(&next).map_err(|e| unverified(pass.info.name, &e))?;
        let (before, trials, records) = match state.take() {
            Some((module, trials, records)) => (Some(module), trials, records),
            None => {
                let trials = Trial::all(model, &next, seeds)?;
                let records = trials.iter().map(|t| t.record(Program::Model(model)));
                let records = records.collect::<Result<Vec<_>, _>>().map_err(|e| trial::refused(&e))?;
                found.count(&trials, &records);
                (None, trials, records)
            }
        };
        let old = before.as_ref().map_or(Program::Model(model), Program::Module);
        let (validated, after) = judge(pass.info, old, (&next, witness), &trials, &records);
        found.passes.push(validated);
        // A level that cannot be run is no measure of what follows it.
        let Some(records) = after else { break };
        state = Some((next, trials, records));
    }
    Ok(found)
}

impl Validation {
    fn count(&mut self, trials: &[Trial], records: &[Record]) {
        for (trial, record) in trials.iter().zip(records) {
            self.values += compare::compare(trial, record, record).values;
            self.not_finite += record.not_finite();
        }
    }
}

impl Trial {
    /// Everything that a run of a level leaves.
    pub fn record(&self, program: Program<'_>) -> Result<Record, interp::InterpError> {
        self.run(program, &mut NoHooks, |_, _| true)
    }

    /// Whether a level leaves what the record has; ends with the first step that differs.
    pub fn agrees(&self, program: Program<'_>, record: &Record) -> Result<bool, interp::InterpError> {
        let mut same = true;
        let left = self.run(program, &mut NoHooks, |step, outputs| {
            same = record.results.get(step).is_some_and(|wanted| compare::same_outputs(wanted, outputs));
            same
        })?;
        Ok(same && compare::compare(self, record, &left).moved == 0)
    }
}

/// Compares a pass with what it was given; gives the records of what it left, if that can be run.
fn judge(
    pass: PassInfo,
    old: Program<'_>,
    (next, witness): (&Module, Option<Module>),
    trials: &[Trial],
    records: &[Record],
) -> (Validated, Option<Vec<Record>>) {
    // What a pass left as it was need not run again: a run is a function of the graphs.
    let unchanged = matches!(old, Program::Module(before) if before == next) && witness.is_none();
    let after = match unchanged {
        true => Ok(records.to_vec()),
        false => trials.iter().map(|t| t.record(Program::Module(next))).collect::<Result<Vec<_>, _>>(),
    };
    let after = match after {
        Ok(after) => after,
        Err(e) => return (Validated { pass, values: 0, verdict: Verdict::Stopped(e.to_string()) }, None),
    };
    let all = compare_all(trials, records, &after);
    let (values, verdict) = match pass.kind {
        Kind::Exact => (all.values, exact(all, old, next, trials)),
        Kind::Relaxed(_) => {
            let (median, largest) = all.sizes();
            (all.values, Verdict::Measured { moved: all.moved, median, largest })
        }
        Kind::Refines(_) if unchanged => (all.values, Verdict::Refined { moved: 0 }),
        Kind::Refines(_) => (all.values, refined(&all, old, (next, witness), trials, &after)),
    };
    (Validated { pass, values, verdict }, Some(after))
}

/// Compares a plan, run launch by launch on an arena, with the kernel level that it was made from.
fn judge_plan(pass: PassInfo, kernels: &KernelModule, plan: &Plan, trials: &[Trial], records: &[Record]) -> Validated {
    let after = trials.iter().map(|t| t.record(Program::Plan(kernels, plan))).collect::<Result<Vec<_>, _>>();
    match after.map(|after| compare_all(trials, records, &after)) {
        Ok(all) => {
            let verdict = all.first.map_or(Verdict::Equal, |first| Verdict::Differs(Box::new(first)));
            Validated { pass, values: all.values, verdict }
        }
        Err(e) => Validated { pass, values: 0, verdict: Verdict::Stopped(e.to_string()) },
    }
}

fn compare_all(trials: &[Trial], before: &[Record], after: &[Record]) -> Comparison {
    let mut all = Comparison::default();
    for ((trial, a), b) in trials.iter().zip(before).zip(after) {
        all.join(compare::compare(trial, a, b));
    }
    all
}

fn exact(all: Comparison, old: Program<'_>, next: &Module, trials: &[Trial]) -> Verdict {
    let Some(mut first) = all.first else { return Verdict::Equal };
    let trial = trials.iter().find(|t| t.entry == first.entry && t.seed == first.seed);
    first.origin = trial.and_then(|t| compare::origin(t, old, next));
    Verdict::Differs(Box::new(first))
}

/// The witness must leave the same bits as the new graphs. It is the old graphs with the new orders; where the pass hands
/// over one of its own, it may differ from the old graphs in orders alone.
fn refined(
    all: &Comparison,
    old: Program<'_>,
    (next, witness): (&Module, Option<Module>),
    trials: &[Trial],
    after: &[Record],
) -> Verdict {
    let Program::Module(module) = old else {
        return Verdict::Stopped("orders are refined on flat graphs only".to_owned());
    };
    let witness = match witness {
        Some(witness) => check_witness(module, witness),
        None => witness::with_orders(module, next),
    };
    let witness = match witness {
        Ok(witness) => witness,
        Err(why) => return Verdict::Stopped(why),
    };
    let records = trials.iter().map(|t| t.record(Program::Module(&witness))).collect::<Result<Vec<_>, _>>();
    match records {
        Ok(records) => match exact(compare_all(trials, &records, after), Program::Module(&witness), next, trials) {
            Verdict::Equal => Verdict::Refined { moved: all.moved },
            other => other,
        },
        Err(e) => Verdict::Stopped(e.to_string()),
    }
}

/// The witness, if it is well formed and changes nothing but open orders; otherwise what it changes.
pub fn check_witness(old: &Module, witness: Module) -> Result<Module, String> {
    if let Err(errors) = ir::verify_module(&witness) {
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        return Err(format!("the witness breaks a rule of its level: {first}"));
    }
    allowed::check(old, &witness)?;
    Ok(witness)
}
