//! Variants of the shipped spec and whole specs of other families: what each edit is, that the page shows it, that it
//! compiles at full size, and that a small model of it agrees with values of an independent implementation.

#[path = "variants/edit.rs"]
mod edit;
#[path = "variants/page.rs"]
mod page;
#[path = "variants/values.rs"]
mod values;

use std::path::PathBuf;
use suites::root;
use values::Case;

/// Every variant, in the order of the alphabet.
fn variants() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("model-spec/variants")).expect("variants");
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "toml"))
        .filter_map(|e| Some(e.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

fn file(name: &str) -> PathBuf {
    root().join("model-spec/variants").join(format!("{name}.toml"))
}

/// Whole specs of other families, with the checkpoints that stand for them.
const FAMILIES: &[(&str, &[&str])] = &[
    ("gemma3", &["gemma3", "gemma3-capped"]),
    ("llama", &["llama", "llama-biased-tied"]),
    ("qwen3-moe", &["qwen3-moe"]),
];

#[test]
fn every_variant_is_a_small_edit() {
    let names = variants();
    assert!(names.len() >= 12, "only {names:?}");
    for name in names {
        let lines = edit::changed_lines(&file(&name));
        assert!((1..=10).contains(&lines), "{name}: {lines} changed lines");
    }
}

#[test]
fn the_page_says_what_the_files_say() {
    page::check(&variants(), FAMILIES);
}

#[test]
fn variants_agree_with_the_library() {
    let mut table = String::new();
    for name in variants() {
        let case = Case::variant(&name, &file(&name));
        let found = case.compare();
        table.push_str(&format!("{found}\n"));
        assert!(found.holds(), "{found}");
        // The values tell the variant from the model that it varies.
        let plain = Case::variant(&name, &root().join("model-spec/beam.toml")).with_sizes_of("no-gate");
        let plain = plain.compare();
        assert!(!plain.holds(), "the shipped spec passes for {name}: {plain}");
    }
    println!("{table}");
}

#[test]
fn families_agree_with_the_library() {
    for (_, checkpoints) in FAMILIES {
        for name in *checkpoints {
            let found = Case::checkpoint(name).compare();
            println!("{found}");
            assert!(found.holds(), "{found}");
        }
    }
}

/// Configs as they stand in public repositories, old spellings included, and the number of parameters known for each.
#[test]
fn public_configs_import() {
    let folder = suites::fixture("variants").join("configs");
    let read = |name: &str| spec::check_path(&folder.join(name), &spec::Library::embedded(), &spec::Choices::default());
    for (name, parameters) in [
        ("smollm2-135m", 134_515_008),
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-3-1b", 999_885_952),
    ] {
        let checked = read(name);
        let said = spec::render(&checked.diagnostics, &checked.sources, false);
        assert!(checked.diagnostics.is_empty(), "{name}: {said}");
        assert_eq!(checked.model.map(|m| m.facts.parameters()), Some(parameters), "{name}");
    }
    let refused = read("llama-yarn");
    let said = spec::render(&refused.diagnostics, &refused.sources, false);
    assert!(said.starts_with("error[B0410]: `rope_parameters.rope_type` must be default or llama3"), "{said}");
}
