//! The grammar of a turn: reasoning, then calls or an answer, as the response template writes them.

use super::arguments::{Elements, matches, whole};
use super::pieces::{Part, Parts, first_control, has_control, parts, plain, spelt, written};
use super::prepared::{Fault, Problem, prepared};
use super::region::{Text, ended_text, open_text};
use super::schema::is_silent;
use super::tokens::Vocabulary;
use super::writer::{Piece, Writer, slashed};
use super::{Choice, GrammarError, GrammarSpec, ToolSpec, TurnPlace, TurnSpec, lower};
use crate::response::{CallContent, CallFormat, Field, Pattern, Role, loosened};
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_syntax::hir::{Capture, Hir, HirKind};
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap};

/// White space that may stand between regions where it belongs to none.
const GAP: &str = "[ \\t\\r\\n]{0,4}";

/// What closes a field's regions.
struct Closer {
    parts: Parts,
    /// The closer as mere text.
    spelt: String,
    /// A next message begins behind it.
    restarts: bool,
    /// It begins with a token that ends the answer, so nothing follows it.
    stops: bool,
    /// It is one text.
    is_literal: bool,
}

/// How calls are written: what every tool's rules are made of.
struct Calls<'a> {
    format: &'a CallFormat,
    opener: &'a Pattern,
    closers: Vec<Closer>,
    /// The elements of arguments that are written as such.
    elements: Option<Elements>,
    /// Tells whether the opener can carry a name.
    names: Option<PikeVM>,
}

/// A turn under construction.
struct Turn<'a> {
    writer: &'a mut Writer,
    spec: &'a TurnSpec,
    /// Tools whose arguments are free.
    free: &'a mut BTreeSet<usize>,
    /// Rules of the tools' arguments, which stand behind each closer.
    arguments: HashMap<usize, String>,
}

/// Content of a rule for the turn. Tools in `free` have schemas that cannot be held; others of that kind are added.
pub(crate) fn turn(writer: &mut Writer, spec: &TurnSpec, free: &mut BTreeSet<usize>) -> Result<String, GrammarError> {
    let mut turn = Turn { writer, spec, free, arguments: HashMap::new() };
    turn.check()?;
    match spec.place {
        TurnPlace::Call => {
            let next = "begin the generation at the start of a message or of an answer";
            Err(GrammarError::bad("messages", "end inside a call, where no turn grammar begins", next))
        }
        TurnPlace::Answer => match turn.field(Role::Content) {
            Some((index, field)) => turn.answer_text(index, field),
            None => Err(turn.cannot("content", "is absent")),
        },
        TurnPlace::AfterReasoning => turn.body(false),
        TurnPlace::MessageStart | TurnPlace::Reasoning => turn.reasoning_and_body(),
    }
}

impl<'a> Turn<'a> {
    fn cannot(&self, field: &str, problem: &str) -> GrammarError {
        let next = "serve this template without turn grammars";
        GrammarError::bad(&format!("response_template.fields.{field}"), problem, next)
    }

    /// Wishes that do not go together.
    fn check(&self) -> Result<(), GrammarError> {
        let spec = self.spec;
        match &spec.choice {
            Choice::Required if spec.tools.is_empty() => {
                return Err(GrammarError::bad("tool_choice", "is `required` and there are no tools", "declare some"));
            }
            Choice::Named(name) if !spec.tools.iter().any(|tool| tool.name == *name) => {
                let problem = format!("names `{name}`, which is not among the tools");
                return Err(GrammarError::bad("tool_choice", problem, "name a declared tool"));
            }
            _ => {}
        }
        let own = match &spec.answer {
            None | Some(GrammarSpec::JsonSchema { .. } | GrammarSpec::JsonObject) => return Ok(()),
            Some(GrammarSpec::Turn(_)) => {
                return Err(GrammarError::bad("answer", "is a turn inside a turn", "give the answer another grammar"));
            }
            Some(other) => lower::place(other),
        };
        let (callable, strict) = (self.callable(), spec.tools.iter().any(|tool| tool.strict));
        let other = match &spec.choice {
            Choice::Required => "tool_choice `required`",
            Choice::Named(_) => "a named tool_choice",
            Choice::Auto if callable && strict => "strict tools",
            Choice::Auto if callable && !spec.parallel => "parallel_tool_calls `false`",
            _ => return Ok(()),
        };
        let why = "such a grammar is the whole answer and no calls are held beside it".to_owned();
        Err(GrammarError::Conflict { first: own.to_owned(), second: other.to_owned(), why })
    }

