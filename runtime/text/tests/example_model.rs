//! The example checkpoint's text files against its recorded prompts, ids and continuations.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use text::{OutputText, Text};

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano")
}

fn load() -> Arc<Text> {
    Arc::new(Text::load(&model(), &[]).unwrap())
}

fn golden() -> Vec<Value> {
    let file = std::fs::read(model().join("eval/golden.json")).unwrap();
    let whole: Value = serde_json::from_slice(&file).unwrap();
    whole["prompts"].as_array().unwrap().clone()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn every_evaluation_prompt_is_rendered_to_the_letter() {
    let text = load();
    let mut lines = 0;
    for entry in std::fs::read_dir(model().join("eval")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|e| e != "jsonl") {
            continue;
        }
        for line in std::fs::read_to_string(&file).unwrap().lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let mut variables = Map::new();
            for key in ["messages", "tools"] {
                variables.insert(key.into(), case.get(key).cloned().unwrap_or(Value::Null));
            }
            variables.insert("add_generation_prompt".into(), json!(true));
            let prompt = text.template_for(true).unwrap().render(variables).unwrap();
            assert_eq!(prompt, case["prompt"].as_str().unwrap(), "{}", case["id"]);
            lines += 1;
        }
    }
    assert_eq!(lines, 205);
}

#[test]
fn golden_prompts_encode_to_their_ids_and_back() {
    let text = load();
    for case in golden() {
        let prompt = case["prompt"].as_str().unwrap();
        let encoded = text.tokenizer.encode(prompt, false).unwrap();
        assert_eq!(encoded, ids(&case["prompt_ids"]), "{}", case["id"]);
        assert_eq!(text.tokenizer.decode(&encoded, false).unwrap(), prompt);
    }
}

#[test]
fn golden_continuations_stream_to_their_text() {
    let text = load();
    for case in golden() {
        let mut output = OutputText::new(text.clone(), Vec::new(), false);
        let mut streamed = String::new();
        for id in ids(&case["float32"]["ids"]) {
            streamed += &output.push(id).unwrap().text;
        }
        streamed += &output.finish().unwrap().text;
        assert_eq!(streamed, case["float32"]["text"].as_str().unwrap(), "{}", case["id"]);
    }
}

#[test]
fn ending_tokens_and_vocabulary_are_the_checkpoints() {
    let text = load();
    assert_eq!((text.stop.as_slice(), text.tokenizer.vocab()), ([2046, 2047, 2040].as_slice(), 2048));
}

/// Streams ids; no piece may hold a half character that a later token completes.
fn stream(text: &Arc<Text>, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut output = OutputText::new(text.clone(), Vec::new(), skip_special);
    let mut pieces: Vec<String> = ids.iter().map(|id| output.push(*id).unwrap().text).collect();
    pieces.push(output.finish().unwrap().text);
    pieces
}

#[test]
fn characters_spread_over_tokens_come_out_whole() {
    let text = load();
    let sentence = "naïve 東京 👩‍👩‍👧‍👦 <|end|>🏳️‍🌈 e\u{301} \u{FFFD} end";
    let ids = text.tokenizer.encode(sentence, false).unwrap();
    assert!(ids.len() > sentence.chars().count(), "some characters take several tokens");
    let pieces = stream(&text, &ids, false);
    assert_eq!(pieces.concat(), sentence);
    let own = pieces.iter().filter(|p| p.contains('\u{FFFD}')).count();
    assert_eq!(own, 1, "only the one of the text itself: {pieces:?}");
    assert_eq!(stream(&text, &ids, true).concat(), sentence.replace("<|end|>", ""));
}

#[test]
fn an_unfinished_character_comes_out_at_the_end() {
    let text = load();
    let ids = text.tokenizer.encode("a👩", false).unwrap();
    let pieces = stream(&text, &ids[..ids.len() - 1], false);
    assert_eq!(pieces.concat(), "a\u{FFFD}");
    assert_eq!(pieces.last().unwrap(), "\u{FFFD}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Default::default() })]

    /// Whatever a model says, streaming gives what decoding all of it at once gives, and nothing is held for long.
    #[test]
    fn any_ids_stream_to_their_decoding(ids in proptest::collection::vec(0u32..2060, 0..80), skip: bool) {
        thread_local!(static TEXT: Arc<Text> = load());
        TEXT.with(|text| {
            let whole = text.tokenizer.decode(&ids, skip).unwrap();
            assert_eq!(stream(text, &ids, skip).concat(), whole);
        });
    }

    /// The same for runs of byte tokens, most of them no valid UTF-8.
    #[test]
    fn any_bytes_stream_to_their_decoding(bytes in proptest::collection::vec(prop_oneof![0x80u8..=0xff, 0xe0u8..=0xf4, 0x20u8..0x7f], 0..60)) {
        thread_local!(static TEXT: Arc<Text> = load());
        TEXT.with(|text| {
            let ids: Vec<u32> = bytes.iter().map(|b| byte_token(*b)).collect();
            let whole = String::from_utf8_lossy(&bytes);
            assert_eq!(stream(text, &ids, false).concat(), whole);
        });
    }
}

/// The id of one byte: the vocabulary starts with the printable bytes, then the Latin ones, then the rest.
fn byte_token(byte: u8) -> u32 {
    let is_shown = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let (shown, rest): (Vec<u8>, Vec<u8>) = (0..=255u8).partition(is_shown);
    shown.iter().chain(&rest).position(|b| *b == byte).unwrap() as u32
}

/// Once a run of bytes that are no text has filled the window, an unfinished character is still told from a broken one.
#[test]
fn a_long_run_of_broken_bytes_does_not_lose_one() {
    let text = load();
    let bytes = [[0x80; 12].as_slice(), &[0xf0, 0x90, 0x80, 0xc0], &[0x80; 20], "é".as_bytes()].concat();
    let ids: Vec<u32> = bytes.iter().map(|b| byte_token(*b)).collect();
    assert_eq!(stream(&text, &ids, false).concat(), String::from_utf8_lossy(&bytes));
}
