//! Verifiers: the rules of each level. A level that passes its verifier may be read without further checks.
//!
//! A broken rule is a defect of the compiler, or damage to a file of an artifact; a user's mistake is found earlier,
//! by the front end, and reported with its place in the spec.

mod captures;
mod collectives;
mod cores;
mod environment;
mod graph;
mod kernels;
mod kv;
mod model;
mod operation;
mod plan;
mod shapes;
mod sharding;
mod side_by_side;
mod speculation;
mod stored;

#[cfg(test)]
mod tests;

use crate::{Facts, Graph, KernelModule, Model, Module, Plan, ValueId};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {place}: {message}")]
pub struct VerifyError {
    /// Code that `beamc explain` knows.
    pub code: &'static str,
    /// Entry, graph and value, from the outside in.
    pub place: String,
    /// What is there and what the rule wants.
    pub message: String,
}

/// Codes of this crate: code, title, explanation.
pub const CODES: [(&str, &str, &str); 7] = [
    ("V0101", "text that is no module", "The text form of a graph level has a syntax error at the place named."),
    (
        "V0201",
        "a graph is not well formed",
        "Ids out of range, an operand that does not precede its user, two values of one name, an input that is listed twice.",
    ),
    (
        "V0202",
        "an operation breaks its type rule",
        "Operands, attributes and the type of the result do not fit each other as the operation's page says.",
    ),
    (
        "V0203",
        "graphs of an entry do not fit together",
        "A value is read before a graph defines it, or crosses graphs with two types; an instance names a class that does not exist.",
    ),
    (
        "V0204",
        "regions do not partition a graph",
        "An operation is in no region or in two, a region comes before one that it reads, or a region holds operations of another kind.",
    ),
    (
        "V0205",
        "a plan is inconsistent",
        "A buffer leaves the arena or shares bytes with another that is alive, a launch reads what nobody made, or the plan does not belong to its kernel level.",
    ),
    (
        "V0206",
        "a sharding does not fit its model",
        "A placement names a weight, cache, axis or mesh axis that does not exist, a length does not come out even over the ranks, or a value has a length that no placement gives it.",
    ),
];

/// Title and explanation of a code of this crate.
pub fn explain(code: &str) -> Option<(&'static str, &'static str)> {
    CODES.iter().find(|(c, _, _)| *c == code).map(|(_, title, text)| (*title, *text))
}

/// Checks the model level:
///
/// * graphs are well formed: ids in range, operands before users, names and inputs unique, each input an input node;
/// * every operation obeys its type rule (see `operation.rs`);
/// * axes that the facts give a length have it, weights exist with the type that the facts give them;
/// * block names are unique, a block calls only blocks before it, arguments and results have the types of the callee;
/// * all arms of a match agree, and there is one for each kind that the column has;
/// * the layer loop's carried values come back with the types they had;
/// * layers that a weight is kept to ascend and exist, layouts of tensors leave its dtype, and what is stored in a narrow
///   format names the tensors and inputs that the format has.
pub fn verify_model(model: &Model) -> Result<(), Vec<VerifyError>> {
    model::verify(model)
}

/// Checks the graph level: what [`verify_model`] checks of graphs, and
///
/// * no call, match, layer loop or tuple is left, and no cache is named by column;
/// * layer weights and numbers that depend on the layer stand only in class graphs, first-layer weights only in `first`,
///   the successor's weights only in class graphs, with equal types for the layer's and the model's;
/// * the inputs of `first` are the entry's signature;
/// * graphs fit together: `first` reads entry inputs; each class and `last` read only what `first` or every class before
///   them defines or what the entry is given, and one name has one type everywhere;
/// * instances name existing classes and layers, and a layer has every weight that its class reads;
/// * a cache that is stored to or attended in a class covers all layers of the class;
/// * what is exported for a drafter is handed on by the layers that it names.
///
/// With a sharding, types are those of one rank, and
///
/// * placements name weights, caches and mesh axes that exist; no two axes of a value lie on one mesh axis;
/// * parts come out even, or several ranks share an element;
/// * weights and caches have the axes of a rank's part; an axis that is spread somewhere has its whole or a part's length;
/// * collectives stand only here, and over axes of the mesh.
pub fn verify_module(module: &Module) -> Result<(), Vec<VerifyError>> {
    environment::verify(module)
}

/// Checks the kernel level: what [`verify_module`] checks, and
///
/// * graphs are `first`, one or more classes or none, `last`;
/// * every operation that is no leaf is in exactly one region, every leaf in none;
/// * a region's name is unique in its graph and its operations ascend;
/// * regions that a region reads stand before it;
/// * operations make a region, as the rules of [`crate::Anatomy::of`] have it, and one of the kind that the region names;
/// * what is computed before a product or attention is used there alone;
/// * a weight has one layout; only packed weights of equal parts interleave, and where a strand combines cuts of one product,
///   its weight does.
pub fn verify_kernels(module: &KernelModule) -> Result<(), Vec<VerifyError>> {
    kernels::verify(module)
}

/// Checks a plan against its kernel level:
///
/// * entries, instances, graphs and cache kinds match; buckets ascend by tokens;
/// * every buffer starts at a multiple of 64, ends inside the bucket's arena, is large enough for the bucket's largest step and has
///   the value's dtype; the plan's arena is as large as the largest bucket's;
/// * a value that its region alone reads has no place, every other one has;
/// * shared values do not overlap; a local value overlaps no shared one, and no local one that is alive with it: from
///   the launch that makes it to the last that reads it or a view of it; save one that ends in the launch that makes it
///   and that the region may write over, row by row ([`crate::Anatomy::overwrites`]);
/// * an output lies in its shared place, made there after the last launch that reads the old content (or by it, element
///   row), or is moved there at the end;
/// * a view is an alias of the value it views, weights and caches lie elsewhere;
/// * launches are the regions that are no views, in order, followed by moves; each reads only what was made before, and names the launches
///   that it reads from; one that starts early has a kernel before it;
/// * cache layouts keep layers, tokens, heads and values of one page apart;
/// * rows that the model exports have one place in all buckets, where nothing else is written.
pub fn verify_plan(plan: &Plan, kernels: &KernelModule) -> Result<(), Vec<VerifyError>> {
    plan::verify(plan, kernels)
}

/// Checks one operation of a graph of the model level against its type rule; the error says what does not fit.
pub fn check_operation(graph: &Graph, id: ValueId, facts: &Facts) -> Result<(), String> {
    operation::operation(graph, id, facts, operation::Level::Model)
}

/// Collects broken rules.
#[derive(Default)]
struct Report {
    errors: Vec<VerifyError>,
}

impl Report {
    fn add(&mut self, code: &'static str, place: impl Into<String>, message: impl Into<String>) {
        // A damaged file can break every rule at once; nobody reads more than this.
        if self.errors.len() < 100 {
            self.errors.push(VerifyError { code, place: place.into(), message: message.into() });
        }
    }

    fn check(&mut self, holds: bool, code: &'static str, place: &str, message: impl FnOnce() -> String) {
        if !holds {
            self.add(code, place, message());
        }
    }

    fn finish(self) -> Result<(), Vec<VerifyError>> {
        if self.errors.is_empty() { Ok(()) } else { Err(self.errors) }
    }
}
