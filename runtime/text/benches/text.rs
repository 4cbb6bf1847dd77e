//! What text costs: masks and compiling over a vocabulary of 150,000 tokens, and reading an answer back.
//!
//! `cargo bench -p text --bench text`; with `-- grammar` it prints the text of a grammar instead. The vocabulary is made here: words, numbers, punctuation and parts of characters in the shares that
//! byte-level vocabularies have, and the control tokens of the test template. Prints one line a measurement.

use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::grammar::*;
use text::response::*;
use text::{Detokenizer, Tokenizer};

const VOCAB: usize = 150_000;
const CONTROL: [&str; 8] =
    ["<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"];
const MARKUP: [&str; 2] = ["<rfl:parameter name=\"", "\n</rfl:parameter>"];

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

fn word(dice: &mut Dice) -> String {
    let syllables = [
        "a", "re", "in", "tion", "er", "st", "on", "the", "al", "co", "de", "u", "i", "o", "ma", "le", "ss", "x", "y",
        "ing",
    ];
    let count = 1 + dice.below(4);
    (0..count).map(|_| dice.of(&syllables)).collect()
}

/// Bytes of a token.
fn token(dice: &mut Dice) -> Vec<u8> {
    let punctuation = [
        "\"", "'", "(", ")", "{", "}", "[", "]", "<", ">", "/", "\\", ":", ";", ",", ".", "=", "-", "_", "*", "#",
        "\n", "  ", "\t", "|",
    ];
    match dice.below(100) {
        0..40 => format!(" {}", word(dice)).into_bytes(),
        40..65 => word(dice).into_bytes(),
        65..75 => {
            let word = word(dice);
            format!("{}{}", word[..1].to_uppercase(), &word[1..]).into_bytes()
        }
        75..85 => (0..1 + dice.below(4)).map(|_| dice.of(&punctuation)).collect::<String>().into_bytes(),
        85..88 => format!("{}{}", dice.of(&punctuation), word(dice)).into_bytes(),
        88..90 => dice.below(1000).to_string().into_bytes(),
        _ => {
            let chars: String = (0..1 + dice.below(3))
                .map(|_| char::from_u32(0x4e00 + dice.below(0x5000) as u32).unwrap_or('x'))
                .collect();
            let mut bytes = chars.into_bytes();
            // Some tokens end inside a character.
            bytes.truncate(bytes.len() - dice.below(3));
            bytes
        }
    }
}

/// The character that stands for a byte in a byte-level vocabulary.
fn shown(byte: u8) -> char {
    let is_shown = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match is_shown(&byte) {
        true => char::from(byte),
        false => char::from_u32(0x100 + (0..byte).filter(|b| !is_shown(b)).count() as u32).unwrap_or(' '),
    }
}

