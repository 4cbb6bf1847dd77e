//! Functions and what they are made of before their bodies: names, parameters, types.

use super::MAX_ERRORS;
use super::cursor::{Parser, dtype};
use crate::Diagnostic;
use crate::ast::*;
use crate::lexer::Token;
use crate::stop::Res;
use ir::Span;

impl Parser {
    /// Function definitions until the end; a broken one is told and skipped.
    pub(super) fn items(&mut self, program: &mut Program, uses: &mut Vec<(Vec<Ident>, Span)>) {
        loop {
            self.breaks();
            if *self.peek() == Token::End || self.errors.len() >= MAX_ERRORS {
                return;
            }
            let before = self.at;
            self.depth = 0;
            if let Err(stop) = self.item(program, uses) {
                // Calls of a function that could not be read mean that function, and no unknown one.
                if let Some((Token::Name(name), _)) = self.tokens.get(before + 1) {
                    program.broken.insert(name.clone());
                }
                self.tell(stop);
                if self.at == before {
                    self.next();
                }
                while !self.starts_item() && !self.starts_use() && *self.peek() != Token::End {
                    self.next();
                }
            }
        }
    }

    fn starts_use(&self) -> bool {
        self.is_word("use") && matches!(self.tokens.get(self.at.wrapping_sub(1)), Some((Token::Break, _)))
    }

    fn item(&mut self, program: &mut Program, uses: &mut Vec<(Vec<Ident>, Span)>) -> Res<()> {
        let start = self.span();
        if self.eat_word("use") {
            loop {
                let start = self.span();
                let mut path = vec![self.ident("a name")?];
                while self.eat(".") {
                    path.push(self.ident("a name")?);
                }
                uses.push((path, self.since(start)));
                if !self.eat(",") {
                    return Ok(());
                }
                self.breaks();
            }
        }
        let kind = match self.peek() {
            Token::Name(w) if w == "def" => FunctionKind::Def,
            Token::Name(w) if w == "fn" => FunctionKind::Fn,
            Token::Name(w) if w == "entry" => FunctionKind::Entry,
            _ => return self.unexpected("`fn`, `def`, `entry` or `use`"),
        };
        self.next();
        let name = self.ident("a function name")?;
        let params = self.params()?;
        let first = program.places.get(&(name.span.file, name.text.clone())).copied();
        if first.is_some() {
            self.tell(
                Diagnostic::error("B0106", format!("`{}` is defined twice in one text", name.text))
                    .at(name.span, "here again")
                    .note(first, "here first")
                    .help("remove one of them, or give it another name")
                    .into(),
            );
        }
        program.places.entry((name.span.file, name.text.clone())).or_insert(name.span);
        let mut function = Function { kind, name, params, results: None, dtype: None, body: Vec::new() };
        if kind == FunctionKind::Def {
            self.expect("=")?;
            self.breaks();
            let value = self.expr()?;
            function.body.push(Stmt { kind: StmtKind::Return(vec![value]), span: self.since(start) });
        } else {
            self.signature_tail(&mut function)?;
            function.body = self.block()?;
        }
        program.functions.push(function);
        Ok(())
    }

    fn params(&mut self) -> Res<Vec<Param>> {
        self.expect("(")?;
        let mut params = Vec::new();
        self.breaks();
        while !self.eat(")") {
            let constant = self.eat_word("const");
            let name = self.ident("a parameter name")?;
            let ty = if self.eat(":") { Some(self.ty()?) } else { None };
            params.push(Param { name, constant, ty });
            self.breaks();
            if !self.is(")") {
                self.expect(",")?;
                self.breaks();
            }
        }
        Ok(params)
    }

    /// `in f32`, `-> types`, in this order, each optional; the arrow may stand on the next line.
    fn signature_tail(&mut self, function: &mut Function) -> Res<()> {
        if self.eat_word("in") {
            let span = self.span();
            let word = self.ident("a dtype")?;
            function.dtype = Some(dtype(&word.text, span)?);
        }
        let before = self.at;
        self.breaks();
        if !self.eat("->") {
            self.at = before;
            return Ok(());
        }
        let mut results = vec![self.ty()?];
        while self.eat(",") {
            self.breaks();
            results.push(self.ty()?);
        }
        function.results = Some(results);
        Ok(())
    }

    pub(super) fn ty(&mut self) -> Res<TypeAst> {
        let start = self.span();
        let dtype = match self.peek() {
            Token::Name(word) => {
                let found = dtype(&word.clone(), start)?;
                self.next();
                Some(found)
            }
            _ => None,
        };
        let axes = if self.eat("[") {
            let mut axes = Vec::new();
            while !self.eat("]") {
                axes.push(self.ident("an axis name")?);
                if !self.is("]") {
                    self.expect(",")?;
                }
            }
            Some(axes)
        } else {
            None
        };
        if dtype.is_none() && axes.is_none() {
            return self.unexpected("a type such as `f32` or `f32[T, hidden]`");
        }
        Ok(TypeAst { dtype, axes, span: self.since(start) })
    }
}
