//! A case that fails made small: whatever can go while it fails in the same way, goes. What is left is written to a file,
//! and what stands on the terminal is its path and the command that runs it again.
//!
//! Steps are steps of the text, so that they know nothing of the language but names and brackets: a line goes, a `fn` goes, a
//! name that goes becomes the block's first argument, a bracket becomes one of its parts, a length becomes shorter. The front
//! end says which of them leave a spec.

use super::programs::Case;
use passes::validate::{Validation, validate_passes};
use passes::{Compile, Pass};
use spec::{Library, check_text};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// What became of a case.
#[derive(Debug)]
pub enum Outcome {
    /// Every pass keeps what it declares.
    Holds(Box<Validation>),
    /// The spec cannot lie on this mesh, and the compiler says so.
    Refused,
    /// It does not hold.
    Fails {
        /// The pass at fault, or the code of an error.
        what: String,
        /// All that is known.
        detail: String,
    },
    /// The front end refuses the spec.
    NoSpec(String),
}

/// Runs a case through these passes.
pub fn run(case: &Case, passes: &[Pass]) -> Outcome {
    let checked = check_text("random.toml", &case.text, &Library::embedded(), &case.choices());
    let Some(model) = &checked.model else {
        return Outcome::NoSpec(spec::render(&checked.diagnostics, &checked.sources, false));
    };
    let (target, mesh) = (case.target(), case.mesh());
    let compile = Compile { target: &target, mesh: &mesh, exact: case.relaxations.is_empty(), unpack: &[] };
    let done = catch_unwind(AssertUnwindSafe(|| validate_passes(model, &compile, 1, passes)));
    match done {
        Err(_) => Outcome::Fails { what: "panic".to_owned(), detail: "a pass or the interpreter panics".to_owned() },
        Ok(Err(e)) if e.cannot_lie() => Outcome::Refused,
        Ok(Err(e)) => Outcome::Fails { what: e.code.to_owned(), detail: e.to_string() },
        Ok(Ok(found)) => match found.passes.iter().find(|p| !p.verdict.holds()) {
            None => Outcome::Holds(Box::new(found)),
            Some(pass) => Outcome::Fails { what: pass.pass.name.to_owned(), detail: format!("{:?}", pass.verdict) },
        },
    }
}

/// What is at fault, if something is.
pub fn fault(case: &Case, passes: &[Pass]) -> Option<String> {
    match run(case, passes) {
        Outcome::Fails { what, .. } => Some(what),
        _ => None,
    }
}

/// The smallest case found that fails as this one does.
pub fn shrink(case: &Case, fault: &dyn Fn(&Case) -> Option<String>) -> Case {
    let mut best = case.clone();
    let Some(wanted) = fault(case) else { return best };
    loop {
        let (before, mut at) = (size(&best), 0);
        while let Some(smaller) = candidates(&best).into_iter().nth(at) {
            if fault(&smaller).as_ref() == Some(&wanted) {
                best = smaller;
            } else {
                at += 1;
            }
        }
        if size(&best) == before {
            return best;
        }
    }
}

/// Writes a case as a spec; gives its path.
pub fn write(case: &Case, folder: &Path) -> std::io::Result<PathBuf> {
    let path = folder.join(format!("random-{}.toml", case.seed));
    let head = format!("# {}\n", case.command(&path.display().to_string()));
    std::fs::write(&path, head + &case.text)?;
    Ok(path)
}

/// Every step makes this smaller, so shrinking ends.
fn size(case: &Case) -> u64 {
    let ranks: u64 = case.mesh.iter().map(|(_, n)| n).product();
    let lengths: u64 = case.text.lines().filter_map(length).map(|(_, n)| n).sum();
    let other = case.relaxations.len() as u64 + u64::from(case.target != "cpu");
    1000 * ranks + 1000 * other + 10 * case.text.len() as u64 + lengths
}

/// A line such as `layers = 4`: the name and the number.
fn length(line: &str) -> Option<(&str, u64)> {
    let (name, number) = line.split_once(" = ")?;
    Some((name, number.parse().ok()?))
}

