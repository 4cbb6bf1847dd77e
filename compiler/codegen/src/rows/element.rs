//! One element of a value as a function: what stands before a core, computed where the core reads it.

use super::emit::{Body, Coords, Symbol};
use super::index::Index;
use super::modes::{Mode, Modes};
use super::text::Kernel;
use super::{Job, c_type};
use artifact::Param;
use ir::ValueId;

/// Names of an element's indices: token row, head, element of a head.
const INDICES: [&str; 3] = ["row", "head", "place"];

/// A function of one element.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// The function `before::at`.
    pub function: String,
    /// Parameters behind those of the core, as they are declared.
    pub signature: String,
    /// What the template calls for two elements that stand side by side.
    pub call: String,
    /// Parameters.
    pub params: Vec<Param>,
}

/// The element of `id`, from the operations of a job; rows by heads by elements. The error says what is beyond it.
pub fn element(job: &Job<'_>, id: ValueId) -> Result<Element, String> {
    let axes = job.graph.tensor(id).map(|t| t.axes.clone()).unwrap_or_default();
    let by_heads = axes.len() == INDICES.len() && axes[0].is_rows() && axes[1..].iter().all(|a| !a.is_rows());
    if !by_heads {
        return Err(format!("{id} has other axes than rows, heads and elements"));
    }
    let modes: Modes = job.values.iter().map(|v| (*v, Mode::Inline)).collect();
    let mut kernel = Kernel::new(job, &modes);
    let mut body = Body::default();
    let mut coords = Coords::new();
    for (axis, name) in axes.iter().zip(INDICES) {
        body.symbols.insert(name.to_owned(), Symbol { varies: true, aligned: false });
        coords.insert(axis.name.clone(), Index::symbol(name));
    }
    let text = kernel.at(&mut body, id, &coords)?;
    let (params, declared) = kernel.parameters();
    let constants: String = kernel.constants().iter().map(|l| format!("{l}\n")).collect();
    let lines: String = body.lines.iter().map(|l| format!("  {l}\n")).collect();
    let own: String = INDICES.iter().map(|n| format!("int {n}, ")).collect::<String>();
    let own = own.trim_end_matches(", ");
    let inner: String = declared.iter().map(|d| format!(", {d}")).collect();
    let outer: String = declared.iter().map(|d| format!(", {d}_before")).collect();
    let names = declared.iter().map(|d| d.rsplit(' ').next().unwrap_or_default());
    let names: String = names.map(|n| format!(", {n}_before")).collect();
    let kind = c_type(job.dtype(id));
    Ok(Element {
        function: format!(
            "namespace before {{\n{constants}DEVICE {kind} at({own}{inner}) {{\n{lines}  return {text};\n}}\n}}\n"
        ),
        signature: outer,
        call: format!(
            "[&](const bf16*, int row, int head, int place) {{ return bf16_pair(before::at(row, head, place{names}), before::at(row, head, place + 1{names})); }}"
        ),
        params,
    })
}
