//! A damaged or hostile artifact is an error with a code, never a panic and never accepted.

mod common;

use artifact::{Artifact, LoadError};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const FILES: [&str; 10] = [
    "ir/graph.txt",
    "ir/kernel.txt",
    "ir/model.txt",
    "ir/plan.txt",
    "kernels.json",
    "manifest.json",
    "memory.json",
    "plan.json",
    "report.json",
    "weights.json",
];

type Edit = fn(&mut Value);

struct Case {
    _temp: tempfile::TempDir,
    dir: PathBuf,
}

fn written() -> Case {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("a");
    common::artifact().write(&dir, &common::texts()).unwrap();
    Case { _temp: temp, dir }
}

fn code(dir: &Path) -> &'static str {
    let error = Artifact::load(dir).expect_err("accepted");
    let text = error.to_string();
    assert!(text.starts_with(error.code()), "{text}");
    assert!(text.contains("\n  help: "), "{text}");
    for banned in ["failed to", "struct ", "enum ", "Manifest", "KernelModule"] {
        assert!(!text.contains(banned), "{banned}: {text}");
    }
    assert!(artifact::explain(error.code()).is_some());
    error.code()
}

/// Replaces one file and makes the manifest agree, as an attacker would.
fn forge(dir: &Path, path: &str, content: &[u8]) {
    fs::write(dir.join(path), content).unwrap();
    edit_manifest(dir, |m| {
        let hash = sha2_hex(content);
        m["files"][path] = json!({"bytes": content.len(), "sha256": hash});
    });
}

fn sha2_hex(content: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect()
}

fn edit_manifest(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut manifest);
    fs::write(path, serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
}

#[test]
fn every_flipped_byte_of_the_data_is_noticed() {
    let case = written();
    for file in FILES.into_iter().filter(|f| *f != "manifest.json") {
        let path = case.dir.join(file);
        let good = fs::read(&path).unwrap();
        // Every byte of the short files, a regular sample of the long ones.
        for at in (0..good.len()).step_by(good.len() / 60 + 1) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(&path, &bad).unwrap();
            assert_eq!(code(&case.dir), "A0108", "{file} byte {at}");
        }
        fs::write(&path, good).unwrap();
    }
    Artifact::load(&case.dir).unwrap();
}

#[test]
fn every_flipped_byte_of_the_manifest_is_refused_or_harmless() {
    let case = written();
    let path = case.dir.join("manifest.json");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for bit in [0x01, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= bit;
            fs::write(&path, &bad).unwrap();
            // Names are free text: a changed letter in one is another valid manifest.
            if Artifact::load(&case.dir).is_err() {
                code(&case.dir);
            }
        }
    }
}

#[test]
fn every_truncated_file_is_noticed() {
    let case = written();
    for file in FILES {
        let path = case.dir.join(file);
        let good = fs::read(&path).unwrap();
        for keep in [0, 1, good.len() / 2, good.len() - 2] {
            fs::write(&path, &good[..keep]).unwrap();
            let expected = if file == "manifest.json" { "A0105" } else { "A0107" };
            assert_eq!(code(&case.dir), expected, "{file} cut to {keep}");
        }
        fs::write(&path, [good.as_slice(), b"\n "].concat()).unwrap();
        if file != "manifest.json" {
            assert_eq!(code(&case.dir), "A0107", "{file} with more");
        }
        fs::write(&path, good).unwrap();
    }
}

#[test]
fn every_deleted_file_is_named() {
    for file in FILES {
        let case = written();
        fs::remove_file(case.dir.join(file)).unwrap();
        if file == "manifest.json" {
            assert_eq!(code(&case.dir), "A0101");
            continue;
        }
        assert_eq!(code(&case.dir), "A0106", "{file}");
        assert!(Artifact::load(&case.dir).unwrap_err().to_string().contains(file));
    }
}

#[test]
fn a_required_file_cannot_be_left_out_of_the_list() {
    for file in ["kernels.json", "plan.json", "weights.json", "report.json"] {
        let case = written();
        edit_manifest(&case.dir, |m| {
            m["files"].as_object_mut().unwrap().remove(file);
        });
        assert_eq!(code(&case.dir), "A0106", "{file}");
    }
}

