//! Markdown pages in `tests/specs` are tests: each section shows a spec and the exact diagnostics it gets.
//!
//! A section `## name` has a fenced block `toml` and then one `text`: the rendered diagnostics, or what the model
//! consists of. `UPDATE_EXPECT=1 cargo test -p suites --test specs` rewrites the second kind.

use spec::{Choices, Library, check_text, render};
use suites::root;

/// One section: its heading, the spec, and the byte range of the expected text.
struct Case {
    name: String,
    spec: String,
    expected: std::ops::Range<usize>,
}

fn fence(text: &str, from: usize, language: &str) -> Option<std::ops::Range<usize>> {
    let open = format!("```{language}\n");
    let start = from + text[from..].find(&open)? + open.len();
    let end = start + text[start..].find("```")?;
    Some(start..end)
}

fn cases(page: &str) -> Vec<Case> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = page[at..].find("\n## ") {
        let start = at + next + 4;
        let name = page[start..].lines().next().unwrap_or("").to_owned();
        let spec = fence(page, start, "toml").unwrap_or_else(|| panic!("{name}: no toml block"));
        let expected = fence(page, spec.end, "text").unwrap_or_else(|| panic!("{name}: no text block"));
        at = expected.end;
        found.push(Case { name, spec: page[spec].to_owned(), expected });
    }
    found
}

fn outcome(spec: &str) -> String {
    let checked = check_text("spec.toml", spec, &Library::embedded(), &Choices::default());
    let mut text = render(&checked.diagnostics, &checked.sources, false);
    if let Some(model) = &checked.model {
        let blocks: Vec<&str> = model.blocks.iter().map(|b| b.name.as_str()).collect();
        text.push_str(&format!("{} parameters; blocks: {}\n", model.facts.parameters(), blocks.join(", ")));
    }
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    format!("{}\n", lines.join("\n").trim())
}

#[test]
fn every_page_shows_what_the_compiler_says() {
    let mut pages: Vec<_> = std::fs::read_dir(root().join("tests/specs"))
        .expect("pages")
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.sort();
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut count = 0;
    let mut wrong = Vec::new();
    for path in pages {
        let mut page = std::fs::read_to_string(&path).expect("page");
        for case in cases(&page.clone()).into_iter().rev() {
            count += 1;
            let actual = outcome(&case.spec);
            if page[case.expected.clone()] != actual {
                wrong.push(format!(
                    "{}: {}\nexpected\n{}\nactual\n{actual}",
                    path.display(),
                    case.name,
                    &page[case.expected.clone()]
                ));
                page.replace_range(case.expected, &actual);
            }
        }
        if update {
            std::fs::write(&path, page).expect("page");
        }
    }
    assert!(count >= 15, "only {count} cases were found");
    assert!(update || wrong.is_empty(), "{}", wrong.join("\n\n"));
}