fn tokenizer() -> Tokenizer {
    let mut dice = Dice(0x5eed);
    let mut seen: HashSet<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    let own = VOCAB - CONTROL.len() - MARKUP.len();
    while words.len() < own {
        let mut new = token(&mut dice);
        if seen.contains(&new) {
            new.extend(word(&mut dice).into_bytes());
        }
        if seen.insert(new.clone()) {
            words.push(new);
        }
    }
    let vocab: Map<String, Value> =
        words.iter().enumerate().map(|(id, w)| (w.iter().map(|b| shown(*b)).collect(), json!(id))).collect();
    let added: Vec<Value> = MARKUP
        .iter()
        .chain(&CONTROL)
        .enumerate()
        .map(|(i, content)| {
            json!({"id": own + i, "content": content, "special": i >= MARKUP.len(), "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let file = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    Tokenizer::from_bytes(file.to_string().as_bytes()).expect("tokenizer")
}

fn control(name: &str) -> u32 {
    (VOCAB - CONTROL.len() + CONTROL.iter().position(|c| *c == name).expect("control token")) as u32
}

/// Ids of a text by longest match, control tokens by their text.
struct Greedy {
    ids: std::collections::HashMap<Vec<u8>, u32>,
    longest: usize,
}

impl Greedy {
    fn new(tokenizer: &Tokenizer) -> Greedy {
        let tokens = tokenizer.token_bytes().expect("token bytes");
        let longest = tokens.iter().map(|t| t.bytes.len()).max().unwrap_or(1);
        Greedy { ids: tokens.into_iter().enumerate().map(|(id, t)| (t.bytes, id as u32)).collect(), longest }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text.as_bytes());
        while !rest.is_empty() {
            let len = (1..=self.longest.min(rest.len()))
                .rev()
                .find(|len| self.ids.contains_key(&rest[..*len]))
                .expect("a byte");
            ids.push(self.ids[&rest[..len]]);
            rest = &rest[len..];
        }
        ids
    }
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    let mean = times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len() as f64;
    println!(
        "{name:<44} {:>6} x  mean {mean:>8.1} us  p50 {:>8.1}  p99 {:>8.1}  max {:>8.1}",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// Masks along a text: the first time, and again.
fn masks(compiler: &Compiler, name: &str, spec: &GrammarSpec, ids: &[u32]) {
    let grammar = compiler.compile(spec).expect("grammar");
    let mut words = vec![0; VOCAB.div_ceil(32)];
    for (run, label) in ["first", "again"].iter().enumerate() {
        let (mut matcher, mut times, mut steps) = (grammar.matcher(), Vec::new(), Vec::new());
        for (at, id) in ids.iter().enumerate() {
            let start = Instant::now();
            matcher.mask(&mut words).expect("mask");
            times.push(start.elapsed());
            let admitted = words[*id as usize / 32] >> (id % 32) & 1 == 1;
            let start = Instant::now();
            matcher.advance(*id).unwrap_or_else(|e| panic!("{name}, token {at}: {e}"));
            steps.push(start.elapsed());
            // Where text is forced, only the tokenizer's own tokens are in the mask.
            black_box(admitted);
        }
        report(&format!("mask, {name}, {label}"), times);
        if run == 1 {
            report(&format!("advance, {name}"), steps);
        }
    }
}

fn prose(dice: &mut Dice, words: usize) -> String {
    let mut text = String::from("We");
    for i in 0..words {
        let joint = ["", ",", ".", "\n", " <b>", "\n\n-", " (x)", " \"q\""][if i % 7 == 6 { dice.below(8) } else { 0 }];
        text += &format!("{joint} {}", word(dice));
    }
    text
}

fn main() {
    let tokenizer = Arc::new(tokenizer());
    let greedy = Greedy::new(&tokenizer);
    let file =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/response-parse/beam-template.json");
    let template = Arc::new(ResponseTemplate::from_file(&file).expect("template"));
    let stop = ["<|return|>", "<|call|>", "<|endoftext|>"].map(control);
    let start = Instant::now();
    let compiler = Compiler::new(Arc::clone(&tokenizer), &stop, Limits::default()).expect("compiler");
    println!("{VOCAB} tokens; compiler built in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    let mut dice = Dice(7);
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["red", "green", "blue"]}, "maxItems": 5},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street"], "additionalProperties": false},
        "notes": {"type": "string"}}, "required": ["name", "age", "notes"], "additionalProperties": false});
    let tools = json!([
        {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}, "required": ["command"]}}},
        {"type": "function", "function": {"name": "edit", "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}, "all": {"type": "boolean"}}, "required": ["path", "old", "new"]}}},
        {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "filter": {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "limit": {"type": "integer"}}}, "mode": {"type": "string", "enum": ["fast", "slow"]}}, "required": ["query"]}}}
    ]);
    let turn = |answer: Option<GrammarSpec>| {
        GrammarSpec::Turn(Box::new(TurnSpec {
            template: Arc::clone(&template),
            tools: ToolSpec::from_json(&tools).expect("tools"),
            choice: Choice::Auto,
            parallel: true,
            answer,
            place: TurnPlace::MessageStart,
            begun: String::new(),
            goes_on: false,
        }))
    };
    let answer = GrammarSpec::JsonSchema { schema: schema.clone(), strict: true };
    for (name, spec) in
        [("schema", answer.clone()), ("three tools", turn(None)), ("three tools, schema", turn(Some(answer.clone())))]
    {
        let times = (0..20)
            .map(|_| {
                let fresh = Compiler::clone(&compiler);
                fresh.forget();
                let start = Instant::now();
                black_box(fresh.compile(&spec).expect("grammar"));
                start.elapsed()
            })
            .collect();
        report(&format!("compile, {name}"), times);
    }
    if std::env::args().any(|arg| arg == "grammar") {
        println!("{}", compiler.text(&turn(Some(answer))).expect("text"));
        return;
    }
    let notes = prose(&mut dice, 300).replace('\n', " ").replace('"', "'");
    let document = format!(
        "{{\"name\": \"Ann Lee\", \"age\": 42, \"email\": \"a@b.org\", \"tags\": [\"red\", \"blue\"], \"address\": {{\"street\": \"Main St\", \"zip\": \"12345\"}}, \"notes\": \"{notes}\"}}"
    );
    masks(&compiler, "JSON document", &answer, &greedy.encode(&document));
    let pattern = json!({"type": "object", "properties": {"notes": {"type": "string", "pattern": "^.+$"}}, "required": ["notes"], "additionalProperties": false});
    let held = GrammarSpec::JsonSchema { schema: pattern, strict: true };
    masks(&compiler, "JSON document, pattern `^.+$`", &held, &greedy.encode(&format!("{{\"notes\": \"{notes}\"}}")));
    let thought = format!("<|channel|>analysis<|message|>{}<|end|><|start|>assistant", prose(&mut dice, 400));
    let calls = format!(
        "{thought} to=edit<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"path\">\nsrc/lib.rs\n</rfl:parameter>\n<rfl:parameter name=\"old\">\n{}\n</rfl:parameter>\n<rfl:parameter name=\"new\">\n{}\n</rfl:parameter><|call|>",
        prose(&mut dice, 200),
        prose(&mut dice, 200)
    );
    masks(&compiler, "reasoning and call", &turn(None), &greedy.encode(&calls));
    let text = format!("{thought}<|channel|>final<|message|>{}<|return|>", prose(&mut dice, 400));
    masks(&compiler, "reasoning and answer", &turn(None), &greedy.encode(&text));
    reading(&tokenizer, &greedy, &template, &tools, &(calls, text));
}

