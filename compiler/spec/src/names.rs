//! Names of the user's own text that are declared nowhere: found without types, so that a mistake elsewhere hides none.
//!
//! What a name may mean is taken generously (every name that its function assigns anywhere, every key of the tables,
//! refused ones too), so what is told here is wrong whatever the rest of the spec says.

use crate::Diagnostic;
use crate::ast::{Expr, ExprKind, Function, Ident, Program, Stmt, StmtKind, assigned_names, children};
use crate::elab::{BUILTINS, CONST_FUNCTIONS, WORDS};
use crate::merge::Merged;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Behind so many findings no name is looked for that is near: nobody is shown more, and the search is the slow part.
pub(crate) const MOST_SUGGESTED: usize = 200;

/// Reads the functions of the first file, which is the user's.
pub(crate) fn check(merged: &Merged, program: &Program, out: &mut Vec<Diagnostic>) {
    let known = Known::new(merged, program);
    for function in program.functions.iter().filter(|f| f.name.span.file == 0) {
        let mut reader = Reader { known: &known, locals: HashSet::new(), out };
        reader.function(function);
    }
}

/// What the tables and the text declare.
struct Known<'a> {
    names: BTreeSet<&'a str>,
    weights: BTreeSet<&'a str>,
    kinds: BTreeSet<&'a str>,
    options: BTreeSet<&'a str>,
    /// Groups of values with their members.
    groups: BTreeMap<&'a str, BTreeSet<&'a str>>,
    functions: BTreeSet<&'a str>,
    broken: &'a HashSet<String>,
}

impl<'a> Known<'a> {
    fn new(merged: &'a Merged, program: &'a Program) -> Self {
        let keys = |table: &str| merged.table(table).into_iter().flatten().map(|(k, _)| k.as_str());
        let factors = merged.table("axes").into_iter().flatten().filter_map(|(_, (_, node))| node.text());
        let layer = merged.table("layer").and_then(|t| t.get("weights")).and_then(|(_, n)| n.table());
        let layer = layer.into_iter().flatten().map(|(k, _)| k.as_str());
        let values = merged.table("values").into_iter().flatten();
        let groups = values.filter_map(|(key, (_, node))| Some((key.as_str(), node.table()?)));
        let own = program.functions.iter().map(|f| f.name.text.as_str());
        let builtin = BUILTINS.iter().map(|b| b.0).chain(CONST_FUNCTIONS);
        Known {
            names: keys("dims")
                .chain(keys("values"))
                .chain(factors.flat_map(|f| f.split('.').map(str::trim)))
                .chain(WORDS)
                .collect(),
            weights: keys("weights").chain(layer).collect(),
            kinds: keys("kv").collect(),
            options: keys("options").collect(),
            groups: groups.map(|(name, t)| (name, t.keys().map(String::as_str).collect())).collect(),
            functions: own.chain(builtin).collect(),
            broken: &program.broken,
        }
    }
}

struct Reader<'a, 'o> {
    known: &'a Known<'a>,
    locals: HashSet<&'a str>,
    out: &'o mut Vec<Diagnostic>,
}

impl<'a> Reader<'a, '_> {
    fn function(&mut self, function: &'a Function) {
        self.locals.extend(function.params.iter().map(|p| p.name.text.as_str()));
        self.bind(&function.body);
        self.body(&function.body);
    }

    fn bind(&mut self, body: &'a [Stmt]) {
        let mut names = Vec::new();
        assigned_names(body, &mut names);
        self.locals.extend(names.into_iter().map(|n| n.text.as_str()));
    }

    fn body(&mut self, body: &'a [Stmt]) {
        for stmt in body {
            match &stmt.kind {
                // Functions of constants are another list, which is looked through where they are evaluated.
                StmtKind::Const { .. } => {}
                StmtKind::Expr(value) => self.expr(value),
                StmtKind::Let { values, .. } | StmtKind::Return(values) | StmtKind::Yield(values) => {
                    values.iter().for_each(|e| self.expr(e));
                }
                StmtKind::Layers { index, body } => {
                    self.locals.insert(&index.text);
                    self.bind(body);
                    self.body(body);
                }
                StmtKind::Broken(_) => {}
            }
        }
    }

    fn expr(&mut self, e: &'a Expr) {
        match &e.kind {
            ExprKind::Name(name) => self.name(name, e),
            ExprKind::Field(base, field) => self.field(base, field),
            ExprKind::Call { function, args, named } => {
                self.call(function);
                // `iota` names an axis, as `over` does.
                let axis = match function.text.as_str() {
                    "iota" => return,
                    "fill" => 1,
                    _ => usize::MAX,
                };
                args.iter().take(axis).for_each(|a| self.expr(a));
                // `over` names an axis, which a value may have without any table knowing it; `order` takes a word.
                let values = named.iter().filter(|(name, _)| !matches!(name.text.as_str(), "over" | "order" | "rule"));
                values.for_each(|(_, a)| self.expr(a));
            }
            ExprKind::Each { index, term, .. } => {
                self.locals.insert(&index.text);
                self.expr(term);
            }
            ExprKind::Match { subject, arms } => {
                self.expr(subject);
                arms.iter().for_each(|(_, body)| self.body(body));
            }
            ExprKind::For { vars, over, body } => {
                over.iter().for_each(|e| self.expr(e));
                self.locals.extend(vars.iter().map(|v| v.text.as_str()));
                self.bind(body);
                self.body(body);
            }
            _ => children(e).into_iter().for_each(|c| self.expr(c)),
        }
    }

    fn name(&mut self, name: &str, e: &Expr) {
        if self.locals.contains(name) || self.known.names.contains(name) {
            return;
        }
        let words = self.locals.iter().copied().chain(self.known.names.iter().copied());
        let d = Diagnostic::error("B0241", format!("the name `{name}` has no meaning here")).at(e.span, "unknown");
        self.out.push(if self.out.len() < MOST_SUGGESTED { d.nearest(name, words) } else { d });
    }

    fn field(&mut self, base: &'a Expr, field: &Ident) {
        let root = match &base.kind {
            ExprKind::Name(name) if !self.locals.contains(name.as_str()) => name.as_str(),
            _ => return self.expr(base),
        };
        let (known, what) = match root {
            "W" => (&self.known.weights, "weight"),
            "kv" => (&self.known.kinds, "cache kind"),
            "options" => (&self.known.options, "option"),
            group => match self.known.groups.get(group) {
                Some(members) => (members, "value"),
                None => return self.expr(base),
            },
        };
        if !known.contains(field.text.as_str()) {
            let d =
                Diagnostic::error("B0244", format!("there is no {what} `{}`", field.text)).at(field.span, "unknown");
            let near = self.out.len() < MOST_SUGGESTED;
            self.out.push(if near { d.nearest(&field.text, known.iter().copied()) } else { d });
        }
    }

    fn call(&mut self, function: &Ident) {
        let name = function.text.as_str();
        if self.known.functions.contains(name) || self.known.broken.contains(name) {
            return;
        }
        let d = Diagnostic::error("B0262", format!("there is no function `{name}`")).at(function.span, "unknown");
        let near = self.out.len() < MOST_SUGGESTED;
        self.out.push(if near { d.nearest(name, self.known.functions.iter().copied()) } else { d });
    }
}
