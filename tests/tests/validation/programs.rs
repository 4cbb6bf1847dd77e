//! Random specs: expressions, `def`s, `fn`s, matches, options, products, selections and attention, well typed by
//! construction. A spec is a function of its seed.

use std::fmt::Write;

/// Draws from a counter.
struct Draws {
    seed: u64,
    count: u64,
}

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.count += 1;
        ((numerics::uniform(self.seed, self.count) * n as f32) as usize).min(n - 1)
    }

    fn pick<'a>(&mut self, list: &'a [String]) -> &'a str {
        &list[self.below(list.len())]
    }

    fn odds(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// What an expression may use.
#[derive(Clone)]
struct Scope {
    /// Names of one shape.
    names: Vec<String>,
    /// `def`s of two arguments that may be called.
    defs: usize,
    /// `fn`s of one argument that may be called.
    fns: usize,
}

const FACTS: &str = r#"
[dims]
layers = 4
hidden = 11
ffn = 9
heads = 4
kv_heads = 2
head_dim = 6
vocab = 13

[values]
eps = 1e-6

[options]
mode = ["one", "two"]

[schedule]
kind = "even if l % 2 == 0 else odd"

[kv]
all = { layers = "all", k = "kv_heads head_dim", v = "kv_heads head_dim" }

[lints]
narrowing = false

[weights]
embed = { axes = "vocab hidden", disk = "embed" }
norm = { axes = "hidden", disk = "norm" }
head = { axes = "vocab hidden", disk = "head" }

[layer]
prefix = "l.{l}."

[layer.weights]
in = { axes = "hidden", disk = "in" }
vec = { axes = "hidden", disk = "vec" }
up = { axes = "ffn hidden", disk = "up" }
down = { axes = "hidden ffn", disk = "down" }
q = { axes = "heads.head_dim hidden", disk = "q" }
k = { axes = "kv_heads.head_dim hidden", disk = "k" }
v = { axes = "kv_heads.head_dim hidden", disk = "v" }
o = { axes = "hidden heads.head_dim", disk = "o" }
"#;

/// The text of a spec.
pub fn spec(seed: u64) -> String {
    let mut d = Draws { seed, count: 0 };
    let mut text = format!(
        "[model]\nname = \"random {seed}\"\nact = \"bf16\"\n{FACTS}\n[blocks]\ntext = '''\nuse std.rsq, std.norm\n"
    );
    let defs = 1 + d.below(3);
    for i in 0..defs {
        let scope = Scope { names: vec!["a".into(), "b".into()], defs: i, fns: 0 };
        let body = expression(&mut d, &scope, 2);
        let _ = writeln!(text, "def d{i}(a, b) = {body}");
    }
    let fns = 2 + d.below(2);
    for i in 0..fns {
        let mut scope = Scope { names: vec!["a".into()], defs, fns: i };
        let _ = writeln!(text, "fn f{i}(a) {{");
        for j in 0..d.below(3) {
            let value = expression(&mut d, &scope, 2);
            let ty = if d.odds(3) { ": f32" } else { "" };
            let _ = writeln!(text, "  n{j}{ty} = {value}");
            scope.names.push(format!("n{j}"));
        }
        let value = expression(&mut d, &scope, 2);
        let _ = writeln!(text, "  return {value}\n}}");
    }
    layer(&mut d, &mut text, defs, fns);
    text + "entry forward(tokens: i32[T], pos: i32[T], rows: i32[R]) -> f32[R, vocab] {
  x = W.embed[tokens]
  for l in layers { x = layer(x, l) }
  z = linear(norm(x[rows], W.norm), W.head)
  return 2 * tanh(z / 2)
}
'''
"
}

/// One layer: it begins with a norm, as a seam wants it, or not.
fn layer(d: &mut Draws, text: &mut String, defs: usize, fns: usize) {
    let _ = writeln!(text, "fn layer(x, l) {{");
    let start = if d.odds(4) { "0.5 * x" } else { "norm(x, W.in)" };
    let _ = writeln!(text, "  h0 = {start}");
    let mut wide = Scope { names: vec!["x".into(), "h0".into()], defs, fns };
    for j in 1..3 + d.below(4) {
        let line = match d.below(7) {
            0 => {
                let (a, b) = (d.below(fns), d.below(fns));
                let x = d.pick(&wide.names).to_owned();
                format!("h{j} = match l.kind {{ even {{ f{a}({x}) }} odd {{ f{b}({x}) }} }}")
            }
            1 => {
                let (a, b) = (expression(d, &wide, 2), expression(d, &wide, 2));
                format!("h{j} = match options.mode {{ one {{ {a} }} two {{ {b} }} }}")
            }
            2 => {
                let value = expression(d, &wide, 1);
                let inner = Scope { names: vec![format!("u{j}")], defs, fns };
                let (a, k) = (expression(d, &inner, 2), 1 + d.below(5));
                let selected = if d.odds(3) { format!(" * sum(top(u{j}, {k}, over = ffn))") } else { String::new() };
                format!("u{j} = linear({value}, W.up)\n  h{j} = linear({a}, W.down){selected}")
            }
            3 => {
                let x = d.pick(&wide.names).to_owned();
                format!(
                    "q{j} = linear({x}, W.q)\n  k{j} = linear({x}, W.k)\n  v{j} = linear({x}, W.v)\n  \
                     a{j} = attend(q{j}, store(kv.all, k{j}, v{j}), causal, scale = head_dim ** -0.5)\n  \
                     h{j} = linear(a{j}, W.o)"
                )
            }
            4 => format!("h{j} = ({}) * W.vec * (1 / (l + 2))", expression(d, &wide, 2)),
            5 => format!("h{j}: f32 = {}", expression(d, &wide, 3)),
            _ => format!("h{j} = {}", expression(d, &wide, 3)),
        };
        let _ = writeln!(text, "  {line}");
        wide.names.push(format!("h{j}"));
    }
    let last = wide.names.last().cloned().unwrap_or_default();
    let _ = writeln!(text, "  return 0.5 * x + 0.5 * tanh({last})\n}}");
}

/// An expression of the shape of the scope's names; never a bare name, so that it rounds where it is bound.
fn expression(d: &mut Draws, scope: &Scope, depth: usize) -> String {
    let part = |d: &mut Draws| {
        if depth == 0 || d.odds(3) { d.pick(&scope.names).to_owned() } else { expression(d, scope, depth - 1) }
    };
    let a = part(d);
    match d.below(18) {
        0 => format!("({a} + {})", part(d)),
        1 => format!("({a} - {})", part(d)),
        2 => format!("({a} * {})", part(d)),
        3 => format!("({a} / (abs({}) + 1.5))", part(d)),
        4 => format!("exp(tanh({a}))"),
        5 => format!("sigmoid({a})"),
        6 => format!("sqrt(abs({a}) + 0.25)"),
        7 => format!("max({a}, {})", part(d)),
        8 => format!("min({a}, {})", part(d)),
        9 => format!("where({a} < {}, {a}, 0.75)", part(d)),
        10 => format!("({a} * rsq({}))", part(d)),
        11 => format!("({a} - mean({}))", part(d)),
        12 => format!("fma({a}, {}, {})", part(d), part(d)),
        13 => format!("clamp({a}, -1.5, 1.25)"),
        14 => format!("cos({a} * 3)"),
        15 if scope.defs > 0 => format!("d{}({a}, {})", d.below(scope.defs), part(d)),
        16 if scope.fns > 0 => format!("(0.5 * f{}({a}))", d.below(scope.fns)),
        _ => format!("({a} * 0.625)"),
    }
}
