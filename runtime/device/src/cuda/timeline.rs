//! How long every start of a step takes on the device.

use super::walk::{Counts, Loaded};
use ir::{BucketPlan, Launch};

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

impl Loaded {
    /// Runs a step, with a mark behind each start. Starts do not overlap, so the sum is more than a step takes.
    pub fn timeline(&self, bucket: &BucketPlan, counts: Counts) -> Result<Vec<Timed>, String> {
        for _ in 0..FILLS {
            self.arena.fill(self.scratch, self.arena.bytes() - self.scratch, 0)?;
        }
        let mut marks = vec![self.device.mark()?];
        let mut timed = Vec::new();
        for stage in self.stages(bucket)? {
            for launch in &stage.program.launches {
                let Launch::Region { region, variant, .. } = launch else {
                    self.launch(&stage, launch, counts)?;
                    continue;
                };
                let code = self.region(&stage, *region)?;
                let name = stage.graph.regions.get(*region).map_or("?", |r| r.name.as_str());
                for start in code.starts.iter().filter(|s| s.serves(*variant, &stage.bucket.bucket)) {
                    self.early.set(false);
                    self.start(&stage, code, start, counts)?;
                    marks.push(self.device.mark()?);
                    let kernel = self.code.kernels.get(start.kernel).map(|k| k.name.clone()).unwrap_or_default();
                    timed.push(Timed { region: format!("{} {name}", stage.graph.name), kernel, micros: 0.0 });
                }
            }
        }
        self.device.wait()?;
        for (start, pair) in timed.iter_mut().zip(marks.windows(2)) {
            start.micros = pair[0].micros_to(&pair[1])?;
        }
        Ok(timed)
    }
}
