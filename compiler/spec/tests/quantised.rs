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

/// What a spec with these tables stores, or the first line of what is wrong with it.
fn said(tables: &str, choices: &Choices) -> Result<Option<ir::Stored>, String> {
    let checked = check_text("spec.toml", &format!("extends = \"beam-nano\"\n{tables}"), &Library::embedded(), choices);
    let told = render(&checked.diagnostics, &checked.sources, false);
    if checked.model.is_none() {
        return Err(told.lines().next().unwrap_or("").to_owned());
    }
    assert_eq!(told, "");
    Ok(stored(checked))
}

#[test]
fn a_target_assumes_a_format_where_the_spec_names_none() {
    use ir::{StoredFormat::*, StoredInputs};
    let assume = |format| Choices { assume: Some(format), ..Choices::default() };
    let convert = |format| Choices { convert: true, ..assume(format) };
    assert_eq!(said("", &Choices::default()), Ok(None));
    let assumed = said("", &assume(Nvfp4)).unwrap().expect("assumed");
    assert_eq!((assumed.format, assumed.inputs, &assumed.kv), (Nvfp4, StoredInputs::Block, &None));
    assert_eq!(assumed.plain, [ir::StoredPlain { weight: "head".to_owned(), layers: None }], "the base says so");
    assert_eq!(assumed.names.input.as_deref(), Some("input_scale"));
    let none = "[stored]\nformat = \"none\"\n";
    assert_eq!(said(none, &assume(Fp8)), Ok(None), "what is said is not assumed");
    assert_eq!(said(none, &convert(Fp8)).unwrap().map(|s| s.format), Some(Fp8), "it becomes so while it is loaded");
    let told = said("[stored]\nformat = \"fp8\"\n", &assume(Nvfp4)).unwrap();
    assert_eq!(told.map(|s| s.format), Some(Fp8));
}

#[test]
fn what_is_stored_may_be_said_in_full() {
    let text = "[stored]\nformat = \"nvfp4\"\ninputs = \"plain\"\nplain = { o = [5, 2], q = \"all\" }\n\
                names = { scale = \"s\", global = \"g\" }\nkv = { k_scale = \"a.k\", v_scale = [\"a.v\", \"b.v\"] }\n";
    let whole = said(text, &Choices::default()).unwrap().expect("said");
    let plain = |layers: &[usize]| {
        let o = ir::StoredPlain { weight: "o".to_owned(), layers: Some(layers.to_vec()) };
        [o, ir::StoredPlain { weight: "q".to_owned(), layers: None }]
    };
    assert_eq!(whole.plain, plain(&[2, 5]));
    let names = (whole.names.codes.as_str(), whole.names.scale.as_str(), whole.names.global.as_deref());
    assert_eq!((names, whole.names.input), (("weight", "s", Some("g")), None), "plain inputs have no number");
    let kv = whole.kv.expect("scales");
    assert_eq!((kv.k_scale, kv.v_scale.len()), (vec!["model.layers.{l}.a.k".to_owned()], 2));
    // Of a part of the layers, those that stay are counted anew.
    let some = Choices { layers: Some(vec![0, 2, 3, 5]), ..Choices::default() };
    assert_eq!(said(text, &some).unwrap().expect("said").plain, plain(&[1, 3]));
}

#[test]
fn what_is_wrong_with_stored_formats_is_told() {
    for (table, wanted) in [
        ("format = \"int8\"", "error[B0035]: no format that a checkpoint is stored in"),
        ("format = 8", "error[B0035]: no format that a checkpoint is stored in"),
        ("format = \"fp8\"\ninputs = \"block\"", "error[B0035]: fp8 products take in \"plain\" or \"token\""),
        ("format = \"fp8\"\nplain = { hed = \"all\" }", "error[B0036]: there is no weight `hed`"),
        ("format = \"fp8\"\nplain = { head = [0] }", "error[B0010]: \"all\" is expected"),
        ("format = \"fp8\"\nplain = { o = [99] }", "error[B0036]: there is no such layer"),
        ("format = \"fp8\"\nplain = { o = [-1] }", "error[B0036]: there is no such layer"),
        ("format = \"fp8\"\nplain = { ffn_up = [7] }", "error[B0036]: layer 7 has no weight `ffn_up`"),
        ("format = \"fp8\"\nplain = [\"head\"]", "error[B0010]: a table of weights is expected"),
        ("format = \"fp8\"\nkv = { k_scale = \"k\" }", "error[B0035]: scales of cached rows without `v_scale`"),
        ("format = \"fp8\"\nkv = { k_scale = [] , v_scale = 3 }", "error[B0010]: a tensor name or a list of them"),
        ("format = \"fp8\"\nnames = { global = \"g\" }", "error[B0011]: [stored.names] has no key `global`"),
        ("formt = \"fp8\"", "error[B0011]: [stored] has no key `formt`"),
    ] {
        let told = said(&format!("[stored]\n{table}\n"), &Choices::default()).expect_err(table);
        assert!(told.starts_with(wanted), "{table}\n{told}");
    }
}
