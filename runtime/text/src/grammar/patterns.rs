//! Patterns of a schema as the library quotes them for JSON.

use super::ecma::NONE;
use regex_syntax::hir::{
    Capture, Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition,
};

/// The reason why an expression cannot be read.
pub(crate) fn reason(error: &regex_syntax::Error) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or("does not parse").trim_start_matches("error: ").to_owned()
}

/// The pattern in another form, where the library would quote it wrongly as it stands.
pub(crate) fn quotable(hir: &Hir) -> Option<String> {
    is_misquoted(hir).then(|| written(&without_last(hir)))
}

/// Control characters that JSON writes with a backslash, but for the line break.
const CONTROLS: std::ops::RangeInclusive<u32> = 0..=31;

/// Whether the library would take a quote or a backslash for one of the class's control characters: it does where all of them, or
/// all but the line break, are in the class and one of those two is not.
fn is_misread(class: &Class) -> bool {
    let has = |code: u32| match class {
        Class::Unicode(class) => {
            class.iter().any(|range| u32::from(range.start()) <= code && code <= u32::from(range.end()))
        }
        Class::Bytes(class) => {
            class.iter().any(|range| u32::from(range.start()) <= code && code <= u32::from(range.end()))
        }
    };
    CONTROLS.filter(|code| *code != 10).all(has) && !(has(u32::from('"')) && has(u32::from('\\')))
}

fn is_misquoted(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Class(class) => is_misread(class),
        HirKind::Repetition(repetition) => is_misquoted(&repetition.sub),
        HirKind::Capture(capture) => is_misquoted(&capture.sub),
        HirKind::Concat(all) | HirKind::Alternation(all) => all.iter().any(is_misquoted),
        _ => false,
    }
}

/// The same without the last control character in such classes, which nobody misses.
fn without_last(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) if is_misread(&Class::Unicode(class.clone())) => {
            let mut kept = class.clone();
            kept.difference(&ClassUnicode::new([ClassUnicodeRange::new('\u{1f}', '\u{1f}')]));
            Hir::class(Class::Unicode(kept))
        }
        HirKind::Class(Class::Bytes(class)) if is_misread(&Class::Bytes(class.clone())) => {
            let mut kept = class.clone();
            kept.difference(&ClassBytes::new([ClassBytesRange::new(0x1f, 0x1f)]));
            Hir::class(Class::Bytes(kept))
        }
        HirKind::Repetition(repetition) => {
            let Repetition { min, max, greedy, .. } = *repetition;
            Hir::repetition(Repetition { min, max, greedy, sub: Box::new(without_last(&repetition.sub)) })
        }
        HirKind::Capture(capture) => {
            Hir::capture(Capture { index: 0, name: None, sub: Box::new(without_last(&capture.sub)) })
        }
        HirKind::Concat(all) => Hir::concat(all.iter().map(without_last).collect()),
        HirKind::Alternation(all) => Hir::alternation(all.iter().map(without_last).collect()),
        _ => hir.clone(),
    }
}

/// An expression with its assertions at the ends.
fn written(hir: &Hir) -> String {
    match hir.kind() {
        HirKind::Look(Look::Start) => "^".to_owned(),
        HirKind::Look(Look::End) => "$".to_owned(),
        HirKind::Capture(capture) => format!("(?:{})", written(&capture.sub)),
        HirKind::Concat(all) => all.iter().map(written).collect(),
        HirKind::Alternation(all) => format!("(?:{})", all.iter().map(written).collect::<Vec<_>>().join("|")),
        HirKind::Repetition(repetition) => {
            let most = repetition.max.map_or(String::new(), |most| most.to_string());
            format!("(?:{}){{{},{most}}}", written(&repetition.sub), repetition.min)
        }
        HirKind::Empty => "(?:)".to_owned(),
        // Printed, it would be other characters in the syntax of schemas.
        HirKind::Class(class) if class.is_empty() => NONE.to_owned(),
        _ => hir.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_classes_that_would_be_misread_lose_a_character() {
        let of = |pattern: &str| quotable(&regex_syntax::parse(pattern).unwrap());
        for fine in ["^.*$", r"^[^a]+$", r"[\x00-\x1e]", r"^[\x00-\x7f]$", "abc", r"\S+"] {
            assert_eq!(of(fine), None, "{fine}");
        }
        for pattern in ["^[^\"]*$", r"[\x00-\x1f]{3}", r"^(?:a|[^\\\n])$", r"(?-u:[\x00-\x21])"] {
            let written = of(pattern).unwrap_or_else(|| panic!("{pattern} would be misread"));
            let hir = regex_syntax::parse(&written).unwrap();
            assert!(!is_misquoted(&hir), "{written}");
            assert_eq!(
                (pattern.starts_with('^'), pattern.ends_with('$')),
                (written.starts_with('^'), written.ends_with('$'))
            );
        }
    }
}
