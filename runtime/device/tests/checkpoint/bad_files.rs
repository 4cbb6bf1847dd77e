//! Damaged files, shards and indices.

use super::common::*;
use device::checkpoint::Checkpoint;
use serde_json::json;
use std::fs;

const ONE: &str = "one.safetensors";
const TWO: &str = "two.safetensors";

/// Weights a and b in a shard each.
fn two_shards() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    sharded(temp.path(), &[(ONE, vec![bf16s("disk.a", &[1], &[1.0])]), (TWO, vec![bf16s("disk.b", &[1], &[2.0])])]);
    temp
}

fn told(temp: &tempfile::TempDir) -> Vec<String> {
    refused(temp.path(), &[plain("a", &[1]), plain("b", &[1])])
}

#[test]
fn a_directory_without_weights_says_what_was_looked_for() {
    let temp = tempfile::tempdir().unwrap();
    let text = Checkpoint::open(temp.path()).unwrap_err().to_string();
    assert!(text.contains("holds neither `model.safetensors` nor `model.safetensors.index.json`"), "{text}");
    assert!(text.contains("\n  help: "), "{text}");
    let text = Checkpoint::open(&temp.path().join("gone")).unwrap_err().to_string();
    assert!(text.starts_with("W0102"), "{text}");
}

#[test]
fn a_missing_shard_is_told_once() {
    let temp = two_shards();
    fs::remove_file(temp.path().join(TWO)).unwrap();
    assert_eq!(
        told(&temp),
        [
            "W0105: `two.safetensors` is missing; `model.safetensors.index.json` says that it holds 1 tensors, such as `disk.b`"
        ]
    );
    fs::remove_file(temp.path().join(ONE)).unwrap();
    assert_eq!(told(&temp).len(), 2);
}

#[test]
fn a_shard_that_is_no_file_is_unreadable() {
    let temp = two_shards();
    fs::remove_file(temp.path().join(TWO)).unwrap();
    fs::create_dir(temp.path().join(TWO)).unwrap();
    assert_eq!(told(&temp), ["W0102: `two.safetensors` cannot be read: it is not a file"]);
}

#[test]
fn an_index_entry_that_its_shard_lacks_is_told() {
    let temp = two_shards();
    index(temp.path(), json!({"disk.a": ONE, "disk.b": TWO, "disk.c": TWO}));
    assert_eq!(
        told(&temp),
        [
            "W0106: tensor `disk.c` is in `two.safetensors` according to `model.safetensors.index.json`, but no shard has it"
        ]
    );
}

#[test]
fn an_index_entry_in_the_wrong_shard_is_told_from_both_sides() {
    let temp = two_shards();
    index(temp.path(), json!({"disk.a": ONE, "disk.b": ONE, "x": TWO}));
    let told = told(&temp);
    assert_eq!(
        told,
        [
            "W0107: tensor `disk.b` is in `two.safetensors`, but `model.safetensors.index.json` puts it into `one.safetensors`",
            "W0106: tensor `disk.b` is in `one.safetensors` according to `model.safetensors.index.json`, but it is in `two.safetensors`",
            "W0106: tensor `x` is in `two.safetensors` according to `model.safetensors.index.json`, but no shard has it",
        ]
    );
}

#[test]
fn a_tensor_that_the_index_does_not_list_is_told() {
    let temp = tempfile::tempdir().unwrap();
    sharded(temp.path(), &[(ONE, vec![bf16s("disk.a", &[1], &[1.0]), bf16s("disk.b", &[1], &[2.0])])]);
    index(temp.path(), json!({"disk.a": ONE}));
    assert_eq!(
        told(&temp),
        ["W0107: tensor `disk.b` is in `one.safetensors`, but `model.safetensors.index.json` does not list it"]
    );
}

#[test]
fn shard_names_may_not_leave_the_directory() {
    let outside = tempfile::tempdir().unwrap();
    single(outside.path(), &[bf16s("disk.a", &[1], &[1.0])]);
    let path = outside.path().join("model.safetensors");
    let absolute = path.to_string_lossy();
    for name in ["../x.safetensors", "a/b", "..", ".", "", "/", "a\\b", "a\u{0}", "C:x", "./x", "x/", &absolute] {
        let temp = two_shards();
        index(temp.path(), json!({"disk.a": name, "disk.b": TWO}));
        let told = told(&temp);
        assert!(told[0].starts_with("W0104"), "{name:?}: {told:?}");
        assert_eq!(told.len(), 1, "{told:?}");
    }
}

#[test]
fn what_is_no_index_is_refused() {
    for text in ["", "{", "[]", "{}", "null", r#"{"weight_map": []}"#, r#"{"weight_map": {"a": 1}}"#, "\u{feff}{}"] {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("model.safetensors.index.json"), text).unwrap();
        let told = Checkpoint::open(temp.path()).unwrap_err().to_string();
        assert!(told.starts_with("W0103") && !told.contains("struct"), "{text:?}: {told}");
    }
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("model.safetensors.index.json"), "[".repeat(1 << 16)).unwrap();
    assert!(Checkpoint::open(temp.path()).is_err());
}

#[test]
fn an_index_without_tensors_misses_every_weight() {
    let temp = tempfile::tempdir().unwrap();
    index(temp.path(), json!({}));
    assert_eq!(told(&temp).len(), 2);
}

#[test]
fn every_truncated_tensor_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let mut bytes = bytes_of(&[
        bf16s("disk.a", &[2], &[1.0, 2.0]),
        bf16s("disk.b", &[2, 1], &[3.0, 4.0]),
        bf16s("disk.c", &[1], &[5.0]),
    ]);
    bytes.truncate(bytes.len() - 3);
    fs::write(temp.path().join("model.safetensors"), bytes).unwrap();
    assert_eq!(
        refused(temp.path(), &[plain("a", &[2]), plain("b", &[1, 2]), plain("c", &[1])]),
        [
            "W0208: `model.safetensors`: tensor `disk.b` (BF16 [2, 1]) ends at byte 8 of the data, the file has 7: it is truncated",
            "W0208: `model.safetensors`: tensor `disk.c` (BF16 [1]) ends at byte 10 of the data, the file has 7: it is truncated",
            "W0302: `disk.b` in `model.safetensors` has shape [2, 1], W.b needs [1, 2]",
        ]
    );
}

#[test]
fn an_empty_file_is_told() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("model.safetensors"), "").unwrap();
    let told = Checkpoint::open(temp.path()).unwrap_err().to_string();
    assert!(told.starts_with("W0201: `model.safetensors`: the file has 0 bytes"), "{told}");
}

/// Each byte of a whole file flipped: read or refused, never a panic.
#[test]
fn no_flipped_byte_causes_a_panic() {
    let temp = tempfile::tempdir().unwrap();
    let good = bytes_of(&[bf16s("disk.a", &[1], &[1.0]), bf16s("disk.b", &[1], &[2.0])]);
    let path = temp.path().join("model.safetensors");
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            fs::write(&path, bad).unwrap();
            let _ = load(temp.path(), &[plain("a", &[1]), plain("b", &[1])]);
        }
    }
}
