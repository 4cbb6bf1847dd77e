//! `beam-run selftest`: every kernel of an artifact on this device against the interpreter.

use crate::args::SelftestArgs;
use crate::failure::Failure;
use crate::model;
use device::{Given, Steps, Verdict, Weights};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

/// Runs the command.
pub fn selftest(args: &SelftestArgs) -> Result<(), Failure> {
    let artifact = model::artifact(&args.model.artifact)?;
    args.model.fits(&artifact)?;
    let weights = if args.on_device { Weights::default() } else { model::weights(&artifact, &args.model)? };
    let given = match args.model.synthetic.filter(|_| args.on_device) {
        Some(seed) => Given::Made(seed),
        None => Given::Store(&weights),
    };
    let steps = if args.quick { Steps::EachPhase } else { Steps::EveryBucket };
    let verdicts = device::selftest(&artifact, given, args.seed, args.model.ranks(), steps).map_err(Failure::input)?;
    let wrong = verdicts.values().filter(|v| !v.is_right()).count();
    let text = if args.json { in_json(&verdicts, wrong) } else { in_words(&verdicts, wrong) };
    // A closed pipe is the reader's decision, not a fault.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if wrong == 0 {
        return Ok(());
    }
    Err(Failure::device(format!(
        "R0501: {wrong} of {} regions do not do what they mean on this device; report it with the list",
        verdicts.len()
    )))
}

fn in_json(verdicts: &BTreeMap<String, Verdict>, wrong: usize) -> String {
    let of = |(region, v): (&String, &Verdict)| {
        json!({
            "region": region, "kind": v.kind, "kernels": v.kernels, "right": v.is_right(),
            "exact": { "compared": v.exact, "different": v.wrong },
            "bounded": { "compared": v.bounded, "worst_share_of_bound": v.worst },
            "no_numbers": v.no_numbers,
            "not_started": v.idle,
            "first": v.first,
        })
    };
    let regions: Vec<_> = verdicts.iter().map(of).collect();
    let idle = not_started(verdicts);
    format!("{:#}\n", json!({ "ok": wrong == 0, "wrong": wrong, "not_started": idle, "regions": regions }))
}

fn in_words(verdicts: &BTreeMap<String, Verdict>, wrong: usize) -> String {
    let mut text = String::new();
    for (region, v) in verdicts {
        let word = if v.is_right() { "right" } else { "WRONG" };
        let (kind, exact, different, bounded, worst) = (&v.kind, v.exact, v.wrong, v.bounded, v.worst);
        let nan = if v.no_numbers > 0 { format!("; {} are NaN", v.no_numbers) } else { String::new() };
        text += &format!(
            "{word}  {region:36} {kind:15} {exact:9} bits equal or not, {different} not; {bounded:9} within a bound, at most {worst:.3} of it{nan}\n"
        );
        if !v.idle.is_empty() {
            let idle: Vec<&str> = v.idle.iter().map(String::as_str).collect();
            text += &format!("       not started: {}\n", idle.join(", "));
        }
        if let Some(first) = v.first.as_ref().filter(|_| !v.is_right()) {
            text += &format!("       {first}\n");
        }
    }
    let exact: u64 = verdicts.values().map(|v| v.exact).sum();
    let bounded: u64 = verdicts.values().map(|v| v.bounded).sum();
    let idle = match not_started(verdicts) {
        0 => String::new(),
        n => format!("; {n} kernels were started by no step, and nothing is said of them"),
    };
    text + &format!("{} regions, {wrong} wrong; {exact} numbers exact, {bounded} bounded{idle}\n", verdicts.len())
}

/// Kernels that no step started.
fn not_started(verdicts: &BTreeMap<String, Verdict>) -> usize {
    verdicts.values().map(|v| v.idle.len()).sum()
}
