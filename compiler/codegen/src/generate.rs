//! All kernels of a compilation as text.

use crate::choices;
use crate::machine::{Machine, Tune};
use crate::region::{self, Unit};
use artifact::{ChoiceCode, GraphCode, RegionCode};
use ir::{KernelModule, Plan};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Headers of generated units, by the names under which they include each other.
pub const HEADERS: [(&str, &str); 14] = [
    ("prelude.cuh", include_str!("../../../codegen-templates/prelude.cuh")),
    ("numbers.cuh", include_str!("../../../codegen-templates/numbers.cuh")),
    ("fold.cuh", include_str!("../../../codegen-templates/fold.cuh")),
    ("cache.cuh", include_str!("../../../codegen-templates/cache.cuh")),
    ("product.cuh", include_str!("../../../codegen-templates/product.cuh")),
    ("tiles.cuh", include_str!("../../../codegen-templates/tiles.cuh")),
    ("stream.cuh", include_str!("../../../codegen-templates/stream.cuh")),
    ("route.cuh", include_str!("../../../codegen-templates/route.cuh")),
    ("split.cuh", include_str!("../../../codegen-templates/split.cuh")),
    ("seam.cuh", include_str!("../../../codegen-templates/seam.cuh")),
    ("attend_tiles.cuh", include_str!("../../../codegen-templates/attend_tiles.cuh")),
    ("attend_prompt.cuh", include_str!("../../../codegen-templates/attend_prompt.cuh")),
    ("attend.cuh", include_str!("../../../codegen-templates/attend.cuh")),
    ("choose.cuh", include_str!("../../../codegen-templates/choose.cuh")),
];

/// One translation unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name of the unit and of its entry.
    pub name: String,
    /// The text.
    pub text: String,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that a start gives.
    pub dynamic_bytes: u32,
}

/// A region that no kernel was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Entry.
    pub entry: String,
    /// Graph.
    pub graph: String,
    /// Region.
    pub region: String,
    /// Its kind.
    pub kind: ir::KernelKind,
    /// What is beyond this build.
    pub fact: String,
}

/// Everything generated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    /// Units, each once.
    pub sources: Vec<Source>,
    /// Starts by entry, graph and region; `kernel` indexes `sources`.
    pub entries: Vec<Vec<GraphCode>>,
    /// What chooses tokens from the first entry's logits.
    pub choice: Option<ChoiceCode>,
    /// What has no kernel.
    pub missing: Vec<Missing>,
}

impl Generated {
    /// All units as one text, for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for source in &self.sources {
            text += &format!("// ---- {}.cu\n{}\n", source.name, source.text);
        }
        for m in &self.missing {
            text += &format!("// no kernel for region `{}` of {} {}: {}\n", m.region, m.entry, m.graph, m.fact);
        }
        text
    }
}

/// Generates the kernels of every region for a device.
pub fn generate(module: &KernelModule, plan: &Plan, machine: Machine) -> Generated {
    generate_tuned(module, plan, machine, Tune::default())
}

/// The same with what was measured on the device, or with all that is to be measured.
pub fn generate_tuned(module: &KernelModule, plan: &Plan, machine: Machine, tune: Tune<'_>) -> Generated {
    let mut out = Generated::default();
    let mut known: HashMap<Unit, usize> = HashMap::new();
    for entry in &module.entries {
        let mut graphs = Vec::new();
        for kernels in &entry.graphs {
            let mut code = GraphCode { name: kernels.name.clone(), regions: Vec::new() };
            let mut sorted = Vec::new();
            for region in &kernels.regions {
                match region::starts(module, plan, (machine, tune), kernels, region, &mut sorted) {
                    Ok(draft) => code.regions.push(draft.coded(|unit| number(&mut out.sources, &mut known, unit))),
                    Err(fact) => {
                        code.regions.push(RegionCode::default());
                        out.missing.push(Missing {
                            entry: entry.name.clone(),
                            graph: kernels.name.clone(),
                            region: region.name.clone(),
                            kind: region.kind,
                            fact,
                        });
                    }
                }
            }
            graphs.push(code);
        }
        out.entries.push(graphs);
    }
    if let Some(vocab) = module.entries.first().and_then(choices::vocab) {
        let [best, weigh, select, place] = choices::units(vocab).map(|unit| number(&mut out.sources, &mut known, unit));
        out.choice = Some(ChoiceCode { best, weigh, select, place, vocab, parts: choices::parts(vocab) });
    }
    out
}

/// The index of a unit; one text is one kernel, whichever regions start it.
fn number(sources: &mut Vec<Source>, known: &mut HashMap<Unit, usize>, unit: Unit) -> usize {
    // The stem is for people; the text alone says what the kernel is.
    let key = Unit { stem: String::new(), text: without_comments(&unit.text), ..unit.clone() };
    if let Some(index) = known.get(&key) {
        return *index;
    }
    let digest = Sha256::digest(key.text.as_bytes());
    let short: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
    let name = format!("{}_{short}", unit.stem);
    let text = unit.text.replace("@NAME@", &name);
    sources.push(Source { text, name, threads: unit.threads, dynamic_bytes: unit.dynamic_bytes });
    known.insert(key, sources.len() - 1);
    sources.len() - 1
}

/// A text without its first lines of comments: those name the region, which several may share.
fn without_comments(text: &str) -> String {
    let lines = text.lines().skip_while(|l| l.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}
