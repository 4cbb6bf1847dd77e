//! The block language as a tree, every node with its place.

use ir::{DType, Span};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A name and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Ident {
    pub text: String,
    pub span: Span,
}

/// All functions of a spec. Of several with one name the last stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub functions: Vec<Function>,
    /// File and name of each function, with the place of the first of that name.
    pub places: HashMap<(u32, String), Span>,
    /// Names of functions that could not be read: calls of them are told already.
    pub broken: HashSet<String>,
}

impl Program {
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().rev().find(|f| f.kind != FunctionKind::Entry && f.name.text == name)
    }

    /// The function that this one replaces: the last one before it of its name.
    pub fn replaced_by(&self, function: &Function) -> Option<&Function> {
        let here = self.functions.iter().rposition(|f| f.name.span == function.name.span)?;
        let before = self.functions.get(..here)?.iter().rev();
        before.into_iter().find(|f| f.kind != FunctionKind::Entry && f.name.text == function.name.text)
    }

    /// Entries in the order in which their names first appear.
    pub fn entries(&self) -> Vec<&Function> {
        let mut found: Vec<&Function> = Vec::new();
        for f in self.functions.iter().filter(|f| f.kind == FunctionKind::Entry) {
            match found.iter_mut().find(|g| g.name.text == f.name.text) {
                Some(slot) => *slot = f,
                None => found.push(f),
            }
        }
        found
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FunctionKind {
    /// `def f(x) = expr`: an expression with a name.
    Def,
    /// `fn f(x) { … }`: takes and returns values.
    Fn,
    /// `entry f(x: …) -> … { … }`.
    Entry,
}

#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub kind: FunctionKind,
    pub name: Ident,
    pub params: Vec<Param>,
    pub results: Option<Vec<TypeAst>>,
    /// `in f32`: dtype of untyped names inside.
    pub dtype: Option<DType>,
    /// Statements; a `def` has one `return`.
    pub body: Vec<Stmt>,
}

#[derive(Clone, Debug)]
pub(crate) struct Param {
    pub name: Ident,
    pub constant: bool,
    pub ty: Option<TypeAst>,
}

/// `f32`, `f32[T, hidden]`, or `[T, hidden]`.
#[derive(Clone, Debug)]
pub(crate) struct TypeAst {
    pub dtype: Option<DType>,
    pub axes: Option<Vec<Ident>>,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Stmt {
    pub kind: StmtKind,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum StmtKind {
    /// `const a = e` or `const a: f32 = e`.
    Const {
        name: Ident,
        dtype: Option<DType>,
        value: Expr,
    },
    /// `a, b: f32 = e, f`.
    Let {
        targets: Vec<Target>,
        values: Vec<Expr>,
    },
    Return(Vec<Expr>),
    Yield(Vec<Expr>),
    /// `for l in layers { … }`.
    Layers {
        index: Ident,
        body: Vec<Stmt>,
    },
    /// A statement that could not be read, with the names it would have bound.
    Broken(Vec<Ident>),
    /// An expression for its effect, or a match whose arms are statements.
    Expr(Expr),
}

#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub name: Ident,
    pub ty: Option<TypeAst>,
}

#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub kind: ExprKind,
    pub span: Span,
    /// Levels of expressions below this one and itself; the parser bounds it, so that no walk of the tree runs out of stack.
    pub depth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Pow,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    Number(f64),
    Name(String),
    Field(Box<Expr>, Ident),
    Index(Box<Expr>, Vec<Expr>),
    Call {
        function: Ident,
        args: Vec<Expr>,
        named: Vec<(Ident, Expr)>,
    },
    Neg(Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `x as axis`.
    As(Box<Expr>, Ident),
    /// `x[axis i]`, `x[axis a..b]`, `x[axis a..]`.
    Part {
        base: Box<Expr>,
        axis: Ident,
        start: Box<Expr>,
        /// Whether a range is written; its end, if one is.
        range: bool,
        end: Option<Box<Expr>>,
    },
    /// `f(t in axis: term)`: the term for every index of an axis.
    Each {
        function: Ident,
        index: Ident,
        axis: Ident,
        term: Box<Expr>,
    },
    /// `match subject { arm { … } … }`.
    Match {
        subject: Box<Expr>,
        arms: Vec<(Ident, Vec<Stmt>)>,
    },
    /// `for a, b in x, y { … yield … }`.
    For {
        vars: Vec<Ident>,
        over: Vec<Expr>,
        body: Vec<Stmt>,
    },
}

impl ExprKind {
    /// Levels of expressions below.
    pub fn depth(&self) -> u32 {
        let most = |list: &[Expr]| list.iter().map(|e| e.depth).max().unwrap_or(0);
        match self {
            ExprKind::Number(_) | ExprKind::Name(_) => 0,
            ExprKind::Field(e, _) | ExprKind::Neg(e) | ExprKind::As(e, _) => e.depth,
            ExprKind::Index(e, items) => e.depth.max(most(items)),
            ExprKind::Call { args, named, .. } => most(args).max(named.iter().map(|(_, e)| e.depth).max().unwrap_or(0)),
            ExprKind::Binary(_, a, b) => a.depth.max(b.depth),
            ExprKind::Part { base, start, end, .. } => {
                base.depth.max(start.depth).max(end.as_ref().map_or(0, |e| e.depth))
            }
            ExprKind::Each { term, .. } => term.depth,
            ExprKind::Match { subject, arms } => arms.iter().map(|(_, b)| body_depth(b)).fold(subject.depth, u32::max),
            ExprKind::For { over, body, .. } => most(over).max(body_depth(body)),
        }
    }
}

/// Levels of expressions in statements.
fn body_depth(body: &[Stmt]) -> u32 {
    let of = |stmt: &Stmt| match &stmt.kind {
        StmtKind::Const { value, .. } | StmtKind::Expr(value) => value.depth,
        StmtKind::Let { values, .. } | StmtKind::Return(values) | StmtKind::Yield(values) => {
            values.iter().map(|e| e.depth).max().unwrap_or(0)
        }
        StmtKind::Layers { body, .. } => body_depth(body),
        StmtKind::Broken(_) => 0,
    };
    body.iter().map(of).max().unwrap_or(0)
}

/// Every name that statements assign, those inside matches and loops included.
pub(crate) fn assigned_names<'a>(body: &'a [Stmt], out: &mut Vec<&'a Ident>) {
    for stmt in body {
        match &stmt.kind {
            StmtKind::Const { name, value, .. } => {
                out.push(name);
                assigned_in(value, out);
            }
            StmtKind::Let { targets, values } => {
                out.extend(targets.iter().map(|t| &t.name));
                values.iter().for_each(|e| assigned_in(e, out));
            }
            StmtKind::Broken(names) => out.extend(names),
            StmtKind::Layers { body, .. } => assigned_names(body, out),
            StmtKind::Return(values) | StmtKind::Yield(values) => values.iter().for_each(|e| assigned_in(e, out)),
            StmtKind::Expr(e) => assigned_in(e, out),
        }
    }
}

