//! Every level of a compilation of one of the repository's specs.

use ir::Mesh;
use passes::{Compile, Stages};
use spec::{Choices, Library, check_path};
use suites::root;
use targets::Target;

/// Compiles a file of `model-spec` for a target on a mesh; the paths of its files are cut to their names.
pub fn compiled(spec: &str, target: &str, mesh: &str, exact: bool) -> Stages {
    let target = Target::load(target).expect("target");
    let mesh = Mesh::parse(mesh).expect("mesh");
    let options = target.options_on(&mesh).into_iter().collect();
    let choices = Choices { act: target.act, options, assume: target.formats.assume, ..Choices::default() };
    let checked = check_path(&root().join("model-spec").join(spec), &Library::embedded(), &choices);
    assert!(checked.diagnostics.is_empty(), "{}", spec::render(&checked.diagnostics, &checked.sources, false));
    let mut model = checked.model.expect("model");
    model.facts.files = model.facts.files.iter().map(|f| f.rsplit('/').next().unwrap_or(f).to_owned()).collect();
    let compile = Compile { target: &target, mesh: &mesh, exact, unpack: &[] };
    Stages::compile(model, &compile).unwrap_or_else(|e| panic!("{}: {}; {}", e.code, e.message, e.help))
}
