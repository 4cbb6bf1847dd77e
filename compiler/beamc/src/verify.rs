//! `beamc verify`, and `compile --check`: every pass interpreted before and after, on a small model of the same text.

use crate::args::{SpecArgs, VerifyArgs};
use crate::drafter;
use crate::failure::{DEFECT, Failure};
use crate::input::{self, Job};
use ir::{DType, Mesh};
use passes::validate::{Difference, Shrunk, Small, Validated, Verdict};
use passes::{Compile, Kind, PassError, Validation};
use serde_json::{Value, json};
use spec::{Choices, Library};
use std::path::Path;

/// Rows of a drafter's block that `verify` runs.
const VERIFIED_BLOCK: u64 = 8;

/// Seeds where none are named: one of each size of weights.
pub const SEEDS: u64 = 3;

/// Most ranks of the meshes that `--all-meshes` makes.
const MOST_RANKS: u64 = 8;

/// What was validated, and how it went.
struct Outcome<'j> {
    runs: Vec<Act>,
    /// What was asked for; places of differences are places of its spec as it was read.
    job: &'j Job,
    seeds: u64,
}

/// The model with one dtype of untyped names. Narrow ones show every rounding and hide the last bits of sums; with
/// f32 nothing rounds and every order shows. So both are run.
struct Act {
    act: DType,
    shrunk: Shrunk,
    validation: Validation,
}

/// Runs the command.
pub fn verify(args: &VerifyArgs) -> Result<String, Failure> {
    let seeds = args.seeds.unwrap_or(SEEDS);
    let first = input::job(&args.spec, args.exact)?;
    if args.all_meshes {
        return all_meshes(args, &first, seeds);
    }
    lies(&first)?;
    let (mut text, mut json, mut holds) = run(&args.spec, &first, seeds)?.page();
    if let Some(draft) = &args.draft {
        let spec = SpecArgs { spec: draft.clone(), option: Vec::new(), ..args.spec.clone() };
        // One length says what its passes do; `compile --check` runs every length that is written.
        for job in drafter::jobs(draft, &first, &[VERIFIED_BLOCK])? {
            lies(&job)?;
            let (table, own, kept) = run(&spec, &job, seeds)?.page();
            text = format!("{text}\n{table}");
            json["drafter"] = own;
            holds &= kept;
        }
        json["ok"] = holds.into();
    }
    if !holds {
        return Err(Failure::page(DEFECT, text, Some(json)));
    }
    Ok(if args.json { format!("{json:#}\n") } else { text })
}

/// One table per mesh. A mesh on which the model cannot lie is told and is no fault.
fn all_meshes(args: &VerifyArgs, first: &Job, seeds: u64) -> Result<String, Failure> {
    let (mut text, mut list, mut holds) = (String::new(), Vec::new(), true);
    for mesh in meshes(&first.model.facts) {
        let (spec, options) = (&args.spec.spec, &args.spec.option);
        let job = input::job_on(spec, &first.target, mesh.clone(), options, args.exact)?;
        let job = Job { unpack: first.unpack.clone(), ..job };
        let refined = passes::lower(&job.model).and_then(|l| passes::refine(&l.module, &job.compile()));
        if let Some(e) = refined.err().filter(PassError::cannot_lie) {
            text += &format!("{} on {mesh}: not possible, {}\n\n", job.model.facts.name, e.message);
            list.push(json!({ "ok": true, "mesh": mesh, "not_possible": e.message }));
            continue;
        }
        let outcome = run(&args.spec, &job, seeds)?;
        holds &= outcome.holds();
        text += &format!("{}\n", outcome.table());
        if !outcome.holds() {
            text += &outcome.complaint();
        }
        list.push(outcome.json());
    }
    let json = json!({ "ok": holds, "meshes": list });
    if !holds {
        return Err(Failure::page(DEFECT, text, Some(json)));
    }
    Ok(if args.json { format!("{json:#}\n") } else { text })
}

/// One device, then every mesh axis that the spec names by itself and every two together, in powers of two.
fn meshes(facts: &ir::Facts) -> Vec<Mesh> {
    let mut axes: Vec<&String> = Vec::new();
    for axis in facts.shard.values().flatten() {
        // A word such as or-replicate is no axis, and no mesh may be called so.
        if !axes.contains(&axis) && Mesh::parse(&format!("{axis}=2")).is_ok() {
            axes.push(axis);
        }
    }
    let lengths = || (1..).map(|n| 1u64 << n).take_while(|n| *n <= MOST_RANKS);
    let mut meshes = vec![Mesh::single()];
    for axis in &axes {
        meshes.extend(lengths().filter_map(|n| Mesh::parse(&format!("{axis}={n}")).ok()));
    }
    for (i, one) in axes.iter().enumerate() {
        for other in axes.iter().skip(i + 1) {
            let pairs = lengths().flat_map(|n| lengths().map(move |m| (n, m))).filter(|(n, m)| n * m <= MOST_RANKS);
            meshes.extend(pairs.filter_map(|(n, m)| Mesh::parse(&format!("{one}={n},{other}={m}")).ok()));
        }
    }
    meshes
}

