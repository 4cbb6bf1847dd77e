//! A compiler for the example's tokenizer, which waits for as long as a busy machine takes; shared by the tests of grammars.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::PathBuf;
use std::sync::LazyLock;
use text::grammar::*;
use text::{Tokenizer, stop_tokens};

static FOLDER: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano"));
pub static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::load(&FOLDER.join("tokenizer.json")).expect("tokenizer"));
pub static COMPILER: LazyLock<Compiler> = LazyLock::new(|| {
    let tokenizer = Tokenizer::load(&FOLDER.join("tokenizer.json")).expect("tokenizer");
    let limits = Limits { time: std::time::Duration::from_secs(600), ..Limits::default() };
    Compiler::new(tokenizer.into(), &stop_tokens(&FOLDER, &[]).expect("stop tokens"), limits).expect("compiler")
});

/// Whether a text is admitted, or the place and text of the error that refuses the grammar.
pub fn judged(spec: &GrammarSpec, text: &str) -> Result<bool, (String, String)> {
    match COMPILER.compile(spec) {
        Ok(grammar) => Ok(COMPILER.admits(&grammar, text).expect("matcher")),
        Err(error) => {
            assert!(error.is_request(), "{error}");
            Err((error.place().unwrap_or_default().to_owned(), error.to_string()))
        }
    }
}
