//! What is written is what is read, and the same is written every time.

mod common;

use artifact::{Artifact, RecipeForm, WriteError, recipes};
use ir::Scope;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().to_string_lossy().into_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn an_artifact_reads_back_as_written() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("not/yet/there");
    let written = common::artifact();
    let manifest = written.write(&dir, &common::texts()).unwrap();
    let read = Artifact::load(&dir).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(read.manifest, manifest);
    assert_eq!(Artifact { manifest: written.manifest.clone(), ..read }, written);
    let names: Vec<String> = contents(&dir).into_keys().collect();
    assert_eq!(
        names,
        [
            "ir/graph.txt",
            "ir/kernel.txt",
            "ir/model.txt",
            "ir/plan.txt",
            "kernels.json",
            "manifest.json",
            "memory.json",
            "plan.json",
            "report.json",
            "weights.json"
        ]
    );
    assert_eq!(fs::read_dir(dir.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn two_runs_write_the_same_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let (one, two) = (temp.path().join("one"), temp.path().join("two"));
    common::artifact().write(&one, &common::texts()).unwrap();
    let mut texts = common::texts();
    texts.reverse();
    common::artifact().write(&two, &texts).unwrap();
    let first = contents(&one);
    assert_eq!(first, contents(&two));
    common::artifact().write(&one, &texts).unwrap();
    assert_eq!(first, contents(&one));
    let all = first.values().flatten().copied().collect::<Vec<u8>>();
    assert!(!String::from_utf8(all).unwrap().contains(&*temp.path().to_string_lossy()), "no path of this machine");
}

#[test]
fn a_spread_weight_stays_one_line() {
    let all = recipes(&common::facts());
    let titles: Vec<String> = all.iter().map(|r| r.title()).collect();
    assert_eq!(titles, ["W.table", "W.scale of layer 0", "W.scale of layer 1", "W.many of layer 1"]);
    let many = all.last().unwrap();
    assert_eq!((many.scope, many.layer, many.shape.as_slice()), (Scope::Layer, Some(1), [3, 2, 4].as_slice()));
    let spread = RecipeForm {
        tensor: "b.1.e.{experts}.w".to_owned(),
        spread: vec![("experts".to_owned(), 3)],
        shape: vec![2, 4],
        slice: None,
        layout: Default::default(),
    };
    assert_eq!(many.forms[0], spread);
    assert_eq!(many.forms[0].tensor_name(2), "b.1.e.2.w");
    assert!(all.iter().all(|r| r.check().is_ok()));
    assert_eq!(
        serde_json::to_string(&many.forms[0]).unwrap(),
        r#"{"tensor":"b.1.e.{experts}.w","spread":[["experts",3]],"shape":[2,4]}"#
    );
}

#[test]
fn names_of_two_spread_axes_count_like_digits() {
    let form = RecipeForm {
        tensor: "{a}/{b}".to_owned(),
        spread: vec![("a".to_owned(), 2), ("b".to_owned(), 3)],
        shape: vec![1],
        slice: None,
        layout: Default::default(),
    };
    let names: Vec<String> = (0..6).map(|i| form.tensor_name(i)).collect();
    assert_eq!(names, ["0/0", "0/1", "0/2", "1/0", "1/1", "1/2"]);
}

#[test]
fn recipes_that_do_not_add_up_are_refused() {
    let good = recipes(&common::facts()).pop().unwrap();
    let broken = |edit: fn(&mut artifact::WeightRecipe)| {
        let mut recipe = good.clone();
        edit(&mut recipe);
        recipe.check().unwrap_err()
    };
    assert_eq!(
        broken(|r| r.forms[0].shape = vec![2, 5]),
        "W.many of layer 1: `b.1.e.{experts}.w` gives 30 elements, the value has 24"
    );
    assert_eq!(
        broken(|r| r.forms[1].slice = Some(vec![[0, 3], [3, 2], [0, 4]])),
        "W.many of layer 1: part [[0, 3], [3, 2], [0, 4]] of `b.1.packed` is not inside its shape [3, 4, 4]"
    );
    for edit in [
        (|r| r.shape = vec![u64::MAX, u64::MAX]) as fn(&mut artifact::WeightRecipe),
        |r| r.shape = vec![0],
        |r| r.forms.clear(),
        |r| r.layer = None,
        |r| r.dtype = ir::DType::I32,
        |r| r.forms[0].spread[0].1 = 0,
        |r| r.forms[0].spread[0].1 = u64::MAX,
        |r| r.forms[0].tensor = "b".to_owned(),
        |r| r.forms[1].slice = Some(vec![[u64::MAX, u64::MAX]; 3]),
        |r| r.forms[1].shape = vec![u64::MAX; 3],
    ] {
        broken(edit);
    }
}

#[test]
fn only_artifacts_and_empty_directories_are_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("out");
    let refused = |what: &str| match common::artifact().write(&dir, &[]) {
        Err(WriteError::Occupied { fact, .. }) => assert_eq!(fact, what),
        other => panic!("{other:?}"),
    };
    fs::create_dir(&dir).unwrap();
    common::artifact().write(&dir, &common::texts()).unwrap();
    common::artifact().write(&dir, &[]).unwrap();
    assert!(!dir.join("ir").exists(), "the old artifact's texts are gone");

    fs::write(dir.join("notes.md"), "mine").unwrap();
    refused("holds `notes.md`, which the artifact there does not list");
    fs::write(dir.join("manifest.json"), r#"{"format": "something else"}"#).unwrap();
    refused("holds `kernels.json` and no manifest of an artifact");
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir_all(dir.join("src")).unwrap();
    refused("holds `src` and no manifest of an artifact");
    fs::remove_dir_all(&dir).unwrap();
    fs::write(&dir, "a file").unwrap();
    refused("is a file");
    assert_eq!(fs::read_to_string(&dir).unwrap(), "a file");
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_to_the_directory_survives() {
    let temp = tempfile::tempdir().unwrap();
    let (real, link) = (temp.path().join("real"), temp.path().join("link"));
    common::artifact().write(&real, &[]).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    common::artifact().write(&link, &common::texts()).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(real.join("ir/plan.txt").exists());
    Artifact::load(&link).unwrap();
}

#[test]
fn texts_may_not_lead_out_or_collide() {
    let temp = tempfile::tempdir().unwrap();
    for path in ["../x", "/x", "manifest.json", "plan.json", "a//b", "", ".hidden", "a\\b", "a/../b", "x\0"] {
        let written = common::artifact().write(&temp.path().join("out"), &[(path.to_owned(), String::new())]);
        assert!(matches!(written, Err(WriteError::TextPath { .. })), "{path:?}");
    }
}

#[test]
fn every_code_is_explained_once() {
    let codes: Vec<&str> = artifact::ERRORS.iter().map(|(code, _)| *code).collect();
    assert!(codes.is_sorted_by(|a, b| a < b));
    assert!(artifact::explain("A0108").is_some_and(|text| text.contains("edited")));
    assert_eq!(artifact::explain("A9999"), None);
}

/// A recipe with one form, for layouts.
fn laid_out(dtype: ir::DType, shape: &[u64], disk: &[u64], layout: ir::DiskLayout) -> artifact::WeightRecipe {
    let form = RecipeForm {
        tensor: "m.{experts}.w".to_owned(),
        spread: vec![("experts".to_owned(), 3)],
        shape: disk.to_vec(),
        slice: None,
        layout,
    };
    let good = recipes(&common::facts()).pop().unwrap();
    artifact::WeightRecipe { shape: shape.to_vec(), dtype, forms: vec![form], ..good }
}

#[test]
fn layouts_say_how_tensors_become_elements() {
    use ir::{DType, DiskLayout::*};
    let scales = || Nibbles { scales: "m.{experts}.s".to_owned() };
    let also = || Same { also: vec!["n.{experts}".to_owned()] };
    let check = |dtype, shape: &[u64], disk: &[u64], layout| laid_out(dtype, shape, disk, layout).check();
    for (dtype, shape, disk, layout) in [
        (DType::Nvfp4, &[3, 2, 32][..], &[2, 32][..], scales()),
        (DType::E4m3, &[3, 2, 4], &[2, 4], RowCodes),
        (DType::E4m3, &[3, 2, 4], &[2, 4], Plain),
        (DType::F32, &[3, 2], &[2, 4], RowScales),
        (DType::F32, &[3, 2], &[], Number),
        (DType::F32, &[3, 2], &[1], Number),
        (DType::F32, &[], &[], Largest { also: Vec::new() }),
        (DType::F32, &[], &[], also()),
    ] {
        assert_eq!(check(dtype, shape, disk, layout.clone()), Ok(()), "{layout:?}");
    }
    for (dtype, shape, disk, layout, wanted) in [
        (DType::Nvfp4, &[3, 2, 24][..], &[2, 24][..], scales(), "has layout nibbles but shape [2, 24]"),
        (DType::Bf16, &[3, 2, 32], &[2, 32], scales(), "has layout nibbles, which makes no bf16"),
        (DType::Nvfp4, &[3, 2, 32], &[2, 32], Plain, "has layout plain, which makes no nvfp4"),
        (DType::E4m3, &[3], &[], Number, "has layout number, which makes no e4m3"),
        (DType::F32, &[4, 2], &[2], Number, "has layout number but shape [2]"),
        (DType::F32, &[4], &[], Number, "gives 3 elements, the value has 4"),
        (DType::F32, &[5], &[2, 4], RowScales, "gives 24 elements, the value has 5"),
        (DType::F32, &[], &[], Same { also: vec!["n".to_owned()] }, "`n` does not enumerate axis `experts`"),
    ] {
        let fact = check(dtype, shape, disk, layout).unwrap_err();
        assert!(fact.contains(wanted), "{fact}");
    }
    let codes = laid_out(DType::Nvfp4, &[3, 2, 32], &[2, 32], scales());
    assert_eq!(codes.forms[0].filled("m.{experts}.s", 2), "m.2.s");
    assert_eq!(codes.forms[0].locate(64 + 5), Some((1, 5)));
    assert_eq!(laid_out(DType::F32, &[3, 2], &[], Number).forms[0].locate(5), None);
    let text = serde_json::to_string(&codes.forms[0]).unwrap();
    assert!(text.ends_with(r#""layout":{"nibbles":{"scales":"m.{experts}.s"}}}"#), "{text}");
    let absent = artifact::WeightRecipe {
        absent: Some(f32::NAN),
        ..laid_out(DType::F32, &[], &[], Largest { also: Vec::new() })
    };
    assert!(absent.check().unwrap_err().contains("where a checkpoint lacks it"));
}