    fn callable(&self) -> bool {
        self.spec.choice != Choice::None && !self.spec.tools.is_empty()
    }

    fn field(&self, role: Role) -> Option<(usize, &'a Field)> {
        self.spec.template.fields.iter().enumerate().find(|(_, field)| field.role == role)
    }

    fn reasoning_and_body(&mut self) -> Result<String, GrammarError> {
        let Some((index, field)) = self.field(Role::Reasoning) else { return self.body(false) };
        let Some(opener) = self.spec.template.opener(index) else {
            return Err(self.cannot("thinking", "has no opener"));
        };
        let closers = self.closers("thinking", field)?;
        let avoid: Vec<String> = closers.iter().map(|closer| closer.spelt.clone()).collect();
        let text = match self.spec.begun.is_empty() {
            true => thought(&avoid),
            false => Text::any(),
        };
        let mut ways = Vec::new();
        for closer in closers.iter().filter(|closer| !closer.stops) {
            let text = ended_text(self.writer, &text, &avoid, &closer.parts)
                .ok_or_else(|| self.cannot("thinking", "closes with text and a control token behind it"))?;
            let body = self.body(!closer.restarts)?;
            ways.push(format!("{text} ({body})"));
        }
        if ways.is_empty() {
            return Err(self.cannot("thinking", "has no closer that lets an answer follow"));
        }
        if self.spec.place == TurnPlace::Reasoning {
            return Ok(ways.join(" | "));
        }
        let opener = self.pattern("thinking.open", opener)?;
        let opener = written(self.writer, &opener);
        Ok(format!("{opener} ({})", ways.join(" | ")))
    }

    /// What follows the reasoning; with `gap`, the message may begin anew first.
    fn body(&mut self, gap: bool) -> Result<String, GrammarError> {
        let mut ways = Vec::new();
        if matches!(self.spec.choice, Choice::None | Choice::Auto) {
            ways.push(self.answer(gap)?);
        }
        if self.callable() {
            ways.push(self.calls(gap)?);
        }
        Ok(ways.join(" | "))
    }

    fn answer(&mut self, gap: bool) -> Result<String, GrammarError> {
        let Some((index, field)) = self.field(Role::Content) else { return Err(self.cannot("content", "is absent")) };
        let text = self.answer_text(index, field)?;
        let Some(opener) = self.spec.template.opener(index) else { return Ok(text) };
        let opener = self.pattern("content.open", opener)?;
        let opener = self.behind(gap, &opener)?;
        Ok(format!("{opener} ({text})"))
    }

    /// An answer from behind its opener on.
    fn answer_text(&mut self, index: usize, field: &Field) -> Result<String, GrammarError> {
        let closers = self.closers("content", field)?;
        // Free text spells no markup. What a request asks for may: who reads it tells control tokens from text that spells them.
        let is_own = self.spec.answer.is_some();
        let closing = closers.iter().filter(|closer| !(is_own && has_control(&closer.parts)));
        let mut avoid: Vec<String> = closing.map(|closer| closer.spelt.clone()).collect();
        if self.spec.template.rest == Some(index) {
            for opener in (0..self.spec.template.fields.len()).filter_map(|field| self.spec.template.opener(field)) {
                let read = parts(self.writer, opener.hir(), &|_| None);
                if !(is_own && read.is_some_and(|read| has_control(&read))) {
                    avoid.push(spelt(opener.hir()));
                }
            }
        }
        let text = match &self.spec.answer {
            None => Some(Text::any()),
            Some(spec) => lower::raw_text(spec),
        };
        let mut ways = Vec::new();
        let goes_on = self.spec.goes_on;
        // A text that closes is refused until the answer may end; what is no plain text could not be told there.
        let is_kept = |closer: &Closer| !goes_on || first_control(&closer.parts).is_some() || closer.is_literal;
        let may_end = |closer: &&Closer| !closer.stops && is_kept(closer);
        let open: Vec<&Closer> = closers.iter().filter(may_end).collect();
        match (text, &self.spec.answer) {
            (Some(text), _) => {
                ways.push(open_text(self.writer, &text, &avoid));
                for closer in open {
                    ways.extend(ended_text(self.writer, &text, &avoid, &closer.parts));
                }
            }
            (None, Some(spec)) => {
                let inner = lower::lowered(self.writer, spec)?;
                let ends: Vec<String> = open.iter().map(|closer| written(self.writer, &closer.parts)).collect();
                match ends.is_empty() {
                    true => ways.push(inner),
                    false => ways.push(format!("({inner}) ({})?", ends.join(" | "))),
                }
            }
            (None, None) => {}
        }
        Ok(ways.join(" | "))
    }

