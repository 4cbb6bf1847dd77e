//! Expressions: one function a level of precedence.

use super::MAX_LEVELS;
use super::cursor::Parser;
use crate::Diagnostic;
use crate::ast::*;
use crate::lexer::Token;
use crate::stop::{Res, refuse};
use ir::Span;

impl Parser {
    /// An expression node from `start` to here.
    fn node(&self, kind: ExprKind, start: Span) -> Res<Expr> {
        let (span, depth) = (self.since(start), kind.depth() + 1);
        if depth <= MAX_LEVELS {
            return Ok(Expr { kind, span, depth });
        }
        refuse(
            Diagnostic::error("B0104", format!("an expression has more than {MAX_LEVELS} levels"))
                .at(span, "too many operators in one expression")
                .help("give a part a name of its own"),
        )
    }

    pub(super) fn exprs(&mut self) -> Res<Vec<Expr>> {
        let mut list = vec![self.expr()?];
        while self.eat(",") {
            self.breaks();
            list.push(self.expr()?);
        }
        Ok(list)
    }

    pub(super) fn expr(&mut self) -> Res<Expr> {
        self.deeper()?;
        let expr = self.comparison();
        self.depth -= 1;
        expr
    }

    fn binary(&self, start: Span, op: BinaryOp, left: Expr, right: Expr) -> Res<Expr> {
        self.node(ExprKind::Binary(op, Box::new(left), Box::new(right)), start)
    }

    fn comparison(&mut self) -> Res<Expr> {
        let start = self.span();
        let left = self.sum()?;
        let signs = [
            ("==", BinaryOp::Eq),
            ("!=", BinaryOp::Ne),
            ("<=", BinaryOp::Le),
            (">=", BinaryOp::Ge),
            ("<", BinaryOp::Lt),
            (">", BinaryOp::Gt),
        ];
        for (sign, op) in signs {
            if self.eat(sign) {
                self.breaks();
                let right = self.sum()?;
                return self.binary(start, op, left, right);
            }
        }
        Ok(left)
    }

    fn sum(&mut self) -> Res<Expr> {
        let start = self.span();
        let mut left = self.product()?;
        loop {
            let op = match self.peek() {
                Token::Sign("+") => BinaryOp::Add,
                Token::Sign("-") => BinaryOp::Sub,
                _ => return Ok(left),
            };
            self.next();
            self.breaks();
            let right = self.product()?;
            left = self.binary(start, op, left, right)?;
        }
    }

    fn product(&mut self) -> Res<Expr> {
        let start = self.span();
        let mut left = self.unary()?;
        loop {
            let op = match self.peek() {
                Token::Sign("*") => BinaryOp::Mul,
                Token::Sign("/") => BinaryOp::Div,
                Token::Sign("%") => BinaryOp::Rem,
                _ => return Ok(left),
            };
            self.next();
            self.breaks();
            let right = self.unary()?;
            left = self.binary(start, op, left, right)?;
        }
    }

    fn unary(&mut self) -> Res<Expr> {
        let start = self.span();
        if self.eat("-") {
            self.deeper()?;
            let inner = self.unary()?;
            self.depth -= 1;
            return self.node(ExprKind::Neg(Box::new(inner)), start);
        }
        let base = self.postfix()?;
        if self.eat("**") {
            self.breaks();
            self.deeper()?;
            let exponent = self.unary()?;
            self.depth -= 1;
            return self.binary(start, BinaryOp::Pow, base, exponent);
        }
        Ok(base)
    }

    fn postfix(&mut self) -> Res<Expr> {
        let start = self.span();
        let mut expr = self.primary()?;
        loop {
            let kind = if self.is("[") && self.names_an_axis() {
                self.part(expr)?
            } else if self.eat("[") {
                let items = self.items_until("]")?;
                ExprKind::Index(Box::new(expr), items)
            } else if self.eat(".") {
                ExprKind::Field(Box::new(expr), self.ident("a name after the dot")?)
            } else if self.eat_word("as") {
                ExprKind::As(Box::new(expr), self.ident("an axis name")?)
            } else {
                return Ok(expr);
            };
            expr = self.node(kind, start)?;
        }
    }

