//! Tokens to a tree: recursive descent with a depth limit, one error per broken function.

use crate::ast::*;
use crate::lexer::{Token, tokens};
use crate::merge::Merged;
use crate::{Diagnostic, Library, Sources};
use ir::{DType, Span};

/// Deeper nesting than this is refused, so that hostile text cannot exhaust the stack.
const MAX_DEPTH: usize = 64;

/// Expressions with more levels than this are refused for the same reason: operators in a row nest to the left.
const MAX_LEVELS: u32 = 200;

/// Parses every block text of a spec and the std functions it uses.
pub(crate) fn program(
    merged: &Merged,
    library: &Library,
    sources: &mut Sources,
    out: &mut Vec<Diagnostic>,
) -> Option<Program> {
    let mut program = Program::default();
    let mut uses: Vec<(Vec<Ident>, Span)> = Vec::new();
    let before = out.len();
    for block in &merged.blocks {
        let text = sources.text(block.file).get(block.start as usize..block.end as usize).unwrap_or("");
        let mut parser = Parser::new(tokens(text, block.file, block.start));
        parser.items(&mut program, &mut uses, out);
    }
    if merged.blocks.is_empty() {
        out.push(
            Diagnostic::error("B0101", "the spec has no block text")
                .at(merged.whole, "neither here nor in a base")
                .help("write [blocks] text = '''…''' with an entry, or extend a spec that has it"),
        );
    }
    std_functions(&uses, library, sources, &mut program, out);
    (out.len() == before).then_some(program)
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
        Parser::new(tokens(text, file, 0)).items(&mut std, &mut Vec::new(), out);
    }
    let mut wanted: Vec<Function> = Vec::new();
    for (path, span) in uses {
        let known = || std.functions.iter().map(|f| f.name.text.as_str());
        match path.as_slice() {
            [root, name] if root.text == "std" => match std.function(&name.text) {
                Some(f) => wanted.push(f.clone()),
                None => out.push(
                    Diagnostic::error("B0102", format!("std has no `{}`", name.text))
                        .at(*span, "unknown")
                        .nearest(&name.text, known()),
                ),
            },
            _ => {
                out.push(Diagnostic::error("B0102", "`use` takes names of the form std.name").at(*span, "another form"))
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

type Parsed<T> = Result<T, Box<Diagnostic>>;

struct Parser {
    tokens: Vec<(Token, Span)>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn new(tokens: Vec<(Token, Span)>) -> Self {
        Parser { tokens, at: 0, depth: 0 }
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn span(&self) -> Span {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> (Token, Span) {
        let item = self.tokens[self.at].clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        item
    }

    fn previous_end(&self) -> u32 {
        self.tokens[self.at.saturating_sub(1)].1.end
    }

    fn since(&self, start: Span) -> Span {
        Span { end: self.previous_end().max(start.start), ..start }
    }

    fn breaks(&mut self) {
        while *self.peek() == Token::Break {
            self.next();
        }
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(s) if *s == sign)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(n) if n == word)
    }

    fn eat(&mut self, sign: &str) -> bool {
        let found = self.is(sign);
        if found {
            self.next();
        }
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        Err(Box::new(
            Diagnostic::error("B0103", format!("{wanted} is expected, and here is {}", self.peek().describe()))
                .at(self.span(), format!("expected {wanted}"))
                .help("docs/language.md has the grammar on one page"),
        ))
    }

    fn expect(&mut self, sign: &str) -> Parsed<Span> {
        if self.is(sign) { Ok(self.next().1) } else { self.unexpected(&format!("`{sign}`")) }
    }

    fn ident(&mut self, wanted: &str) -> Parsed<Ident> {
        match self.peek() {
            Token::Name(text) => {
                let text = text.clone();
                let span = self.next().1;
                Ok(Ident { text, span })
            }
            _ => self.unexpected(wanted),
        }
    }

    /// Function definitions until the end; a broken one is reported and skipped.
    fn items(&mut self, program: &mut Program, uses: &mut Vec<(Vec<Ident>, Span)>, out: &mut Vec<Diagnostic>) {
        loop {
            self.breaks();
            if *self.peek() == Token::End {
                return;
            }
            let before = self.at;
            self.depth = 0;
            if let Err(d) = self.item(program, uses) {
                out.push(*d);
                if self.at == before {
                    self.next();
                }
                while !(["fn", "def", "entry", "use"].iter().any(|w| self.is_word(w))
                    && self.tokens[self.at - 1].0 == Token::Break)
                    && *self.peek() != Token::End
                {
                    self.next();
                }
            }
        }
    }

    fn item(&mut self, program: &mut Program, uses: &mut Vec<(Vec<Ident>, Span)>) -> Parsed<()> {
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
        let twice = program.functions.iter().find(|f| f.name.text == name.text && f.name.span.file == name.span.file);
        if let Some(first) = twice {
            return Err(Box::new(
                Diagnostic::error("B0106", format!("`{}` is defined twice in one text", name.text))
                    .at(name.span, "here again")
                    .note(Some(first.name.span), "here first")
                    .help("remove one of them, or give it another name"),
            ));
        }
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

    fn params(&mut self) -> Parsed<Vec<Param>> {
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
    fn signature_tail(&mut self, function: &mut Function) -> Parsed<()> {
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

    fn ty(&mut self) -> Parsed<TypeAst> {
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

    fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth <= MAX_DEPTH {
            return Ok(());
        }
        Err(Box::new(
            Diagnostic::error("B0104", format!("the text is nested more than {MAX_DEPTH} levels deep"))
                .at(self.span(), "too deep")
                .help("give an inner part a name of its own"),
        ))
    }

    /// An expression node from `start` to here.
    fn node(&self, kind: ExprKind, start: Span) -> Parsed<Expr> {
        let (span, depth) = (self.since(start), kind.depth() + 1);
        if depth <= MAX_LEVELS {
            return Ok(Expr { kind, span, depth });
        }
        Err(Box::new(
            Diagnostic::error("B0104", format!("an expression has more than {MAX_LEVELS} levels"))
                .at(span, "too many operators in one expression")
                .help("give a part a name of its own"),
        ))
    }

    fn block(&mut self) -> Parsed<Vec<Stmt>> {
        self.deeper()?;
        self.expect("{")?;
        let mut body = Vec::new();
        loop {
            self.breaks();
            if self.eat("}") {
                self.depth -= 1;
                return Ok(body);
            }
            body.push(self.stmt()?);
            if !self.is("}") && *self.peek() != Token::Break {
                return self.unexpected("the end of the statement");
            }
        }
    }

    fn stmt(&mut self) -> Parsed<Stmt> {
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
    fn targets(&mut self) -> Parsed<Option<Vec<Target>>> {
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

    fn exprs(&mut self) -> Parsed<Vec<Expr>> {
        let mut list = vec![self.expr()?];
        while self.eat(",") {
            self.breaks();
            list.push(self.expr()?);
        }
        Ok(list)
    }

    fn expr(&mut self) -> Parsed<Expr> {
        self.deeper()?;
        let expr = self.comparison();
        self.depth -= 1;
        expr
    }

    fn binary(&self, start: Span, op: BinaryOp, left: Expr, right: Expr) -> Parsed<Expr> {
        self.node(ExprKind::Binary(op, Box::new(left), Box::new(right)), start)
    }

    fn comparison(&mut self) -> Parsed<Expr> {
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

    fn sum(&mut self) -> Parsed<Expr> {
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

    fn product(&mut self) -> Parsed<Expr> {
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

    fn unary(&mut self) -> Parsed<Expr> {
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

    fn postfix(&mut self) -> Parsed<Expr> {
        let start = self.span();
        let mut expr = self.primary()?;
        loop {
            let kind = if self.eat("[") {
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

    fn items_until(&mut self, close: &str) -> Parsed<Vec<Expr>> {
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

    fn primary(&mut self) -> Parsed<Expr> {
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
                self.expect(")")?;
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

    fn call(&mut self, function: Ident) -> Parsed<ExprKind> {
        let (mut args, mut named) = (Vec::new(), Vec::new());
        self.breaks();
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
                return self.unexpected("`,` or `)`");
            }
            if self.eat(",") {
                self.breaks();
            }
        }
        Ok(ExprKind::Call { function, args, named })
    }

    fn match_expr(&mut self) -> Parsed<ExprKind> {
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

    fn for_expr(&mut self) -> Parsed<ExprKind> {
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

fn dtype(word: &str, span: Span) -> Parsed<DType> {
    word.parse().map_err(|_| {
        Box::new(
            Diagnostic::error("B0105", format!("`{word}` is not a dtype"))
                .at(span, "unknown")
                .nearest(word, DType::ALL.map(DType::word)),
        )
    })
}
