//! What a request can ask an answer to follow.

use super::GrammarError;
use crate::response::{ResponseParser, ResponseTemplate};
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::{self, Write};
use std::sync::Arc;

/// What an answer must follow. Paths in errors begin with the field's name of the request, which the caller puts in front.
#[derive(Clone, Debug)]
pub enum GrammarSpec {
    /// A JSON document of a schema. With `strict`, what cannot be held is refused, otherwise ignored.
    JsonSchema {
        /// The schema, draft 2020-12.
        schema: Value,
        /// Whether unsupported keywords are errors.
        strict: bool,
    },
    /// Any JSON object.
    JsonObject,
    /// A text that the regular expression matches as a whole.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// A grammar of rules `name ::= …` that begins with `root`.
    Ebnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text with parts that follow grammars of their own, as `structural_tag` of the Chat Completions extension describes.
    StructuralTag(Value),
    /// The turn of a response template: reasoning, then calls or an answer.
    Turn(Box<TurnSpec>),
}

/// Which places a wish competes for when it is compiled: those that take longer hold up only their like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Nothing in it is the request's own: it is one of the few that every plain request brings.
    Usual,
    /// Compiled at once.
    Short,
    /// May take seconds.
    Long,
}

/// Longest wish that is short, in bytes.
const SHORT_BYTES: usize = 64 << 10;

impl GrammarSpec {
    /// Where it is compiled.
    pub fn lane(&self) -> Lane {
        if self.is_usual() {
            return Lane::Usual;
        }
        let mut counting = Counting(0);
        // Counting refuses nothing.
        let _ = self.write_identity(&mut counting);
        if counting.0 <= SHORT_BYTES { Lane::Short } else { Lane::Long }
    }

    fn is_usual(&self) -> bool {
        match self {
            GrammarSpec::JsonObject => true,
            GrammarSpec::Turn(turn) => {
                let is_own = !turn.tools.is_empty() || !turn.begun.is_empty() || turn.goes_on;
                !is_own && turn.answer.as_ref().is_none_or(GrammarSpec::is_usual)
            }
            _ => false,
        }
    }

    /// Whether what follows it comes to an end of its own, by its form: a document, one of some texts, or an expression without an
    /// endless repetition.
    pub fn is_bounded(&self) -> bool {
        match self {
            GrammarSpec::JsonSchema { .. } | GrammarSpec::JsonObject | GrammarSpec::Choice(_) => true,
            GrammarSpec::Regex(regex) => {
                regex_syntax::parse(regex).is_ok_and(|hir| hir.properties().maximum_len().is_some())
            }
            GrammarSpec::Lark(_) | GrammarSpec::Ebnf(_) | GrammarSpec::StructuralTag(_) | GrammarSpec::Turn(_) => false,
        }
    }

    /// The template that it is bound to, if it is a turn.
    pub(crate) fn template(&self) -> Option<&Arc<ResponseTemplate>> {
        match self {
            GrammarSpec::Turn(turn) => Some(&turn.template),
            _ => None,
        }
    }

    /// Writes everything that tells it from others but its template's content.
    pub(crate) fn write_identity(&self, out: &mut impl Write) -> fmt::Result {
        match self {
            GrammarSpec::JsonSchema { schema, strict } => write!(out, "schema {strict} {schema}"),
            GrammarSpec::StructuralTag(tag) => write!(out, "tag {tag}"),
            GrammarSpec::Turn(turn) => turn.write_identity(out),
            other => write!(out, "{other:?}"),
        }
    }
}

/// Counts the bytes that are written.
struct Counting(usize);

