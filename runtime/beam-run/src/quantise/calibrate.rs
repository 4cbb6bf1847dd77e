//! The largest inputs of each module on given tokens: the model runs, and what its products take in is watched.

use super::matrices::Found;
use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::feed::{Feed, chunk_tokens};
use crate::model;
use crate::score::{check_tokens, files};
use artifact::Artifact;
use device::checkpoint::nvfp4_number;
use device::{Probe, TensorData};
use engine::Executor;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::Path;

/// The number of each input of `found`, in order: its largest magnitude over all tokens, in units that codes and scales reach.
pub fn numbers(artifact: &Artifact, source: &ModelArgs, tokens: &Path, found: &Found) -> Result<Vec<f32>, Failure> {
    let sequences = files::read_tokens(tokens)?;
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    if longest == 0 {
        return Err(Failure::input(format!(
            "R0714: `{}` has no token, and the largest inputs are to be found on some; give it sequences",
            tokens.display()
        )));
    }
    let weights = model::weights(artifact, source)?;
    let feed = Feed::new(artifact, 0);
    let mut executor = feed.probed(artifact, &weights, source.executor()?, longest)?;
    check_tokens(tokens, &sequences, executor.facts().vocab)?;
    let bar = ProgressBar::with_draw_target(
        Some(sequences.iter().map(|s| s.len() as u64).sum()),
        ProgressDrawTarget::stderr(),
    );
    if let Ok(style) = ProgressStyle::with_template("calibrating {bar:40} {pos}/{len} tokens {per_sec}") {
        bar.set_style(style);
    }
    let mut largest = vec![0f32; found.inputs.len()];
    for sequence in &sequences {
        let chunk = chunk_tokens(executor.facts());
        for (i, part) in sequence.chunks(chunk).enumerate() {
            // Set anew for each step, so that no more than one step's values are kept.
            let probe = Probe { trace: found.inputs.clone(), ..Probe::default() };
            executor.set_probe(probe).map_err(Failure::input)?;
            feed.run(executor.as_mut(), i * chunk, part)?;
            let traced = executor.take_trace();
            for (largest, name) in largest.iter_mut().zip(&found.inputs) {
                if let Some(TensorData::F32(x)) = traced.get(name).map(|t| &t.data) {
                    *largest = x.iter().fold(*largest, |m, x| m.max(x.abs()));
                }
            }
            bar.inc(part.len() as u64);
        }
    }
    bar.finish_and_clear();
    Ok(largest.into_iter().map(nvfp4_number).collect())
}
