//! Every code that the compiler can print has a section on a page of `tests/specs/codes`: its explanation, an example,
//! and the exact words that the example gets, or the reason why no file leads to it. `beamc explain CODE` shows the same
//! section.
//!
//! A section's fences are files (`toml NAME`, `json`, `json whole`), perhaps commands (`sh`), and what the error stream
//! then says (`text`). Without commands the spec, or the directory with the config, is checked. The snippets of `json`
//! replace keys of the example checkpoint's config. `UPDATE_EXPECT=1 cargo test -p suites --test codes` rewrites titles,
//! explanations and expected texts.

use serde_json::Value;
use spec::{Choices, Library, check_path, render};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use suites::{Programs, nano, root};

struct Fence {
    info: String,
    text: String,
}

/// A section without its heading line.
struct Section {
    code: String,
    title: String,
    prose: String,
    fences: Vec<Fence>,
}

fn sections(page: &str) -> Vec<Section> {
    let mut found = Vec::new();
    for part in page.split("\n## ").skip(1) {
        let (heading, body) = part.split_once('\n').unwrap_or((part, ""));
        let (code, title) = heading.split_once(": ").unwrap_or((heading, ""));
        let prose = body.split("\n```").next().unwrap_or("").trim().to_owned();
        let mut fences = Vec::new();
        let mut lines = body.lines();
        while let Some(line) = lines.next() {
            if let Some(info) = line.strip_prefix("```") {
                let text: Vec<&str> = lines.by_ref().take_while(|l| !l.starts_with("```")).collect();
                let text = if text.is_empty() { String::new() } else { text.join("\n") + "\n" };
                fences.push(Fence { info: info.to_owned(), text });
            }
        }
        found.push(Section { code: code.to_owned(), title: title.to_owned(), prose, fences });
    }
    found
}

/// Writes the files of a section into a folder and says what the compiler answers.
fn answer(section: &Section, folder: &Path) -> String {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
        std::fs::write(path, text).expect("file");
    };
    write("small.toml", &std::fs::read_to_string(root().join("tests/specs/codes/small.toml")).expect("small.toml"));
    let mut checked = PathBuf::from("spec.toml");
    let mut commands = None;
    for fence in &section.fences {
        match fence.info.split_once(' ').unwrap_or((&fence.info, "")) {
            ("toml", "") => write("spec.toml", &fence.text),
            ("toml", name) => write(name, &fence.text),
            ("json", how) => {
                checked = PathBuf::from("model");
                let whole = how == "whole";
                write("model/config.json", &if whole { fence.text.clone() } else { patched(&fence.text) });
            }
            ("sh", _) => commands = Some(fence.text.as_str()),
            ("text", _) => {}
            (other, _) => panic!("{}: a fence of kind `{other}`", section.code),
        }
    }
    let text = match commands {
        Some(commands) => {
            let bin = Programs::built().beamc.parent().expect("a folder").to_owned();
            let path = std::env::var("PATH").unwrap_or_default();
            let mut shell = Command::new("bash");
            shell.args(["-c", commands]).current_dir(folder).env("PATH", format!("{}:{path}", bin.display()));
            String::from_utf8_lossy(&shell.output().expect("bash").stderr).into_owned()
        }
        None => {
            let checked = check_path(&folder.join(checked), &Library::embedded(), &Choices::default());
            render(&checked.diagnostics, &checked.sources, false)
        }
    };
    let text = text.replace(&format!("{}/", folder.display()), "");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    format!("{}\n", lines.join("\n").trim_end())
}

/// The example checkpoint's config with some keys replaced, in order.
fn patched(patch: &str) -> String {
    let text = std::fs::read_to_string(nano().join("config.json")).expect("config");
    let mut config: serde_json::Map<String, Value> = serde_json::from_str(&text).expect("config");
    config.extend(serde_json::from_str::<serde_json::Map<String, Value>>(patch).expect("patch"));
    format!("{:#}\n", Value::Object(config))
}

