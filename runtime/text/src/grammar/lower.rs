//! From what a request asks for to the text of a grammar, and from that to a compiled one.

use super::compiler::{Grammar, first_line};
use super::region::Text;
use super::tokens::Vocabulary;
use super::turn::{text_closers, turn};
use super::writer::{Budget, Writer, quoted, slashed};
use super::{Choice, GrammarError, GrammarSpec, ToolSpec, TurnPlace, TurnSpec};
use super::{ebnf, guard, prepared, structural};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Compiles a Lark text for a use.
pub(crate) type Compile<'a> = &'a mut dyn FnMut(String, Use) -> Result<Arc<Grammar>, String>;

/// What a grammar is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Answers follow it: it is kept.
    Answers,
    /// Whether it can be: nobody follows it, and it takes no other's place.
    Trial,
}

/// Text that is common and quick to admit: masks are kept for it. It is without the line ends that `.` does not mean, so that
/// patterns with it admit it as a whole.
pub(crate) fn slices() -> Vec<String> {
    let json = r#"[^"\\\x00-\x1F\x7F\x{2028}\x{2029}]"#;
    vec![r"[ \t\r\n]+".to_owned(), format!("{json}{{1,10}}"), format!("{json}{{1,30}}"), format!("{json}+")]
}

/// Compiles a request's wish.
pub(crate) fn compiled(
    vocabulary: &Arc<Vocabulary>,
    spec: &GrammarSpec,
    budget: Budget,
    compile: Compile,
) -> Result<Arc<Grammar>, GrammarError> {
    match spec {
        GrammarSpec::Turn(spec) => compiled_turn(vocabulary, spec, budget, compile),
        spec => compiled_alone(vocabulary, spec, budget, false, Use::Answers, compile),
    }
}

/// Compiles what is no turn, by itself; `in_turn` tells whether it is to stand in one.
fn compiled_alone(
    vocabulary: &Arc<Vocabulary>,
    spec: &GrammarSpec,
    budget: Budget,
    in_turn: bool,
    for_what: Use,
    compile: Compile,
) -> Result<Arc<Grammar>, GrammarError> {
    let mut writer = Writer::new(Arc::clone(vocabulary), budget);
    writer.in_turn = in_turn;
    let start = lowered(&mut writer, spec)?;
    compile(writer.finish(&start)?, for_what).map_err(|error| {
        // The library tells places in the text that it was given: the request's own, then.
        let own = match spec {
            GrammarSpec::Lark(text) => compile(text.clone(), Use::Trial).err(),
            _ => None,
        };
        match own {
            Some(own) => bad_lark(&own),
            None => match spec {
                GrammarSpec::JsonSchema { schema, .. } => refused_schema(place(spec), schema, &error),
                _ => refused(place(spec), &error),
            },
        }
    })
}

/// The text that is compiled for a request's wish, or that is tried first.
pub(crate) fn text(vocabulary: &Arc<Vocabulary>, spec: &GrammarSpec, budget: Budget) -> Result<String, GrammarError> {
    if let GrammarSpec::Turn(spec) = spec {
        return held(vocabulary, spec, budget, &mut BTreeSet::new());
    }
    let mut writer = Writer::new(Arc::clone(vocabulary), budget);
    let start = lowered(&mut writer, spec)?;
    writer.finish(&start)
}

fn refused(place: &str, error: &str) -> GrammarError {
    let problem = first_line(error);
    // Where it stands in the text that was made of it is nobody's business.
    let own = problem.split_once("failed to compile JSON schema: ").map_or(problem.as_str(), |(_, own)| own);
    if own.contains("lookarounds not supported") {
        let problem = "has an assertion (`^`, `$`, `\\b`) where more text may stand, which cannot be held";
        return GrammarError::bad(place, problem, "leave it out");
    }
    GrammarError::bad(place, located(own).1, "correct or simplify it")
}

/// The same for what was made of a schema: where no value is of it, with what shows why.
fn refused_schema(place: &str, schema: &Value, error: &str) -> GrammarError {
    // The library's words for that, at the beginning of a sentence and inside one. Where they change, the tests of empty ranges and
    // impossible patterns show it.
    let is_empty = ["nsatisfiable", "empty"].iter().any(|word| error.contains(word));
    match prepared::emptiness(schema).filter(|_| is_empty) {
        Some(problem) => GrammarError::bad(&problem.below(place), problem.problem, "correct it"),
        None => refused(place, error),
    }
}

