//! Characters of several bytes and tokens: whatever tokens spell a text, it streams whole, once, and up to its stop string.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use text::{Detokenizer, OutputText, Text, Tokenizer};

static TEXT: LazyLock<Arc<Text>> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano");
    Arc::new(Text::load(&dir, &[]).expect("text"))
});

/// Emoji, joined ones, flags, skin tones, CJK, combining marks, right to left, and signs that no one has a font for.
const TEXTS: [&str; 10] = [
    "👩‍👩‍👧‍👦 and 👨🏽‍🚀!",
    "🏳️‍🌈🇫🇷🇯🇵 1️⃣",
    "東京と大阪、한국어、中文。",
    "e\u{301}a\u{308}o\u{302}\u{323} Z\u{351}\u{36b}\u{343}a\u{336}l",
    "नमस्ते ไทย ກຂ ခြင်း",
    "שלום עולם مرحبا",
    "\u{10ffff}\u{1f3fb}\u{fe0f}\u{200d}\u{feff}x",
    "ﷺ𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﬀ",
    "{\"名\": \"値🦀\"}\n```é```",
    "\u{fffd} is a character too",
];

/// The tokens of some bytes by longest match, so that bytes of one character may be spread over several.
fn spelt(bytes: &[u8]) -> Vec<u32> {
    static BY_BYTES: LazyLock<Vec<(Vec<u8>, u32)>> = LazyLock::new(|| {
        let tokens = TEXT.tokenizer.token_bytes().expect("bytes").into_iter().enumerate();
        let mut all: Vec<(Vec<u8>, u32)> =
            tokens.filter(|(_, t)| !t.special && !t.bytes.is_empty()).map(|(id, t)| (t.bytes, id as u32)).collect();
        all.sort_by_key(|(bytes, _)| std::cmp::Reverse(bytes.len()));
        all
    });
    let (mut ids, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (bytes, id) = BY_BYTES.iter().find(|(bytes, _)| rest.starts_with(bytes)).expect("every byte is a token");
        ids.push(*id);
        rest = &rest[bytes.len()..];
    }
    ids
}

fn each_byte(text: &str) -> Vec<u32> {
    text.bytes().flat_map(|byte| spelt(&[byte])).collect()
}

/// Ways to spell a text: as the tokenizer does, byte by byte, and by longest match on both sides of every byte.
fn spellings(text: &str) -> Vec<Vec<u32>> {
    let mut all = vec![TEXT.tokenizer.encode(text, false).expect("ids"), each_byte(text)];
    for at in 0..=text.len() {
        let (before, after) = text.as_bytes().split_at(at);
        all.push([spelt(before), spelt(after)].concat());
    }
    all
}

/// The pieces that come out, and the stop string that ended them.
fn stream(ids: &[u32], stops: &[&str]) -> (Vec<String>, Option<String>) {
    let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
    let mut output = OutputText::new(TEXT.clone(), stops, false);
    let mut pieces = Vec::new();
    let mut ended = None;
    for id in ids {
        let piece = output.push(*id).expect("text");
        assert!(ended.is_none() || piece.text.is_empty(), "nothing comes behind a stop string");
        ended = ended.or(piece.stop);
        pieces.push(piece.text);
    }
    let piece = output.finish().expect("text");
    pieces.push(piece.text);
    (pieces, ended.or(piece.stop))
}

#[test]
fn every_spelling_streams_to_its_text_once() {
    for text in TEXTS {
        let own = text.matches('\u{fffd}').count();
        for ids in spellings(text) {
            let (pieces, stop) = stream(&ids, &[]);
            assert_eq!((pieces.concat().as_str(), stop), (text, None), "{ids:?}");
            assert_eq!(pieces.iter().map(|piece| piece.matches('\u{fffd}').count()).sum::<usize>(), own, "{pieces:?}");
            // What is out is a beginning of the text after every token, so nothing was repeated or taken back.
            let mut out = String::new();
            for piece in pieces {
                out += &piece;
                assert!(text.starts_with(&out), "{out:?}");
            }
        }
    }
}

#[test]
fn characters_come_out_with_their_last_byte() {
    for text in TEXTS {
        let ids = each_byte(text);
        let (pieces, _) = stream(&ids, &[]);
        let ends: Vec<usize> = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        for (at, piece) in pieces.iter().take(ids.len()).enumerate() {
            // A sign of its own looks like a broken one until something follows.
            let complete = ends.contains(&(at + 1)) && !text.contains('\u{fffd}');
            assert!(!complete || !piece.is_empty(), "{text:?}: byte {at} completes a character: {pieces:?}");
        }
    }
}

