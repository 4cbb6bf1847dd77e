//! Random specs: expressions, `def`s, `fn`s, matches, options, products, selections, experts and attention, well typed by
//! construction; and what they are compiled for: a target, a mesh, options, relaxations. A case is a function of its seed.

use ir::Mesh;
use spec::Choices;
use std::fmt::Write;
use targets::Target;

/// A spec and what it is compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its number.
    pub seed: u64,
    /// The spec.
    pub text: String,
    /// Name of a built-in target.
    pub target: &'static str,
    /// Mesh axes with their lengths.
    pub mesh: Vec<(&'static str, u64)>,
    /// Alternative of the option `mode`.
    pub mode: &'static str,
    /// Relaxations that are allowed; none means exact.
    pub relaxations: Vec<&'static str>,
}

impl Case {
    /// The case of a seed.
    pub fn new(seed: u64) -> Case {
        let mut d = Draws { seed: seed ^ 0x6d65_7368, count: 0 };
        // One device in a third of the cases, up to eight ranks in the others, most with few.
        let lengths = match d.below(6) {
            0 | 1 => [1, 1, 1],
            2 => [2, 1, 1],
            3 => [1, 2, 1],
            4 => [1 + d.below(2) as u64, 1, 2],
            _ => [[4, 1, 1], [2, 2, 1], [1, 2, 2], [4, 2, 1], [2, 1, 2], [4, 1, 1]][d.below(6)],
        };
        let mesh: Vec<(&str, u64)> = ["tp", "ep", "dp"].into_iter().zip(lengths).filter(|(_, n)| *n > 1).collect();
        let relaxations = match d.below(4) {
            0 => vec!["rank-round", "wire-bf16"],
            1 => vec!["rank-round"],
            _ => Vec::new(),
        };
        let target = if d.odds(2) { "cpu" } else { "h200-bf16" };
        let mode = if d.odds(2) { "one" } else { "two" };
        Case { seed, text: spec(seed, &mesh), target, mesh, mode, relaxations }
    }

    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        Mesh::new(self.mesh.iter().map(|(name, n)| ((*name).to_owned(), *n))).expect("axes of a mesh")
    }

    /// The target, with one bucket for rows that decode and one for all else.
    pub fn target(&self) -> Target {
        let mut target = Target::load(self.target).expect("a target");
        target.relaxations = self.relaxations.iter().map(|r| (*r).to_owned()).collect();
        let ragged = |b: &targets::BucketRule| matches!(b.rows, ir::RowsPerSequence::Ragged);
        let one = |b: &targets::BucketRule| matches!(b.rows, ir::RowsPerSequence::One) && b.tokens == 8;
        let mut buckets: Vec<targets::BucketRule> = target.buckets.iter().filter(|b| one(b)).cloned().collect();
        let small = |b: &targets::BucketRule| targets::BucketRule { tokens: 16, sequences: 4, wanted: 16, ..b.clone() };
        buckets.extend(target.buckets.iter().find(|b| ragged(b)).map(small));
        target.buckets = buckets;
        target
    }

    /// What the front end is asked for.
    pub fn choices(&self) -> Choices {
        let options = [("mode".to_owned(), vec![self.mode.to_owned()])].into();
        Choices { options, ..Choices::default() }
    }

    /// The command that validates the case once its spec lies in a file.
    pub fn command(&self, path: &str) -> String {
        let mut line = format!("beamc verify {path} --target {} --option mode={}", self.target, self.mode);
        let mesh: Vec<String> = self.mesh.iter().map(|(name, n)| format!("{name}={n}")).collect();
        if !mesh.is_empty() {
            let _ = write!(line, " --mesh {}", mesh.join(","));
        }
        for relaxation in &self.relaxations {
            let _ = write!(line, " --relax {relaxation}");
        }
        line + if self.relaxations.is_empty() { " --exact" } else { "" }
    }
}

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