/// The problem of a Lark text, with the line and column in it.
fn bad_lark(error: &str) -> GrammarError {
    let (at, problem) = located(&first_line(error));
    let at = at.map_or(String::new(), |(line, column)| format!("line {line}, column {column}: "));
    GrammarError::bad("lark", format!("{at}{problem}"), "correct or simplify it")
}

/// The library puts `line(column): ` before a problem, sometimes more than once, the innermost last.
fn located(error: &str) -> (Option<(usize, usize)>, String) {
    let (mut place, mut rest) = (None, error);
    while let Some((before, behind)) = rest.trim_start_matches("at ").split_once("): ")
        && let Some((line, column)) = before.split_once('(')
        && let (Ok(line), Ok(column)) = (line.parse(), column.parse())
    {
        (place, rest) = (Some((line, column)), behind);
    }
    (place, rest.to_owned())
}

/// What a field of that kind is called.
pub(crate) fn place(spec: &GrammarSpec) -> &'static str {
    match spec {
        GrammarSpec::JsonSchema { .. } => "schema",
        GrammarSpec::JsonObject => "json_object",
        GrammarSpec::Regex(_) => "regex",
        GrammarSpec::Lark(_) => "lark",
        GrammarSpec::Ebnf(_) => "ebnf",
        GrammarSpec::Choice(_) => "choice",
        GrammarSpec::StructuralTag(_) => "structural_tag",
        GrammarSpec::Turn(_) => "tools",
    }
}

/// Content of a rule.
pub(crate) fn lowered(writer: &mut Writer, spec: &GrammarSpec) -> Result<String, GrammarError> {
    Ok(match spec {
        GrammarSpec::JsonSchema { schema, strict } => writer.schema("schema", schema, *strict)?,
        GrammarSpec::JsonObject => writer.json(&json!({"type": "object"}), false),
        GrammarSpec::Regex(regex) => {
            writer.left.expression("regex", regex)?;
            writer.terminal(&slashed(regex))
        }
        GrammarSpec::Lark(text) => {
            guard::lark("lark", text)?;
            guard::tokens("lark", text, writer)?;
            writer.rule(&format!("%lark {{\n{text}\n}}"))
        }
        GrammarSpec::Choice(texts) if texts.is_empty() => {
            return Err(GrammarError::bad("choice", "is empty", "give at least one text"));
        }
        GrammarSpec::Choice(texts) => {
            guard::choice("choice", texts.len())?;
            let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            texts.join(" | ")
        }
        GrammarSpec::Ebnf(text) => ebnf::lowered(writer, text)?,
        GrammarSpec::StructuralTag(tag) => structural::lowered(writer, tag)?,
        GrammarSpec::Turn(_) => {
            return Err(GrammarError::bad(place(spec), "is a turn inside another grammar", "give it another grammar"));
        }
    })
}

/// Whether the expression that [`raw_text`] makes of a grammar can be compiled at a reasonable cost.
fn guard_text(writer: &mut Writer, place: &str, spec: &GrammarSpec) -> Result<(), GrammarError> {
    match spec {
        GrammarSpec::Regex(regex) => writer.left.expression(place, regex),
        GrammarSpec::Ebnf(text) => ebnf::regex(text).map_or(Ok(()), |regex| writer.left.expression(place, &regex)),
        GrammarSpec::Lark(text) => guard::tokens(place, text, writer),
        GrammarSpec::Choice(texts) => guard::choice(place, texts.len()),
        _ => Ok(()),
    }
}

/// The grammar as a language of texts, if it is one of an expression.
pub(crate) fn raw_text(spec: &GrammarSpec) -> Option<Text> {
    match spec {
        GrammarSpec::Regex(regex) => {
            let hir = regex_syntax::parse(regex).ok()?;
            Some(Text { language: Some(slashed(regex)), may_be_empty: hir.properties().minimum_len() == Some(0) })
        }
        GrammarSpec::Choice(texts) if !texts.is_empty() => {
            let all: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            Some(Text { language: Some(all.join(" | ")), may_be_empty: texts.iter().any(String::is_empty) })
        }
        GrammarSpec::Ebnf(text) => raw_text(&GrammarSpec::Regex(ebnf::regex(text)?)),
        _ => None,
    }
}