/// The page with titles, explanations and expected texts as they are.
fn rewritten(page: &str, known: &BTreeMap<String, (String, String)>, answers: &BTreeMap<String, String>) -> String {
    let mut out = page.split("\n## ").next().unwrap_or("").to_owned();
    for section in sections(page) {
        let (title, text) = known.get(&section.code).cloned().unwrap_or_default();
        let title = if title.is_empty() { String::new() } else { format!(": {title}") };
        out.push_str(&format!("\n## {}{title}\n\n{text}\n", section.code));
        if let Some(reason) = reason(&section) {
            out.push_str(&format!("\n{reason}\n"));
        }
        for fence in &section.fences {
            let text = answers.get(&section.code).filter(|_| fence.info == "text").unwrap_or(&fence.text);
            out.push_str(&format!("\n```{}\n{text}```\n", fence.info));
        }
    }
    out
}

/// The line that says why a code has no example.
fn reason(section: &Section) -> Option<&str> {
    section.prose.lines().find(|l| l.starts_with("No example: "))
}

#[test]
fn every_code_has_an_example_that_gets_it() {
    let listed = Programs::built().beamc(&["explain", "--json"]).out;
    let listed: Vec<BTreeMap<String, String>> = serde_json::from_str(&listed).expect("codes");
    let known: BTreeMap<String, (String, String)> =
        listed.into_iter().map(|c| (c["code"].clone(), (c["title"].clone(), c["text"].clone()))).collect();
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut missing: Vec<&String> = known.keys().collect();
    let (mut wrong, mut shown) = (Vec::new(), 0);
    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(root().join("tests/specs/codes")).expect("pages").flatten().map(|e| e.path()).collect();
    pages.retain(|p| p.extension().is_some_and(|e| e == "md"));
    pages.sort();
    for path in pages {
        let page = std::fs::read_to_string(&path).expect("page");
        let mut answers = BTreeMap::new();
        for section in sections(&page) {
            missing.retain(|c| **c != section.code);
            let Some((title, text)) = known.get(&section.code) else {
                wrong.push(format!("{}: the compiler has no such code", section.code));
                continue;
            };
            let explanation = match reason(&section) {
                Some(reason) => format!("{text}\n\n{reason}"),
                None => text.clone(),
            };
            if !update && (section.title != *title || section.prose != explanation) {
                wrong.push(format!("{}: title or explanation is not that of `beamc explain`", section.code));
            }
            let Some(expected) = section.fences.iter().find(|f| f.info == "text") else {
                if reason(&section).is_none() {
                    wrong.push(format!("{}: neither an example nor a reason", section.code));
                }
                continue;
            };
            shown += 1;
            let folder = tempfile::tempdir().expect("folder");
            let actual = answer(&section, folder.path());
            if !actual.contains(&format!("[{}]", section.code)) {
                wrong.push(format!("{}: the example gets another answer\n{actual}", section.code));
            } else if !update && actual != expected.text {
                wrong.push(format!("{}: expected\n{}\nactual\n{actual}", section.code, expected.text));
            }
            if !actual.contains("help: ") || actual.contains("failed to") {
                wrong.push(format!("{}: no next step\n{actual}", section.code));
            }
            answers.insert(section.code.clone(), actual);
        }
        if update {
            std::fs::write(&path, rewritten(&page, &known, &answers)).expect("page");
        }
    }
    wrong.extend(missing.into_iter().map(|code| format!("{code}: no page has a section")));
    assert!(shown > 100, "only {shown} examples were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// What `explain` prints is the section: no second text that could differ.
#[test]
fn explain_shows_the_section() {
    let shown = Programs::built().beamc(&["explain", "b0262"]).out;
    assert!(shown.starts_with("B0262: unknown function\n\n"), "{shown}");
    assert!(shown.contains("    error[B0262]: there is no function `slu`\n"), "{shown}");
    let shown = Programs::built().beamc(&["explain", "B0263", "--json"]).out;
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert!(shown["example"].as_str().expect("an example").contains("error[B0263]"), "{shown}");
    // Those of the other program are its own to explain.
    for code in ["W0312", "R0722", "e0101", "X0301", "D0001"] {
        let done = Programs::built().beamc(&["explain", code]);
        assert!(done.code == 2 && done.err.contains("help: it is a code of `beam-run`"), "{}", done.err);
    }
}

/// With `--json` every command ends badly in one form, whatever was wrong.
#[test]
fn failures_have_one_form() {
    let folder = tempfile::tempdir().expect("folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("file");
        path.display().to_string()
    };
    let wrong = file("wrong.toml", "extends = \"beam-nano\"\n[values]\nkept_groups = 9\n");
    let right = file("right.toml", "extends = \"beam-nano\"\n");
    let config = file("config.json", &patched("{ \"rms_norm_eps\": null }"));
    let written = folder.path().join("written.toml").display().to_string();
    let nowhere = folder.path().join("nowhere").display().to_string();
    let runs: [(&[&str], &str, i32); 13] = [
        (&["check", &wrong], "B0268", 1),
        (&["check", &nowhere], "B0001", 1),
        (&["check", &right, "--target", "cpu-f23"], "T0101", 1),
        (&["dump", &right, "--target", "cpu", "--stage", "grahp"], "C0004", 2),
        (&["dump", &right, "--target", "cpu", "--stage", "cuda"], "C0004", 2),
        (&["compile", &right, "--target", "cpu", "--tunable", "-o", &nowhere], "C0012", 2),
        (&["report", &nowhere], "A0101", 1),
        (&["compile", &right, "--target", "cpu", "--option", "combine=singel", "-o", &nowhere], "C0006", 2),
        (&["import", &config, "-o", &written], "B0247", 1),
        (&["compile", &right, "--target", "cpu", "--mesh", "tp", "-o", &nowhere], "C0002", 2),
        (&["compile", &right, "--target", "cpu", "--unpack", "x", "-o", &nowhere], "C0010", 2),
        (&["dump", &right, "--target", "h200-bf16", "--stage", "cuda", "--spans"], "C0004", 2),
        (&["explain", "B9999"], "C0005", 2),
    ];
    for (args, code, exit) in runs {
        let done = Programs::built().beamc(&[args, &["--json"]].concat());
        let json: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", done.out));
        let first = &json["diagnostics"][0];
        assert_eq!((done.code, &json["ok"], &first["code"]), (exit, &false.into(), &code.into()), "{args:?}\n{json:#}");
        assert!(["message", "help"].iter().all(|key| first[*key].is_string()), "{args:?}\n{json:#}");
    }
    assert!(Path::new(&written).is_file(), "what was imported stays, to be mended");
}

/// Options of the command line are held against what the spec offers, and against each other.
#[test]
fn chosen_options_are_the_specs() {
    let said = |options: &[&str]| {
        let folder = tempfile::tempdir().expect("folder");
        let spec = folder.path().join("spec.toml");
        std::fs::write(&spec, "extends = \"beam-nano\"\n").expect("file");
        let mut args = vec!["dump", spec.to_str().expect("UTF-8"), "--target", "cpu", "--stage", "model"];
        options.iter().for_each(|o| args.extend(["--option", o]));
        Programs::built().beamc(&args).err
    };
    assert_eq!(said(&["combine=single"]), "");
    assert!(said(&["combine=singel"]).contains("help: did you mean `single`?"), "{}", said(&["combine=singel"]));
    assert!(said(&["combine=x"]).contains("its alternatives are library, engine, single"), "{}", said(&["combine=x"]));
    let twice = said(&["combine=single", "combine=library"]);
    assert!(twice.contains("`--option` chooses both `single` and `library` for `combine`"), "{twice}");
}

/// The cpu executor reads weights as the checkpoint has them, so a cpu target that packs makes a plan to read.
#[test]
fn a_cpu_target_that_packs_does_not_make_a_loadable_artifact() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let target = std::fs::read_to_string(root().join("model-spec/targets/cpu.toml")).expect("cpu.toml");
    assert!(!target.contains("\npack"), "the built-in target packs nothing");
    let fuse = target.find("[fuse]").map_or_else(
        || format!("{target}\n[fuse]\npack = true\n"),
        |at| format!("{}[fuse]\npack = true{}", &target[..at], &target[at + "[fuse]".len()..]),
    );
    std::fs::write(path("packs.toml"), fuse).expect("file");
    std::fs::write(path("spec.toml"), "extends = \"beam-nano\"\n").expect("file");
    for (target, complete) in [("cpu", true), (path("packs.toml").as_str(), false)] {
        let args = ["compile", &path("spec.toml"), "--target", target, "-o", &path("out"), "--json"];
        let done = Programs::built().beamc(&args);
        let json: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {}", done.err));
        assert_eq!(json["manifest"]["complete"], complete, "{target}");
    }
}