/// Tokens to text to events.
fn reading(
    tokenizer: &Tokenizer,
    greedy: &Greedy,
    template: &Arc<ResponseTemplate>,
    tools: &Value,
    texts: &(String, String),
) {
    let tools = Arc::new(Tools::declared(tools));
    for (name, text) in [("calls", &texts.0), ("answer", &texts.1)] {
        let ids = greedy.encode(text);
        let repeats = 20_000 / ids.len() + 1;
        let start = Instant::now();
        for _ in 0..repeats {
            let mut detokenizer = Detokenizer::new(false);
            let options = ParseOptions { held: Held::Turn, ..ParseOptions::default() };
            let mut parser =
                ResponseParser::new(Arc::clone(template), Arc::clone(&tools), options, "").expect("parser");
            for id in &ids {
                let text = detokenizer.push(tokenizer, *id).expect("text");
                black_box(parser.push(&text).expect("events"));
            }
            black_box(parser.finish(Ending::StopToken).expect("end"));
        }
        let rate = (repeats * ids.len()) as f64 / start.elapsed().as_secs_f64();
        println!("detokenise and parse, {name}: {rate:.0} tokens/s ({} tokens)", ids.len());
        for tokens in [10_000, 100_000] {
            let (mut detokenizer, start) = (Detokenizer::new(false), Instant::now());
            for id in ids.iter().cycle().take(tokens) {
                black_box(detokenizer.push(tokenizer, *id).expect("text"));
            }
            let (ms, each) = (start.elapsed().as_secs_f64() * 1e3, detokenizer.decoded_tokens() as f64 / tokens as f64);
            println!("detokenise {tokens} tokens, {name}: {ms:.1} ms, each decoded {each:.1} times");
        }
    }
}