/// Compiles a turn. A tool whose schema cannot be held is refused if it is strict, and free otherwise; which one it is shows
/// when each is compiled alone, as long as there is time for that.
fn compiled_turn(
    vocabulary: &Arc<Vocabulary>,
    spec: &TurnSpec,
    budget: Budget,
    compile: Compile,
) -> Result<Arc<Grammar>, GrammarError> {
    let mut free = BTreeSet::new();
    texts_alone(vocabulary, spec, budget, compile)?;
    let mut outcome = compile(held(vocabulary, spec, budget, &mut free)?, Use::Answers);
    if outcome.is_err() {
        alone(vocabulary, spec, budget, compile, &mut free)?;
        if let Some(answer) = &spec.answer {
            compiled_alone(vocabulary, answer, budget, true, Use::Trial, compile)?;
        }
        outcome = compile(held(vocabulary, spec, budget, &mut free)?, Use::Answers);
    }
    // Each holds alone, so it is the answer among the template's markup that does not.
    let whole = spec.answer.as_ref().map_or("tools", place);
    let mut grammar = outcome.map_err(|error| refused(whole, &error))?;
    let closers = text_closers(spec, vocabulary);
    if spec.goes_on && !closers.is_empty() {
        grammar = grammar.closed_by(closers);
    }
    if spec.place != TurnPlace::Answer || spec.answer.is_none() || spec.begun.is_empty() {
        return Ok(grammar);
    }
    grammar.behind(&vocabulary.spelt(spec.begun.as_bytes()))
}

/// Compiles the grammars of a request's own that are no schemas alone: those that cannot even be begun show here, and not when an
/// answer comes to them.
fn texts_alone(
    vocabulary: &Arc<Vocabulary>,
    spec: &TurnSpec,
    budget: Budget,
    compile: Compile,
) -> Result<(), GrammarError> {
    for (i, tool) in callable(spec) {
        for (name, held) in &tool.held {
            budget.in_time("tools")?;
            compiled_alone(vocabulary, held, budget, true, Use::Trial, compile)
                .map_err(|error| error.at(&format!("tools.{i}.held.{name}")))?;
        }
    }
    match &spec.answer {
        None | Some(GrammarSpec::JsonSchema { .. } | GrammarSpec::JsonObject | GrammarSpec::Turn(_)) => Ok(()),
        Some(answer) => compiled_alone(vocabulary, answer, budget, true, Use::Trial, compile).map(drop),
    }
}

/// The tools that may be called, with their places among all.
fn callable(spec: &TurnSpec) -> impl Iterator<Item = (usize, &ToolSpec)> {
    spec.tools.iter().enumerate().filter(|(_, tool)| match &spec.choice {
        Choice::None => false,
        Choice::Named(name) => *name == tool.name,
        Choice::Auto | Choice::Required => true,
    })
}

/// Compiles each tool that may be called alone; adds to `free` those that cannot be.
fn alone(
    vocabulary: &Arc<Vocabulary>,
    spec: &TurnSpec,
    budget: Budget,
    compile: Compile,
    free: &mut BTreeSet<usize>,
) -> Result<(), GrammarError> {
    for (i, tool) in callable(spec) {
        if free.contains(&i) {
            continue;
        }
        budget.in_time("tools")?;
        let one = TurnSpec {
            template: Arc::clone(&spec.template),
            tools: vec![tool.clone()],
            choice: Choice::Named(tool.name.clone()),
            parallel: spec.parallel,
            answer: None,
            place: TurnPlace::AfterReasoning,
            begun: String::new(),
            goes_on: false,
        };
        let Err(error) = compile(held(vocabulary, &one, budget, &mut BTreeSet::new())?, Use::Trial) else { continue };
        if tool.strict {
            return Err(refused_schema(&format!("tools.{i}.parameters"), &tool.parameters, &error));
        }
        free.insert(i);
    }
    Ok(())
}

/// The text of a turn's grammar; adds to `free` the tools whose schemas cannot be held.
fn held(
    vocabulary: &Arc<Vocabulary>,
    spec: &TurnSpec,
    budget: Budget,
    free: &mut BTreeSet<usize>,
) -> Result<String, GrammarError> {
    let mut writer = Writer::new(Arc::clone(vocabulary), budget);
    writer.in_turn = true;
    for (i, tool) in spec.tools.iter().enumerate() {
        budget.in_time("tools")?;
        writer.left.schema(&format!("tools.{i}.parameters"), &tool.parameters)?;
        for (name, held) in &tool.held {
            guard_text(&mut writer, &format!("tools.{i}.held.{name}"), held)?;
        }
    }
    if let Some(answer) = &spec.answer {
        guard_text(&mut writer, place(answer), answer)?;
    }
    let start = turn(&mut writer, spec, free)?;
    writer.finish(&start)
}
