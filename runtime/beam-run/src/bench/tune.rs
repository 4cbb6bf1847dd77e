//! `beam-run tune`: times every kernel that `beamc compile --tunable` packed, on this device, as a step runs it.

use super::steps::Bench;
use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::{flags, model, outputs};
use artifact::{Product, Tuning};
use clap::Args;
use ir::RowsPerSequence;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// Most token rows of a step whose products are cut into shares.
const MOST_ROWS: u64 = 256;

/// Arguments of `tune`.
#[derive(Args)]
pub struct TuneArgs {
    /// What is timed. It runs on the CUDA device, whatever the executor.
    #[command(flatten)]
    pub model: ModelArgs,
    /// File for the results, which `beamc compile --tuning` takes.
    #[arg(long, value_name = "FILE", value_parser = flags::path)]
    pub out: PathBuf,
    /// Tokens that stand in the cache of every sequence.
    #[arg(long, value_name = "TOKENS", default_value = "64", value_parser = flags::at_least(1))]
    pub context: usize,
    /// Steps that are timed for each number of shares.
    #[arg(long, value_name = "N", default_value = "9", value_parser = flags::at_least(1))]
    pub runs: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn tune(args: &TuneArgs) -> Result<(), Failure> {
    outputs::apart(("--out", &args.out), &args.model.read())?;
    let artifact = model::artifact(&args.model.artifact)?;
    args.model.fits(&artifact)?;
    let code = artifact.device.iter().flat_map(|d| &d.entries).flatten().flat_map(|g| &g.regions);
    if code.clone().all(|region| region.alternatives.is_empty()) {
        return Err(Failure::input(
            "R0511: the artifact holds one kernel for each product, so there is nothing to choose from; compile it with `beamc compile --tunable`",
        ));
    }
    // Checked before anything is timed; what is there stays until there is something better.
    let place = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&args.out);
    place.map_err(|e| unwritten(args, &e))?;
    let buckets = artifact.plan.entries.iter().take(1).flat_map(|e| &e.buckets).map(|b| &b.bucket);
    let mut steps: Vec<(usize, usize)> = buckets
        .filter(|b| b.tokens <= MOST_ROWS)
        .filter_map(|b| match b.rows {
            RowsPerSequence::One => Some((b.sequences.min(b.tokens) as usize, 1)),
            RowsPerSequence::Ragged => Some((1, b.tokens as usize)),
            RowsPerSequence::Block(_) => None,
        })
        .collect();
    steps.sort_unstable();
    steps.dedup();
    let sequences = steps.iter().map(|(sequences, _)| *sequences).max().unwrap_or(1);
    let mut bench = Bench::open(&artifact, &args.model, args.context + MOST_ROWS as usize, sequences)?;
    bench.fill(args.context)?;
    let mut times: BTreeMap<(Product, u64), Vec<f64>> = BTreeMap::new();
    for (sequences, rows) in &steps {
        let rows: Vec<_> = (0..*sequences).map(|s| (s, args.context, *rows)).collect();
        // The first run is the driver's, which loads kernels then.
        for run in 0..=args.runs {
            for (product, shares, micros) in bench.product_micros(&rows)? {
                if run > 0 {
                    times.entry((product, shares)).or_default().push(f64::from(micros));
                }
            }
        }
    }
    let tuning = Tuning::of(&artifact.manifest.target.arch, &bench.device(), times);
    let text = serde_json::to_string_pretty(&tuning).map_err(|e| Failure::output(format!("R0513: {e}")))?;
    std::fs::write(&args.out, text + "\n").map_err(|e| unwritten(args, &e))?;
    let out = args.out.display().to_string();
    let text = if args.json {
        format!("{:#}\n", json!({ "ok": true, "out": out, "products": tuning.products }))
    } else {
        tuning.products.iter().map(line).collect::<String>() + &format!("{out}: {} products\n", tuning.products.len())
    };
    // A closed pipe is the reader's decision, not a fault.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn line(tuned: &artifact::Tuned) -> String {
    let Product { columns, k, rows } = tuned.product;
    let all: Vec<String> = tuned.micros.iter().map(|(shares, micros)| format!("{shares}: {micros:.1}")).collect();
    format!("{columns:7} x {k:6}, {rows:3} rows: {} shares of {} us\n", tuned.shares, all.join(", "))
}

fn unwritten(args: &TuneArgs, error: &std::io::Error) -> Failure {
    let path = args.out.display();
    Failure::output(format!("R0512: the results cannot be written to `{path}`: {error}; name a file that can"))
}