#[test]
fn hostile_manifests_are_refused() {
    let entry = json!({"bytes": 0, "sha256": "0"});
    let edits: [(&str, Edit); 17] = [
        ("A0103", |m| m["format"] = json!("zip")),
        ("A0103", |m| m["format"] = json!(["beam-artifact"])),
        ("A0103", |m| m["format"] = Value::Null),
        ("A0104", |m| m["version"] = json!(1)),
        ("A0104", |m| m["version"] = json!(u64::MAX)),
        ("A0105", |m| m["version"] = json!("1")),
        ("A0105", |m| m["surprise"] = json!(1)),
        ("A0105", |m| m["files"]["plan.json"]["bytes"] = json!(-1)),
        ("A0105", |m| m["parameters"] = json!(1e30)),
        ("A0107", |m| m["files"]["plan.json"]["bytes"] = json!(u64::MAX)),
        ("A0108", |m| m["files"]["plan.json"]["sha256"] = json!("x".repeat(1 << 16))),
        ("A0110", |m| m["files"]["manifest.json"] = json!({"bytes": 0, "sha256": "0"})),
        ("A0111", |m| m["complete"] = json!(false)),
        ("A0111", |m| m["missing"] = json!(["a kernel"])),
        ("A0112", |m| m["entries"] = json!(["backward"])),
        ("A0112", |m| m["mesh"] = json!({"tp": 2})),
        ("A0112", |m| m["relaxations"] = json!(["rank-round"])),
    ];
    for (expected, edit) in edits {
        let case = written();
        edit_manifest(&case.dir, edit);
        assert_eq!(code(&case.dir), expected);
    }
    for path in ["../../etc/passwd", "/etc/passwd", "ir/../../x", "", "a\\..\\b", "C:x", "..", ".", "a\n", "\u{202e}x"]
    {
        let case = written();
        edit_manifest(&case.dir, |m| m["files"][path] = entry.clone());
        assert_eq!(code(&case.dir), "A0110", "{path:?}");
    }
}

#[test]
fn json_that_is_no_manifest_is_refused() {
    let case = written();
    for text in ["", "null", "[]", "{}", "7", "\"beam-artifact\"", "{\"format\":", "\u{feff}{}"] {
        fs::write(case.dir.join("manifest.json"), text).unwrap();
        assert!(["A0103", "A0105"].contains(&code(&case.dir)), "{text:?}");
    }
    fs::write(case.dir.join("manifest.json"), "[".repeat(1 << 20)).unwrap();
    assert_eq!(code(&case.dir), "A0105");
    fs::write(case.dir.join("manifest.json"), [0xff; 64]).unwrap();
    assert_eq!(code(&case.dir), "A0105");
}

#[test]
fn an_absurdly_large_manifest_is_not_read() {
    let case = written();
    let file = fs::File::create(case.dir.join("manifest.json")).unwrap();
    file.set_len(1 << 34).unwrap();
    assert_eq!(code(&case.dir), "A0109");
}

#[test]
fn an_absurdly_large_file_is_not_read() {
    let case = written();
    fs::File::create(case.dir.join("ir/model.txt")).unwrap().set_len(1 << 34).unwrap();
    edit_manifest(&case.dir, |m| m["files"]["ir/model.txt"]["bytes"] = json!(1u64 << 34));
    assert_eq!(code(&case.dir), "A0109");
}

