//! Each rule of the model and graph levels, broken once by an edit of a text that keeps all of them.

use super::verify_module;
use crate::{Module, parse_module};

const WHOLE: &str = "
module small
act bf16
dim layers = 3
dim vocab = 5
dim hidden = 8
dim heads = 2
dim kv_heads = 1
dim head_dim = 4
dim 2 = 2
dim half = 2
product head_dim = [2, half]
layers 0-1: attn = near
layers 2: attn = far
kv near: k [kv_heads, head_dim] v [kv_heads, head_dim] window 2 layers [0, 1]
kv far: k [kv_heads, head_dim] v [kv_heads, head_dim] layers [2]
weight model embed: bf16[vocab, hidden]
weight model last: bf16[hidden]
weight layer norm: bf16[hidden]
weight layer q: bf16[heads head_dim, hidden]
weight layer only: bf16[hidden] when attn = far
entry forward {
  graph first (%tokens, %pos, %rows) -> (x = %x, n = %n) {
    axes T = rows, R = rows
    %tokens: i32<vocab>[T] = input tokens
    %pos: i32[T] = input pos
    %rows: i32<T>[R] = input rows
    %embed: bf16[vocab, hidden] = weight model embed
    %x: bf16[T, hidden] = gather over vocab (%embed, %tokens)
    %w: bf16[hidden] = weight first norm
    %p: f32[T, hidden] = mul (%x, %w)
    %n: bf16[T, hidden] = round bf16 (%p)
  }
  class near {attn = near} (%x, %n, %pos) -> (x = %y, n = %m) {
    axes T = rows, picked = 2
    %x: bf16[T, hidden] = input x
    %n: bf16[T, hidden] = input n
    %pos: i32[T] = input pos
    %qw: bf16[heads, head_dim, hidden] = weight layer q
    %q: f32[T, heads, head_dim] = linear over [hidden] order any (%n, %qw)
    %qr: bf16[T, heads, head_dim] = round bf16 (%q)
    %halves: bf16[T, heads, 2, half] = split head_dim (%qr)
    %whole: bf16[T, heads, head_dim] = merge into head_dim (%halves)
    %one: bf16[T, heads, half] = slice head_dim from 2 len 2 into half (%whole)
    %two: bf16[T, heads, head_dim] = concat into head_dim (%one, %one)
    %k: bf16[T, head_dim] = slice heads from 0 len 1 (%two)
    %kv: bf16[T, kv_heads=1, head_dim] = slice heads from 1 len 1 into kv_heads (%two)
    %cache: cache = store kind near (%kv, %kv, %pos)
    %a: f32[T, heads, head_dim] = attend kind near mask causal scale 0.5 order any (%two, %cache, %pos)
    %scores: f32[T, heads] = reduce max over head_dim order any (%a)
    %big: bool[T, heads] = in_top 1 over heads (%scores)
    %zero: f32[] = literal [0.0]
    %kept: f32[T, heads] = select (%big, %scores, %zero)
    %sum: f32[T] = reduce sum over heads order fold (%kept)
    %l: f32[] = scalar (l + 1.0)
    %f: f32[T] = fma (%sum, %l, %zero)
    %wide: f32[T, hidden] = mul (%x, %f)
    %best: f32[T, picked] = top values 2 over hidden into picked (%wide)
    %ids: i32<hidden>[T, picked] = top ids 2 over hidden into picked (%wide)
    %same: f32[T, picked] = gather over hidden (%wide, %ids)
    %eq: bool[T, picked] = eq (%best, %same)
    %not: bool[T, picked] = not (%eq)
    %y: bf16[T, hidden] = round bf16 (%wide)
    %next: bf16[hidden] = weight next norm else last
    %product: f32[T, hidden] = mul (%y, %next)
    %m: bf16[T, hidden] = round bf16 (%product)
  }
  class far {attn = far} (%x, %n) -> (x = %x2, n = %n2) {
    axes T = rows
    %x: bf16[T, hidden] = input x
    %n: bf16[T, hidden] = input n
    %dots: f32[T] = dot over hidden order any (%x, %n)
    %only: bf16[hidden] = weight layer only
    %p: f32[T, hidden] = mul (%only, %dots)
    %x2: bf16[T, hidden] = round bf16 (%p)
    %n2: bf16[T, hidden] = round bf16 (%n)
  }
  instances 0-1: near
  instances 2: far
  graph last (%n, %rows) -> (result = %r) {
    axes T = rows, R = rows, wide = 8
    %n: bf16[T, hidden] = input n
    %rows: i32<T>[R] = input rows
    %g: bf16[R, hidden] = gather over T (%n, %rows)
    %h: bf16[R, wide] = rename hidden to wide (%g)
    %r: f32[R, wide] = exp (%h)
  }
}
";

