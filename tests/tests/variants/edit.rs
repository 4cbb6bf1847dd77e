//! How large an edit is: lines of facts, and lines by which functions differ from those they replace.

use similar::{ChangeTag, TextDiff};
use std::collections::BTreeMap;
use std::path::Path;
use suites::root;

/// The lines outside the block text that state a fact, and the block text.
fn parts(text: &str) -> (Vec<&str>, &str) {
    let (facts, blocks) = text.split_once("[blocks]").unwrap_or((text, ""));
    let is_fact = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#') && !line.starts_with('[') && !line.starts_with("extends")
    };
    (facts.lines().filter(is_fact).collect(), blocks)
}

/// Functions by name: from a line that begins with a keyword to the line `}`, or that line alone.
fn functions(blocks: &str) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut open: Option<String> = None;
    for line in blocks.lines() {
        let bare = line.split('#').next().unwrap_or("").trim_end();
        let head = ["fn ", "def ", "entry "].iter().find_map(|k| bare.strip_prefix(k));
        if let Some(head) = head {
            let name = head.split('(').next().unwrap_or("").to_owned();
            found.insert(name.clone(), format!("{bare}\n"));
            let closed = bare.ends_with('}') || !bare.contains('{');
            open = (!closed).then_some(name);
        } else if let Some(name) = &open {
            if let Some(text) = found.get_mut(name) {
                text.push_str(&format!("{bare}\n"));
            }
            if bare == "}" {
                open = None;
            }
        }
    }
    found
}

/// Lines that differ: in each run of changes, the larger of what goes and what comes.
fn difference(before: &str, after: &str) -> usize {
    let diff = TextDiff::from_lines(before, after);
    let (mut total, mut gone, mut new) = (0, 0, 0);
    for change in diff.iter_all_changes() {
        match change.tag() {
            ChangeTag::Delete => gone += 1,
            ChangeTag::Insert => new += 1,
            ChangeTag::Equal => {
                total += usize::max(gone, new);
                (gone, new) = (0, 0);
            }
        }
    }
    total + usize::max(gone, new)
}

/// Lines in which a variant differs from the spec that it extends.
pub fn changed_lines(variant: &Path) -> usize {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut base = functions(&read(&root().join("model-spec/std/rows.blocks")));
    base.extend(functions(parts(&read(&root().join("model-spec/beam.toml"))).1));
    let text = read(variant);
    let (facts, blocks) = parts(&text);
    let functions = functions(blocks);
    facts.len() + functions.iter().map(|(n, f)| difference(base.get(n).map_or("", String::as_str), f)).sum::<usize>()
}

#[test]
fn lines_are_counted_as_a_reader_would() {
    assert_eq!(difference("a\nb\nc\n", "a\nx\nc\n"), 1);
    assert_eq!(difference("a\nb\nc\n", "a\nc\n"), 1);
    assert_eq!(difference("a\nb\nc\n", "a\nx\ny\nc\nz\n"), 3);
    assert_eq!(difference("", "a\nb\n"), 2);
    let found = functions("use std.a\nfn f(x) { return x }\nfn g(x) {    # why\n  return x\n}\ndef h(x) = x\n");
    assert_eq!(found.len(), 3);
    assert_eq!(found["g"], "fn g(x) {\n  return x\n}\n");
}
