//! Outputs apart from inputs: nothing is written over what a command reads, or among it.

use crate::failure::Failure;
use std::path::Path;

/// What a command reads: the flag that names it, or words for an argument without one, and its path.
pub type Read<'a> = (&'a str, &'a Path);

/// Refuses an output that is one of the files read, lies in one of the directories read, or is what a link in one leads to.
/// Called before anything is read or written.
pub fn apart((flag, out): Read<'_>, read: &[Read<'_>]) -> Result<(), Failure> {
    let Some((of, input)) = read.iter().find(|(_, input)| is_of(out, input)) else { return Ok(()) };
    let (place, next) = match input.is_dir() {
        true => ("lies in", "name a place outside of it"),
        false => ("is", "name another file"),
    };
    let (out, input) = (out.display(), input.display());
    Err(Failure::usage(format!("R0722: `{flag} {out}` {place} `{of} {input}`, which is only read; {next}")))
}

fn is_of(out: &Path, input: &Path) -> bool {
    let Ok(input) = input.canonicalize() else { return false };
    let Ok(absolute) = std::path::absolute(out) else { return false };
    // Of what does not exist yet, the nearest that does says where it will be.
    let nearest = absolute.ancestors().find_map(|part| part.canonicalize().ok());
    let leads_to = |out: &Path| {
        let links = std::fs::read_dir(&input).into_iter().flatten().flatten();
        links.filter_map(|link| link.path().canonicalize().ok()).any(|real| real == out)
    };
    nearest.is_some_and(|part| part.starts_with(&input)) || out.canonicalize().is_ok_and(|out| leads_to(&out))
}