#[test]
fn stop_strings_never_leak_at_any_split() {
    for text in TEXTS {
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        for (i, start) in starts.iter().enumerate() {
            for end in &starts[i + 1..(i + 5).min(starts.len())] {
                let stop = &text[*start..*end];
                let at = text.find(stop).expect("it is there");
                // As the tokenizer spells it, byte by byte, and cut inside the stop string.
                let (before, after) = text.as_bytes().split_at(start + stop.len() / 2);
                let cut = [spelt(before), spelt(after)].concat();
                for ids in [TEXT.tokenizer.encode(text, false).expect("ids"), each_byte(text), cut] {
                    let (pieces, ended) = stream(&ids, &[stop, "never said"]);
                    assert_eq!(ended.as_deref(), Some(stop), "{text:?}");
                    assert_eq!(pieces.concat(), text[..at], "{stop:?} of {text:?}: {pieces:?}");
                }
            }
        }
    }
}

/// How often tokens are decoded for an answer of so many.
fn work(tokenizer: &Tokenizer, ids: &[u32], tokens: usize) -> u64 {
    let mut detokenizer = Detokenizer::new(false);
    for id in ids.iter().cycle().take(tokens) {
        detokenizer.push(tokenizer, *id).expect("text");
    }
    detokenizer.finish(tokenizer).expect("text");
    detokenizer.decoded_tokens()
}

#[test]
fn ten_thousand_tokens_are_decoded_in_linear_work() {
    const TOKENS: usize = 10_000;
    let broken: Vec<u32> = [0x80u8, 0xf0, 0x9f, 0xc3, 0x28, 0xff].iter().flat_map(|byte| spelt(&[*byte])).collect();
    let runs = TEXTS.iter().flat_map(|text| [TEXT.tokenizer.encode(text, false).expect("ids"), each_byte(text)]);
    for ids in runs.chain([broken]) {
        // The window and the context behind it: the window holds the context, a character's other bytes and the last token.
        let (once, twice) = (work(&TEXT.tokenizer, &ids, TOKENS), work(&TEXT.tokenizer, &ids, 2 * TOKENS));
        assert!(once <= 20 * TOKENS as u64, "{once} for {TOKENS} tokens");
        assert!(twice <= 2 * once + 1000, "{once} for {TOKENS} tokens, {twice} for twice as many");
    }
}

/// A vocabulary that falls back to bytes: its decoder reads a run of them as a whole, and tells all of it anew with each
/// byte more.
fn falling_back() -> Tokenizer {
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        (0..256).map(|byte| (format!("<0x{byte:02X}>"), byte.into())).collect();
    vocab.insert("a".into(), 256.into());
    vocab.insert("▁b".into(), 257.into());
    let file = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    Tokenizer::from_bytes(file.to_string().as_bytes()).expect("tokenizer")
}

#[test]
fn runs_of_fallback_bytes_stream_to_their_text_once() {
    let tokenizer = falling_back();
    for text in TEXTS.iter().filter(|text| !text.contains('\u{fffd}')) {
        // Words between the bytes, and none.
        for ids in [
            text.bytes().map(u32::from).collect::<Vec<_>>(),
            text.chars().flat_map(|c| c.to_string().into_bytes().into_iter().map(u32::from).chain([257])).collect(),
        ] {
            let mut detokenizer = Detokenizer::new(false);
            let mut out = String::new();
            let whole = tokenizer.decode(&ids, false).expect("text");
            for id in &ids {
                let piece = detokenizer.push(&tokenizer, *id).expect("text");
                assert!(!piece.contains('\u{fffd}'), "{text:?}");
                out += &piece;
                assert!(whole.starts_with(&out), "{out:?} of {whole:?}");
            }
            out += &detokenizer.finish(&tokenizer).expect("text");
            assert_eq!(out, whole);
        }
    }
}

#[test]
fn broken_runs_of_fallback_bytes_take_linear_work() {
    let tokenizer = falling_back();
    for bytes in [vec![0x80u32], "é東👩".bytes().map(u32::from).collect(), vec![0xc3, 0xc3, 0xa9], vec![256, 0xf0]]
    {
        let (once, twice) = (work(&tokenizer, &bytes, 10_000), work(&tokenizer, &bytes, 20_000));
        assert!(twice <= 2 * once + 100_000, "{once}, {twice}");
    }
}

#[test]
fn a_run_of_spaces_has_the_tokens_of_its_parts() {
    // Two million, where the tokenizer library's own splitter gives up in silence.
    const SPACES: usize = 2_000_000;
    let text = format!("{}the end", " ".repeat(SPACES));
    let ids = TEXT.tokenizer.encode(&text, false).expect("ids");
    let short = TEXT.tokenizer.encode(&format!("{}the end", " ".repeat(33)), false).expect("ids");
    let words = TEXT.tokenizer.encode(" the end", false).expect("ids");
    assert!(ids.ends_with(&words) && short.ends_with(&words));
    assert_eq!(TEXT.tokenizer.decode(&ids, false).expect("text"), text);
}
