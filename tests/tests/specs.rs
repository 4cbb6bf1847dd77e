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

/// Texts that would take all time, memory or stack if nothing bounded them.
#[test]
fn hostile_specs_are_refused() {
    let spec = |blocks: &str| format!("extends = \"beam-nano\"\n[blocks]\ntext = '''\n{blocks}\n'''\n");
    let doubling = |kind: &str, leaf: &str, op: &str| {
        let mut text = format!("{kind} d0(x) = x {op} x\n");
        (1..60).for_each(|i| text.push_str(&format!("{kind} d{i}(x) = d{}(x) {op} d{}(x)\n", i - 1, i - 1)));
        format!("{text}fn dense(x) {{ return x * {leaf} }}\n")
    };
    let squaring: String = (1..60).map(|i| format!("const c{i} = c{} * c{} + 1\n", i - 1, i - 1)).collect();
    let cases = [
        spec(&doubling("def", "d59(x)", "+")),
        spec(&doubling("def", "d59(2)", "+")),
        spec(&{
            let mut text = "fn d0(x) { return x + x }\n".to_owned();
            (1..60).for_each(|i| text.push_str(&format!("fn d{i}(x) {{ return d{}(x) + d{}(x) }}\n", i - 1, i - 1)));
            format!("{text}fn dense(x) {{ return d59(x) }}\n")
        }),
        spec(&format!("fn combine(b, r, const n) {{\nconst c0 = n\n{squaring}return b * c59 + r }}")),
        spec(&format!("fn dense(x) {{ return {}x{} }}", "(".repeat(5000), ")".repeat(5000))),
        spec(&format!("fn dense(x) {{ return x{} }}", " + x".repeat(100_000))),
        spec(&format!("fn dense(x) {{ return x{} }}", "[0]".repeat(100_000))),
        spec(&format!("fn dense(x) {{ return {}x }}", "-".repeat(100_000))),
        spec(&format!("fn dense(x) {{ y = x\n{} return y }}", "y = norm(y, W.mlp_in_norm)\n".repeat(300_000))),
        spec(&"fn dense(x) { match options.combine { library {".repeat(3000)),
        format!("extends = \"beam\"\n[dims]\nhead_dim = 1048576\nhidden = 4{}", "0".repeat(30)),
        format!("a = {}1{}", "[".repeat(20_000), "]".repeat(20_000)),
        format!("extends = \"beam\"\n[schedule]\nattn = \"full if {}1 == 1 else sliding\"", "(".repeat(50_000)),
        "extends = \"beam\"\n[dims]\nlayers = 1000000000000\n".to_owned(),
    ];
    for (i, text) in cases.iter().enumerate() {
        let checked = check_text("spec.toml", text, &Library::embedded(), &Choices::default());
        assert!(checked.model.is_none() && spec::has_errors(&checked.diagnostics), "case {i} was accepted");
        assert!(!render(&checked.diagnostics, &checked.sources, false).is_empty());
    }
}
