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
mod parts;
mod plan;
mod probe;
mod ranks;
mod regions;
mod shrink;
mod trial;
mod witness;

pub use compare::{Comparison, Difference, Origin, Place};
pub use shrink::{Shrunk, Small, shrink};
pub use trial::{CachedRows, Program, Record, Trial};

use crate::error::unverified;
use crate::{Compile, Kind, PASSES, Pass, PassError, PassInfo, Run};
use interp::NoHooks;
use ir::{Facts, KernelModule, Model, Module};

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
    /// Numbers compared; 0 where nothing had to run.
    pub values: u64,
    /// What came out.
    pub verdict: Verdict,
}

/// What a pass turned out to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing at all: every operation stands as it stood, so there was nothing to run.
    Unchanged,
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
    let found = Validation { passes: Vec::new(), values: 0, not_finite: 0 };
    let mut walk =
        Walk { model, compile, seeds, found, module: None, kernels: None, trials: Vec::new(), records: Vec::new() };
    for pass in passes {
        // A level that cannot be run is no measure of what follows it.
        if !walk.pass(pass)? {
            break;
        }
    }
    Ok(walk.found)
}

/// Passes being validated one after the other.
struct Walk<'a> {
    model: &'a Model,
    compile: &'a Compile<'a>,
    seeds: u64,
    found: Validation,
    /// The latest flat graphs.
    module: Option<Module>,
    /// The latest kernel level.
    kernels: Option<KernelModule>,
    trials: Vec<Trial>,
    /// What the latest level leaves, trial by trial.
    records: Vec<Record>,
}

impl Walk<'_> {
    /// Runs and judges a pass; gives whether what it left can be run.
    fn pass(&mut self, pass: &Pass) -> Result<bool, PassError> {
        let mut witness = None;
        let next = match (pass.run, &self.module, &self.kernels) {
            (Run::Flatten(run), ..) => run(self.model)?,
            (Run::Graph(run), Some(module), _) => run(module, &mut Vec::new())?,
            (Run::Target(run), Some(module), _) => run(module, self.compile)?,
            (Run::Refine(run), Some(module), _) => {
                let refined = run(module, self.compile)?;
                witness = refined.witness;
                refined.module
            }
            (Run::Select(run), Some(module), _) => {
                let next = run(module, self.compile)?;
                return self.kernel_level(pass.info, next);
            }
            (Run::Kernels(run), _, Some(kernels)) => {
                let next = run(kernels, self.compile)?;
                return self.kernel_level(pass.info, next);
            }
            (Run::Plan(run), _, Some(kernels)) => {
                let plan = run(kernels, self.compile)?;
                ir::verify_plan(&plan, kernels).map_err(|e| unverified(pass.info.name, &e))?;
                crate::check_plan::check(&plan, kernels)?;
                let program = Program::Plan(kernels, &plan);
                self.found.passes.push(judge_program(pass.info, program, &self.trials, &self.records).0);
                return Ok(true);
            }
            _ => return Ok(true),
        };
        ir::verify_module(&next).map_err(|e| unverified(pass.info.name, &e))?;
        if self.module.is_none() {
            self.trials = Trial::all(self.model, &next, self.seeds)?;
            let records = self.trials.iter().map(|t| t.record(Program::Model(self.model)));
            self.records = records.collect::<Result<Vec<_>, _>>().map_err(|e| trial::refused(&e))?;
            self.found.count(&self.trials, &self.records);
        }
        for trial in &mut self.trials {
            trial.take(&next.facts).map_err(|e| trial::refused(&e))?;
        }
        let old = self.module.as_ref().map_or(Program::Model(self.model), Program::Module);
        let judge = Judge { facts: &self.model.facts, old, next: &next, trials: &self.trials, records: &self.records };
        let (validated, after) = judge.pass(pass.info, witness);
        self.found.passes.push(validated);
        self.module = Some(next);
        Ok(self.left(after))
    }

    /// Judges a pass that leaves a kernel level. Where regions and their operations stay, nothing is run.
    fn kernel_level(&mut self, pass: PassInfo, next: KernelModule) -> Result<bool, PassError> {
        ir::verify_kernels(&next).map_err(|e| unverified(pass.name, &e))?;
        let after = if self.kernels.as_ref().is_some_and(|before| before.entries == next.entries) {
            self.found.passes.push(Validated { pass, values: 0, verdict: Verdict::Unchanged });
            Some(None)
        } else {
            let (validated, after) = judge_program(pass, Program::Kernels(&next), &self.trials, &self.records);
            self.found.passes.push(validated);
            after.map(Some)
        };
        self.kernels = Some(next);
        Ok(self.left(after))
    }

    /// Takes over what a level left, if it changed and can be run.
    fn left(&mut self, after: Option<Option<Vec<Record>>>) -> bool {
        match after {
            Some(Some(records)) => self.records = records,
            Some(None) => {}
            None => return false,
        }
        true
    }
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

/// A pass from flat graphs to flat graphs, about to be judged.
struct Judge<'j> {
    /// Of the whole model.
    facts: &'j Facts,
    old: Program<'j>,
    next: &'j Module,
    trials: &'j [Trial],
    /// What the old level leaves.
    records: &'j [Record],
}