/// Facts: the lengths of dims and what a mesh spreads differ from case to case.
fn facts(d: &mut Draws, mesh: &[(&str, u64)]) -> String {
    let (layers, hidden) = (2 + d.below(3), [7, 11][d.below(2)]);
    // Uneven lengths find what counts on round numbers, but cannot be spread.
    let (ffn, vocab, half) = if mesh.is_empty() { (9, 13, 3) } else { (8, 16, 2) };
    let columns = ["even if l % 2 == 0 else odd", "odd if l == layers - 1 else even", "odd if l < 1 else even"];
    let kind = columns[d.below(3)];
    let dp = mesh.iter().any(|(name, _)| *name == "dp");
    let mut shard = String::new();
    let mut spread = |axis: &str, over: &str| {
        let _ = writeln!(shard, "{axis} = [{over}]");
    };
    spread("heads", "\"tp\"");
    spread("kv_heads", "\"tp\", \"or-replicate\"");
    spread("experts", "\"ep\"");
    if dp {
        spread("T", "\"dp\"");
    }
    if !d.odds(4) {
        spread("ffn", if dp && d.odds(2) { "\"dp\", \"tp\"" } else { "\"tp\"" });
    }
    if !d.odds(3) {
        spread("expert_ffn", "\"tp\"");
    }
    if !d.odds(3) {
        spread("vocab", "\"tp\"");
    }
    let act = if d.odds(2) { "bf16" } else { "f32" };
    let head_dim = 2 * half;
    format!(
        r#"act = "{act}"

[dims]
layers = {layers}
hidden = {hidden}
ffn = {ffn}
heads = 4
kv_heads = 2
head_dim = {head_dim}
vocab = {vocab}
experts = 4
expert_ffn = 4
picked = 2

[axes]
head_dim = "2.half"

[values]
eps = 1e-6
theta = 10000.0
window = 3

[options]
mode = ["one", "two"]

[schedule]
kind = "{kind}"
part = "upper if l * 2 < layers else lower"

[shard]
{shard}"#
    ) + FACTS
}

const FACTS: &str = r#"
[kv]
all = { layers = "all", k = "kv_heads head_dim", v = "kv_heads head_dim" }
even = { layers = "kind == even", k = "kv_heads head_dim", v = "kv_heads head_dim", window = "window" }
odd = { layers = "kind == odd", k = "kv_heads head_dim", v = "kv_heads head_dim" }

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
gate = { axes = "ffn hidden", disk = "gate" }
down = { axes = "hidden ffn", disk = "down" }
q = { axes = "heads.head_dim hidden", disk = "q" }
k = { axes = "kv_heads.head_dim hidden", disk = "k" }
v = { axes = "kv_heads.head_dim hidden", disk = "v" }
mix = { axes = "heads.head_dim hidden", disk = "mix" }
o = { axes = "hidden heads.head_dim", disk = "o" }
q_norm = { axes = "head_dim", disk = "q_norm" }
router = { axes = "experts hidden", disk = "router", dtype = "f32" }
x_up = { axes = "experts expert_ffn hidden", disk = "x_up" }
x_gate = { axes = "experts expert_ffn hidden", disk = "x_gate" }
x_down = { axes = "experts hidden expert_ffn", disk = "x_down" }
"#;

