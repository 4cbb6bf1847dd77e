//! Every constraint that the interpreter cites stands in `docs/ops.md`, and every one that stands there is cited.

use std::collections::BTreeSet;
use std::path::Path;

/// `name C1` for every string of that form in the sources of the operations.
fn cited() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let mut labels = BTreeSet::new();
    for file in std::fs::read_dir(folder).expect("the folder of operations") {
        let text = std::fs::read_to_string(file.expect("an entry").path()).expect("a source file");
        labels.extend(text.split('"').filter(|s| is_label(s)).map(str::to_owned));
    }
    labels
}

fn is_label(s: &str) -> bool {
    s.split_once(" C").is_some_and(|(name, n)| {
        name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            && !n.is_empty()
            && n.chars().all(|c| c.is_ascii_digit())
    })
}

/// `name C1` for every `* **C1**` below a heading `## name`.
fn documented() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ops.md");
    let page = std::fs::read_to_string(page).expect("the page of operations");
    let mut heading = "";
    let mut labels = BTreeSet::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            heading = name;
        } else if let Some((label, _)) = line.strip_prefix("* **").and_then(|rest| rest.split_once("**")) {
            labels.insert(format!("{heading} {label}"));
        }
    }
    labels.into_iter().filter(|l| is_label(l)).collect()
}

#[test]
fn labels_match_the_page() {
    let (cited, documented) = (cited(), documented());
    assert!(cited.len() > 50, "{cited:?}");
    assert_eq!(cited.difference(&documented).collect::<Vec<_>>(), Vec::<&String>::new(), "cited, not documented");
    assert_eq!(documented.difference(&cited).collect::<Vec<_>>(), Vec::<&String>::new(), "documented, not cited");
}
