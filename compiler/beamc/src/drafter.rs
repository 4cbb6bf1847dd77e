//! `--draft`: a drafter's spec, read against the model that it drafts for.

use crate::failure::Failure;
use crate::input::{self, Job};
use ir::Model;
use spec::Choices;
use std::path::Path;

/// Code of the warning that a value is missing which a checkpoint must give.
const MISSING: &str = "B0306";

/// Reads a drafter for the target of a job, whatever target its spec names; what does not fit is told by name.
pub fn read(draft: &Path, job: &Job) -> Result<Model, Failure> {
    let own = input::choices(&job.target, &job.mesh, &[]);
    let choices = Choices { target: Some(Box::new(job.model.clone())), ..own };
    let (model, checked) = input::model(draft, &choices)?;
    if let Some(missing) = checked.diagnostics.iter().find(|d| d.code == MISSING) {
        let message = format!("the drafter cannot be compiled: {}", missing.message);
        return Err(Failure::input(MISSING, message)
            .help("name the directory of the drafter's checkpoint, or a spec that gives the value"));
    }
    if is_drafter(&model) {
        return Ok(model);
    }
    let message = format!("`{}` is no drafter: it reads nothing of the model that is compiled", model.facts.name);
    Err(Failure::input("B0038", message)
        .help("a drafter's spec names its target in [model]; docs/language.md, Drafters"))
}

/// Whether a model runs only beside another.
pub fn is_drafter(model: &Model) -> bool {
    !model.facts.captures.is_empty() || model.facts.weights.iter().any(|w| w.borrowed)
}
