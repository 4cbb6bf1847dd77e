//! Every level of a compilation of one of the repository's specs.

use ir::Mesh;
use passes::{Compile, Stages};
use spec::{Choices, Library, check_path};
use std::path::Path;
use targets::Target;

/// What the generator knows of a target's device.
pub fn machine(target: &str) -> codegen::Machine {
    codegen::Machine::of(&Target::load(target).expect("target"))
}

/// Compiles a file of `model-spec` for a target on one device.
pub fn compiled(spec: &str, target: &str) -> Stages {
    on_mesh(spec, target, "")
}

/// The same on a mesh.
pub fn on_mesh(spec: &str, target: &str, mesh: &str) -> Stages {
    let target = Target::load(target).expect("target");
    let mesh = Mesh::parse(mesh).expect("a mesh");
    let options = target.options_on(&mesh).into_iter().collect();
    let choices = Choices { act: target.act, options, ..Choices::default() };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model-spec").join(spec);
    let checked = check_path(&path, &Library::embedded(), &choices);
    let model = checked.model.unwrap_or_else(|| panic!("{spec} has errors"));
    let compile = Compile { target: &target, mesh: &mesh, exact: true, unpack: &[] };
    Stages::compile(model, &compile).unwrap_or_else(|e| panic!("{}: {}; {}", e.code, e.message, e.help))
}
