//! `beamc verify`, and `compile --check`: every pass interpreted before and after, on a small model of the same text.

use crate::args::{SpecArgs, VerifyArgs};
use crate::failure::{Failure, INPUT};
use crate::input;
use passes::validate::{Difference, Shrunk, Small, Validated, Verdict};
use passes::{Kind, Validation};
use serde_json::{Value, json};
use spec::{Checked, Choices, Library};
use std::path::Path;
use targets::Target;

/// Seeds where none are named: one of each size of weights.
pub const SEEDS: u64 = 3;

/// What was validated, and how it went.
struct Outcome<'c> {
    shrunk: Shrunk,
    validation: Validation,
    /// Places of differences are places of the spec as it was read.
    checked: &'c Checked,
}

/// Runs the command.
pub fn verify(args: &VerifyArgs) -> Result<String, Failure> {
    let (full, target, checked) = input::model_for(&args.spec, args.json)?;
    let seeds = args.seeds.unwrap_or(SEEDS).max(1);
    let outcome = run(&args.spec.spec, &full, &target, &checked, seeds)?;
    let json = outcome.json(&target, seeds);
    if !outcome.validation.holds() {
        let text = format!("{}{}", outcome.table(&target, seeds), outcome.complaint());
        return Err(Failure { exit: INPUT, text, json: args.json.then_some(json) });
    }
    Ok(if args.json { format!("{json:#}\n") } else { outcome.table(&target, seeds) })
}

/// Refuses where a pass changes what it does not declare.
pub fn check(args: &SpecArgs, full: &ir::Model, target: &Target, checked: &Checked, json: bool) -> Result<(), Failure> {
    let outcome = run(&args.spec, full, target, checked, SEEDS)?;
    if outcome.validation.holds() {
        return Ok(());
    }
    let text = format!("{}{}", outcome.table(target, SEEDS), outcome.complaint());
    Err(Failure { exit: INPUT, text, json: json.then(|| outcome.json(target, SEEDS)) })
}

fn run<'c>(
    path: &Path,
    full: &ir::Model,
    target: &Target,
    checked: &'c Checked,
    seeds: u64,
) -> Result<Outcome<'c>, Failure> {
    let library = Library::embedded();
    let mut read = |small: &Small| {
        let choices = Choices { dims: small.dims.clone(), layers: small.layers.clone(), ..input::choices(target) };
        let mut checked = spec::check_path(path, &library, &choices);
        checked
            .model
            .take()
            .ok_or_else(|| checked.diagnostics.first().map_or_else(|| "no model".to_owned(), |d| d.message.clone()))
    };
    let shrunk = passes::shrink(full, &mut read).map_err(|e| input::pass_failure(&e, checked))?;
    let validation = passes::validate(&shrunk.model, target, seeds).map_err(|e| input::pass_failure(&e, checked))?;
    Ok(Outcome { shrunk, validation, checked })
}

