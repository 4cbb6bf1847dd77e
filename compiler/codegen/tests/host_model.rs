//! Kernel templates run on this processor, through a model of their prelude (`codegen-templates/host_model.hpp`): what they compute is
//! right, and bugs of indexing and synchronisation planted into them are found.
//!
//! The tests need a C++ compiler: `c++`, or what `CXX` names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const TEMPLATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../codegen-templates");
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model");
/// Most seconds that a harness may take.
const LIMIT_S: u64 = 60;

/// A change of a template that makes it wrong.
struct Bug {
    harness: String,
    template: String,
    /// Why the model cannot show it.
    missed: Option<String>,
    from: String,
    to: String,
}

fn bugs() -> Vec<Bug> {
    let text = std::fs::read_to_string(Path::new(MODEL).join("bugs.txt")).expect("the list");
    let parts = text.split("\n==== ").skip(1);
    parts
        .map(|part| {
            let (head, body) = part.split_once('\n').expect("a head");
            let (from, to) = body.split_once("\n---- in place of it\n").expect("two texts");
            let (names, missed) = match head.split_once(" missed: ") {
                Some((names, why)) => (names, Some(why.to_owned())),
                None => (head, None),
            };
            let (harness, template) = names.split_once(' ').expect("two names");
            Bug {
                harness: harness.to_owned(),
                template: template.to_owned(),
                missed,
                from: from.to_owned(),
                to: to.trim_end_matches('\n').to_owned(),
            }
        })
        .collect()
}

/// Builds a harness over the templates of a folder.
fn build(harness: &str, templates: &Path, program: &Path) {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let source = Path::new(MODEL).join(format!("{harness}.cpp"));
    let mut command = Command::new(&compiler);
    command.args(["-O1", "-std=c++17", "-DHOST_MODEL", "-w", "-I"]).arg(templates).arg(source).arg("-o").arg(program);
    let made =
        command.output().unwrap_or_else(|e| panic!("a C++ compiler is needed, `{compiler}` does not start: {e}"));
    assert!(made.status.success(), "{harness}: {}", String::from_utf8_lossy(&made.stderr));
}

/// Runs a harness; what it said where it is not content. One that runs on is stopped: threads that never meet are a fault too.
fn run(program: &Path, limit_s: u64) -> Option<String> {
    let ended = Command::new("timeout").arg(limit_s.to_string()).arg(program).output().expect("it starts");
    if ended.status.success() {
        return None;
    }
    Some(format!("{} {}", ended.status, String::from_utf8_lossy(&ended.stdout)))
}

#[test]
fn templates_compute_what_they_mean() {
    let folder = tempfile::tempdir().expect("a folder");
    for harness in ["products", "attention", "seam", "choose"] {
        let program = folder.path().join(harness);
        build(harness, Path::new(TEMPLATES), &program);
        assert_eq!(run(&program, LIMIT_S), None, "{harness}");
    }
}

/// What a harness with a bug in its templates may take: many times what it takes without one, on this machine and now.
fn limit_s(harness: &str) -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join(harness);
    build(harness, Path::new(TEMPLATES), &program);
    let begun = Instant::now();
    assert_eq!(run(&program, LIMIT_S), None, "{harness}");
    (5 + 10 * begun.elapsed().as_secs()).min(LIMIT_S)
}

/// The templates with one bug, in a folder.
fn plant(bug: &Bug, folder: &Path) -> PathBuf {
    for file in std::fs::read_dir(TEMPLATES).expect("templates").flatten() {
        let mut text = std::fs::read_to_string(file.path()).expect("a template");
        let name = file.file_name();
        if name.to_string_lossy() == bug.template {
            assert!(text.contains(&bug.from), "{} has no `{}`", bug.template, bug.from);
            text = text.replacen(&bug.from, &bug.to, 1);
        }
        std::fs::write(folder.join(name), text).expect("a copy");
    }
    folder.join("harness")
}

#[test]
fn planted_bugs_are_found() {
    let bugs = bugs();
    assert!(bugs.len() >= 30, "{} bugs", bugs.len());
    let missed = bugs.iter().filter(|b| b.missed.is_some()).count();
    assert!(missed * 10 <= bugs.len(), "{missed} of {} bugs are not shown", bugs.len());
    let limits: BTreeMap<&str, u64> =
        bugs.iter().map(|b| &*b.harness).collect::<BTreeSet<_>>().into_iter().map(|h| (h, limit_s(h))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let folder = tempfile::tempdir().expect("a folder");
                    let program = plant(bug, folder.path());
                    build(&bug.harness, folder.path(), &program);
                    let found = run(&program, limits[&*bug.harness]);
                    // What time decides may show or not.
                    let by_chance = bug.missed.as_deref().is_some_and(|why| why.starts_with("by chance"));
                    let is_as_listed = found.is_none() == bug.missed.is_some();
                    assert!(by_chance || is_as_listed, "{} without `{}`: {found:?}", bug.template, bug.from);
                }
            });
        }
    });
}