    fn calls(&mut self, gap: bool) -> Result<String, GrammarError> {
        let Some((index, field)) = self.field(Role::Calls) else {
            return Err(self.cannot("tool_calls", "is absent"));
        };
        let calls = self.written_calls(index, field)?;
        let first = self.call(&calls, gap)?;
        let open: Vec<&Closer> = calls.closers.iter().filter(|closer| !closer.stops).collect();
        let mut ends = vec!["\"\"".to_owned()];
        ends.extend(open.iter().map(|closer| written(self.writer, &closer.parts)));
        if !self.spec.parallel || matches!(self.spec.choice, Choice::Named(_)) {
            return Ok(format!("({first}) ({})", ends.join(" | ")));
        }
        let more = self.writer.forward();
        for closer in open {
            let next = self.call(&calls, !closer.restarts)?;
            let end = written(self.writer, &closer.parts);
            ends.push(format!("{end} ({next}) {more}"));
        }
        self.writer.fill(&more, &ends.join(" | "));
        Ok(format!("({first}) {more}"))
    }

    fn written_calls(&self, index: usize, field: &'a Field) -> Result<Calls<'a>, GrammarError> {
        let (Some(format), Some(opener)) = (&field.call, self.spec.template.opener(index)) else {
            return Err(self.cannot("tool_calls", "has no opener"));
        };
        let closers = self.closers("tool_calls", field)?;
        let avoid: Vec<String> = closers.iter().map(|closer| closer.spelt.clone()).collect();
        let elements = match &format.content {
            CallContent::Tags(tags) if format.streamed_name.is_some() => Elements::new(self.writer, tags, &avoid),
            _ => None,
        };
        let group = format.streamed_name.as_deref();
        let names = group.and_then(|group| capture(opener.hir(), group)).and_then(whole);
        Ok(Calls { format, opener, closers, elements, names })
    }

    /// One call of any tool that may be called.
    fn call(&mut self, calls: &Calls, gap: bool) -> Result<String, GrammarError> {
        let mut ways = Vec::new();
        for (i, tool) in self.spec.tools.iter().enumerate() {
            if matches!(&self.spec.choice, Choice::Named(name) if *name != tool.name) {
                continue;
            }
            let opener = self.call_opener(i, tool, calls)?;
            let opener = self.behind(gap, &opener)?;
            let arguments = match &calls.format.content {
                CallContent::Tags(_) => {
                    let elements = calls.elements.as_ref();
                    let elements =
                        elements.ok_or_else(|| self.cannot("tool_calls", "has elements that a grammar cannot hold"))?;
                    self.arguments(i, tool, elements)?
                }
                CallContent::Json => {
                    let schema = self.json_call(i, tool, calls.format)?;
                    let strict = tool.strict && !self.free.contains(&i);
                    let space = self.writer.terminal(&slashed("[ \\t\\r\\n]{1,4}"));
                    format!("{space}? {} {space}?", self.writer.json(&schema, strict))
                }
            };
            ways.push(format!("{opener} {arguments}"));
        }
        Ok(self.writer.rule(&ways.join(" | ")))
    }

    /// A rule for a tool's arguments. What cannot be held is free, unless the tool is strict.
    fn arguments(&mut self, i: usize, tool: &ToolSpec, elements: &Elements) -> Result<String, GrammarError> {
        if let Some(rule) = self.arguments.get(&i) {
            return Ok(rule.clone());
        }
        self.writer.in_time("tools")?;
        let mut rule = None;
        if !self.free.contains(&i) {
            let mark = self.writer.mark();
            match self.parameters(i, tool)? {
                None => {}
                Some(parameters) => match elements.of_tool(self.writer, tool, &parameters) {
                    Ok(held) => rule = Some(held),
                    Err(problem) if tool.strict => return Err(unheld(i, &problem)),
                    Err(_) => self.writer.back_to(mark),
                },
            }
            if rule.is_none() {
                self.free.insert(i);
            }
        }
        // What is free has its types all the same, by which it is read.
        let rule = rule.or_else(|| elements.of_tool(self.writer, tool, &loosened(&tool.parameters)).ok());
        let rule = rule.or_else(|| elements.free(self.writer));
        let rule = rule.ok_or_else(|| self.cannot("tool_calls", "has elements that a grammar cannot hold"))?;
        self.arguments.insert(i, rule.clone());
        Ok(rule)
    }

    /// A tool's schema as it is held; `None` if it cannot be.
    fn parameters(&self, i: usize, tool: &ToolSpec) -> Result<Option<Value>, GrammarError> {
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let schema = if takes_none(tool) { &none } else { &tool.parameters };
        match prepared(schema, tool.strict) {
            Ok(prepared) => Ok(Some(prepared)),
            Err(problem) if tool.strict || problem.fault == Fault::Number => Err(unheld(i, &problem)),
            Err(_) => Ok(None),
        }
    }

    /// The opener with the tool's name in it.
    fn call_opener(&self, i: usize, tool: &ToolSpec, calls: &Calls) -> Result<Parts, GrammarError> {
        let group = calls.format.streamed_name.as_deref();
        let fill = |name: &str| (Some(name) == group).then(|| tool.name.clone());
        if let Some(names) = &calls.names {
            let control = self.writer.pieces(&tool.name).iter().any(|piece| matches!(piece, Piece::Control(_)));
            if control || !names.is_match(&mut names.create_cache(), tool.name.as_str()) {
                let problem = format!("is `{}`, which the opener of a call cannot carry", tool.name);
                return Err(GrammarError::bad(&format!("tools.{i}.name"), problem, "use letters, digits, `_` and `-`"));
            }
        }
        let parts = parts(self.writer, calls.opener.hir(), &fill);
        parts.ok_or_else(|| self.cannot("tool_calls", "has an opener that repeats control tokens"))
    }

    /// The schema of a call that is written as JSON.
    fn json_call(&self, i: usize, tool: &ToolSpec, format: &CallFormat) -> Result<Value, GrammarError> {
        let held = if self.free.contains(&i) { None } else { self.parameters(i, tool)? };
        let parameters = held.unwrap_or_else(|| json!({"type": "object"}));
        let (parameters, defs) = super::schema::nested(&parameters);
        let shape = format.transform_each.as_ref().or(format.transform.as_ref());
        let leaf = |name: &str| {
            let shape = shape?;
            shape.get("function").unwrap_or(shape).get(name)?.as_str()?.strip_prefix('{')?.strip_suffix('}')
        };
        let inside = |path: Option<&str>, otherwise: &str| match (path, shape) {
            (_, None) => Some(Some(otherwise.to_owned())),
            (Some("content"), _) => Some(None),
            (Some(path), _) => path.strip_prefix("content.").filter(|p| !p.contains('.')).map(|p| Some(p.to_owned())),
            (None, _) => None,
        };
        let mut properties = Map::new();
        let captured = leaf("name").is_some_and(|name| !name.starts_with("content"));
        let name = if captured { Some(None) } else { inside(leaf("name"), "name") };
        let (Some(name), Some(arguments)) = (name, inside(leaf("arguments"), "arguments")) else {
            return Err(self.cannot("tool_calls.transform", "finds name or arguments where a grammar cannot hold them"));
        };
        if let Some(key) = name {
            properties.insert(key, json!({"const": tool.name}));
        }
        let mut schema = match arguments {
            None => parameters,
            Some(key) => {
                properties.insert(key, parameters);
                let required: Vec<&String> = properties.keys().collect();
                json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
            }
        };
        if format.transform_each.is_some() {
            schema = json!({"type": "array", "items": schema, "minItems": 1, "maxItems": 1});
        }
        if let (Some(defs), Some(map)) = (defs, schema.as_object_mut()) {
            map.insert("$defs".to_owned(), defs);
        }
        Ok(schema)
    }

    /// What closes a field's regions.
    fn closers(&self, name: &str, field: &Field) -> Result<Vec<Closer>, GrammarError> {
        let stop = self.writer.vocabulary().stop();
        let closer = |pattern: &Pattern| {
            let parts = self.pattern(name, pattern)?;
            let stops = first_control(&parts).is_some_and(|id| stop.contains(&id));
            let restarts = literal(pattern.hir()).is_some_and(|text| self.spec.template.ends_with_anchor(&text));
            let is_literal = literal(pattern.hir()).is_some();
            Ok(Closer { parts, spelt: spelt(pattern.hir()), restarts, stops, is_literal })
        };
        field.closers.patterns.iter().map(closer).collect()
    }

    fn pattern(&self, field: &str, pattern: &Pattern) -> Result<Parts, GrammarError> {
        parts(self.writer, pattern.hir(), &|_| None).ok_or_else(|| self.cannot(field, "repeats control tokens"))
    }

    /// An opener behind another region: with `gap`, the message may begin anew before it, and white space may stand
    /// there, as text between regions is nobody's.
    fn behind(&mut self, gap: bool, opener: &Parts) -> Result<String, GrammarError> {
        let first = opener.get(..1).unwrap_or(&[]);
        let starts_with_space = |text: &str| text.starts_with([' ', '\n']);
        let begins_bare = match opener.first() {
            Some(Part::Piece(Piece::Text(text))) => !starts_with_space(text),
            _ => plain(first).is_some_and(|first| !matches(&format!("^{first}"), " ")),
        };
        if !gap {
            let optional = Part::Piece(Piece::Regex(" ?".to_owned()));
            let parts = if begins_bare { super::region::joined(&[optional], opener) } else { opener.clone() };
            return Ok(written(self.writer, &parts));
        }
        let space = [Part::Piece(Piece::Regex(GAP.to_owned()))];
        let direct = super::region::joined(&space, opener);
        let Some(anchor) = self.spec.template.anchor() else { return Ok(written(self.writer, &direct)) };
        let anchor = self.pattern("start_anchor", anchor)?;
        let anew = super::region::joined(&anchor, &direct);
        Ok(written(self.writer, &[Part::Either(vec![direct, anew])]))
    }
}

/// Whether a tool takes no parameters: it has no schema, or a strict one that says no more than that they are an object.
fn takes_none(tool: &ToolSpec) -> bool {
    let is_bare = |map: &Map<String, Value>| map.keys().all(|key| key == "type" || is_silent(key));
    match &tool.parameters {
        Value::Null => true,
        Value::Object(map) => tool.strict && is_bare(map),
        _ => false,
    }
}

fn unheld(i: usize, problem: &Problem) -> GrammarError {
    let place = problem.below(&format!("tools.{i}.parameters"));
    let next = match problem.fault {
        Fault::Number => "choose a number that is held",
        Fault::Unheld => "simplify it, or leave `strict` out",
        Fault::Wrong => "correct it, or leave `strict` out",
    };
    GrammarError::bad(&place, &*problem.problem, next)
}

/// Reasoning has something in it, and does not begin as one of its closers does.
fn thought(closers: &[String]) -> Text {
    let mut first: Vec<char> = closers.iter().filter_map(|closer| first_char(closer)).collect();
    first.dedup();
    let first: String = first.iter().map(|c| regex_syntax::escape(&c.to_string())).collect();
    let language = if first.is_empty() { "(?s:.+)".to_owned() } else { format!("(?s:[^{first}].*)") };
    Text { language: Some(slashed(&language)), may_be_empty: false }
}

/// The character that an expression's matches begin with, if that is a literal.
fn first_char(regex: &str) -> Option<char> {
    fn of(hir: &Hir) -> Option<char> {
        match hir.kind() {
            HirKind::Literal(literal) => std::str::from_utf8(&literal.0).ok()?.chars().next(),
            HirKind::Concat(parts) => of(parts.first()?),
            HirKind::Capture(capture) => of(&capture.sub),
            _ => None,
        }
    }
    of(&regex_syntax::parse(regex).ok()?)
}

/// The texts that close the template's answers, those without a control token in them.
pub(crate) fn text_closers(spec: &TurnSpec, vocabulary: &Vocabulary) -> Vec<String> {
    let content = spec.template.fields.iter().find(|field| field.role == Role::Content);
    let closers = content.into_iter().flat_map(|field| &field.closers.patterns);
    closers
        .filter_map(|pattern| literal(pattern.hir()))
        .filter(|text| vocabulary.first_control(text).is_none())
        .collect()
}

fn literal(hir: &Hir) -> Option<String> {
    match hir.kind() {
        HirKind::Literal(literal) => String::from_utf8(literal.0.to_vec()).ok(),
        _ => None,
    }
}

/// The group of that name.
fn capture<'a>(hir: &'a Hir, wanted: &str) -> Option<&'a Hir> {
    match hir.kind() {
        HirKind::Capture(Capture { name: Some(name), sub, .. }) if **name == *wanted => Some(sub),
        HirKind::Capture(Capture { sub, .. }) => capture(sub, wanted),
        HirKind::Concat(all) | HirKind::Alternation(all) => all.iter().find_map(|part| capture(part, wanted)),
        HirKind::Repetition(repetition) => capture(&repetition.sub, wanted),
        _ => None,
    }
}