impl Outcome<'_> {
    fn table(&self, target: &Target, seeds: u64) -> String {
        let facts = &self.shrunk.model.facts;
        // A factor that is written as a number is its own length.
        let named = facts.dims.iter().filter(|(name, _)| name.parse::<u64>().is_err());
        let dims: Vec<String> = named.map(|(name, n)| format!("{name} {n}")).collect();
        let windows: Vec<String> = facts.kv.iter().filter_map(|k| Some(format!("{} {}", k.name, k.window?))).collect();
        let mut out = format!(
            "{} for {}, made small: {}; windows: {}\n{} numbers a level: results and caches of {seeds} seeds",
            facts.name,
            target.name,
            dims.join(", "),
            if windows.is_empty() { "none".to_owned() } else { windows.join(", ") },
            self.validation.values,
        );
        if self.validation.not_finite > 0 {
            out += &format!("; {} of them are infinite or no number", self.validation.not_finite);
        }
        out += "\n";
        for (name, why) in &self.shrunk.kept {
            out += &format!("`{name}` keeps its length: otherwise \"{why}\"\n");
        }
        let rows: Vec<[String; 4]> = self.validation.passes.iter().map(|p| self.row(p)).collect();
        let head = ["pass", "kind", "compared", "bits"].map(str::to_owned);
        let width = |i: usize| rows.iter().chain([&head]).map(|r| r[i].chars().count()).max().unwrap_or(0);
        for [pass, kind, compared, bits] in std::iter::once(&head).chain(&rows) {
            out +=
                &format!("\n{pass:<a$}  {kind:<b$}  {compared:>c$}  {bits}", a = width(0), b = width(1), c = width(2),);
        }
        out + "\n"
    }

    fn row(&self, p: &Validated) -> [String; 4] {
        let bits = match &p.verdict {
            Verdict::Equal => "equal".to_owned(),
            Verdict::Refined { moved } => format!("equal under the new orders, which move {moved} numbers"),
            Verdict::Measured { moved, largest } => format!("{moved} numbers moved, by {largest:e} at most"),
            Verdict::Differs(d) => format!("DIFFER: {d}{}", self.place(d)),
            Verdict::Stopped(why) => format!("DIFFER: {why}"),
            Verdict::NotRun => "not interpreted: the plan's verifier passed it".to_owned(),
        };
        let compared = if p.verdict == Verdict::NotRun { "-".to_owned() } else { p.values.to_string() };
        [p.pass.name.to_owned(), kind(p.pass.kind), compared, bits]
    }

    /// The place in the spec of the first value that differs.
    fn place(&self, difference: &Difference) -> String {
        let span = difference.origin.as_ref().and_then(|o| o.span);
        span.map_or_else(String::new, |span| {
            let (line, column) = self.checked.sources.line_column(span);
            format!(" ({}:{line}:{column})", self.checked.sources.name(span.file))
        })
    }

    fn complaint(&self) -> String {
        let broken: Vec<&str> =
            self.validation.passes.iter().filter(|p| !p.verdict.holds()).map(|p| p.pass.name).collect();
        format!(
            "error[P0402]: {} changed the model undeclared; this is a defect of the compiler, report it together with the spec\n",
            broken.join(", ")
        )
    }

    fn json(&self, target: &Target, seeds: u64) -> Value {
        let facts = &self.shrunk.model.facts;
        let kept: Vec<Value> =
            self.shrunk.kept.iter().map(|(dim, why)| json!({ "dim": dim, "because": why })).collect();
        json!({
            "ok": self.validation.holds(),
            "model": facts.name,
            "target": target.name,
            "seeds": seeds,
            "dims": facts.dims,
            "layers": self.shrunk.small.layers,
            "kept": kept,
            "values": self.validation.values,
            "not_finite": self.validation.not_finite,
            "passes": self.validation.passes.iter().map(|p| self.pass_json(p)).collect::<Vec<_>>(),
        })
    }

    fn pass_json(&self, p: &Validated) -> Value {
        let (verdict, detail) = match &p.verdict {
            Verdict::Equal => ("equal", Value::Null),
            Verdict::Refined { moved } => ("refined", json!({ "moved": moved })),
            Verdict::Measured { moved, largest } => ("measured", json!({ "moved": moved, "largest": largest })),
            Verdict::Differs(d) => ("differs", self.difference_json(d)),
            Verdict::Stopped(why) => ("stopped", json!({ "because": why })),
            Verdict::NotRun => ("not run", Value::Null),
        };
        json!({
            "pass": p.pass.name,
            "level": p.pass.level.word(),
            "kind": kind(p.pass.kind),
            "compared": p.values,
            "verdict": verdict,
            "detail": detail,
        })
    }

    fn difference_json(&self, d: &Difference) -> Value {
        json!({
            "entry": d.entry,
            "seed": d.seed,
            "step": d.step,
            "compared": d.compared,
            "before": d.numbers.0.to_string(),
            "after": d.numbers.1.to_string(),
            "value": d.origin.as_ref().map(|o| o.value.clone()),
            "where": d.origin.as_ref().map(|o| o.place.to_string()),
            "spec": self.place(d).trim_matches([' ', '(', ')']),
        })
    }
}

fn kind(kind: Kind) -> String {
    match kind {
        Kind::Exact => "exact".to_owned(),
        Kind::Refines(what) => format!("refines {what}"),
        Kind::Relaxed(what) => format!("relaxed {what}"),
    }
}
