//! The full model, made small, on meshes: every pass keeps what it declares on every rank.

use ir::{Mesh, Model};
use passes::validate::{Small, Verdict};
use passes::{Compile, Kind, Validation};
use spec::{Choices, Library, check_path};
use std::path::{Path, PathBuf};
use targets::Target;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn validated(spec: &str, target: &Target, mesh: &str, combine: &str, exact: bool, act: Option<ir::DType>) -> Validation {
    let path = root().join("model-spec").join(spec);
    let mesh = Mesh::parse(mesh).expect("a mesh");
    let mut read = |small: &Small| -> Result<Model, String> {
        let choices = Choices {
            act,
            options: [("combine".to_owned(), vec![combine.to_owned()])].into(),
            dims: small.dims.clone(),
            layers: small.layers.clone(),
            ..Choices::default()
        };
        let mut checked = check_path(&path, &Library::embedded(), &choices);
        let first = || checked.diagnostics.first().map_or_else(String::new, |d| d.message.clone());
        checked.model.take().ok_or_else(first)
    };
    let full = read(&Small::default()).expect("the full model");
    let shrunk = passes::shrink(&full, &mesh, &mut read).expect("a small model");
    assert!(shrunk.kept.is_empty(), "{:?}", shrunk.kept);
    let compile = Compile { target, mesh: &mesh, exact };
    passes::validate(&shrunk.model, &compile, 1).unwrap_or_else(|e| panic!("{mesh} {combine}: {e}"))
}

#[test]
fn every_mesh_keeps_every_bit() {
    let target = Target::load("cpu").expect("a target");
    for mesh in ["tp=2", "tp=4", "tp=8", "tp=16", "ep=2", "ep=4", "tp=2,ep=2", "ep=4,tp=2"] {
        for combine in ["library", "engine", "single"] {
            for act in [None, Some(ir::DType::F32)] {
                let found = validated("beam.toml", &target, mesh, combine, true, act);
                for pass in &found.passes {
                    assert!(pass.verdict.holds(), "{mesh} {combine} {act:?} {}: {:?}", pass.pass.name, pass.verdict);
                    assert!(!matches!(pass.pass.kind, Kind::Relaxed(_)) || !matches!(pass.verdict, Verdict::Measured { moved: 1.., .. }));
                }
                let shard = found.passes.iter().find(|p| p.pass.name == "shard").expect("it ran");
                println!("{mesh} {combine} {act:?}: {:?}", shard.verdict);
            }
        }
    }
}