fn parsed(text: &str) -> Module {
    parse_module(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn a_whole_module_keeps_every_rule() {
    assert_eq!(verify_module(&parsed(WHOLE)), Ok(()));
}

#[test]
fn every_rule_is_found_broken() {
    let cases = [
        // What to replace, by what, and what the verifier says.
        (
            "(%x, %w)",
            "(%tokens, %pos)",
            "V0202: forward first %p: axis `hidden` of the result comes from no operand",
            true,
        ),
        ("%p: f32[T, hidden] = mul (%x, %w)", "%p: bf16[T, hidden] = mul (%x, %w)", "only a round narrows", true),
        ("= round bf16 (%wide)", "= round f32 (%wide)", "is bf16[T, hidden=8], the rule gives f32[T, hidden=8]", true),
        ("= not (%eq)", "= neg (%eq)", "computes with a bool", true),
        ("= eq (%best, %same)", "= and (%best, %same)", "`and` of f32 and f32", true),
        ("select (%big, %scores", "select (%scores, %scores", "selects by f32, which is no bool", true),
        ("f32[] = literal [0.0]", "f32[] = literal [0.0, 1.0]", "has 2 numbers", true),
        ("%l: f32[] = scalar", "%l: bf16[] = scalar", "the rule gives f32[]", true),
        ("reduce sum over heads", "reduce sum over T", "works along row axis `T`", true),
        ("top values 2 over hidden", "top values 9 over hidden", "takes the 9 largest of 8", true),
        ("%ids: i32<hidden>[", "%ids: i32[", "not marked as indices of `hidden`", true),
        ("in_top 1 over heads", "in_top 0 over heads", "asks for the 0 largest", true),
        ("gather over hidden (%wide, %ids)", "gather over hidden (%wide, %pos)", "comes from no operand", true),
        ("from 2 len 2 into half", "from 3 len 2 into half", "cuts 2 elements from 3 out of 4", true),
        ("concat into head_dim (%one, %one)", "concat into head_dim (%one, %one, %one)", "the rule gives", true),
        ("split head_dim (%qr)", "split heads (%qr)", "the factors of `heads` do not multiply to 2", true),
        ("product head_dim = [2, half]", "product head_dim = [half, 2]", "the factors of `head_dim` are half.2", true),
        ("rename hidden to wide", "rename vocab to wide", "the operand has no axis `vocab`", true),
        (
            "linear over [hidden] order any (%n, %qw)",
            "linear over [head_dim] order any (%n, %qw)",
            "do not end both",
            true,
        ),
        (
            "dot over hidden order any (%x, %n)",
            "dot over heads order any (%x, %n)",
            "not an axis of both operands",
            true,
        ),
        ("store kind near (%kv, %kv, %pos)", "store kind near (%two, %two, %pos)", "not rows of the cache kind", true),
        ("attend kind near", "attend kind far", "from the store of another", true),
        ("(%two, %cache, %pos)", "(%one, %cache, %pos)", "do not fit cache kind `near`", false),
        ("weight layer q\n", "weight layer norm\n", "the rule gives bf16[hidden=8]", true),
        ("weight model embed\n", "weight model embedding\n", "there is no weight `embedding`", true),
        ("weight next norm else last", "weight next norm else embed", "the rule gives bf16[vocab=5, hidden=8]", true),
        ("weight first norm", "weight layer norm", "depends on a layer where none runs", true),
        ("weight layer only\n", "weight first only\n", "depends on a layer where none runs", true),
        ("= gather over T (%n, %rows)", "= call norm (%n, %rows)", "may stand only at the model level", true),
        ("store kind near", "store column attn", "names a cache by column", true),
        ("class far {attn = far}", "class far {attn = near}", "is not of the kinds of `far`", true),
        ("instances 0-1: near", "instances 0: near\n  instances 1: far", "is not of the kinds of `far`", true),
        ("when attn = far", "when attn = near", "has no weight `only`, which `far` reads", true),
        ("window 2 layers [0, 1]", "window 2 layers [1]", "keeps no rows of cache `near`", true),
        ("layers [2]", "layers [2, 3]", "do not ascend inside the 3 of the model", true),
        (
            "weight layer norm: bf16[hidden]",
            "weight layer norm: bf16[hidden] when attn = far",
            "which is read before it runs",
            true,
        ),
        ("graph last (%n, %rows)", "graph last (%n, %rows, %rows)", "input `rows` is listed twice", true),
        ("graph last (%n, %rows)", "graph last (%n)", "the signature does not list", true),
        ("-> (x = %x, n = %n)", "-> (x = %x)", "`n` is left by a layer and never by `first`", true),
        ("%rows: i32<T>[R] = input rows\n    %embed", "%rows: f32[R] = input rows\n    %embed", "`rows` is", true),
        ("(%n, %rows) -> (result = %r)", "(%n, %rows) -> (result = %r, result = %g)", "listed twice", true),
        ("dim half = 2", "dim half = 3", "do not multiply to 4", true),
        ("%h: bf16[R, wide] = rename", "%h: bf16[R, wide=9] = rename", "the rule gives", true),
    ];
    let mut wrong = Vec::new();
    for (from, to, wanted, alone) in cases {
        let text = WHOLE;
        assert!(text.contains(from), "no `{from}`");
        let errors = verify_module(&parsed(&text.replacen(from, to, 1))).err().unwrap_or_default();
        let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
        // Most edits break one rule and its echo at the next user; none may flood the report.
        if !shown.iter().any(|e| e.contains(wanted)) || (alone && shown.len() > 5) {
            wrong.push(format!("`{to}` should say `{wanted}` and says {shown:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn damaged_json_is_reported_not_trusted() {
    let json = serde_json::to_value(parsed(WHOLE)).unwrap();
    let edges = "/entries/0/last/inner/edges";
    let mut backwards = json.clone();
    *backwards.pointer_mut(&format!("{edges}/0")).unwrap() = serde_json::json!([4, 2, 0]);
    let mut outside = json.clone();
    *outside.pointer_mut("/entries/0/last/inputs/0").unwrap() = serde_json::json!(99);
    for (damaged, wanted) in [(backwards, "which does not precede it"), (outside, "the signature names %99")] {
        let module: Module = serde_json::from_value(damaged).unwrap();
        let errors = verify_module(&module).unwrap_err();
        assert!(errors[0].message.contains(wanted), "{errors:?}");
    }
    let mut dangling = json;
    *dangling.pointer_mut(&format!("{edges}/0")).unwrap() = serde_json::json!([77, 2, 0]);
    assert!(serde_json::from_value::<Module>(dangling).is_err());
}

const STORED: &str = "
module m
act bf16
dim n = 16
layers 0-2: a = b
weight layer c: nvfp4[n] pinned only [0, 2] disk c shape [16] as nibbles scales s
weight layer g: f32[] pinned absent 1.0 disk g shape [] as number
stored nvfp4 inputs block codes c scale s global g input i plain g layers [1]
entry e {
  graph first (%x) -> (y = %y) {
    axes T = rows
    %x: f32[T, n] = input x
    %g: f32[] = literal [1.0]
    %c: nvfp4[T, n] = block_round over [n] (%x, %g)
    %y: f32[T, n] = round f32 (%c)
  }
  graph last () -> () { }
}
";

#[test]
fn rules_of_narrow_formats_are_found_broken() {
    assert_eq!(verify_module(&parsed(STORED)), Ok(()));
    for (from, to, message) in [
        ("only [0, 2]", "only [2, 0]", "weight c: layers do not ascend inside the 3 of the model"),
        ("only [0, 2]", "only [0, 3]", "layers do not ascend"),
        ("only [0, 2]", "only []", "is kept to no layer"),
        ("weight layer c", "weight model c", "is a weight of the model"),
        ("absent 1.0", "absent inf", "is inf where it is absent"),
        ("g: f32[]", "g: bf16[]", "`g` has a layout that leaves no bf16"),
        (" as nibbles scales s", "", "`c` has a layout that leaves no nvfp4"),
        ("stored nvfp4", "stored fp8", "stored fp8: takes inputs by block"),
        (" global g", "", "names no number of a matrix"),
        (" input i", "", "names no number of inputs"),
        ("plain g", "plain h", "there is no weight `h`"),
        ("layers [1]", "layers [7]", "layers do not ascend"),
        ("dim n = 16", "dim n = 24", "makes blocks of 16 of 24 elements"),
        ("over [n] (%x, %g)", "over [T] (%x, %g)", "makes blocks over [T]"),
        ("(%x, %g)", "(%x, %x)", "floats under one f32 are wanted"),
        ("%y: f32[T, n] = round f32 (%c)", "%y: nvfp4[T, n] = round nvfp4 (%c)", "that is `block_round`"),
        ("%c: nvfp4[T, n]", "%c: f32[T, n]", "the rule gives nvfp4[T, n=16]"),
    ] {
        let text = STORED.replacen(from, to, 1);
        assert_ne!(text, STORED, "{from}");
        let errors = verify_module(&parsed(&text)).expect_err(message);
        assert!(errors.iter().any(|e| e.to_string().contains(message)), "{to}: {errors:?}");
    }
}