/// The text of a spec.
fn spec(seed: u64, mesh: &[(&str, u64)]) -> String {
    let mut d = Draws { seed, count: 0 };
    let mut text = format!("[model]\nname = \"random {seed}\"\n{}", facts(&mut d, mesh));
    text += "\n[blocks]\ntext = '''\nuse std.silu, std.rsq, std.norm, std.rotate, std.rope_angles\n";
    let defs = 1 + d.below(2);
    for i in 0..defs {
        let scope = Scope { names: vec!["a".into(), "b".into()], defs: i, fns: 0 };
        let body = expression(&mut d, &scope, 2);
        let _ = writeln!(text, "def d{i}(a, b) = {body}");
    }
    let fns = 1 + d.below(2);
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
    // Rows that ranks have apart cannot be picked among along an axis that is spread over them as well.
    let whole = text.contains("ffn = [\"dp\"");
    layer(&mut d, &mut text, defs, fns, !whole);
    text + "entry forward(tokens: i32[T], pos: i32[T], rows: i32[R]) -> f32[R, vocab] {
  c, s = rope_angles(pos, theta)
  x = W.embed[tokens]
  for l in layers { x = layer(x, c, s, l) }
  z = linear(norm(x[rows], W.norm), W.head)
  return 2 * tanh(z / 2)
}
'''
"
}

/// One layer: it begins with a norm, as a seam wants it, or not.
fn layer(d: &mut Draws, text: &mut String, defs: usize, fns: usize, select: bool) {
    let _ = writeln!(text, "fn layer(x, c, s, l) {{");
    let start = if d.odds(4) { "0.5 * x" } else { "norm(x, W.in)" };
    let _ = writeln!(text, "  h0 = {start}");
    let mut wide = Scope { names: vec!["x".into(), "h0".into()], defs, fns };
    for j in 1..3 + d.below(3) {
        let line = match d.below(9) {
            0 => {
                let (a, b) = (d.below(fns), d.below(fns));
                let x = d.pick(&wide.names).to_owned();
                if d.odds(2) {
                    format!("h{j} = match l.kind {{ even {{ f{a}({x}) }} odd {{ f{b}({x}) }} }}")
                } else {
                    format!("h{j} = match l.part {{ upper {{ f{a}({x}) }} lower {{ f{b}({x}) }} }}")
                }
            }
            1 => {
                let (a, b) = (expression(d, &wide, 2), expression(d, &wide, 2));
                format!("h{j} = match options.mode {{ one {{ {a} }} two {{ {b} }} }}")
            }
            2 => {
                let value = expression(d, &wide, 1);
                let inner = Scope { names: vec![format!("u{j}")], defs, fns };
                let (a, k) = (expression(d, &inner, 2), 1 + d.below(5));
                let pick = select && d.odds(3);
                let selected = if pick { format!(" * sum(top(u{j}, {k}, over = ffn))") } else { String::new() };
                let gate = if d.odds(2) { format!(" * linear({value}, W.gate)") } else { String::new() };
                format!("u{j} = silu(linear({value}, W.up)){gate}\n  h{j} = linear({a}, W.down){selected}")
            }
            3 | 4 => attention(d, &wide, j),
            5 => experts(d, &wide, j),
            6 => format!("h{j} = ({}) * W.vec * (1 / (l + 2))", expression(d, &wide, 2)),
            7 => format!("h{j}: f32 = {}", expression(d, &wide, 3)),
            _ => format!("h{j} = {}", expression(d, &wide, 3)),
        };
        let _ = writeln!(text, "  {line}");
        wide.names.push(format!("h{j}"));
    }
    let last = wide.names.last().cloned().unwrap_or_default();
    let _ = writeln!(text, "  return 0.5 * x + 0.5 * tanh({last})\n}}");
}

/// Attention: of one kind of cache or of that of the layer; queries normed or turned or neither; with a gate or without.
fn attention(d: &mut Draws, scope: &Scope, j: usize) -> String {
    let x = d.pick(&scope.names).to_owned();
    let (query, key) = match d.below(3) {
        0 => (format!("norm(linear({x}, W.q), W.q_norm)"), format!("norm(linear({x}, W.k), W.q_norm)")),
        1 => (format!("rotate(linear({x}, W.q), c, s)"), format!("rotate(linear({x}, W.k), c, s)")),
        _ => (format!("linear({x}, W.q)"), format!("linear({x}, W.k)")),
    };
    let kv = if d.odds(2) { "kv.all" } else { "kv[l.kind]" };
    let gate = if d.odds(2) { format!(" * sigmoid(linear({x}, W.mix))") } else { String::new() };
    format!(
        "q{j} = {query}\n  k{j} = {key}\n  v{j} = linear({x}, W.v)\n  \
         a{j} = attend(q{j}, store({kv}, k{j}, v{j}), causal, scale = head_dim ** -0.5)\n  \
         o{j} = a{j}{gate}\n  h{j} = linear(o{j}, W.o)"
    )
}

/// Experts: each output rounds or not, before or after its weight, and the sum over them has an order or not.
fn experts(d: &mut Draws, scope: &Scope, j: usize) -> String {
    let x = d.pick(&scope.names).to_owned();
    let ty = if d.odds(2) { ": f32" } else { "" };
    let order = if d.odds(2) { ", order = any" } else { "" };
    let gate = if d.odds(2) { format!(" * linear({x}, W.x_up[e])") } else { String::new() };
    let product = format!("linear(silu(linear({x}, W.x_gate[e])){gate}, W.x_down[e])");
    let head =
        format!("r{j} = sigmoid(linear({x}, W.router))\n  i{j} = top_ids(r{j}, picked)\n  p{j} = r{j}[i{j}]\n  ");
    let tail = if d.odds(2) {
        format!(
            "y{j}{ty} = for e, w in i{j}, p{j} {{ yield w * {product} }}\n  h{j} = 0.75 * sum(y{j}, over = picked{order})"
        )
    } else {
        format!("y{j}{ty} = for e in i{j} {{ yield {product} }}\n  h{j} = sum(p{j} * y{j}, over = picked{order})")
    };
    head + &tail
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
