//! Statements; one that cannot be read is told, skipped, and its names stay known.

use super::MAX_ERRORS;
use super::cursor::Parser;
use crate::ast::*;
use crate::lexer::Token;
use crate::stop::{Res, Stop};

impl Parser {
    /// `{ … }`. A broken statement is told, and reading goes on behind it.
    pub(super) fn block(&mut self) -> Res<Vec<Stmt>> {
        self.deeper()?;
        self.expect("{")?;
        let depth = self.depth;
        let mut body = Vec::new();
        let mut broken = false;
        loop {
            self.breaks();
            if self.eat("}") {
                self.depth = depth - 1;
                return Ok(body);
            }
            if broken && (*self.peek() == Token::End || self.starts_item()) {
                // The closing brace went with the broken statement.
                return Err(Stop::Told);
            }
            let before = self.at;
            match self.whole_stmt() {
                Ok(stmt) => body.push(stmt),
                Err(stop) => {
                    self.tell(stop);
                    if self.errors.len() >= MAX_ERRORS {
                        return Err(Stop::Told);
                    }
                    self.depth = depth;
                    body.push(self.skip_stmt(before));
                    broken = true;
                }
            }
        }
    }

    fn whole_stmt(&mut self) -> Res<Stmt> {
        let stmt = self.stmt()?;
        if self.is("}") || *self.peek() == Token::Break {
            return Ok(stmt);
        }
        self.unexpected("the end of the statement")
    }

    /// Skips to the end of a broken statement that began at token `from`; the names it would have bound stay known.
    fn skip_stmt(&mut self, from: usize) -> Stmt {
        let start = self.tokens.get(from).map_or(self.span(), |(_, span)| *span);
        // Brackets that are open at the broken place close behind it; a `}` closes what stands open inside its block.
        let mut open: Vec<&'static str> = Vec::new();
        for (token, _) in self.tokens.get(from..self.at).unwrap_or(&[]) {
            nest(&mut open, token);
        }
        while *self.peek() != Token::End && !self.starts_item() {
            let ends = match self.peek() {
                Token::Break => open.is_empty(),
                Token::Sign("}") => !open.contains(&"{"),
                _ => false,
            };
            if ends {
                break;
            }
            let (token, _) = self.next();
            nest(&mut open, &token);
        }
        let names = self.bound_names(from);
        Stmt { kind: StmtKind::Broken(names), span: self.since(start) }
    }

    /// Names between token `from` and here that stand where an assignment has its names.
    fn bound_names(&self, from: usize) -> Vec<Ident> {
        let (mut names, mut inside) = (Vec::new(), 0usize);
        for pair in self.tokens.get(from..=self.at).unwrap_or(&[]).windows(2) {
            let [(token, span), (next, _)] = pair else { continue };
            match (token, next) {
                (Token::Sign("(" | "["), _) => inside += 1,
                (Token::Sign(")" | "]"), _) => inside = inside.saturating_sub(1),
                (Token::Name(text), Token::Sign("=" | "," | ":")) if inside == 0 => {
                    names.push(Ident { text: text.clone(), span: *span });
                }
                _ => {}
            }
        }
        names
    }

    fn stmt(&mut self) -> Res<Stmt> {
        let start = self.span();
        let kind = match self.peek() {
            Token::Name(w) if w == "const" => {
                self.next();
                let name = self.ident("a name")?;
                let dtype = if self.eat(":") {
                    let ty = self.ty()?;
                    ty.dtype
                } else {
                    None
                };
                self.expect("=")?;
                self.breaks();
                StmtKind::Const { name, dtype, value: self.expr()? }
            }
            Token::Name(w) if w == "return" => {
                self.next();
                StmtKind::Return(self.exprs()?)
            }
            Token::Name(w) if w == "yield" => {
                self.next();
                StmtKind::Yield(self.exprs()?)
            }
            Token::Name(w) if w == "for" && self.is_layer_loop() => {
                self.next();
                let index = self.ident("a name for the layer")?;
                self.next();
                self.next();
                StmtKind::Layers { index, body: self.block()? }
            }
            Token::Name(_) => match self.targets()? {
                Some(targets) => StmtKind::Let { targets, values: self.exprs()? },
                None => StmtKind::Expr(self.expr()?),
            },
            _ => StmtKind::Expr(self.expr()?),
        };
        Ok(Stmt { kind, span: self.since(start) })
    }

    fn is_layer_loop(&self) -> bool {
        let word = |k: usize, w: &str| matches!(self.tokens.get(self.at + k), Some((Token::Name(n), _)) if n == w);
        word(2, "in") && word(3, "layers")
    }

    /// `a, b: f32 =`, or nothing consumed if no assignment starts here.
    fn targets(&mut self) -> Res<Option<Vec<Target>>> {
        let before = self.at;
        let mut targets = Vec::new();
        while let Token::Name(_) = self.peek() {
            let name = self.ident("a name")?;
            let ty = if self.is(":") {
                self.next();
                Some(self.ty()?)
            } else {
                None
            };
            targets.push(Target { name, ty });
            if self.eat("=") {
                self.breaks();
                return Ok(Some(targets));
            }
            if !self.eat(",") {
                break;
            }
        }
        self.at = before;
        Ok(None)
    }
}

/// Follows the brackets of a text that may be broken.
fn nest(open: &mut Vec<&'static str>, token: &Token) {
    match token {
        Token::Sign(sign @ ("(" | "[" | "{")) => open.push(sign),
        Token::Sign("}") => {
            let at = open.iter().rposition(|o| *o == "{").unwrap_or(0);
            open.truncate(at);
        }
        Token::Sign(")" | "]") if open.last().is_some_and(|o| *o != "{") => drop(open.pop()),
        _ => {}
    }
}
