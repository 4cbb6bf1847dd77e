//! Outputs apart from inputs: nothing is written over what a command reads, or among it.

use crate::failure::Failure;
use std::path::Path;

/// What a command reads: the flag that names it, or words for an argument without one, and its path.
pub type Read<'a> = (&'a str, &'a Path);

/// Refuses an output that is one of the files read, lies in one of the directories read, is what a link in one leads to, or is a
/// directory that holds any of them. Called before anything is read or written.
pub fn apart(out: &Path, read: &[Read<'_>]) -> Result<(), Failure> {
    let Some((of, input, place)) = read.iter().find_map(|(of, input)| Some((of, input, is_of(out, input)?))) else {
        return Ok(());
    };
    let input = input.display();
    Err(Failure::usage("C0014", format!("`--output {}` {place} `{of} {input}`, which is only read", out.display()))
        .help("name another place to write to"))
}

/// How an output is where an input is, if it is.
fn is_of(out: &Path, input: &Path) -> Option<&'static str> {
    let input = input.canonicalize().ok()?;
    // Of what does not exist yet, the nearest that does says where it will be.
    let nearest = std::path::absolute(out).ok()?.ancestors().find_map(|part| part.canonicalize().ok());
    if nearest.is_some_and(|part| part.starts_with(&input)) {
        return Some(if input.is_dir() { "lies in" } else { "is" });
    }
    let out = out.canonicalize().ok()?;
    let links = std::fs::read_dir(&input).into_iter().flatten().flatten();
    if links.filter_map(|link| link.path().canonicalize().ok()).any(|real| real == out) {
        return Some("is what a link leads to in");
    }
    input.starts_with(&out).then_some("holds")
}
