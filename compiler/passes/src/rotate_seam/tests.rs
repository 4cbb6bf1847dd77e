//! Which values rotate, and what the graphs then look like. Cases that must not rotate are made by editing the text of
//! one that does.

use super::run;
use crate::testing::{text, two_kind_model};
use crate::{Note, canonicalise, flatten};
use ir::Module;

fn before() -> Module {
    canonicalise::run(&flatten::run(&two_kind_model()).unwrap(), &mut Vec::new()).unwrap()
}

/// The module with a piece of its text replaced: in the nth graph that has it, counted from 0.
fn edited(from: &str, to: &str, nth: usize) -> Module {
    let source = ir::print_module(&before(), false);
    let (at, _) = source.match_indices(from).nth(nth).expect("the piece occurs");
    let text = format!("{}{to}{}", &source[..at], &source[at + from.len()..]);
    let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    ir::verify_module(&module).unwrap_or_else(|e| panic!("{e:?}"));
    module
}

fn rotated(module: &Module) -> (Module, Vec<Note>) {
    let mut notes = Vec::new();
    let after = run(module, &mut notes).unwrap();
    ir::verify_module(&after).unwrap_or_else(|e| panic!("{e:?}"));
    (canonicalise::run(&after, &mut Vec::new()).unwrap(), notes)
}

fn stays(module: &Module, because: &str) {
    let (after, notes) = rotated(module);
    assert_eq!(after, canonicalise::run(module, &mut Vec::new()).unwrap());
    let messages: Vec<&str> = notes.iter().map(|n| n.message.as_str()).collect();
    assert!(matches!(messages.as_slice(), [one] if one.contains(because)), "{messages:?}");
}

#[test]
fn the_input_norm_moves_to_the_end_of_the_layer_before() {
    let (after, notes) = rotated(&before());
    assert_eq!(notes, []);
    let entry = &after.entries[0];
    insta::assert_snapshot!([&entry.first, &entry.classes[0].graph, &entry.last].map(text).join("\n"));
}

#[test]
fn a_tail_without_gather_reads_the_rotated_value_as_it_is() {
    // The tail's gather is replaced by a rename to the rows it would have had, so that it works on all of them.
    let source = ir::print_module(&before(), false);
    let (head, tail) = source.split_at(source.find("graph last").unwrap());
    let tail = tail.replace("(%rows, %x)", "(%x)").replace("    %rows: i32[R] = input rows\n", "");
    let gather = tail.lines().find(|l| l.contains("gather over T")).unwrap().to_owned();
    let gathered = gather.trim().split(':').next().unwrap().to_owned();
    let tail = tail
        .replace(&format!("{gather}\n"), "")
        .replace(&gathered, "%x")
        .replace("[R", "[T")
        .replace("R = rows", "T = rows");
    let text = format!("{head}{}", tail.replace("T = rows, T = rows", "T = rows").replace("(%x, %rows)", "(%x)"));
    let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let (after, notes) = rotated(&module);
    assert_eq!(notes, []);
    let last = crate::testing::text(&after.entries[0].last);
    assert!(last.contains("= linear over [hidden] order any (%norm, "), "{last}");
}

#[test]
fn a_class_that_computes_it_otherwise_keeps_it() {
    // Another epsilon in the second class.
    stays(&edited("literal [1e-6]", "literal [1e-5]", 1), "not every class computes it");
}

#[test]
fn a_tail_that_computes_otherwise_keeps_it() {
    stays(&edited("literal [1e-6]", "literal [1e-5]", 2), "what follows the last layer");
    stays(&edited("order fold", "order serial", 2), "what follows the last layer");
}

#[test]
fn a_weight_that_some_layer_lacks_keeps_it() {
    let mut module = before();
    for weight in &mut module.facts.weights {
        if weight.name == "input_norm" {
            weight.when = Some(ir::When { column: "attn".to_owned(), kind: "near".to_owned() });
        }
    }
    let mut notes = Vec::new();
    let after = run(&module, &mut notes).unwrap();
    assert_eq!(after, module);
    assert!(notes[0].message.contains("not every layer has `W.input_norm`"), "{notes:?}");
}

#[test]
fn a_number_of_the_layer_keeps_it() {
    let module = edited("literal [8.0]", "scalar (l + 8.0)", 0);
    let (after, notes) = rotated(&module);
    // In one class it is no head at all, so the other class has nobody to agree with; nothing rotates.
    assert_eq!(after, canonicalise::run(&module, &mut Vec::new()).unwrap());
    assert_eq!(notes, []);
}