/// Refuses a mesh on which the model itself cannot lie, whatever the small one that is interpreted can.
fn lies(job: &Job) -> Result<(), Failure> {
    let refined = passes::lower(&job.model).and_then(|l| passes::refine(&l.module, &job.compile()));
    refined.map(drop).map_err(|e| input::pass_failure(&e, &job.checked))
}

/// Refuses where a pass changes what it does not declare.
pub fn check(args: &SpecArgs, job: &Job) -> Result<(), Failure> {
    lies(job)?;
    let outcome = run(args, job, SEEDS)?;
    if outcome.holds() {
        return Ok(());
    }
    let text = format!("{}{}", outcome.table(), outcome.complaint());
    Err(Failure::page(DEFECT, text, Some(outcome.json())))
}

fn run<'j>(args: &SpecArgs, job: &'j Job, seeds: u64) -> Result<Outcome<'j>, Failure> {
    let library = Library::embedded();
    let path: &Path = &args.spec;
    let full = &job.model;
    let mut runs = Vec::new();
    let narrow = (full.facts.act != DType::F32).then_some(full.facts.act);
    for act in narrow.into_iter().chain([DType::F32]) {
        let mut read = |small: &Small| {
            let (dims, layers) = (small.dims.clone(), small.layers.clone());
            let choices = input::choices(&job.target, &job.mesh, &args.option, job.exact);
            let (target, draft_tokens) = job.drafts_for.as_ref().map(|of| (of.target.clone(), of.tokens)).unzip();
            let choices = Choices { act: Some(act), dims, layers, target, draft_tokens, ..choices };
            let mut checked = spec::check_path(path, &library, &choices);
            let first = || checked.diagnostics.first().map_or_else(String::new, |d| d.message.clone());
            checked.model.take().ok_or_else(first)
        };
        let failed = |e| input::pass_failure(&e, &job.checked);
        let shrunk = passes::shrink(full, &job.mesh, &mut read).map_err(failed)?;
        let target = shrunk.target(&full.facts, &job.target);
        let compile = Compile { target: &target, ..job.compile() };
        let validation = passes::validate(&shrunk.model, &compile, seeds).map_err(failed)?;
        runs.push(Act { act, shrunk, validation });
    }
    Ok(Outcome { runs, job, seeds })
}

