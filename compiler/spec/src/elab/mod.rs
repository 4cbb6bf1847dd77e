//! From the tree of the block text to the model level: names, axes, types and rounding points.
//!
//! Each `fn` becomes a block per set of argument types and constants; a `match` on a layer's kind
//! becomes a block per kind; `def`s, `for … yield` and matches on values and options dissolve here.
//! Clause numbers R1 to R9 are those of `docs/language.md`.

mod axes;
mod blocks;
mod builtin;
mod consts;
mod cores;
mod expr;
mod function;
mod index;
mod loops;
mod parts;
mod recover;
mod select;
mod stmt;
mod target;
mod unread;
mod value;

pub(crate) use builtin::{BUILTINS, CONST_FUNCTIONS};
pub(crate) use expr::WORDS;

use crate::Diagnostic;
use crate::ast::Program;
use crate::diag::has_errors;
use crate::facts::Resolved;
use crate::stop::{Res, Stop, refuse};
use indexmap::IndexMap;
use ir::{Block, DType, GraphBuilder, Model, Op, Scope, Span, TensorType, Type, ValueId};
use recover::Findings;
use std::collections::{HashMap, HashSet};
use value::{Origin, Tensor, Val};

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

/// Elaborates every entry. Errors go to `out`; with any, there is no model.
pub(crate) fn elaborate(resolved: Resolved, program: &Program, out: &mut Vec<Diagnostic>) -> Option<Model> {
    let mut elab = Elab {
        resolved,
        program,
        found: Findings::default(),
        blocks: Vec::new(),
        instances: HashMap::new(),
        failed: HashSet::new(),
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
    for function in program.entries() {
        match elab.entry(function) {
            Ok(block) => entries.push(block),
            Err(stop) => elab.tell(stop),
        }
        elab.frames.clear();
        elab.calls.clear();
        elab.levels = 0;
    }
    if program.entries().is_empty() && program.broken.is_empty() && !has_errors(out) {
        elab.tell(
            Diagnostic::error("B0201", "the spec has no entry")
                .at(elab.resolved.whole, "no `entry` in this spec or its bases")
                .help("write entry forward(tokens: i32[T], pos: i32[T], rows: i32[R]) -> f32[R, vocab] { … }")
                .into(),
        );
    }
    elab.missing_values();
    let failed = elab.found.stops > 0;
    if !failed && !has_errors(out) {
        elab.unused_weights();
        elab.unread_names();
    }
    out.append(&mut elab.found.list);
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
    found: Findings,
    blocks: Vec<Block>,
    instances: HashMap<String, Instance>,
    /// Calls whose body was refused: its errors are told once.
    failed: HashSet<String>,
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
        self.found.halted = true;
        refuse(
            Diagnostic::error("B0202", format!("the block makes more than {MAX_NODES} operations"))
                .at(span, "the one too many")
                .help("look for a function that calls others many times over"),
        )
    }

    /// Counts one more expression; every way down the tree passes here.
    fn descend(&mut self, span: Span) -> Res<()> {
        self.levels += 1;
        self.steps += 1;
        if self.found.halted {
            return Err(Stop::Told);
        }
        if self.levels <= MAX_LEVELS && self.steps <= MAX_STEPS {
            return Ok(());
        }
        self.found.halted = true;
        let what = if self.levels > MAX_LEVELS {
            "calls and expressions are nested too deep"
        } else {
            "the spec takes too long to read"
        };
        refuse(
            Diagnostic::error("B0202", what)
                .at(span, "while reading this")
                .help("look for a function that calls others many times over, and give parts names"),
        )
    }

    /// A constant expression, if it is of a sensible size.
    fn sized(&self, c: ir::ConstExpr, span: Span) -> Res<Val> {
        let c = c.simplified();
        if c.size() <= MAX_CONSTANT {
            return Ok(Val::Const(c));
        }
        refuse(
            Diagnostic::error("B0296", format!("a number of the layer has more than {MAX_CONSTANT} parts"))
                .at(span, "grows here")
                .help("each use of a constant that depends on the layer copies it: simplify the formula"),
        )
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
            self.found.halted = true;
            return refuse(
                Diagnostic::error("B0202", format!("the spec makes more than {MAX_BLOCKS} blocks"))
                    .at(span, "the one too many")
                    .help("a constant that differs at every call makes a block each time"),
            );
        }
        self.blocks.push(Block { name, graph: frame.builder.finish() });
        Ok(())
    }

    /// The row positions that `store` and `attend` use when the text names none: the entry's `pos`.
    fn positions(&mut self, span: Span) -> Res<Tensor> {
        let top = self.frames.len() - 1;
        let ty = self.at_type.clone().ok_or_else(|| {
            Stop::from(
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
}
