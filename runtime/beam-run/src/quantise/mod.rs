//! `beam-run quantise`: a checkpoint of floats written as the public quantisers write it.
//!
//! ```text
//! matrices.rs     which tensors are matrices of products, seen from the checkpoint alone
//! by_artifact.rs  the same from a compiled model, which also knows what takes the same input
//! patterns.rs     modules that stay as they are
//! calibrate.rs    the largest magnitudes of values on given tokens
//! cached.rs       numbers of cached rows
//! config.rs       what the configuration says of it
//! write.rs        tensors, streamed into a new directory
//! ```

mod by_artifact;
mod cached;
mod calibrate;
mod config;
mod matrices;
mod patterns;
mod write;

use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::{model, outputs};
use artifact::Artifact;
use cached::Cached;
use clap::ValueEnum;
use config::{Said, Scheme};
use device::checkpoint::{Checkpoint, Rows, ScaleFormat, e4m3_number, nvfp4_number};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use matrices::{Found, Matrix};
use patterns::Patterns;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A public format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// e4m3 with a scale for each row, inputs in e4m3 with a scale for each token (compressed-tensors)
    Fp8,
    /// The same weights; inputs stay as they are
    Fp8Weights,
    /// e2m1 in blocks of 16 under e4m3 scales, inputs alike under a calibrated number (ModelOpt)
    Nvfp4,
    /// The same weights; inputs stay as they are
    Nvfp4Weights,
}

/// What products take in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Inputs {
    /// As the format has it
    Narrow,
    /// Values as they are
    Plain,
}

/// How scales of rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scales {
    /// As the usual quantiser stores them for a model in bf16
    Bf16,
    /// Without rounding
    F32,
}

