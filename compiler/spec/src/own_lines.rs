//! Errors in the text of a base that follow from a line of the user's own tables: that line is told as well.
//!
//! The text of a base was right before the user's file changed what its names mean, so the line that changed it is
//! what he can mend.

use crate::diag::{Diagnostic, Severity};
use crate::document::{Node, Table};
use crate::merge::Merged;
use crate::{Sources, document::Kind};
use ir::Span;

/// Tables whose entries the block text reads by name.
const READ_BY_NAME: [&str; 6] = ["values", "options", "schedule", "dims", "kv", "weights"];

/// Adds, to each error that has no place in the user's file, the line of it that gives a name at the error's place.
pub(crate) fn tell(merged: &Merged, sources: &Sources, out: &mut [Diagnostic]) {
    if !merged.derived {
        return;
    }
    for d in out.iter_mut().filter(|d| d.severity == Severity::Error) {
        let Some(primary) = d.primary.as_ref().map(|l| l.span).filter(|s| s.file != 0) else { continue };
        if d.notes.iter().any(|n| n.span.file == 0) {
            continue;
        }
        let range = primary.start as usize..primary.end as usize;
        let line = sources.text(primary.file).get(range).and_then(|t| t.lines().next()).unwrap_or("");
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let Some((name, key, node)) = words.find_map(|w| own(merged, w).map(|(key, node)| (w.to_owned(), key, node)))
        else {
            continue;
        };
        settle(d, &name, key, node, sources);
    }
}

/// The entry of this name in the user's file.
fn own<'m>(merged: &'m Merged, name: &str) -> Option<(Span, &'m Node)> {
    let layer = merged.table("layer").and_then(|t| t.get("weights")).and_then(|(_, n)| n.table());
    let tables = READ_BY_NAME.iter().filter_map(|t| merged.table(t)).chain(layer);
    let entry = |table: &'m Table| table.get(name).filter(|(key, _)| key.file == 0).map(|(key, node)| (*key, node));
    tables.filter_map(entry).next()
}

fn settle(d: &mut Diagnostic, name: &str, key: Span, node: &Node, sources: &Sources) {
    if matches!(&node.kind, Kind::Text(t) if t == "none") {
        let help = format!("give `{name}` back, or write functions of your own in place of those that read it");
        (d.help, d.fix) = (Some(help), None);
        d.notes.push(crate::Label { span: key, text: format!("`{name}` is \"none\" here") });
        return;
    }
    // The misspelt word itself, if it stands in the entry.
    let raw = sources.text(node.span.file).get(node.span.start as usize..node.span.end as usize).unwrap_or("");
    let fix = d.fix.as_mut().filter(|fix| !fix.stands(sources));
    let place = fix.and_then(|fix| {
        let start = node.span.start + raw.find(&fix.from)? as u32;
        fix.span = Span { start, end: start + fix.from.len() as u32, ..node.span };
        Some(fix.span)
    });
    let text = if place.is_some() { "said here".to_owned() } else { format!("`{name}` is said here") };
    d.notes.push(crate::Label { span: place.unwrap_or(key), text });
}
