//! A template's patterns as parts of a grammar: control tokens by id, the rest as texts and expressions.

use super::writer::{Piece, Writer, slashed};
use regex_syntax::hir::{Hir, HirKind};

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text, an expression or a control token.
    Piece(Piece),
    /// May be left out.
    Maybe(Vec<Part>),
    /// One of these.
    Either(Vec<Vec<Part>>),
}

/// Parts one after another.
pub(crate) type Parts = Vec<Part>;

/// The pattern's parts; `fill` says which text a named group must have. `None` for a repetition of control tokens.
pub(crate) fn parts(writer: &Writer, hir: &Hir, fill: &dyn Fn(&str) -> Option<String>) -> Option<Parts> {
    let mut out = Vec::new();
    add(writer, hir, fill, &mut out)?;
    Some(merged(out))
}

fn add(writer: &Writer, hir: &Hir, fill: &dyn Fn(&str) -> Option<String>, out: &mut Parts) -> Option<()> {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            out.extend(writer.pieces(text).into_iter().map(Part::Piece));
        }
        HirKind::Class(_) => out.push(Part::Piece(Piece::Regex(hir.to_string()))),
        HirKind::Look(_) => return None,
        HirKind::Capture(capture) => match capture.name.as_deref().and_then(fill) {
            Some(text) => out.push(Part::Piece(Piece::Text(text))),
            None => add(writer, &capture.sub, fill, out)?,
        },
        HirKind::Concat(all) => all.iter().try_for_each(|one| add(writer, one, fill, out))?,
        HirKind::Alternation(all) => {
            let options: Vec<Parts> = all.iter().map(|one| parts(writer, one, fill)).collect::<Option<_>>()?;
            match options.iter().map(|option| plain(option)).collect::<Option<Vec<_>>>() {
                Some(plain) => out.push(Part::Piece(Piece::Regex(format!("(?:{})", plain.join("|"))))),
                None => out.push(Part::Either(options)),
            }
        }
        HirKind::Repetition(repetition) => {
            let inner = parts(writer, &repetition.sub, fill)?;
            match plain(&inner) {
                Some(regex) => {
                    let most = repetition.max.map_or(String::new(), |max| max.to_string());
                    out.push(Part::Piece(Piece::Regex(format!("(?:{regex}){{{},{most}}}", repetition.min))));
                }
                None if repetition.min == 0 && repetition.max == Some(1) => out.push(Part::Maybe(inner)),
                None => return None,
            }
        }
    }
    Some(())
}

/// Neighbouring texts and expressions as one, as a lexer must read them together.
pub(crate) fn merged(all: Parts) -> Parts {
    let mut out: Parts = Vec::with_capacity(all.len());
    for part in all {
        match (out.last_mut(), part) {
            (Some(Part::Piece(Piece::Text(a))), Part::Piece(Piece::Text(b))) => a.push_str(&b),
            (Some(Part::Piece(last)), Part::Piece(next)) if as_regex(last).is_some() && as_regex(&next).is_some() => {
                let both = as_regex(last).unwrap_or_default() + &as_regex(&next).unwrap_or_default();
                *last = Piece::Regex(both);
            }
            (_, part) => out.push(part),
        }
    }
    out
}

fn as_regex(piece: &Piece) -> Option<String> {
    match piece {
        Piece::Control(_) => None,
        Piece::Text(text) => Some(regex_syntax::escape(text)),
        Piece::Regex(regex) => Some(regex.clone()),
    }
}

/// The parts as one expression, if there is no control token in them.
pub(crate) fn plain(parts: &[Part]) -> Option<String> {
    let each = parts.iter().map(|part| match part {
        Part::Piece(piece) => as_regex(piece),
        Part::Maybe(inner) => plain(inner).map(|inner| format!("(?:{inner})?")),
        Part::Either(options) => {
            let options: Option<Vec<String>> = options.iter().map(|option| plain(option)).collect();
            options.map(|options| format!("(?:{})", options.join("|")))
        }
    });
    each.collect::<Option<Vec<_>>>().map(|all| all.concat())
}

/// The control token that they begin with.
pub(crate) fn first_control(parts: &[Part]) -> Option<u32> {
    match parts.first() {
        Some(Part::Piece(Piece::Control(id))) => Some(*id),
        _ => None,
    }
}

/// Whether every text of theirs has a control token in it, so that nothing which merely spells one is one of them.
pub(crate) fn has_control(parts: &[Part]) -> bool {
    parts.iter().any(|part| match part {
        Part::Piece(Piece::Control(_)) => true,
        Part::Piece(_) | Part::Maybe(_) => false,
        Part::Either(options) => options.iter().all(|option| has_control(option)),
    })
}

/// The parts as content of a rule.
pub(crate) fn written(writer: &mut Writer, parts: &[Part]) -> String {
    let all: Vec<String> = parts
        .iter()
        .map(|part| match part {
            Part::Piece(Piece::Regex(regex)) => {
                let empty = regex_syntax::parse(regex).is_ok_and(|hir| hir.properties().minimum_len() == Some(0));
                match empty {
                    // A terminal that matches nothing is none.
                    true => format!("({})?", writer.terminal(&format!("{} & /(?s:.+)/", slashed(regex)))),
                    false => writer.terminal(&slashed(regex)),
                }
            }
            Part::Piece(piece) => writer.sequence(std::slice::from_ref(piece)),
            Part::Maybe(inner) => format!("({})?", written(writer, inner)),
            Part::Either(options) => {
                let options: Vec<String> = options.iter().map(|option| written(writer, option)).collect();
                format!("({})", options.join(" | "))
            }
        })
        .collect();
    if all.is_empty() { "\"\"".to_owned() } else { all.join(" ") }
}

/// A text of the pattern's language as an expression, groups and all, control tokens as mere text.
pub(crate) fn spelt(hir: &Hir) -> String {
    match hir.kind() {
        HirKind::Capture(capture) => spelt(&capture.sub),
        HirKind::Concat(all) => all.iter().map(spelt).collect(),
        HirKind::Alternation(all) => format!("(?:{})", all.iter().map(spelt).collect::<Vec<_>>().join("|")),
        HirKind::Repetition(r) => {
            let most = r.max.map_or(String::new(), |max| max.to_string());
            format!("(?:{}){{{},{most}}}", spelt(&r.sub), r.min)
        }
        HirKind::Empty | HirKind::Look(_) => String::new(),
        HirKind::Literal(_) | HirKind::Class(_) => hir.to_string(),
    }
}