fn candidates(case: &Case) -> Vec<Case> {
    let mut all = Vec::new();
    for at in 0..case.mesh.len() {
        let mut fewer = case.clone();
        fewer.mesh.remove(at);
        all.push(fewer);
        let mut shorter = case.clone();
        shorter.mesh[at].1 /= 2;
        if shorter.mesh[at].1 > 1 {
            all.push(shorter);
        }
    }
    all.push(Case { target: "cpu", ..case.clone() });
    for at in 0..case.relaxations.len() {
        let mut fewer = case.clone();
        fewer.relaxations.remove(at);
        all.push(fewer);
    }
    let lines: Vec<&str> = case.text.lines().collect();
    let text = |lines: &[String]| Case { text: lines.join("\n") + "\n", ..case.clone() };
    let with = |at: usize, line: String| {
        let mut new: Vec<String> = lines.iter().map(|l| (*l).to_owned()).collect();
        new[at] = line;
        text(&new)
    };
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("fn ") {
            let end = lines[at..].iter().position(|l| *l == "}").map_or(at, |n| at + n);
            all.push(text(&without(&lines, at, end, None)));
        }
    }
    for (at, line) in lines.iter().enumerate() {
        let bound =
            line.strip_prefix("  ").and_then(|l| l.split_once(" = ")).map(|(name, _)| name.trim_end_matches(": f32"));
        all.push(text(&without(&lines, at, at, bound.map(|name| (name, argument(&lines, at))))));
        if let Some((name, n)) = length(line) {
            all.extend([1, n / 2, n.saturating_sub(1)].map(|n| with(at, format!("{name} = {n}"))));
        }
        all.extend(unbracketed(line).into_iter().map(|line| with(at, line)));
    }
    all.retain(|smaller| size(smaller) < size(case));
    all
}

/// The first argument of the `fn` that a line stands in.
fn argument<'t>(lines: &[&'t str], at: usize) -> &'t str {
    let head = lines[..at].iter().rev().find_map(|l| l.strip_prefix("fn "));
    head.and_then(|l| l.split_once('(')).and_then(|(_, rest)| rest.split([',', ')']).next()).unwrap_or("x")
}

/// The lines without some; a name that they bound becomes another where it is read.
fn without(lines: &[&str], from: usize, to: usize, renamed: Option<(&str, &str)>) -> Vec<String> {
    let kept = lines.iter().enumerate().filter(|(i, _)| *i < from || *i > to);
    let line = |(i, line): (usize, &&str)| match renamed {
        Some((old, new)) if i > to => replaced(line, old, new),
        _ => (*line).to_owned(),
    };
    kept.map(line).collect()
}

/// A word replaced, where it is a word.
fn replaced(line: &str, old: &str, new: &str) -> String {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let (mut out, mut rest) = (String::new(), line);
    while let Some(at) = rest.find(old) {
        let (before, after) = (&rest[..at], &rest[at + old.len()..]);
        let whole = !before.ends_with(inside) && !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        out += before;
        out += if whole { new } else { old };
        rest = after;
    }
    out + rest
}

/// The line with one bracket, and the name before it, replaced by one of its parts.
fn unbracketed(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (open, _) in line.match_indices('(') {
        let mut depth = 0;
        let close = line[open..].char_indices().find_map(|(i, c)| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            (depth == 0).then_some(open + i)
        });
        let Some(close) = close else { continue };
        let start = line[..open].rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(0, |i| i + 1);
        for part in parts(&line[open + 1..close]) {
            all.push(format!("{}{part}{}", &line[..start], &line[close + 1..]));
        }
    }
    all
}

/// What stands between operators and commas outside of brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut all) = (0, 0, Vec::new());
    let bytes = text.as_bytes();
    for (i, byte) in bytes.iter().enumerate() {
        depth += i32::from(*byte == b'(') - i32::from(*byte == b')');
        if depth == 0 && matches!(byte, b',' | b'+' | b'-' | b'*' | b'/' | b'<') {
            all.push(text[start..i].trim());
            start = i + 1;
        }
    }
    all.push(text[start..].trim());
    all.retain(|part| !part.is_empty());
    all
}
