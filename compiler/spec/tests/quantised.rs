//! Configs of quantised checkpoints and what comes of them: sections of `tests/specs/import/quantised.md`.

use serde_json::{Map, Value};
use spec::{Checked, Choices, Library, Sources, check_path, check_text, import, render};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The bytes of the next fence of a kind.
fn fence(text: &str, from: usize, kind: &str) -> Option<std::ops::Range<usize>> {
    let open = format!("```{kind}\n");
    let start = from + text.get(from..)?.find(&open)? + open.len();
    Some(start..start + text.get(start..)?.find("```")?)
}

/// What the import of a section's files says.
fn outcome(section: &str, folder: &Path) -> String {
    let text = std::fs::read_to_string(root().join("examples/beam-nano/config.json")).expect("config");
    let mut config: Map<String, Value> = serde_json::from_str(&text).expect("config");
    let keys = fence(section, 0, "json").expect("a fence of keys");
    config.extend(serde_json::from_str::<Map<String, Value>>(&section[keys]).expect("keys"));
    let path = folder.join("config.json");
    std::fs::write(&path, format!("{:#}\n", Value::Object(config))).expect("file");
    if let Some(beside) = fence(section, 0, "json hf_quant_config.json") {
        std::fs::write(folder.join("hf_quant_config.json"), &section[beside]).expect("file");
    }
    let library = Library::embedded();
    let (mut sources, mut diagnostics) = (Sources::default(), Vec::new());
    let imported = import(&path, &library, &mut sources, &mut diagnostics);
    let mut said = render(&diagnostics, &sources, false).replace(&format!("{}/", folder.display()), "");
    if let Some(imported) = imported {
        said.push_str(imported.toml.split_once("[stored]\n").expect("what is stored is always said").1);
        // The text and the directory are one spec.
        let read = check_text("imported.toml", &imported.toml, &library, &Choices::default());
        let direct = check_path(folder, &library, &Choices::default());
        assert_eq!(stored(read), stored(direct), "{section}");
    }
    let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
    format!("{}\n", lines.join("\n").trim())
}

/// What the checkpoint keeps, without the place that says so.
fn stored(checked: Checked) -> Option<ir::Stored> {
    let told = render(&checked.diagnostics, &checked.sources, false);
    let stored = checked.model.unwrap_or_else(|| panic!("{told}")).facts.stored;
    stored.map(|stored| ir::Stored { span: None, ..stored })
}

#[test]
fn every_form_of_a_config_is_read_or_refused_by_name() {
    let path = root().join("tests/specs/import/quantised.md");
    let mut page = std::fs::read_to_string(&path).expect("the page");
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let starts: Vec<usize> = page.match_indices("\n## ").map(|(at, _)| at).collect();
    assert!(starts.len() > 40, "only {} sections", starts.len());
    let mut wrong = Vec::new();
    // From the last to the first, so that what is written anew moves none of the others.
    for (i, start) in starts.iter().enumerate().rev() {
        let end = starts.get(i + 1).copied().unwrap_or(page.len());
        let section = page[*start..end].to_owned();
        let folder = tempfile::tempdir().expect("folder");
        let actual = outcome(&section, folder.path());
        let refused = section.starts_with("\n## Refused");
        assert_eq!(refused, actual.contains("error["), "{section}\n{actual}");
        assert!(!refused || actual.contains("help: "), "{section}\n{actual}");
        let expected = fence(&page, *start, "text").expect("a fence of text");
        if page[expected.clone()] != actual {
            wrong.push(format!("{section}\nactual\n{actual}"));
            page.replace_range(expected, &actual);
        }
    }
    if update {
        std::fs::write(&path, page).expect("the page");
    }
    assert!(update || wrong.is_empty(), "{}", wrong.join("\n\n"));
}