impl Outcome<'_> {
    /// The table, with a complaint if one is due; the same for programs; whether every pass keeps what it declares.
    fn page(&self) -> (String, Value, bool) {
        let complaint = if self.holds() { String::new() } else { self.complaint() };
        (format!("{}{complaint}", self.table()), self.json(), self.holds())
    }

    fn holds(&self) -> bool {
        self.runs.iter().all(|run| run.validation.holds())
    }

    /// Every pass that does not keep what it declares, and with which dtype.
    fn broken(&self) -> impl Iterator<Item = (&Act, &Validated)> {
        let passes = self.runs.iter().flat_map(|run| run.validation.passes.iter().map(move |p| (run, p)));
        passes.filter(|(_, p)| !p.verdict.holds())
    }

    fn table(&self) -> String {
        let Some(first) = self.runs.first() else { return String::new() };
        let facts = &first.shrunk.model.facts;
        // A factor that is written as a number is its own length.
        let named = facts.dims.iter().filter(|(name, _)| name.parse::<u64>().is_err());
        let dims: Vec<String> = named.map(|(name, n)| format!("{name} {n}")).collect();
        let windows: Vec<String> = facts.kv.iter().filter_map(|k| Some(format!("{} {}", k.name, k.window?))).collect();
        let windows = if windows.is_empty() { "none".to_owned() } else { windows.join(", ") };
        let (target, seeds) = (&self.job.target, self.seeds);
        let options: Vec<String> = facts.options.iter().map(|(name, chosen)| format!("{name} = {chosen}")).collect();
        let mut out = format!("{} for {} on {}, made small\n", facts.name, target.name, self.job.mesh);
        if !options.is_empty() {
            out += &format!("options: {}\n", options.join(", "));
        }
        out += &format!("dims: {}\nwindows: {windows}\n", dims.join(", "));
        for run in &self.runs {
            let (act, n, odd) = (run.act, run.validation.values, run.validation.not_finite);
            out += &format!("{act}: {n} numbers a level, results and caches of {seeds} seeds");
            out += &if odd > 0 { format!("; {odd} are infinite or no number\n") } else { "\n".to_owned() };
        }
        for (name, why) in &first.shrunk.kept {
            out += &format!("`{name}` keeps its length: otherwise \"{why}\"\n");
        }
        out += &aligned(&self.rows());
        for (run, p) in self.broken() {
            let what = match &p.verdict {
                Verdict::Differs(d) => format!("{d}{}", self.place(d)),
                Verdict::Stopped(why) => why.clone(),
                _ => String::new(),
            };
            out += &format!("\n{}, {}: {what}\n", p.pass.name, run.act);
        }
        out
    }

    /// A line of names, then one per pass: name, kind, numbers compared, and the verdict per dtype.
    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["pass", "kind", "compared"].map(str::to_owned).to_vec()];
        rows[0].extend(self.runs.iter().map(|run| run.act.to_string()));
        let most = self.runs.iter().map(|run| run.validation.passes.len()).max().unwrap_or(0);
        for i in 0..most {
            let cells: Vec<Option<&Validated>> = self.runs.iter().map(|run| run.validation.passes.get(i)).collect();
            let Some(p) = cells.iter().flatten().next() else { continue };
            let compared: u64 = cells.iter().flatten().map(|p| p.values).sum();
            let mut row = vec![p.pass.name.to_owned(), kind(p.pass.kind), compared.to_string()];
            row.extend(cells.into_iter().map(|p| p.map_or_else(|| "-".to_owned(), |p| word(&p.verdict))));
            rows.push(row);
        }
        rows
    }

    /// The place in the spec of the first value that differs.
    fn place(&self, difference: &Difference) -> String {
        let span = difference.origin.as_ref().and_then(|o| o.span);
        span.map_or_else(String::new, |span| {
            let (line, column) = self.job.checked.sources.line_column(span);
            format!(" ({}:{line}:{column})", self.job.checked.sources.name(span.file))
        })
    }

    fn complaint(&self) -> String {
        let mut broken: Vec<&str> = self.broken().map(|(_, p)| p.pass.name).collect();
        broken.dedup();
        format!(
            "error[P0402]: {} changed the model undeclared; this is a defect of the compiler, report it together with the spec\n",
            broken.join(", ")
        )
    }

    fn json(&self) -> Value {
        let runs = self.runs.iter().map(|run| {
            let kept = run.shrunk.kept.iter().map(|(dim, why)| json!({ "dim": dim, "because": why }));
            json!({
                "act": run.act.word(),
                "dims": run.shrunk.model.facts.dims,
                "layers": run.shrunk.small.layers,
                "kept": kept.collect::<Vec<_>>(),
                "values": run.validation.values,
                "not_finite": run.validation.not_finite,
                "passes": run.validation.passes.iter().map(|p| self.pass_json(p)).collect::<Vec<_>>(),
            })
        });
        json!({
            "ok": self.holds(),
            "model": self.runs.first().map(|run| run.shrunk.model.facts.name.clone()),
            "target": self.job.target.name,
            "mesh": self.job.mesh,
            "options": self.job.model.facts.options,
            "exact": self.job.exact,
            "seeds": self.seeds,
            "runs": runs.collect::<Vec<_>>(),
        })
    }

    fn pass_json(&self, p: &Validated) -> Value {
        let (verdict, detail) = match &p.verdict {
            Verdict::Unchanged => ("unchanged", Value::Null),
            Verdict::Equal => ("equal", Value::Null),
            Verdict::Refined { moved } => ("refined", json!({ "moved": moved })),
            Verdict::Measured { moved, median, largest } => {
                ("measured", json!({ "moved": moved, "median": median, "largest": largest }))
            }
            Verdict::Differs(d) => ("differs", self.difference_json(d)),
            Verdict::Stopped(why) => ("stopped", json!({ "because": why })),
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

/// A verdict as a cell of the table.
fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Unchanged => "unchanged".to_owned(),
        Verdict::Equal => "equal".to_owned(),
        Verdict::Refined { moved } => format!("equal, {moved} moved"),
        Verdict::Measured { moved: 0, .. } => "nothing moved".to_owned(),
        Verdict::Measured { moved, median, largest } => {
            format!("{moved} moved, by {median:.1e} in the median, {largest:.1e} at most")
        }
        Verdict::Differs(_) | Verdict::Stopped(_) => "DIFFER".to_owned(),
    }
}

/// Rows with their columns below each other.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().enumerate().map(|(i, c)| format!("{c:<w$}", w = width(i))).collect();
        out += &format!("\n{}", cells.join("  ").trim_end());
    }
    out + "\n"
}