fn assigned_in<'a>(e: &'a Expr, out: &mut Vec<&'a Ident>) {
    match &e.kind {
        ExprKind::Match { arms, .. } => arms.iter().for_each(|(_, body)| assigned_names(body, out)),
        // What a loop binds inside stays inside.
        ExprKind::For { .. } => {}
        _ => children(e).into_iter().for_each(|c| assigned_in(c, out)),
    }
}

/// The expressions directly below one, arms and bodies left out.
pub(crate) fn children(e: &Expr) -> Vec<&Expr> {
    match &e.kind {
        ExprKind::Number(_) | ExprKind::Name(_) => Vec::new(),
        ExprKind::Field(e, _) | ExprKind::Neg(e) | ExprKind::As(e, _) => vec![e],
        ExprKind::Index(e, items) => std::iter::once(&**e).chain(items).collect(),
        ExprKind::Call { args, named, .. } => args.iter().chain(named.iter().map(|(_, e)| e)).collect(),
        ExprKind::Binary(_, a, b) => vec![a, b],
        ExprKind::Part { base, start, end, .. } => {
            [Some(&**base), Some(&**start), end.as_deref()].into_iter().flatten().collect()
        }
        ExprKind::Each { term, .. } => vec![term],
        ExprKind::Match { subject, .. } => vec![subject],
        ExprKind::For { over, .. } => over.iter().collect(),
    }
}

/// The kinds that the text has arms for, by the part that the match asks: `match l.column { kind … }`.
pub(crate) fn arms_by_column(program: &Program) -> HashMap<String, BTreeSet<String>> {
    let mut found = HashMap::new();
    program.functions.iter().for_each(|f| arms_in_body(&f.body, &mut found));
    found
}

fn arms_in_body(body: &[Stmt], found: &mut HashMap<String, BTreeSet<String>>) {
    for stmt in body {
        match &stmt.kind {
            StmtKind::Const { value, .. } | StmtKind::Expr(value) => arms_in(value, found),
            StmtKind::Let { values, .. } | StmtKind::Return(values) | StmtKind::Yield(values) => {
                values.iter().for_each(|e| arms_in(e, found));
            }
            StmtKind::Layers { body, .. } => arms_in_body(body, found),
            StmtKind::Broken(_) => {}
        }
    }
}

fn arms_in(e: &Expr, found: &mut HashMap<String, BTreeSet<String>>) {
    match &e.kind {
        ExprKind::Match { subject, arms } => {
            if let ExprKind::Field(_, column) = &subject.kind {
                let kinds = arms.iter().map(|(kind, _)| kind.text.clone());
                found.entry(column.text.clone()).or_default().extend(kinds);
            }
            arms.iter().for_each(|(_, body)| arms_in_body(body, found));
        }
        ExprKind::For { body, .. } => arms_in_body(body, found),
        _ => {}
    }
    children(e).into_iter().for_each(|c| arms_in(c, found));
}
