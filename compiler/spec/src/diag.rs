//! Diagnostics: a code, one sentence, the place in the user's file, the facts in conflict, a next step.

use crate::{Sources, codes};
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use ir::Span;

/// How serious a diagnostic is. Errors sort before warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing can be compiled.
    Error,
    /// Worth a look; each has a way to say that it is meant.
    Warning,
}

/// A place and what is to be said of it.
#[derive(Clone, Debug)]
pub struct Label {
    /// Place.
    pub span: Span,
    /// A few words, the fact found there.
    pub text: String,
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Seriousness.
    pub severity: Severity,
    /// Code that `beamc explain` knows.
    pub code: &'static str,
    /// One sentence that states the condition.
    pub message: String,
    /// Where; absent only when no file could be read.
    pub primary: Option<Label>,
    /// The other facts.
    pub notes: Vec<Label>,
    /// What to do next.
    pub help: Option<String>,
    /// The text to write instead, where the finding is a misspelt name.
    pub fix: Option<Fix>,
}

/// A replacement that settles a finding.
#[derive(Clone, Debug)]
pub struct Fix {
    /// What is replaced.
    pub span: Span,
    /// What stands there.
    pub from: String,
    /// What to write.
    pub to: String,
}

impl Diagnostic {
    /// An error without a place yet.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        debug_assert!(codes::explain(code).is_some(), "{code} has no explanation");
        Diagnostic {
            severity: Severity::Error,
            code,
            message: message.into(),
            primary: None,
            notes: Vec::new(),
            help: None,
            fix: None,
        }
    }

    /// A warning without a place yet.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, message) }
    }

    /// Sets the place and the fact found there.
    pub fn at(mut self, span: Span, text: impl Into<String>) -> Self {
        self.primary = Some(Label { span, text: text.into() });
        self
    }

    /// Adds the other fact.
    pub fn note(mut self, span: Option<Span>, text: impl Into<String>) -> Self {
        if let Some(span) = span {
            self.notes.push(Label { span, text: text.into() });
        }
        self
    }

    /// Sets the next step.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }

    /// The next step: what the finding says, or where its code is explained.
    pub fn next_step(&self) -> String {
        self.help.clone().unwrap_or_else(|| format!("`beamc explain {}` says what is allowed", self.code))
    }

    /// Of two facts in conflict, the one in the user's own file (the first) is the primary one: it is what he can change.
    pub(crate) fn point_at_the_users_file(&mut self) {
        if let Some(primary) = self.primary.as_mut().filter(|p| p.span.file != 0)
            && let Some(own) = self.notes.iter_mut().find(|n| n.span.file == 0)
        {
            std::mem::swap(primary, own);
        }
    }

    /// Appends "did you mean" if a known name is near the one at the place of the finding.
    pub fn nearest<'a>(self, wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        self.nearest_as(wanted, known, str::to_owned)
    }

    /// As [`Self::nearest`], with the name shown as it would be written.
    pub fn nearest_as<'a>(
        mut self,
        wanted: &str,
        known: impl IntoIterator<Item = &'a str>,
        shown: impl Fn(&str) -> String,
    ) -> Self {
        let mut known: Vec<&str> = known.into_iter().collect();
        let mut seen = std::collections::HashSet::new();
        known.retain(|k| seen.insert(*k));
        if let Some(name) = nearest(wanted, known.iter().copied()) {
            self.fix =
                self.primary.as_ref().map(|l| Fix { span: l.span, from: wanted.to_owned(), to: name.to_owned() });
            return self.help(format!("did you mean `{}`?", shown(name)));
        }
        match known.len() {
            0 => self,
            1..=MOST_LISTED => {
                let names: Vec<String> = known.into_iter().map(shown).collect();
                self.help(format!("known here: {}", names.join(", ")))
            }
            more => {
                let help = format!("none of the {more} names known here is near; `beamc explain {}`", self.code);
                self.help(help)
            }
        }
    }
}

impl Fix {
    /// Whether the text to replace is what stands at the place.
    pub(crate) fn stands(&self, sources: &Sources) -> bool {
        let range = self.span.start as usize..self.span.end as usize;
        sources.text(self.span.file).get(range) == Some(self.from.as_str())
    }
}

/// More names than this are not listed.
const MOST_LISTED: usize = 24;

/// The known name that is near enough to be meant.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |k: &&str| 1 + k.len().max(wanted.len()) / 4;
    let distances = known
        .into_iter()
        .filter(|k| may_be_within(wanted, k, near(k)))
        .map(|k| (strsim::damerau_levenshtein(wanted, k), k));
    distances.filter(|(d, k)| *d <= near(k) && *d < k.len().max(2)).min().map(|(_, name)| name)
}

