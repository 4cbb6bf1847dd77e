//! Templates made at random: an output gives one message however it is cut, and where a template is simple enough to be
//! read by a page of other code, that message.

mod seen;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::RngSeed;
use seen::{Case, Dice};
use serde_json::{Value, json};
use std::sync::Arc;
use text::response::*;

/// Markup that overlaps in every way: beginnings, ends and insides of each other, signs of several bytes.
const MARKUP: [&str; 14] =
    ["<", "<a>", "<a><b>", "<b>", "</a>", "<a", "a>", "><", "::", ":", "\n", "é", "東京", "<|end|><a>"];

fn markup() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => select(MARKUP.as_slice()).prop_map(str::to_owned),
        1 => proptest::collection::vec(select(MARKUP.as_slice()), 1..3).prop_map(|parts| parts.concat()),
    ]
}

/// Outputs of markup, pieces of it, and other text.
fn output() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => markup(),
        1 => (markup(), 1usize..4).prop_map(|(text, n)| text.chars().take(n).collect()),
        2 => "[ab >\\n🦀京]{0,4}",
        1 => select(["f(", "g(", ")", "k=", "k=1;", "s=\"x\";", "{\"n\":\"f\",\"a\":{\"s\":\"<a>\"}}", "{", "}", "\""].as_slice()).prop_map(str::to_owned),
    ];
    proptest::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

/// A field of text: what opens and what closes it, and whether it is trimmed.
#[derive(Clone, Debug)]
struct Field {
    open: Option<String>,
    close: Vec<String>,
    join: Option<String>,
}

impl Field {
    fn json(&self) -> Value {
        let mut field = json!({});
        for (key, value) in [("open", &self.open), ("join", &self.join)] {
            if let Some(value) = value {
                field[key] = json!(value);
            }
        }
        if !self.close.is_empty() {
            field["close"] = json!(self.close);
        }
        field
    }
}

fn region() -> impl Strategy<Value = Field> {
    let join = proptest::option::of(select(["\n", "--"].as_slice()).prop_map(str::to_owned));
    (markup(), proptest::collection::vec(markup(), 0..3), join).prop_map(|(open, close, join)| Field {
        open: Some(open),
        close,
        join,
    })
}

/// Reasoning and an answer; the answer may own all text that is not reasoning's.
fn fields() -> impl Strategy<Value = (Field, Field)> {
    let rest = Field { open: None, close: Vec::new(), join: None };
    (region(), prop_oneof![region(), Just(rest)])
}

/// Reasoning and answer by the rules of the format, in one pass over the whole output.
fn by_the_rules(thinking: &Field, content: &Field, output: &str) -> [String; 2] {
    let fields = [thinking, content];
    let (mut texts, mut met) = ([String::new(), String::new()], [false, false]);
    let mut region: Option<usize> = None;
    let mut rest = output;
    loop {
        let enders: Vec<(&str, usize)> = match region {
            None => fields.iter().enumerate().filter_map(|(i, f)| Some((f.open.as_deref()?, i))).collect(),
            Some(of) => fields[of].close.iter().map(|close| (close.as_str(), of)).collect(),
        };
        let found = enders.iter().filter_map(|(text, of)| rest.find(text).map(|at| (at, *text, *of)));
        let first = found.min_by_key(|(at, text, of)| (*at, std::cmp::Reverse(text.len()), *of));
        let (before, after) = match first {
            Some((at, text, _)) => (&rest[..at], &rest[at + text.len()..]),
            None => (rest, ""),
        };
        let owner = region.or_else(|| (0..2).find(|i| fields[*i].open.is_none()));
        if let Some(owner) = owner {
            texts[owner] += before;
        }
        let Some((_, _, of)) = first else { return texts };
        region = match region {
            Some(_) => None,
            None => {
                if let (true, Some(join)) = (met[of], &fields[of].join) {
                    texts[of] += join;
                }
                met[of] = true;
                Some(of)
            }
        };
        rest = after;
    }
}

fn case<'a>(template: &'a Arc<ResponseTemplate>, ending: Ending, held: Held, early_values: bool) -> Case<'a> {
    let parameters = json!({"properties": {"s": {"type": "string"}, "k": {"type": "integer"}}});
    let tools = json!([{"name": "f", "parameters": parameters}, {"name": "g"}]);
    let options = ParseOptions { held, early_values, ..ParseOptions::default() };
    Case { template, tools: Arc::new(Tools::declared(&tools)), options, prompt: "", ending }
}