/// Arguments of `quantise`.
#[derive(clap::Args)]
pub struct QuantiseArgs {
    /// Model directory with weights in BF16, F16 or F32.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Format to write.
    #[arg(long, value_enum)]
    pub format: Format,
    /// Directory to write; it must not exist, or be empty.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// What products take in; as the format has it if absent.
    #[arg(long, value_enum)]
    pub inputs: Option<Inputs>,
    /// Leave modules as they are: a name or its dotted end, a pattern with `*`, or `re:` and a regular expression that matches from
    /// the start. May be given several times. What is outside the layers always stays.
    #[arg(long, value_name = "PATTERN")]
    pub ignore: Vec<String>,
    /// Artifact compiled from the same model for the processor, unquantised. It says which tensors are matrices of products, which of
    /// them take the same input, and how experts in one tensor come apart.
    #[arg(long, value_name = "DIR")]
    pub artifact: Option<PathBuf>,
    /// File of token ids, {"tokens": [[…], …]}, on which the model runs to find the largest inputs and cached rows. Needs `--artifact`.
    #[arg(long, value_name = "FILE", requires = "artifact")]
    pub calibrate: Option<PathBuf>,
    /// How scales of rows are stored; bf16 if absent, f32 for a model in another format.
    #[arg(long, value_enum)]
    pub scales: Option<Scales>,
    /// Give every matrix a number of its own instead of one for those that take the same input.
    #[arg(long)]
    pub own_numbers: bool,
    /// Write numbers of cached keys and values too, for targets that keep them in e4m3. Needs `--calibrate`.
    #[arg(long, requires = "calibrate")]
    pub kv_scales: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl QuantiseArgs {
    /// Whether inputs of products are narrow.
    fn narrow_inputs(&self) -> bool {
        self.inputs != Some(Inputs::Plain) && matches!(self.format, Format::Fp8 | Format::Nvfp4)
    }

    /// Whether inputs have numbers that a run of the model finds.
    fn calibrates_inputs(&self) -> bool {
        !self.is_fp8() && self.narrow_inputs()
    }

    /// Refuses flags that contradict each other, or that the format has no use for.
    fn agree(&self) -> Result<(), Failure> {
        let format = self.format.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let refuse = |flag: &str, fact: &str, next: &str| {
            Err(Failure::usage(format!("R0721: `{flag}` and `--format {format}`: {fact}; {next}")))
        };
        if self.inputs == Some(Inputs::Narrow) && !self.narrow_inputs() {
            let next = "leave `--inputs` out, or name the format without `-weights`";
            return refuse("--inputs narrow", "the format leaves inputs as they are", next);
        }
        if self.scales.is_some() && !self.is_fp8() {
            return refuse(
                "--scales",
                "the scales of its blocks are in e4m3, and rows have none",
                "leave `--scales` out",
            );
        }
        if self.own_numbers && self.is_fp8() {
            return refuse("--own-numbers", "its matrices have scales of rows and no number", "leave it out");
        }
        if self.calibrate.is_some() && !self.calibrates_inputs() && !self.kv_scales {
            let next = "leave `--calibrate` out, or add `--kv-scales`";
            return refuse("--calibrate", "nothing in it is found by running the model", next);
        }
        if self.calibrates_inputs() && self.calibrate.is_none() {
            return Err(Failure::usage(
                "R0704: inputs in nvfp4 need the largest input of each module, and no run of the model shows it; pass `--artifact DIR --calibrate TOKENS.json`, or `--inputs plain`",
            ));
        }
        let mut read = vec![("--model", self.model.as_path())];
        read.extend(self.artifact.iter().map(|dir| ("--artifact", dir.as_path())));
        read.extend(self.calibrate.iter().map(|file| ("--calibrate", file.as_path())));
        outputs::apart(("--out", &self.out), &read)
    }

    /// Whether weights become e4m3 with a scale for each row.
    fn is_fp8(&self) -> bool {
        matches!(self.format, Format::Fp8 | Format::Fp8Weights)
    }
}

/// Runs the command.
pub fn quantise(args: &QuantiseArgs) -> Result<(), Failure> {
    args.agree()?;
    write::check_target(&args.out)?;
    let config = config::read(&args.model)?;
    let checkpoint = Checkpoint::open(&args.model).map_err(Failure::input)?;
    if let Some(problem) = checkpoint.problems().first() {
        return Err(Failure::input(format!("{problem}; {}", problem.help())));
    }
    let artifact = args.artifact.as_deref().map(model::artifact).transpose()?;
    let mut found = match &artifact {
        Some(artifact) => by_artifact::find(artifact, &checkpoint)?,
        None => matrices::find(&checkpoint)?,
    };
    let patterns = Patterns::new(&args.ignore)?;
    let matrices = found.matrices.len();
    patterns.leave(&mut found, !args.is_fp8())?;
    check(args, artifact.as_ref(), &found, matrices)?;
    check_copied(&checkpoint, &found)?;
    let (input_numbers, cached) = watched(args, artifact.as_ref(), &checkpoint, &found)?;
    let scales = match args.scales {
        Some(Scales::Bf16) => ScaleFormat::Bf16,
        Some(Scales::F32) => ScaleFormat::F32,
        None if found.in_bf16 => ScaleFormat::Bf16,
        None => ScaleFormat::F32,
    };
    let numbers = numbers(args, &checkpoint, &found)?;
    let scheme = match args.is_fp8() {
        true => Scheme::Rows(scales),
        false => Scheme::Blocks { numbers, input_numbers },
    };
    let said = Said { fp8: args.is_fp8(), narrow_inputs: args.narrow_inputs(), kv_scales: args.kv_scales };
    let writer =
        write::Writer { checkpoint: &checkpoint, found: &found, scheme: &scheme, cached: &cached, model: &args.model };
    let written = writer.write(&args.out, |dir| config::write(dir, &config, &found, said))?;
    report(args, &found, &written);
    Ok(())
}

/// What the model shows on given tokens: the number of each input, in order, if inputs have any, and those of cached rows.
fn watched(
    args: &QuantiseArgs,
    artifact: Option<&Artifact>,
    checkpoint: &Checkpoint,
    found: &Found,
) -> Result<(Vec<f32>, Vec<Cached>), Failure> {
    let calibrated = args.calibrates_inputs();
    let Some((artifact, tokens)) = artifact.zip(args.calibrate.as_ref()).filter(|_| calibrated || args.kv_scales)
    else {
        return Ok((Vec::new(), Vec::new()));
    };
    let mut cached = if args.kv_scales { cached::find(artifact, checkpoint, args.is_fp8())? } else { Vec::new() };
    let inputs: &[String] = if calibrated { &found.inputs } else { &[] };
    let values: Vec<String> = inputs.iter().chain(cached.iter().map(|c| &c.value)).cloned().collect();
    let source = ModelArgs::of(&args.artifact.clone().unwrap_or_default(), Some(args.model.clone()), None, "cpu", true);
    let mut largest = calibrate::largest(artifact, &source, tokens, &values)?;
    for (cached, largest) in cached.iter_mut().zip(largest.split_off(inputs.len())) {
        if largest > 0.0 {
            cached.number = e4m3_number(largest);
        }
    }
    Ok((largest.into_iter().map(nvfp4_number).collect(), cached))
}

/// Refuses what the format cannot hold, and a checkpoint in which nothing would change; there were so many matrices before
/// `--ignore` left some as they are.
fn check(args: &QuantiseArgs, artifact: Option<&Artifact>, found: &Found, matrices: usize) -> Result<(), Failure> {
    let (model, plain) = (args.model.display(), found.plain.len());
    let narrow = artifact.and_then(|artifact| artifact.recipes.iter().map(|r| r.dtype).find(|dtype| dtype.is_narrow()));
    match (found.matrices.is_empty(), matrices, &args.artifact) {
        (false, ..) => {}
        (true, 0, None) => {
            return Err(Failure::input(format!(
                "R0705: `{model}` has no matrix to quantise: a tensor `….weight` of two dimensions, in the format of most of the checkpoint and in a numbered layer, alone in its module; {plain} modules have another; pass `--artifact`, which knows what products read"
            )));
        }
        (true, 0, Some(artifact)) => {
            if let Some(narrow) = narrow {
                return Err(Failure::input(format!(
                    "R0705: `{}` keeps weights in {narrow} already, and shows no matrix of `{model}` to quantise; compile the unquantised checkpoint for a target that leaves it as it is, such as `cpu`",
                    artifact.display()
                )));
            }
            return Err(Failure::input(format!(
                "R0705: no product in the layers of `{}` reads a matrix of `{model}` that its spec lets be quantised; {plain} modules stay as they are; compile a spec without `quant = false` on all of them",
                artifact.display()
            )));
        }
        (true, all, _) => {
            return Err(Failure::usage(format!(
                "R0705: `--ignore` leaves all {all} matrices of `{model}` as they are, and nothing to quantise; leave some of its patterns out"
            )));
        }
    }
    let odd: Vec<&Matrix> = found.matrices.iter().filter(|m| !m.columns.is_multiple_of(16)).collect();
    match odd.first() {
        Some(first) if !args.is_fp8() => Err(Failure::input(format!(
            "R0706: `{}` has {} columns and nvfp4 has blocks of 16 ({} such modules); leave them as they are with `--ignore`",
            first.module,
            first.columns,
            odd.len()
        ))),
        _ => Ok(()),
    }
}

/// The number of every matrix, in order; each is looked at, so that what is no number is found before anything is written.
fn numbers(args: &QuantiseArgs, checkpoint: &Checkpoint, found: &Found) -> Result<Vec<f32>, Failure> {
    let bar = bar("looking at", found.matrices.len());
    let mut largest = Vec::with_capacity(found.matrices.len());
    for matrix in &found.matrices {
        let found = rows(checkpoint, matrix)?.largest();
        if !found.is_finite() {
            return Err(odd(&matrix.tensor, matrix.first as usize, &rows(checkpoint, matrix)?));
        }
        largest.push(found);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut of_unit: HashMap<usize, f32> = HashMap::new();
    for (matrix, largest) in found.matrices.iter().zip(&largest) {
        let unit = of_unit.entry(matrix.unit).or_default();
        *unit = unit.max(*largest);
    }
    let shared = |(matrix, own): (&Matrix, f32)| match args.own_numbers {
        true => nvfp4_number(own),
        false => nvfp4_number(of_unit.get(&matrix.unit).copied().unwrap_or(own)),
    };
    Ok(found.matrices.iter().zip(largest).map(shared).collect())
}

/// Refuses tensors that would be copied as they are and hold what is no number: the copy could not be loaded either.
fn check_copied(checkpoint: &Checkpoint, found: &Found) -> Result<(), Failure> {
    let taken: HashSet<&str> = found.matrices.iter().map(|m| m.tensor.as_str()).collect();
    for (_, entry) in checkpoint.tensors().filter(|(_, entry)| !taken.contains(entry.name.as_str())) {
        let width = entry.shape.last().copied().unwrap_or(1) as usize;
        let rows = checkpoint.tensor(&entry.name).and_then(|(_, bytes)| Rows::new(&entry.dtype, bytes, width));
        if let Some(rows) = rows.filter(|rows| !rows.largest().is_finite()) {
            return Err(odd(&entry.name, 0, &rows));
        }
    }
    Ok(())
}

/// What is told of a tensor with an element that is no finite number; the rows begin at element `first` of it.
fn odd(tensor: &str, first: usize, rows: &Rows<'_>) -> Failure {
    let (at, number) = rows.odd().unwrap_or((0, f32::NAN));
    Failure::input(format!(
        "R0707: element {} of `{tensor}` is {number}, and every weight must be a finite number to be scaled or loaded; fetch the checkpoint again and compare its files with the original's",
        first + at
    ))
}

/// The rows of a matrix in the checkpoint.
fn rows<'a>(checkpoint: &'a Checkpoint, matrix: &Matrix) -> Result<Rows<'a>, Failure> {
    let found = checkpoint.tensor(&matrix.tensor).and_then(|(entry, bytes)| {
        let width = entry.dtype.bits()? as usize / 8;
        let first = matrix.first as usize * width;
        let bytes = bytes.get(first..first + (matrix.rows * matrix.columns) as usize * width)?;
        Rows::new(&entry.dtype, bytes, matrix.columns as usize)
    });
    found.ok_or_else(|| {
        Failure::input(format!("R0708: `{}` does not hold the matrix `{}`", matrix.tensor, matrix.module))
    })
}

/// A bar on a terminal.
fn bar(what: &str, total: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template(&format!("{what} {{bar:40}} {{pos}}/{{len}} tensors")) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn report(args: &QuantiseArgs, found: &Found, written: &write::Written) {
    let (quantised, plain) = (found.matrices.len(), &found.plain);
    if args.json {
        let body = json!({
            "ok": true, "out": args.out, "quantised": quantised, "plain": plain, "not_copied": written.not_copied,
            "bytes": {"before": written.bytes_before, "after": written.bytes_after},
        });
        println!("{body:#}");
        return;
    }
    println!("{quantised} matrices quantised, {} modules left as they are: {}", plain.len(), short(plain));
    println!("{} bytes of tensors, {} before", written.bytes_after, written.bytes_before);
    if !written.not_copied.is_empty() {
        println!("not copied: {}", short(&written.not_copied));
    }
    println!("{}", args.out.display());
}

/// The first few of a list.
fn short(names: &[String]) -> String {
    let shown = names.iter().take(4).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(4) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A path of a file in a directory, as messages show it.
fn shown(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}