/// Whether two words may be `most` edits apart, told by their letters alone: a quick no for almost every word.
fn may_be_within(a: &str, b: &str, most: usize) -> bool {
    if !a.is_ascii() || !b.is_ascii() {
        return true;
    }
    let mut letters = [0i32; 128];
    a.bytes().for_each(|c| letters[usize::from(c & 127)] += 1);
    b.bytes().for_each(|c| letters[usize::from(c & 127)] -= 1);
    let (more, fewer) = letters.iter().fold((0, 0), |(m, f), n| (m + n.max(&0), f - n.min(&0)));
    // An edit adds, removes or replaces one letter; one that swaps two changes none.
    more.max(fewer) as usize <= most
}

/// `1 name`, `2 names`.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Whether any diagnostic is an error.
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(|d| d.severity == Severity::Error)
}

/// Renders diagnostics for a person.
pub fn render(diagnostics: &[Diagnostic], sources: &Sources, colour: bool) -> String {
    let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    for d in diagnostics {
        out.push_str(&render_one(d, sources, &renderer));
        out.push_str("\n\n");
    }
    out
}

fn render_one(d: &Diagnostic, sources: &Sources, renderer: &Renderer) -> String {
    let level = match d.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = Group::with_title(level.primary_title(d.message.as_str()).id(d.code));
    let labels: Vec<(&Label, AnnotationKind)> = d
        .primary
        .iter()
        .map(|l| (l, AnnotationKind::Primary))
        .chain(d.notes.iter().map(|l| (l, AnnotationKind::Context)))
        .collect();
    let mut files: Vec<u32> = Vec::new();
    for (label, _) in &labels {
        if !files.contains(&label.span.file) {
            files.push(label.span.file);
        }
    }
    for file in files {
        let text = sources.text(file);
        let mut snippet = Snippet::source(text).path(sources.name(file)).line_start(1);
        for (label, kind) in labels.iter().filter(|(l, _)| l.span.file == file) {
            snippet = snippet.annotation(kind.span(clip(label.span, text)).label(label.text.as_str()));
        }
        group = group.element(snippet);
    }
    let help = d.next_step();
    group = group.element(Level::HELP.message(help.as_str()));
    renderer.render(&[group])
}

/// A span made safe to slice with: inside the text and on character boundaries.
fn clip(span: Span, text: &str) -> std::ops::Range<usize> {
    let mut start = (span.start as usize).min(text.len());
    let mut end = (span.end as usize).clamp(start, text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    while !text.is_char_boundary(end) {
        end += 1;
    }
    start..end
}

/// Renders diagnostics for a program: one JSON object each.
pub fn render_json(diagnostics: &[Diagnostic], sources: &Sources) -> serde_json::Value {
    let label = |l: &Label| {
        let (line, column) = sources.line_column(l.span);
        serde_json::json!({
            "file": sources.name(l.span.file), "line": line, "column": column,
            "start_byte": l.span.start, "end_byte": l.span.end, "text": l.text,
        })
    };
    diagnostics
        .iter()
        .map(|d| {
            serde_json::json!({
                "severity": match d.severity { Severity::Error => "error", Severity::Warning => "warning" },
                "code": d.code,
                "message": d.message,
                "at": d.primary.as_ref().map(label),
                "notes": d.notes.iter().map(label).collect::<Vec<_>>(),
                "help": d.next_step(),
                "fix": d.fix.as_ref().filter(|f| f.stands(sources)).map(|f| label(&Label { span: f.span, text: f.to.clone() })),
            })
        })
        .collect()
}

/// Whether a text is one line of visible characters: none that a terminal obeys, none that turns the line around.
pub fn is_plain(text: &str) -> bool {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !text.chars().any(|c| c.is_control() || turns(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_no_is_never_wrong() {
        let words = [
            "", "a", "ab", "ba", "heads", "head", "kv_heads", "sdaeh", "slidin", "sliding", "größe", "grosse",
            "experts",
        ];
        for a in words {
            for b in words {
                let distance = strsim::damerau_levenshtein(a, b);
                assert!((distance..10).all(|most| may_be_within(a, b, most)), "{a} {b}");
            }
        }
        assert!(!may_be_within("window", "theta", 2));
    }

    #[test]
    fn plain_texts_leave_a_terminal_alone() {
        assert!(["", "Beam 1.0 501B", "größe ⅔"].into_iter().all(is_plain));
        assert!(!["a\nb", "\u{1b}[31m", "a\u{202e}b", "\u{7f}"].into_iter().any(is_plain));
    }
}