impl Judge<'_> {
    /// Compares a pass with what it was given; gives what it left, if that can be run, and nothing of a level that stayed.
    fn pass(&self, pass: PassInfo, witness: Option<Module>) -> (Validated, Option<Option<Vec<Record>>>) {
        // What a pass left as it was need not run again: a run is a function of the graphs.
        if witness.is_none() && matches!(self.old, Program::Module(before) if before == self.next) {
            return (Validated { pass, values: 0, verdict: Verdict::Unchanged }, Some(None));
        }
        let after = self.trials.iter().map(|t| t.record(Program::Module(self.next))).collect::<Result<Vec<_>, _>>();
        let after = match after {
            Ok(after) => after,
            Err(e) => return (Validated { pass, values: 0, verdict: Verdict::Stopped(e.to_string()) }, None),
        };
        let all = compare_all(self.trials, self.records, &after);
        let values = all.values;
        let verdict = match pass.kind {
            Kind::Exact => exact(all, self.old, self.next, self.trials),
            Kind::Relaxed(_) => self.relaxed(&all, &after),
            Kind::Refines(_) => self.refined(&all, witness, &after),
        };
        (Validated { pass, values, verdict }, Some(Some(after)))
    }

    /// A relaxation may change numbers, but not make them infinite; and as a probe (`probe.rs`), where neither roundings nor
    /// the order of sums over ranks show, it may change none.
    fn relaxed(&self, all: &Comparison, after: &[Record]) -> Verdict {
        let not_finite = |records: &[Record]| records.iter().map(Record::not_finite).sum::<u64>();
        let (before, now) = (not_finite(self.records), not_finite(after));
        if now > before {
            return Verdict::Stopped(format!(
                "it leaves {now} numbers that are infinite or none, of {before} before it"
            ));
        }
        let Program::Module(old) = self.old else {
            return Verdict::Stopped("relaxations are of flat graphs only".to_owned());
        };
        match probed(self.facts, old, self.next, self.trials) {
            Ok(None) => {
                let (median, largest) = all.sizes();
                Verdict::Measured { moved: all.moved, median, largest }
            }
            Ok(Some(first)) => Verdict::Differs(Box::new(first)),
            Err(e) => Verdict::Stopped(e.to_string()),
        }
    }

    /// The witness must leave the same bits as the new graphs. It is the old graph with the new orders; where the pass hands
    /// over one of its own, it may differ from the old graphs in orders alone.
    fn refined(&self, all: &Comparison, witness: Option<Module>, after: &[Record]) -> Verdict {
        let Program::Module(module) = self.old else {
            return Verdict::Stopped("orders are refined on flat graphs only".to_owned());
        };
        let witness = match witness {
            Some(witness) => check_witness(module, witness),
            None => witness::with_orders(module, self.next),
        };
        let witness = match witness {
            Ok(witness) => witness,
            Err(why) => return Verdict::Stopped(why),
        };
        let program = Program::Module(&witness);
        let records = self.trials.iter().map(|t| t.record(program)).collect::<Result<Vec<_>, _>>();
        match records {
            Ok(records) => match exact(compare_all(self.trials, &records, after), program, self.next, self.trials) {
                Verdict::Equal => Verdict::Refined { moved: all.moved },
                other => other,
            },
            Err(e) => Verdict::Stopped(e.to_string()),
        }
    }
}

/// The first number that differs between two levels as probes; one trial of each entry is enough, for the probe has weights
/// of its own.
pub fn probed(
    facts: &Facts,
    old: &Module,
    new: &Module,
    trials: &[Trial],
) -> Result<Option<Difference>, interp::InterpError> {
    let quantised = [&old.facts, &new.facts];
    let (old, new) = (probe::of(old), probe::of(new));
    for trial in trials.iter().filter(|t| t.seed == 1) {
        let trial = trial.probe(facts, quantised)?;
        let left = |module: &Module| compare::without_signs_of_zeros(&trial.record(Program::Module(module))?);
        if let Some(mut first) = compare::compare(&trial, &left(&old)?, &left(&new)?).first {
            first.compared = format!("without roundings and with numbers that add exactly, {}", first.compared);
            return Ok(Some(first));
        }
    }
    Ok(None)
}

/// Compares a kernel level, run region by region, or a plan, run launch by launch on an arena, with the level before it.
fn judge_program(
    pass: PassInfo,
    program: Program<'_>,
    trials: &[Trial],
    records: &[Record],
) -> (Validated, Option<Vec<Record>>) {
    match trials.iter().map(|t| t.record(program)).collect::<Result<Vec<_>, _>>() {
        Ok(after) => {
            let all = compare_all(trials, records, &after);
            let verdict = all.first.map_or(Verdict::Equal, |first| Verdict::Differs(Box::new(first)));
            (Validated { pass, values: all.values, verdict }, Some(after))
        }
        Err(e) => (Validated { pass, values: 0, verdict: Verdict::Stopped(e.to_string()) }, None),
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

/// The witness, if it is well formed and changes nothing but open orders; otherwise what it changes.
pub fn check_witness(old: &Module, witness: Module) -> Result<Module, String> {
    if let Err(errors) = ir::verify_module(&witness) {
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        return Err(format!("the witness breaks a rule of its level: {first}"));
    }
    allowed::check(old, &witness)?;
    Ok(witness)
}
