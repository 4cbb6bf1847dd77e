//! From the tree of the block text to the model level: names, axes, types and rounding points.
//!
//! Each `fn` becomes a block per set of argument types and constants; a `match` on a layer's kind
//! becomes a block per kind; `def`s, `for … yield` and matches on values and options dissolve here.
//! Clause numbers R1 to R9 are those of `docs/language.md`.

mod axes;
mod builtin;
mod consts;
mod cores;
mod expr;
mod function;
mod select;
mod stmt;
mod value;

use crate::Diagnostic;
use crate::ast::Program;
use crate::facts::Resolved;
use indexmap::IndexMap;
use ir::{Block, DType, GraphBuilder, Model, Op, Scope, Span, TensorType, Type, ValueId};
use std::collections::{HashMap, HashSet};
use value::{Origin, Tensor, Val};

/// The result of every step; one error ends the entry it occurs in.
pub(crate) type Res<T> = Result<T, Box<Diagnostic>>;

/// Calls deeper than this are refused.
const MAX_CALLS: usize = 64;

/// More blocks than this are refused: a spec of this kind is hostile or mistaken.
const MAX_BLOCKS: usize = 4096;

/// Expressions inside expressions, through calls as well; more would run out of stack.
const MAX_LEVELS: usize = 400;

/// Longest work on one spec, in expressions read: constants make no operations, and functions may call others many times.
const MAX_STEPS: usize = 4_000_000;

/// Largest number of the layer, in parts: each use of a name copies it.
const MAX_CONSTANT: usize = 256;

/// More operations than this in all blocks together are refused.
const MAX_NODES: usize = 200_000;

/// Elaborates every entry.
pub(crate) fn elaborate(resolved: Resolved, program: &Program, out: &mut Vec<Diagnostic>) -> Option<Model> {
    let mut elab = Elab {
        resolved,
        program,
        warnings: Vec::new(),
        blocks: Vec::new(),
        instances: HashMap::new(),
        block_names: HashMap::new(),
        frames: Vec::new(),
        calls: Vec::new(),
        at_type: None,
        used: HashSet::new(),
        read: HashSet::new(),
        levels: 0,
        steps: 0,
    };
    let mut entries = Vec::new();
    let mut failed = false;
    for function in program.entries() {
        match elab.entry(function) {
            Ok(block) => entries.push(block),
            Err(d) => {
                out.push(*d);
                failed = true;
            }
        }
        elab.frames.clear();
        elab.calls.clear();
        elab.levels = 0;
    }
    if entries.is_empty() && !failed {
        out.push(
            Diagnostic::error("B0201", "the spec has no entry")
                .at(elab.resolved.whole, "no `entry` in this spec or its bases")
                .help("write entry forward(tokens: i32[T], pos: i32[T], rows: i32[R]) -> f32[R, vocab] { … }"),
        );
        failed = true;
    }
    if !failed {
        elab.unused_weights();
        elab.unread_names();
    }
    out.append(&mut elab.warnings);
    (!failed).then_some(Model { facts: elab.resolved.facts, blocks: elab.blocks, entries })
}

/// What a block instance looks like from outside.
#[derive(Clone, Debug)]
struct Instance {
    block: String,
    results: Vec<TensorType>,
    /// Whether the block wants the row positions as a last argument.
    hidden_at: bool,
    /// Operations of the block with all its calls written out.
    size: usize,
}

/// How a frame relates to the one below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameKind {
    /// An entry: sees only its own names.
    Entry,
    /// A `fn`: sees only its own names.
    Function,
    /// An arm of a match or the body of the layer loop: sees the frame below, by capture.
    Inner,
}

/// A graph under construction and the names visible in it.
struct Frame {
    kind: FrameKind,
    builder: GraphBuilder,
    scopes: Vec<HashMap<String, Val>>,
    /// Names of the frame below that were read: name → input of this graph.
    captures: IndexMap<String, Tensor>,
    /// Names of the frame below that were assigned, in order.
    assigned: IndexMap<String, Tensor>,
    /// Dtype of untyped names (clause R2).
    dtype: DType,
    /// What is known of the layer that runs: column → kind.
    kinds: Vec<(String, String)>,
    /// Row positions, once asked for.
    at: Option<ValueId>,
    /// Whether a layer runs here, so that `W.name` may be a layer's weight.
    in_layer: bool,
    /// Where the scopes of enclosing `for … yield` loops begin.
    loop_scopes: Vec<usize>,
    /// Axes of enclosing `for … yield` loops: one step of the loop sees a single index of them.
    loop_axes: Vec<String>,
    returned: Option<Vec<Val>>,
    yielded: Option<Val>,
    /// Operations so far, with all calls written out as the passes will.
    size: usize,
}

