//! `--draft`: a drafter's spec, read against the model that it drafts for, and compiled with it.

use crate::failure::Failure;
use crate::input::{self, DraftsFor, Job};
use crate::kernels::{self, Made};
use crate::missing;
use artifact::{Drafter, DrafterBlock};
use ir::Model;
use passes::{Paired, Stage, Stages};
use spec::{Checked, Choices};
use std::ops::RangeInclusive;
use std::path::Path;

/// Rows of a block that programs are made for, where nobody says: a block ends early, or not, as the engine finds best.
const BLOCKS: [u64; 2] = [4, 8];

/// The fewest and the most rows of a block: one row alone drafts nothing.
const ROWS: RangeInclusive<u64> = 2..=16;

/// A drafter as it was read for its target: one model for each length of block.
pub struct Draft {
    /// Models by length of block, ascending.
    pub models: Vec<Model>,
    /// Diagnostics and places.
    pub checked: Checked,
}

/// Reads a drafter for the target of a job, whatever target its spec names; what does not fit is told by name.
pub fn read(draft: &Path, job: &Job, blocks: &[u64]) -> Result<Draft, Failure> {
    let blocks = lengths(blocks)?;
    let mut models = Vec::new();
    let mut last = None;
    for block in blocks {
        let own = input::choices(&job.target, &job.mesh, &[], job.exact);
        let target = Some(Box::new(job.model.clone()));
        let choices = Choices { target, draft_tokens: Some(block), ..own };
        let (model, checked) = input::model(draft, &choices)?;
        input::given(&checked)?;
        complete(&model)?;
        models.push(model);
        last = Some(checked);
    }
    match last {
        Some(checked) => Ok(Draft { models, checked }),
        None => Err(Failure::usage("C0011", "`--draft-tokens` lists no length".to_owned())),
    }
}

/// Lengths of blocks, ascending, each once.
fn lengths(blocks: &[u64]) -> Result<Vec<u64>, Failure> {
    let mut blocks = if blocks.is_empty() { BLOCKS.to_vec() } else { blocks.to_vec() };
    blocks.sort_unstable();
    blocks.dedup();
    match blocks.iter().find(|n| !ROWS.contains(*n)) {
        Some(odd) => {
            let message =
                format!("`--draft-tokens` lists {odd}, and a block has {} to {} rows", ROWS.start(), ROWS.end());
            Err(Failure::usage("C0011", message)
                .help("the first row is the token that is known; a block of 8 drafts 7"))
        }
        None => Ok(blocks),
    }
}

/// Refuses a spec that is no drafter's.
fn complete(model: &Model) -> Result<(), Failure> {
    if is_drafter(model) {
        return Ok(());
    }
    let message = format!("`{}` is no drafter: it reads nothing of the model that is compiled", model.facts.name);
    Err(Failure::input("B0038", message)
        .help("a drafter's spec names its target in [model]; docs/language.md, Drafters"))
}

/// Whether a model runs only beside another.
pub fn is_drafter(model: &Model) -> bool {
    !model.facts.captures.is_empty() || model.facts.weights.iter().any(|w| w.borrowed)
}

/// A model and its drafter, every level of both.
pub fn pair(job: &Job, draft: Draft) -> Result<Paired, Failure> {
    let paired = passes::pair(job.model.clone(), draft.models, &job.compile());
    paired.map_err(|e| input::pass_failure(&e, if e.span.is_some() { &draft.checked } else { &job.checked }))
}

/// A drafter as its target's job would have it, to be validated with each length of block.
pub fn jobs(draft: &Path, job: &Job, blocks: &[u64]) -> Result<Vec<Job>, Failure> {
    let of_length = |block: u64| {
        let Draft { models, checked } = read(draft, job, &[block])?;
        Ok(models.into_iter().map(move |model| Job {
            model,
            checked: checked.clone(),
            target: job.target.clone(),
            mesh: job.mesh.clone(),
            exact: job.exact,
            unpack: Vec::new(),
            drafts_for: Some(DraftsFor { target: Box::new(job.model.clone()), tokens: block }),
        }))
    };
    let jobs = lengths(blocks)?.into_iter().map(of_length).collect::<Result<Vec<_>, Failure>>()?;
    Ok(jobs.into_iter().flatten().collect())
}

/// The drafter's part of an artifact, with its readable texts.
pub fn part(stages: Vec<Stages>, model: &ir::KernelModule) -> Result<(Drafter, Vec<(String, String)>), Failure> {
    let defect = |fact: String| {
        Failure::defect("C0008", fact).help("this is a defect of the compiler: report it together with the specs")
    };
    let mut texts = Vec::new();
    if let Some(longest) = stages.last() {
        let names = [
            (artifact::IR_MODEL, Stage::Model),
            (artifact::IR_GRAPH, Stage::Graph),
            (artifact::IR_SHARDED, Stage::Sharded),
            (artifact::IR_KERNEL, Stage::Kernel),
            (artifact::IR_PLAN, Stage::Plan),
        ];
        let sharded = longest.kernels.sharding.is_some();
        for (path, stage) in names.into_iter().filter(|(_, stage)| sharded || *stage != Stage::Sharded) {
            texts.push((format!("{}/{path}", artifact::DRAFTER), longest.text(stage, true)));
        }
    }
    let blocks = stages.into_iter().map(|s| DrafterBlock::new(s.kernels, s.plan)).collect::<Result<Vec<_>, _>>();
    let drafter = blocks.and_then(|blocks| Drafter::new(blocks, model)).map_err(defect)?;
    Ok((drafter, texts))
}

/// What nothing provides of an artifact with a drafter: a device's kernels are written for people only, since no template
/// runs along a block yet.
pub fn missing(target: &Stages, drafter: &Stages, machine: &targets::Target) -> Made {
    let arch = &machine.arch;
    let mut made = if kernels::is_cuda(arch) {
        kernels::written(&target.kernels, &target.plan, machine)
    } else {
        Made { missing: missing::kernels(&target.kernels, arch), ..Made::default() }
    };
    let own = missing::kernels(&drafter.kernels, arch);
    made.missing.extend(own.into_iter().map(|line| format!("drafter {line}")));
    made
}