#[test]
fn forged_files_are_still_verified() {
    let deep = "[".repeat(100_000);
    for file in ["kernels.json", "plan.json", "weights.json", "report.json"] {
        for text in ["", "{", "nul", &deep, "\u{0}"] {
            let case = written();
            forge(&case.dir, file, text.as_bytes());
            assert_eq!(code(&case.dir), "A0105", "{file} {:?}", &text[..text.len().min(10)]);
        }
    }
    let edits: [(&str, &str, &str, &str); 8] = [
        ("weights.json", "[2,4]", "[2,5]", "A0112"),
        ("weights.json", "\"shape\":[10,4]", "\"shape\":[18446744073709551615,4]", "A0112"),
        ("weights.json", "\"layer\":1", "\"layer\":0", "A0112"),
        ("weights.json", "\"bf16\"", "\"i32\"", "A0112"),
        ("weights.json", "\"bf16\"", "\"f8\"", "A0105"),
        ("kernels.json", "\"forward\"", "\"backward\"", "A0112"),
        ("plan.json", "\"forward\"", "\"backward\"", "A0112"),
        ("kernels.json", "\"-inf\"", "\"minus infinity\"", "A0105"),
    ];
    for (file, from, to, expected) in edits {
        let case = written();
        let good = fs::read_to_string(case.dir.join(file)).unwrap();
        let bad = good.replace(from, to);
        assert_ne!(good, bad, "{from}");
        forge(&case.dir, file, bad.as_bytes());
        assert_eq!(code(&case.dir), expected, "{file}: {from} → {to}");
    }
}

/// Every number of every data file replaced in turn: whatever the verifiers say, nothing may panic.
#[test]
fn no_forged_number_causes_a_panic() {
    let case = written();
    for file in ["kernels.json", "plan.json", "weights.json"] {
        let good = fs::read_to_string(case.dir.join(file)).unwrap();
        let starts: Vec<usize> = good
            .char_indices()
            .filter(|(i, c)| c.is_ascii_digit() && !good[..*i].ends_with(|p: char| p.is_ascii_alphanumeric()))
            .map(|(i, _)| i)
            .collect();
        for at in starts {
            let end = good[at..].find(|c: char| !c.is_ascii_digit()).map_or(good.len(), |n| at + n);
            for number in ["0", "1", "4294967295", "18446744073709551615"] {
                let bad = format!("{}{number}{}", &good[..at], &good[end..]);
                forge(&case.dir, file, bad.as_bytes());
                if Artifact::load(&case.dir).is_err() {
                    code(&case.dir);
                }
            }
        }
        forge(&case.dir, file, good.as_bytes());
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_the_directory_are_refused() {
    let case = written();
    let outside = case.dir.with_file_name("outside");
    fs::rename(case.dir.join("plan.json"), &outside).unwrap();
    std::os::unix::fs::symlink(&outside, case.dir.join("plan.json")).unwrap();
    assert_eq!(code(&case.dir), "A0110");

    let case = written();
    let outside = case.dir.with_file_name("outside");
    fs::rename(case.dir.join("ir"), &outside).unwrap();
    std::os::unix::fs::symlink(&outside, case.dir.join("ir")).unwrap();
    assert_eq!(code(&case.dir), "A0110");
}

#[test]
fn what_is_no_directory_is_no_artifact() {
    let temp = tempfile::tempdir().unwrap();
    assert_eq!(code(temp.path()), "A0101");
    assert_eq!(code(&temp.path().join("nothing")), "A0101");
    fs::write(temp.path().join("file"), "x").unwrap();
    assert_eq!(code(&temp.path().join("file")), "A0101");
    fs::create_dir(temp.path().join("manifest.json")).unwrap();
    assert_eq!(code(temp.path()), "A0110");
    assert!(matches!(Artifact::load(temp.path()), Err(LoadError::UnsafePath { .. })));
}

#[test]
fn a_manifest_that_describes_another_model_is_refused() {
    let edits: [(Edit, &str, &str); 5] = [
        (|m| m["model"] = json!("large"), "`large`", "`small`"),
        (|m| m["parameters"] = json!(7), "parameters 7", "has 72"),
        (|m| m["options"] = json!({"combine": "fused"}), "fused", "plain"),
        (|m| m["options"] = json!({}), "options {}", "plain"),
        (|m| m["entries"] = json!(["backward"]), "backward", "forward"),
    ];
    for (edit, own, other) in edits {
        let case = written();
        edit_manifest(&case.dir, edit);
        assert_eq!(code(&case.dir), "A0112");
        let text = Artifact::load(&case.dir).unwrap_err().to_string();
        assert!(text.contains("`manifest.json`") && text.contains(own) && text.contains(other), "{text}");
    }
}
