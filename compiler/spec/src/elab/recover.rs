//! Going on after an error: what was told, and what is known of names whose statement was refused.

use super::Elab;
use super::value::Val;
use crate::Diagnostic;
use crate::ast::{Stmt, StmtKind, assigned_names};
use crate::stop::Stop;
use ir::Span;
use std::collections::HashSet;

/// What was found so far.
#[derive(Default)]
pub(super) struct Findings {
    pub list: Vec<Diagnostic>,
    /// Code and place of each, since a function is read once per set of argument types.
    told: HashSet<(&'static str, Option<Span>)>,
    /// How often a step ended without a result.
    pub stops: usize,
    /// Above zero while a stand-in is read: its errors are no errors of the spec.
    pub muted: usize,
    /// The spec is too large to read on.
    pub halted: bool,
}

/// Where the elaboration stood before a statement.
pub(super) struct Mark {
    frames: usize,
    calls: usize,
    levels: usize,
    scopes: usize,
    loops: usize,
}

impl Elab<'_> {
    /// Keeps an error, unless it was told already or follows from one that was.
    pub(super) fn tell(&mut self, stop: Stop) {
        self.found.stops += 1;
        if let Stop::New(d) = stop {
            self.keep(*d);
        }
    }

    /// Keeps a warning.
    pub(super) fn warn(&mut self, d: Diagnostic) {
        self.keep(d);
    }

    fn keep(&mut self, d: Diagnostic) {
        if self.found.muted == 0 && self.found.told.insert((d.code, d.primary.as_ref().map(|l| l.span))) {
            self.found.list.push(d);
        }
    }

    pub(super) fn mark(&self) -> Mark {
        let top = self.frames.last();
        Mark {
            frames: self.frames.len(),
            calls: self.calls.len(),
            levels: self.levels,
            scopes: top.map_or(0, |f| f.scopes.len()),
            loops: top.map_or(0, |f| f.loop_axes.len()),
        }
    }

    /// Back to where a refused statement began.
    pub(super) fn rewind(&mut self, mark: &Mark) {
        self.frames.truncate(mark.frames);
        self.calls.truncate(mark.calls);
        self.levels = mark.levels;
        if let Some(top) = self.frames.last_mut() {
            top.scopes.truncate(mark.scopes);
            top.loop_axes.truncate(mark.loops);
        }
    }

    /// After a refused statement: its names are known and have no meaning, so what reads them is not told again.
    pub(super) fn forget(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Return(_) => self.frame().returned = Some(vec![Val::Unknown]),
            StmtKind::Yield(_) => self.frame().yielded = Some(Val::Unknown),
            // A layer leaves what it found, so the names that it carries keep their types.
            StmtKind::Layers { .. } => {}
            _ => {
                let mut names = Vec::new();
                assigned_names(std::slice::from_ref(stmt), &mut names);
                let frame = self.frame();
                for name in names {
                    let owner = frame.scopes.iter_mut().rev().find(|s| s.contains_key(&name.text));
                    match owner {
                        Some(scope) => drop(scope.insert(name.text.clone(), Val::Unknown)),
                        None => {
                            frame.assigned.shift_remove(&name.text);
                            if let Some(scope) = frame.scopes.last_mut() {
                                scope.insert(name.text.clone(), Val::Unknown);
                            }
                        }
                    }
                }
            }
        }
    }
}
