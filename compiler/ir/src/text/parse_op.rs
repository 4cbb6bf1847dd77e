//! Parsing of operations and constant expressions.

use super::lex::{ParseError, Token};
use super::parse::{MAX_DEPTH, Parser};
use crate::{
    AcceptRule, AcceptWhat, Binary, ConstBinary, ConstExpr, ConstUnary, KvRef, Mask, Op, Order, ReduceOp, TopWhat,
    Unary, WalkWhat, WeightRef,
};

impl Parser<'_> {
    /// An operation with its attributes.
    pub(super) fn op(&mut self) -> Result<Op, ParseError> {
        let Token::Word(word) = self.peek() else { return self.expected("an operation") };
        let word = word.clone();
        if let Some((f, _)) = Unary::ALL.iter().find(|(_, w)| *w == word) {
            self.advance();
            return Ok(Op::Unary(*f));
        }
        if let Some((f, _)) = Binary::ALL.iter().find(|(_, w)| *w == word) {
            self.advance();
            return Ok(Op::Binary(*f));
        }
        match word.as_str() {
            "input" | "weight" | "literal" | "scalar" => self.leaf_op(&word),
            "call" | "match" | "layers" | "item" => self.structural_op(&word),
            "store" | "attend" | "linear" | "dot" => self.heavy_op(&word),
            "shift" | "walk" | "probs" | "accept" => self.block_op(&word),
            "all_reduce" | "all_gather" | "reduce_scatter" | "own" => self.mesh_op(&word),
            _ => self.row_op(&word),
        }
    }

    fn leaf_op(&mut self, word: &str) -> Result<Op, ParseError> {
        self.advance();
        match word {
            "input" => Ok(Op::Input(self.name()?)),
            "weight" => self.weight_ref(0).map(Op::Weight),
            "literal" => Ok(Op::Literal(self.list('[', ']', Self::f32)?)),
            _ => Ok(Op::Scalar(self.const_expr(0)?)),
        }
    }

    fn structural_op(&mut self, word: &str) -> Result<Op, ParseError> {
        self.advance();
        match word {
            "call" => Ok(Op::Call(self.name()?)),
            "item" => Ok(Op::Item(self.number()?)),
            "layers" => {
                let block = self.name()?;
                self.keyword("carried")?;
                Ok(Op::Layers { block, carried: self.number()? })
            }
            _ => {
                let column = self.name()?;
                let arms = self.list('{', '}', |p| {
                    let kind = p.name()?;
                    p.sign('=')?;
                    Ok((kind, p.name()?))
                })?;
                Ok(Op::Match { column, arms })
            }
        }
    }

    fn heavy_op(&mut self, word: &str) -> Result<Op, ParseError> {
        self.advance();
        match word {
            "linear" => {
                self.keyword("over")?;
                let contract = self.list('[', ']', Self::name)?;
                Ok(Op::Linear { contract, order: self.order()? })
            }
            "dot" => {
                let axis = self.over()?;
                Ok(Op::Dot { axis, order: self.order()? })
            }
            "store" => Ok(Op::Store { kv: self.kv_ref()?, scratch: self.eat_word("scratch") }),
            _ => {
                let kv = self.kv_ref()?;
                self.keyword("mask")?;
                let mask = if self.eat_word("causal") {
                    Mask::Causal
                } else if self.eat_word("all") {
                    Mask::All
                } else {
                    return self.expected("`causal` or `all`");
                };
                self.keyword("scale")?;
                let scale = self.const_expr(0)?;
                Ok(Op::Attend { kv, mask, scale, order: self.order()? })
            }
        }
    }

    /// What runs along a block of drafted tokens.
    fn block_op(&mut self, word: &str) -> Result<Op, ParseError> {
        self.advance();
        match word {
            "shift" => {
                let axis = self.name()?;
                self.keyword("by")?;
                Ok(Op::Shift { axis, by: self.number()? })
            }
            "walk" => Ok(Op::Walk { what: self.one_of(&WalkWhat::ALL, WalkWhat::word)? }),
            "probs" => Ok(Op::Probs),
            _ => Ok(Op::Accept {
                rule: self.one_of(&AcceptRule::ALL, AcceptRule::word)?,
                what: self.one_of(&AcceptWhat::ALL, AcceptWhat::word)?,
            }),
        }
    }

    fn mesh_op(&mut self, word: &str) -> Result<Op, ParseError> {
        self.advance();
        if word == "all_reduce" {
            let over = self.mesh_axes()?;
            return Ok(Op::AllReduce { over, order: self.order()? });
        }
        let (axis, over) = (self.name()?, self.mesh_axes()?);
        Ok(match word {
            "all_gather" => Op::AllGather { axis, over, into: self.after("into")? },
            "reduce_scatter" => Op::ReduceScatter { axis, over, into: self.after("into")? },
            _ => Op::Own { axis, over },
        })
    }

    /// `over [tp, …]`
    pub(super) fn mesh_axes(&mut self) -> Result<Vec<String>, ParseError> {
        self.keyword("over")?;
        self.list('[', ']', Self::name)
    }

    fn row_op(&mut self, word: &str) -> Result<Op, ParseError> {
        let start = self.error(format!("`{word}` is not an operation"));
        self.advance();
        Ok(match word {
            "fma" => Op::Fma,
            "select" => Op::Select,
            "round" => Op::Round(self.dtype()?),
            "block_round" => Op::BlockRound { over: self.mesh_axes()? },
            "reduce" => {
                let op = if self.eat_word("sum") {
                    ReduceOp::Sum
                } else if self.eat_word("max") {
                    ReduceOp::Max
                } else {
                    return self.expected("`sum` or `max`");
                };
                let axis = self.over()?;
                Op::Reduce { op, axis, order: self.order()? }
            }
            "top" => {
                let what = if self.eat_word("values") {
                    TopWhat::Values
                } else if self.eat_word("ids") {
                    TopWhat::Ids
                } else {
                    return self.expected("`values` or `ids`");
                };
                let k = self.number()?;
                let axis = self.over()?;
                Op::Top { k, axis, into: self.after("into")?, what }
            }
            "in_top" => {
                let k = self.number()?;
                Op::InTop { k, axis: self.over()? }
            }
            "gather" => Op::Gather { axis: self.over()? },
            "slice" => {
                let axis = self.name()?;
                self.keyword("from")?;
                let start = self.number()?;
                self.keyword("len")?;
                let len = self.number()?;
                let into = if self.eat_word("into") { Some(self.name()?) } else { None };
                Op::Slice { axis, start, len, into }
            }
            "concat" => Op::Concat { into: self.after("into")? },
            "split" => Op::Split { axis: self.name()? },
            "merge" => Op::Merge { into: self.after("into")? },
            "rename" => {
                let from = self.name()?;
                Op::Rename { from, to: self.after("to")? }
            }
            _ => return Err(start),
        })
    }

    pub(super) fn after(&mut self, word: &str) -> Result<String, ParseError> {
        self.keyword(word)?;
        self.name()
    }

    fn over(&mut self) -> Result<String, ParseError> {
        self.after("over")
    }

    fn order(&mut self) -> Result<Order, ParseError> {
        self.keyword("order")?;
        self.nested_order(0)
    }

    fn nested_order(&mut self, depth: usize) -> Result<Order, ParseError> {
        for order in [Order::Any, Order::Fold, Order::Serial, Order::Fused] {
            if self.eat_word(&order.to_string()) {
                return Ok(order);
            }
        }
        if depth < Order::MAX_DEPTH && self.eat_word("split") {
            let parts = self.number()?;
            return Ok(Order::Split { parts, inner: Box::new(self.nested_order(depth + 1)?) });
        }
        self.expected("`any`, `fold`, `serial`, `fused` or `split` with its parts and the order inside one")
    }

    fn kv_ref(&mut self) -> Result<KvRef, ParseError> {
        if self.eat_word("kind") {
            Ok(KvRef::Kind(self.name()?))
        } else if self.eat_word("column") {
            Ok(KvRef::ByColumn(self.name()?))
        } else {
            self.expected("`kind` or `column`")
        }
    }

    /// What follows `weight`; packed weights may nest in a text, though no level allows it.
    pub(super) fn weight_ref(&mut self, depth: usize) -> Result<WeightRef, ParseError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("the weight is nested deeper than {MAX_DEPTH}")));
        }
        if self.eat_word("model") {
            Ok(WeightRef::Model(self.name()?))
        } else if self.eat_word("layer") {
            Ok(WeightRef::Layer(self.name()?))
        } else if self.eat_word("first") {
            Ok(WeightRef::FirstLayer(self.name()?))
        } else if self.eat_word("of") {
            Ok(WeightRef::OfLayer { layer: self.number()?, name: self.name()? })
        } else if self.eat_word("next") {
            let layer = self.name()?;
            Ok(WeightRef::Next { layer, last: self.after("else")? })
        } else if self.eat_word("packed") {
            let into = self.after("into")?;
            Ok(WeightRef::Packed { into, parts: self.list('[', ']', |p| p.weight_ref(depth + 1))? })
        } else {
            self.expected("`model`, `layer`, `first`, `of`, `next` or `packed`")
        }
    }

    /// A binary32: decimal, `inf`, or its bits as `0x…`.
    pub(super) fn f32(&mut self) -> Result<f32, ParseError> {
        let negative = self.eat_sign('-');
        let Token::Word(word) = self.peek() else { return self.expected("a number") };
        let value = match word.strip_prefix("0x") {
            Some(bits) => u32::from_str_radix(bits, 16).ok().map(f32::from_bits),
            None => word.parse().ok(),
        };
        let Some(value) = value else { return self.expected("a number") };
        self.advance();
        Ok(if negative { -value } else { value })
    }

    fn const_expr(&mut self, depth: usize) -> Result<ConstExpr, ParseError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("the expression is nested deeper than {MAX_DEPTH}")));
        }
        if self.eat_word("l") {
            return Ok(ConstExpr::Layer);
        }
        for (word, op) in [("neg", ConstUnary::Neg), ("sqrt", ConstUnary::Sqrt)] {
            if self.eat_word(word) {
                self.sign('(')?;
                let operand = self.const_expr(depth + 1)?;
                self.sign(')')?;
                return Ok(ConstExpr::Unary(op, Box::new(operand)));
            }
        }
        if self.eat_sign('(') {
            let a = self.const_expr(depth + 1)?;
            let op = self.const_sign()?;
            let b = self.const_expr(depth + 1)?;
            self.sign(')')?;
            return Ok(ConstExpr::Binary(op, Box::new(a), Box::new(b)));
        }
        let negative = self.eat_sign('-');
        match self.peek() {
            Token::Word(word) => match word.parse::<f64>() {
                Ok(x) => {
                    self.advance();
                    Ok(ConstExpr::Num(if negative { -x } else { x }))
                }
                Err(_) => self.expected("a number, `l`, `neg(…)`, `sqrt(…)` or `(… + …)`"),
            },
            _ => self.expected("a number, `l`, `neg(…)`, `sqrt(…)` or `(… + …)`"),
        }
    }

    fn const_sign(&mut self) -> Result<ConstBinary, ParseError> {
        for (sign, op) in [('+', ConstBinary::Add), ('-', ConstBinary::Sub), ('/', ConstBinary::Div)] {
            if self.eat_sign(sign) {
                return Ok(op);
            }
        }
        if self.eat_sign('*') {
            return Ok(if self.eat_sign('*') { ConstBinary::Pow } else { ConstBinary::Mul });
        }
        self.expected("`+`, `-`, `*`, `/` or `**`")
    }
}