impl Write for Counting {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

impl TurnSpec {
    fn write_identity(&self, out: &mut impl Write) -> fmt::Result {
        let TurnSpec { template, tools, choice, parallel, answer, place, begun, goes_on } = self;
        let (template, count) = (Arc::as_ptr(template), tools.len());
        write!(out, "turn {template:p} {choice:?} {parallel} {place:?} {begun:?} {goes_on} {count}")?;
        for ToolSpec { name, parameters, strict, held } in tools {
            write!(out, " tool {name:?} {strict} {} {parameters}", held.len())?;
            for (parameter, spec) in held {
                write!(out, " {parameter:?} ")?;
                spec.write_identity(out)?;
            }
        }
        match answer {
            Some(spec) => spec.write_identity(out),
            None => Ok(()),
        }
    }
}

/// A turn.
#[derive(Clone, Debug)]
pub struct TurnSpec {
    /// How the checkpoint writes reasoning, answers and calls.
    pub template: Arc<ResponseTemplate>,
    /// Tools that may be called.
    pub tools: Vec<ToolSpec>,
    /// Which of them.
    pub choice: Choice,
    /// Whether there may be several calls.
    pub parallel: bool,
    /// What the answer follows; any text if absent. Never a turn itself.
    pub answer: Option<GrammarSpec>,
    /// Where generation begins.
    pub place: TurnPlace,
    /// Text of the region that the prompt opened, as [`TurnPlace::of`] gives it; the answer's grammar goes on behind it.
    pub begun: String,
    /// Whether the answer is to go on as long as it can ([`Matcher::keep_open`](super::Matcher::keep_open)): mere text does not
    /// end it then.
    pub goes_on: bool,
}

/// A tool that may be called.
#[derive(Clone, Debug, Default)]
pub struct ToolSpec {
    /// Its name, as the model sees it.
    pub name: String,
    /// JSON Schema of the arguments; null takes none. A strict one without keywords takes none either, as no parameter is
    /// declared; other schemas without `properties` take any.
    pub parameters: Value,
    /// Whether a schema that cannot be held is refused. Otherwise what cannot be held is left out, and where that leaves nothing
    /// to hold the arguments are free but for their types.
    pub strict: bool,
    /// Parameters whose text follows a grammar: name, grammar (an expression, Lark, EBNF or a choice).
    pub held: Vec<(String, GrammarSpec)>,
}

/// Which tools are to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// None.
    None,
    /// Any, or an answer.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// Exactly one call, of this tool.
    Named(String),
}

/// Where in a turn generation begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnPlace {
    /// At the start of the message: reasoning comes first.
    #[default]
    MessageStart,
    /// Inside reasoning that the prompt opened.
    Reasoning,
    /// Behind the reasoning, at the start of an answer or call.
    AfterReasoning,
    /// Inside an answer that the prompt opened.
    Answer,
    /// Inside a call that the prompt opened; no turn grammar begins there.
    Call,
}

impl TurnPlace {
    /// The place that a prompt ends at, and the text of the region that is open there.
    pub fn of(template: &Arc<ResponseTemplate>, prompt: &str) -> (TurnPlace, String) {
        ResponseParser::place_after(template, prompt)
    }
}

impl ToolSpec {
    /// Reads tools as in a Chat Completions request, `[{"type": "function", "function": {"name", "parameters", "strict"}}]`,
    /// or with `name` and `parameters` or `input_schema` one level higher.
    pub fn from_json(tools: &Value) -> Result<Vec<ToolSpec>, GrammarError> {
        let list = match tools {
            Value::Null => return Ok(Vec::new()),
            Value::Array(list) => list,
            _ => return Err(GrammarError::bad("tools", "is not a list", "give a list of tools")),
        };
        let mut specs: Vec<ToolSpec> = Vec::new();
        let mut names = HashSet::new();
        for (i, tool) in list.iter().enumerate() {
            let tool = tool.get("function").unwrap_or(tool);
            let Some(name) = tool.get("name").and_then(Value::as_str) else {
                return Err(GrammarError::bad(&format!("tools.{i}"), "has no `name`", "name the tool"));
            };
            if !names.insert(name) {
                let problem = format!("`{name}` is declared twice");
                return Err(GrammarError::bad(
                    &format!("tools.{i}.name"),
                    problem,
                    "give every tool a name of its own",
                ));
            }
            let parameters =
                tool.get("parameters").or_else(|| tool.get("input_schema")).cloned().unwrap_or(Value::Null);
            let strict = tool.get("strict").and_then(Value::as_bool).unwrap_or(false);
            specs.push(ToolSpec { name: name.to_owned(), parameters, strict, held: Vec::new() });
        }
        Ok(specs)
    }
}

impl Choice {
    /// Reads `tool_choice`: `none`, `auto`, `required` (also `any`), `{"type": "function", "function": {"name"}}`,
    /// `{"type": "function", "name"}`, `{"type": "tool", "name"}` or `{"type": "auto"}` and the like; null is `auto`.
    pub fn from_json(choice: &Value) -> Result<Choice, GrammarError> {
        let word = match choice {
            Value::Null => return Ok(Choice::Auto),
            Value::String(word) => word.as_str(),
            Value::Object(map) => {
                let function = map.get("function").and_then(Value::as_object).unwrap_or(map);
                match function.get("name").and_then(Value::as_str) {
                    Some(name) => return Ok(Choice::Named(name.to_owned())),
                    None => map.get("type").and_then(Value::as_str).unwrap_or(""),
                }
            }
            _ => "",
        };
        match word {
            "none" => Ok(Choice::None),
            "auto" => Ok(Choice::Auto),
            "required" | "any" => Ok(Choice::Required),
            _ => {
                let next = "write `none`, `auto`, `required`, or an object that names a function";
                Err(GrammarError::bad("tool_choice", format!("is `{choice}`"), next))
            }
        }
    }
}
