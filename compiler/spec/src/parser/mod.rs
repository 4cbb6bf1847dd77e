//! Tokens to a tree: recursive descent with a depth limit. A broken statement is told and skipped, so one run shows
//! the errors of all others; a broken head takes its function along.

mod cursor;
mod exprs;
mod items;
mod stmts;

use crate::ast::{Function, FunctionKind, Ident, Program};
use crate::lexer::tokens;
use crate::merge::Merged;
use crate::{Diagnostic, Library, Sources};
use cursor::Parser;
use ir::Span;

/// Deeper nesting than this is refused, so that hostile text cannot exhaust the stack.
const MAX_DEPTH: usize = 64;

/// Expressions with more levels than this are refused for the same reason: operators in a row nest to the left.
const MAX_LEVELS: u32 = 200;

/// After so many errors in one text the rest is not read.
const MAX_ERRORS: usize = 100;

/// Parses every block text of a spec and the std functions it uses. What could not be read is told in `out`.
pub(crate) fn program(merged: &Merged, library: &Library, sources: &mut Sources, out: &mut Vec<Diagnostic>) -> Program {
    let mut program = Program::default();
    let mut uses: Vec<(Vec<Ident>, Span)> = Vec::new();
    for block in &merged.blocks {
        let text = sources.text(block.file).get(block.start as usize..block.end as usize).unwrap_or("");
        let mut parser = Parser::new(tokens(text, block.file, block.start));
        parser.items(&mut program, &mut uses);
        out.append(&mut parser.errors);
    }
    if merged.blocks.is_empty() {
        out.push(
            Diagnostic::error("B0101", "the spec has no block text")
                .at(merged.whole, "neither here nor in a base")
                .help("write [blocks] text = '''…''' with an entry, or extend a spec that has it"),
        );
    }
    std_functions(&uses, library, sources, &mut program, out);
    program
}

/// Puts the used std functions before the spec's own, so that the spec's stand.
fn std_functions(
    uses: &[(Vec<Ident>, Span)],
    library: &Library,
    sources: &mut Sources,
    program: &mut Program,
    out: &mut Vec<Diagnostic>,
) {
    if uses.is_empty() {
        return;
    }
    let mut std = Program::default();
    for (stem, text) in library.std() {
        let file = sources.add(format!("std/{stem}.blocks (built in)"), text.to_owned());
        let mut parser = Parser::new(tokens(text, file, 0));
        parser.items(&mut std, &mut Vec::new());
        out.append(&mut parser.errors);
    }
    let mut wanted: Vec<Function> = Vec::new();
    for (path, span) in uses {
        let known = || std.functions.iter().map(|f| f.name.text.as_str());
        match path.as_slice() {
            [root, name] if root.text == "std" => match std.function(&name.text) {
                Some(f) => wanted.push(f.clone()),
                None => {
                    program.broken.insert(name.text.clone());
                    out.push(
                        Diagnostic::error("B0102", format!("std has no `{}`", name.text))
                            .at(*span, "unknown")
                            .nearest_as(&name.text, known(), |near| format!("std.{near}")),
                    );
                }
            },
            path => {
                program.broken.extend(path.last().map(|name| name.text.clone()));
                let last = path.last().map_or("", |name| name.text.as_str());
                out.push(
                    Diagnostic::error("B0102", "`use` takes names of the form std.name")
                        .at(*span, "another form")
                        .help(format!("write `use std.{last}`")),
                );
            }
        }
    }
    // A std function may lean on another one: all of them are visible to each other, the spec's own stand over them.
    let mut functions: Vec<Function> =
        std.functions.into_iter().filter(|f| !wanted.iter().any(|w| w.name.text == f.name.text)).collect();
    functions.retain(|f| f.kind == FunctionKind::Def);
    functions.extend(wanted);
    functions.append(&mut program.functions);
    program.functions = functions;
}
