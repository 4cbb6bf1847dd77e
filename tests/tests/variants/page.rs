//! `docs/variants.md` against the files: the text of each edit, its size, and what it makes of the full model.

use super::{edit, file};
use passes::{Compile, Stages};
use spec::{Choices, Library, check_path};
use std::collections::BTreeMap;
use std::path::Path;
use suites::root;
use targets::Target;

/// Parameters and layer classes of a spec at full size; it compiles to a plan without a word of complaint.
fn full_size(spec: &Path) -> (u64, String) {
    let target = Target::load("cpu").expect("target");
    let compile = Compile::one_device(&target);
    let options = target.options_on(compile.mesh).into_iter().collect();
    let choices = Choices { act: target.act, options, ..Choices::default() };
    let checked = check_path(spec, &Library::embedded(), &choices);
    let said = spec::render(&checked.diagnostics, &checked.sources, false);
    assert!(checked.diagnostics.is_empty(), "{}: {said}", spec.display());
    let model = checked.model.expect("model");
    let parameters = model.facts.parameters();
    let module = passes::to_module(&model).unwrap_or_else(|e| panic!("{}: {e}", spec.display()));
    let mut classes: BTreeMap<usize, (&str, usize)> = BTreeMap::new();
    for entry in &module.entries {
        for instance in &entry.instances {
            classes.entry(instance.class).or_insert((&entry.classes[instance.class].name, 0)).1 += 1;
        }
    }
    let classes: Vec<String> = classes.values().map(|(name, n)| format!("{name} × {n}")).collect();
    Stages::compile(model, &compile).unwrap_or_else(|e| panic!("{}: {e}", spec.display()));
    (parameters, classes.join(", "))
}

fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let parts: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|c| std::str::from_utf8(c).ok()).collect();
    parts.join(",")
}

/// The row of the table that a spec must have.
fn row(name: &str, lines: Option<usize>, spec: &Path) -> String {
    let (parameters, classes) = full_size(spec);
    let lines = lines.map_or("whole".to_owned(), |n| n.to_string());
    format!("| [{name}](#{name}) | {lines} | {} | {classes} |", grouped(parameters))
}

/// Compares the page; `UPDATE_EXPECT=1` rewrites rows and edits.
pub fn check(variants: &[String], families: &[(&str, &[&str])]) {
    let path = root().join("docs/variants.md");
    let mut page = std::fs::read_to_string(&path).expect("docs/variants.md");
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut wrong = Vec::new();
    let mut rows = Vec::new();
    for name in variants {
        rows.push(row(name, Some(edit::changed_lines(&file(name))), &file(name)));
        let heading = format!("\n## {name}\n");
        let start = page.find(&heading).unwrap_or_else(|| panic!("the page has no section `{name}`"));
        let open = start + page[start..].find("```toml\n").expect("a toml block") + "```toml\n".len();
        let end = open + page[open..].find("```").expect("the block's end");
        let text = std::fs::read_to_string(file(name)).expect("variant");
        if page[open..end] != text {
            wrong.push(format!("{name}: the page shows another text than the file"));
            page.replace_range(open..end, &text);
        }
    }
    for (name, _) in families {
        let spec = root().join(format!("model-spec/{name}.toml"));
        rows.push(row(name, None, &spec));
        assert!(page.contains(&format!("\n## {name}\n")), "the page has no section `{name}`");
    }
    let table = rows.join("\n");
    let start = page.find("| [").expect("a table");
    let end = start + page[start..].find("\n\n").expect("the table's end");
    if page[start..end] != table {
        wrong.push(format!("the table is\n{}\nand must be\n{table}", &page[start..end]));
        page.replace_range(start..end, &table);
    }
    if update {
        std::fs::write(&path, page).expect("docs/variants.md");
    }
    assert!(update || wrong.is_empty(), "{}", wrong.join("\n"));
}
