//! Any text as a spec, and as block text over the built-in base: diagnostics, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spec::{Choices, Library, check_text, render};
use std::sync::OnceLock;

static LIBRARY: OnceLock<Library> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let library = LIBRARY.get_or_init(Library::embedded);
    let whole = check_text("fuzz.toml", text, library, &Choices::default());
    let _ = render(&whole.diagnostics, &whole.sources, false);
    assert!(whole.model.is_some() || spec::has_errors(&whole.diagnostics), "no model and no error");
    if !text.contains("'''") {
        let over = format!("extends = \"beam-nano\"\n[blocks]\ntext = '''\n{text}\n'''\n");
        let over = check_text("fuzz.toml", &over, library, &Choices::default());
        let _ = render(&over.diagnostics, &over.sources, false);
        assert!(over.model.is_some() || spec::has_errors(&over.diagnostics), "no model and no error");
    }
});