    /// Whether what stands in the bracket begins with the name of an axis and an index along it.
    fn names_an_axis(&self) -> bool {
        let at = |k: usize| self.tokens.get(self.at + k).map(|(token, _)| token);
        match (at(1), at(2)) {
            (Some(Token::Name(_)), Some(Token::Number(_))) => true,
            (Some(Token::Name(_)), Some(Token::Name(word))) => word != "as",
            _ => false,
        }
    }

    /// `[axis i]`, `[axis a..b]`, `[axis a..]`, behind a value.
    fn part(&mut self, base: Expr) -> Res<ExprKind> {
        self.next();
        let axis = self.ident("an axis name")?;
        let start = Box::new(self.sum()?);
        let range = self.eat("..");
        let end = if range && !self.is("]") { Some(Box::new(self.sum()?)) } else { None };
        if !self.eat("]") {
            return self.unclosed("`]`", axis.span);
        }
        Ok(ExprKind::Part { base: Box::new(base), axis, start, range, end })
    }

    fn items_until(&mut self, close: &str) -> Res<Vec<Expr>> {
        let mut items = Vec::new();
        self.breaks();
        while !self.eat(close) {
            items.push(self.expr()?);
            self.breaks();
            if !self.is(close) {
                self.expect(",")?;
                self.breaks();
            }
        }
        Ok(items)
    }

    fn primary(&mut self) -> Res<Expr> {
        let start = self.span();
        let kind = match self.peek().clone() {
            Token::Number(x) => {
                self.next();
                ExprKind::Number(x)
            }
            Token::Sign("(") => {
                self.next();
                self.breaks();
                let inner = self.expr()?;
                self.breaks();
                if !self.eat(")") {
                    return self.unclosed("`)`", start);
                }
                return Ok(Expr { span: self.since(start), ..inner });
            }
            Token::Name(word) if word == "match" => self.match_expr()?,
            Token::Name(word) if word == "for" => self.for_expr()?,
            Token::Name(word) => {
                let name = Ident { text: word.clone(), span: start };
                self.next();
                if self.eat("(") { self.call(name)? } else { ExprKind::Name(word) }
            }
            _ => return self.unexpected("an expression"),
        };
        self.node(kind, start)
    }

    fn call(&mut self, function: Ident) -> Res<ExprKind> {
        let (mut args, mut named) = (Vec::new(), Vec::new());
        self.breaks();
        let second = self.tokens.get(self.at + 1).map(|(token, _)| token);
        if matches!(self.peek(), Token::Name(_)) && matches!(second, Some(Token::Name(word)) if word == "in") {
            return self.each(function);
        }
        while !self.eat(")") {
            let keyword = matches!(self.peek(), Token::Name(_))
                && matches!(self.tokens.get(self.at + 1), Some((Token::Sign("="), _)));
            if keyword {
                let name = self.ident("a name")?;
                self.next();
                named.push((name, self.expr()?));
            } else {
                args.push(self.expr()?);
            }
            self.breaks();
            if !self.is(")") && !self.is(",") {
                return self.unclosed("`,` or `)`", function.span);
            }
            if self.eat(",") {
                self.breaks();
            }
        }
        Ok(ExprKind::Call { function, args, named })
    }

    /// `t in axis: term)`, behind `f(`.
    fn each(&mut self, function: Ident) -> Res<ExprKind> {
        let index = self.ident("a name")?;
        self.next();
        let axis = self.ident("an axis name")?;
        self.expect(":")?;
        self.breaks();
        let term = Box::new(self.expr()?);
        self.breaks();
        if !self.eat(")") {
            return self.unclosed("`)`", function.span);
        }
        Ok(ExprKind::Each { function, index, axis, term })
    }

    fn match_expr(&mut self) -> Res<ExprKind> {
        self.next();
        let subject = Box::new(self.expr()?);
        self.expect("{")?;
        let mut arms = Vec::new();
        loop {
            self.breaks();
            if self.eat("}") {
                return Ok(ExprKind::Match { subject, arms });
            }
            let name = self.ident("the name of an arm")?;
            arms.push((name, self.block()?));
        }
    }

    fn for_expr(&mut self) -> Res<ExprKind> {
        self.next();
        let mut vars = vec![self.ident("a name")?];
        while self.eat(",") {
            vars.push(self.ident("a name")?);
        }
        if !self.eat_word("in") {
            return self.unexpected("`in`");
        }
        let over = self.exprs()?;
        Ok(ExprKind::For { vars, over, body: self.block()? })
    }
}