/// Reads whole, in single characters and cut at random; all of it must be one message.
fn read_everyhow(run: &Case, output: &str, seed: u64) -> seen::Seen {
    let whole = run.read(&[output]).0;
    let chars: Vec<&str> = output.char_indices().map(|(i, c)| &output[i..i + c.len_utf8()]).collect();
    assert_eq!(run.read(&chars).0, whole);
    let mut dice = Dice(seed);
    for _ in 0..4 {
        let pieces = dice.pieces(output);
        assert_eq!(run.read(&pieces).0, whole, "{pieces:?}");
    }
    whole
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, rng_seed: RngSeed::Fixed(23), ..Default::default() })]

    #[test]
    fn text_goes_where_the_rules_say_and_none_is_lost(
        (thinking, content) in fields(), output in output(), length: bool, seed in 1u64..u64::MAX,
    ) {
        let value = json!({"start_anchor": "\u{1}A", "fields": {"thinking": thinking.json(), "content": content.json()}});
        let Ok(template) = ResponseTemplate::from_value(&value) else {
            // Nothing of these shapes is refused but two fields that open alike.
            prop_assert_eq!(&thinking.open, &content.open);
            return Ok(());
        };
        let template = Arc::new(template);
        let run = case(&template, if length { Ending::Length } else { Ending::StopToken }, Held::Free, false);
        let whole = read_everyhow(&run, &output, seed);
        let [reasoning, answer] = by_the_rules(&thinking, &content, &output);
        prop_assert_eq!((whole.reasoning, whole.content), (reasoning, answer), "{} {:?}", value, output);
    }

    #[test]
    fn calls_of_random_templates_are_one_however_they_are_cut(
        (thinking, content) in fields(), output in proptest::collection::vec(prop_oneof![2 => output(), 1 => Just("f(".to_owned()), 1 => Just("g(k=1;".to_owned())], 1..4),
        open in 0..3usize, close in proptest::collection::vec(markup(), 1..3), kind in 0..3usize, strip: bool,
        held in 0..3usize, early_values: bool, ending in 0..3usize, seed in 1u64..u64::MAX,
    ) {
        let (mut thinking, content) = (thinking.json(), content.json());
        if strip {
            thinking["content_args"] = json!({"strip": true});
        }
        let opener = [r"(?P<name>[a-z])\(", r"<a>(?P<name>[a-z]+)\(", r"(?P<name>[fg])(?:\(|<b>)"][open];
        let mut call = json!({"open_pattern": opener, "close": close, "repeats": true,
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}});
        match kind {
            0 => call["content"] = json!("json"),
            _ => {
                let tag = [r"(?P<key>[a-z])=(?P<value>.*?);", r"(?P<key>[a-z])=(?P<value>.*?)(?:;|(?=[a-z]=))"][kind - 1];
                call["content"] = json!("xml-inline");
                call["content_args"] = json!({"tag_pattern": tag, "value_parser": {"name": "text", "args": {"strip": strip}}});
            }
        }
        let value = json!({"start_anchor": "<a>", "fields": {"thinking": thinking, "content": content, "tool_calls": call}});
        let Ok(template) = ResponseTemplate::from_value(&value) else { return Ok(()) };
        let template = Arc::new(template);
        let held = [Held::Free, Held::Turn, Held::JsonAnswer][held];
        let ending = [Ending::StopToken, Ending::StopString, Ending::Length][ending];
        read_everyhow(&case(&template, ending, held, early_values), &output.concat(), seed);
    }
}

/// The property above says nothing unless most random templates can be run and read something.
#[test]
fn random_templates_are_run() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut run, mut calls) = (0, 0);
    for _ in 0..200 {
        let (thinking, content) = fields().new_tree(&mut runner).expect("fields").current();
        let call = json!({"open_pattern": r"(?P<name>[a-z])\(", "close": ")", "content": "xml-inline",
            "content_args": {"tag_pattern": r"(?P<key>[a-z])=(?P<value>.*?);"},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}});
        let value = json!({"fields": {"thinking": thinking.json(), "content": content.json(), "tool_calls": call}});
        let Ok(template) = ResponseTemplate::from_value(&value) else { continue };
        let template = Arc::new(template);
        let seen = read_everyhow(&case(&template, Ending::StopToken, Held::Free, false), "f(k=1;s=2;)", 1);
        run += 1;
        calls += usize::from(seen.streamed.first().is_some_and(|call| call.2.is_some()));
    }
    assert!(run > 150 && calls > 100, "{run} templates of 200 run, {calls} read the call");
}
