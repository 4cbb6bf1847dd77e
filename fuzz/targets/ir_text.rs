//! Any text as a level of the IR (graph, sharded, kernel): reading may refuse it but never panic, and what is read prints as a text that reads
//! back as the same module and prints the same once more, with spans and without.
//!
//! Each input is tried as it is and as the entries of a module with facts, because chance rarely writes a whole header.
#![no_main]

use ir::{parse_kernels, parse_module, print_graph, print_kernels, print_module};
use libfuzzer_sys::fuzz_target;

const HEADER: &str = include_str!("../seeds/ir_text/header");

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for text in [text.to_owned(), format!("{HEADER}\n{text}")] {
        module(&text);
        kernels(&text);
    }
});

/// As [`module`], of the kernel level.
fn kernels(text: &str) {
    let Ok(kernels) = parse_kernels(text) else { return };
    let printed = print_kernels(&kernels, false);
    let again = parse_kernels(&printed).unwrap_or_else(|e| panic!("what was printed does not read: {e}\n{printed}"));
    assert_eq!(print_kernels(&again, false), printed, "printing is not stable");
    assert!(again == kernels || printed.to_ascii_lowercase().contains("nan"), "other kernels:\n{printed}");
    assert_eq!(print_kernels(&parse_kernels(&print_kernels(&kernels, true)).expect("reads"), false), printed);
    let _ = ir::verify_kernels(&kernels);
}

fn module(text: &str) {
    let module = match parse_module(text) {
        Ok(module) => module,
        Err(error) => {
            let lines = text.matches('\n').count() + 1;
            assert!(error.line >= 1 && error.line <= lines, "line {} of {lines}", error.line);
            return assert!(!error.to_string().contains('\n'), "an error is one line: {error}");
        }
    };
    let printed = print_module(&module, false);
    let again = parse_module(&printed).unwrap_or_else(|e| panic!("what was printed does not read: {e}\n{printed}"));
    assert_eq!(print_module(&again, false), printed, "printing is not stable");
    // A NaN differs from itself, so modules that hold one are compared by their texts alone.
    assert!(again == module || printed.to_ascii_lowercase().contains("nan"), "another module:\n{printed}");
    let spanned = parse_module(&print_module(&module, true)).map(|m| print_module(&m, false));
    assert_eq!(spanned, Ok(printed), "spans are comments");
    for entry in &module.entries {
        let _ = print_graph("first", &entry.first, &module.facts, false);
    }
    let _ = ir::verify_module(&module);
}
