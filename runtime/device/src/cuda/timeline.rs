//! How long every start of a step takes on the device.

use super::choose::Choosing;
use super::walk::{Counts, Loaded, meets};
use ir::Launch;

/// One start as it ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// The graph and the region.
    pub region: String,
    /// The kernel.
    pub kernel: String,
    /// Microseconds from the end of the start before to the end of this one.
    pub micros: f32,
}

/// How often the device fills memory first, so that starts wait there for it and not for this machine.
const FILLS: usize = 16;

/// Runs a step on all ranks, with a mark behind each start of the first. Starts do not overlap, so the sum is more than a step takes.
/// The choice of tokens is one start here.
pub fn timeline(ranks: &[Loaded], bucket: usize, counts: Counts, choosing: Choosing) -> Result<Vec<Timed>, String> {
    let first = ranks.first().ok_or("no rank runs")?;
    for _ in 0..FILLS {
        first.arena.fill(first.scratch, first.arena.bytes() - first.scratch, 0)?;
    }
    let mut marks = vec![first.device.mark()?];
    let mut timed = Vec::new();
    let stages = ranks.iter().map(|r| r.stages(r.bucket(bucket)?)).collect::<Result<Vec<_>, String>>()?;
    for (number, stage) in stages.first().into_iter().flatten().enumerate() {
        for launch in &stage.program.launches {
            let region =
                if let Launch::Region { region, .. } = launch { first.region(stage, *region).ok() } else { None };
            if first.crowd > 1 && region.is_some_and(|r| r.starts.iter().any(meets)) {
                // Ranks of one device meet when nothing else runs there.
                ranks.iter().try_for_each(|r| r.device.wait())?;
            }
            let others = ranks.iter().zip(&stages).skip(1).filter_map(|(r, s)| Some((r, s.get(number)?)));
            for (rank, stage) in others {
                rank.launch(stage, launch, counts)?;
            }
            let Launch::Region { region, variant, .. } = launch else {
                first.launch(stage, launch, counts)?;
                continue;
            };
            let code = first.region(stage, *region)?;
            let name = stage.graph.regions.get(*region).map_or("?", |r| r.name.as_str());
            for start in code.starts.iter().filter(|s| s.serves(*variant, &stage.bucket.bucket)) {
                first.early.set(false);
                first.start(stage, code, start, counts)?;
                marks.push(first.device.mark()?);
                let kernel =
                    first.code.kernels.get(first.kernel_of(code, start)).map(|k| k.name.clone()).unwrap_or_default();
                timed.push(Timed { region: format!("{} {name}", stage.graph.name), kernel, micros: 0.0 });
            }
        }
    }
    if choosing.chooses {
        first.early.set(false);
        ranks.iter().try_for_each(|r| r.choose(r.bucket(bucket)?, counts, choosing))?;
        marks.push(first.device.mark()?);
        timed.push(Timed { region: "choice".to_owned(), kernel: "choice".to_owned(), micros: 0.0 });
    }
    ranks.iter().try_for_each(|r| r.device.wait())?;
    for (start, pair) in timed.iter_mut().zip(marks.windows(2)) {
        start.micros = pair[0].micros_to(&pair[1])?;
    }
    Ok(timed)
}