impl Frame {
    fn new(kind: FrameKind, dtype: DType, kinds: Vec<(String, String)>) -> Self {
        Frame {
            kind,
            builder: GraphBuilder::new(),
            scopes: vec![HashMap::new()],
            captures: IndexMap::new(),
            assigned: IndexMap::new(),
            dtype,
            kinds,
            at: None,
            in_layer: false,
            loop_scopes: Vec::new(),
            loop_axes: Vec::new(),
            returned: None,
            yielded: None,
            size: 0,
        }
    }
}

/// State of the elaboration of one spec.
struct Elab<'a> {
    resolved: Resolved,
    program: &'a Program,
    warnings: Vec<Diagnostic>,
    blocks: Vec<Block>,
    instances: HashMap<String, Instance>,
    block_names: HashMap<String, u32>,
    frames: Vec<Frame>,
    /// Functions being elaborated, to refuse recursion.
    calls: Vec<String>,
    /// Type of the entry's row positions.
    at_type: Option<TensorType>,
    used: HashSet<(Scope, String)>,
    /// What the text read of the tables: table and name.
    read: HashSet<(&'static str, String)>,
    levels: usize,
    steps: usize,
}

impl Elab<'_> {
    fn frame(&mut self) -> &mut Frame {
        // A frame is pushed before anything is elaborated and popped after.
        let top = self.frames.len() - 1;
        &mut self.frames[top]
    }

    /// Counts operations that the frame's graph will have when calls are written out.
    fn grow(&mut self, by: usize, span: Span) -> Res<()> {
        let frame = self.frame();
        frame.size = frame.size.saturating_add(by);
        if frame.size <= MAX_NODES {
            return Ok(());
        }
        Err(Box::new(
            Diagnostic::error("B0202", format!("the block makes more than {MAX_NODES} operations"))
                .at(span, "the one too many")
                .help("look for a function that calls others many times over"),
        ))
    }

    /// Counts one more expression; every way down the tree passes here.
    fn descend(&mut self, span: Span) -> Res<()> {
        self.levels += 1;
        self.steps += 1;
        if self.levels <= MAX_LEVELS && self.steps <= MAX_STEPS {
            return Ok(());
        }
        let what = if self.levels > MAX_LEVELS {
            "calls and expressions are nested too deep"
        } else {
            "the spec takes too long to read"
        };
        Err(Box::new(
            Diagnostic::error("B0202", what)
                .at(span, "while reading this")
                .help("look for a function that calls others many times over, and give parts names"),
        ))
    }

    /// A constant expression, if it is of a sensible size.
    fn sized(&self, c: ir::ConstExpr, span: Span) -> Res<Val> {
        let c = c.simplified();
        if c.size() <= MAX_CONSTANT {
            return Ok(Val::Const(c));
        }
        Err(Box::new(
            Diagnostic::error("B0296", format!("a number of the layer has more than {MAX_CONSTANT} parts"))
                .at(span, "grows here")
                .help("each use of a constant that depends on the layer copies it: simplify the formula"),
        ))
    }

    /// Adds an operation to the graph under construction. `origins` are its tensor operands.
    fn emit(&mut self, op: Op, operands: &[Tensor], ty: TensorType, span: Span) -> Res<Tensor> {
        self.grow(1, span)?;
        let ids: Vec<ValueId> = operands.iter().map(|t| t.id).collect();
        let id = self.frame().builder.add(op, &ids, Type::Tensor(ty.clone()), Some(span));
        let origin = operands.iter().fold(Origin::default(), |o, t| o.join(t.origin()));
        Ok(Tensor { id, ty, value: false, origin })
    }

    /// A fresh block name: `wanted`, `wanted#2`, ….
    fn block_name(&mut self, wanted: &str) -> String {
        let count = self.block_names.entry(wanted.to_owned()).or_insert(0);
        *count += 1;
        if *count == 1 { wanted.to_owned() } else { format!("{wanted}#{count}") }
    }

    fn add_block(&mut self, name: String, frame: Frame, span: Span) -> Res<()> {
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(Box::new(
                Diagnostic::error("B0202", format!("the spec makes more than {MAX_BLOCKS} blocks"))
                    .at(span, "the one too many")
                    .help("a constant that differs at every call makes a block each time"),
            ));
        }
        self.blocks.push(Block { name, graph: frame.builder.finish() });
        Ok(())
    }

    /// The row positions that `store` and `attend` use when the text names none: the entry's `pos`.
    fn positions(&mut self, span: Span) -> Res<Tensor> {
        let top = self.frames.len() - 1;
        let ty = self.at_type.clone().ok_or_else(|| {
            Box::new(
                Diagnostic::error("B0203", "the cache is used, and the entry has no row positions")
                    .at(span, "needs the position of each row")
                    .help("give the entry a parameter pos: i32[T]"),
            )
        })?;
        let id = self.positions_in(top, &ty);
        Ok(Tensor { id, ty, value: true, origin: Origin::default() })
    }

    fn positions_in(&mut self, index: usize, ty: &TensorType) -> ValueId {
        if let Some(id) = self.frames[index].at {
            return id;
        }
        // The entry's own `at` is set when its parameters are made; every other frame receives it from below.
        if self.frames[index].kind == FrameKind::Inner && index > 0 {
            self.positions_in(index - 1, ty);
        }
        let id = self.frames[index].builder.input("pos", Type::Tensor(ty.clone()));
        self.frames[index].at = Some(id);
        id
    }

    /// Warns of entries of the tables, and of functions, that nothing reads: usually a misspelt name in a derived spec.
    fn unread_names(&mut self) {
        let (facts, resolved) = (&self.resolved.facts, &self.resolved);
        let mut read = self.read.clone();
        let weights = facts.weights.iter().flat_map(|w| w.axes.iter().flatten());
        let rows = facts.kv.iter().flat_map(|k| k.k.iter().chain(&k.v));
        read.extend(weights.chain(rows).map(|a| ("dims", a.name.clone())));
        for (product, factors) in &facts.products {
            read.extend(factors.iter().chain([product]).map(|f| ("dims", f.clone())));
        }
        read.insert(("dims", "layers".to_owned()));
        read.extend(facts.weights.iter().filter_map(|w| Some(("schedule", w.when.as_ref()?.column.clone()))));
        read.extend(resolved.named_elsewhere.iter().cloned());
        let own = |span: &Span| span.file == 0;
        let mut unread: Vec<(&str, &str, Span)> = Vec::new();
        unread.extend(resolved.dim_spans.iter().map(|(n, s)| ("dims", n.as_str(), *s)));
        unread.extend(resolved.values.iter().map(|(n, (s, _))| ("values", n.as_str(), *s)));
        unread.extend(resolved.option_spans.iter().map(|(n, (s, _))| ("options", n.as_str(), *s)));
        unread.extend(resolved.column_spans.iter().map(|(n, s)| ("schedule", n.as_str(), *s)));
        unread.extend(resolved.kv_spans.iter().map(|(n, s)| ("kv", n.as_str(), *s)));
        let functions = self.program.functions.iter().filter(|f| f.kind != crate::ast::FunctionKind::Entry);
        unread.extend(functions.map(|f| ("blocks", f.name.text.as_str(), f.name.span)));
        unread.retain(|(table, name, span)| own(span) && !read.contains(&(*table, (*name).to_owned())));
        unread.sort_by_key(|(_, _, span)| span.start);
        let mut found = Vec::new();
        for (table, name, span) in unread {
            let known = read.iter().filter(|(t, _)| *t == table).map(|(_, n)| n.as_str());
            let d = Diagnostic::warning("B0304", format!("nothing reads `{name}` of [{table}]"));
            found.push(d.at(span, "changes nothing").nearest(name, known));
        }
        self.warnings.append(&mut found);
    }

    /// Warns of weights that no block reads although some layer has them.
    fn unused_weights(&mut self) {
        let facts = &self.resolved.facts;
        for w in &facts.weights {
            let present = w.scope == Scope::Model || (0..facts.layers()).any(|l| facts.layer_has(l, w));
            if present && !self.used.contains(&(w.scope, w.name.clone())) {
                let mut d = Diagnostic::warning("B0301", format!("no block reads the weight `{}`", w.name))
                    .help(format!("remove it, or write {} = \"none\" in a spec that extends its base", w.name));
                if let Some(span) = w.span {
                    d = d.at(span, "declared here");
                }
                self.warnings.push(d);
            }
        }
    }
}
