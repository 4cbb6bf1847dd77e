//! What a client asks for, in no protocol's words.

use serde_json::{Map, Value, json};
use text::grammar::GrammarSpec;

/// One turn that is to be made.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnRequest {
    /// Messages as chat templates read them: objects with `role`, `content` (a string), `reasoning_content`, `tool_calls`
    /// (arguments as objects), `tool_call_id`, `name`.
    pub messages: Vec<Value>,
    /// Token ids instead of messages. Nothing is rendered then, and the turn begins at a message's start.
    pub input_ids: Option<Vec<u32>>,
    /// A chat template instead of the model's.
    pub template: Option<String>,
    /// The last message is an assistant's, and the turn goes on where it ends.
    pub continues: bool,
    /// Tools in the order in which they are shown.
    pub tools: Vec<Tool>,
    /// Which of them are to be called.
    pub tool_choice: ToolChoice,
    /// Whether there may be several calls.
    pub parallel_tool_calls: bool,
    /// How much to think, as the template reads it.
    pub reasoning_effort: Option<Value>,
    /// Further variables of the template; what is derived from the fields above goes before them.
    pub variables: Map<String, Value>,
    /// Whether the prompt ends where an answer begins. Only a client that wants to see the bare prompt says no.
    pub add_generation_prompt: bool,
    /// What the answer's text must look like.
    pub format: Format,
    /// Choosing and stopping.
    pub params: Params,
    /// How many answers.
    pub choices: usize,
    /// What the protocol calls the fields that errors name.
    pub names: FieldNames,
}

impl TurnRequest {
    /// A request with these messages and the defaults of all protocols.
    pub fn new(messages: Vec<Value>, params: Params, names: FieldNames) -> Self {
        TurnRequest {
            messages,
            params,
            names,
            parallel_tool_calls: true,
            add_generation_prompt: true,
            choices: 1,
            ..TurnRequest::default()
        }
    }
}

/// A tool that the model may call.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    /// Its name, as the model sees it.
    pub name: String,
    /// The function as the template shows it: `name`, `description`, `parameters`, `strict`, what is known of them.
    pub shown: Map<String, Value>,
    /// JSON Schema of its arguments; null takes none.
    pub parameters: Value,
    /// Whether a schema that cannot be held is refused.
    pub strict: bool,
    /// Parameters whose text follows a grammar of their own.
    pub held: Vec<(String, GrammarSpec)>,
}

impl Tool {
    /// A tool from its parts.
    pub fn new(name: &str, description: Option<&str>, parameters: Value, strict: Option<bool>) -> Tool {
        let mut shown = Map::new();
        shown.insert("name".into(), json!(name));
        if let Some(description) = description {
            shown.insert("description".into(), json!(description));
        }
        shown.insert("parameters".into(), shown_parameters(&parameters));
        if let Some(strict) = strict {
            shown.insert("strict".into(), json!(strict));
        }
        Tool { name: name.to_owned(), shown, parameters, strict: strict.unwrap_or(false), held: Vec::new() }
    }

    /// The form in which templates and the response parser read it.
    pub fn json(&self) -> Value {
        json!({"type": "function", "function": self.shown})
    }
}

/// The schema of arguments as the model is shown it: one that says no more than that they are an object lists no properties, so
/// that the model invents none.
pub(crate) fn shown_parameters(schema: &Value) -> Value {
    const WORDS: [&str; 5] = ["type", "title", "description", "$schema", "$comment"];
    match schema {
        Value::Null => json!({"type": "object", "properties": {}}),
        Value::Object(map) if map.keys().all(|key| WORDS.contains(&key.as_str())) => {
            let mut shown = map.clone();
            shown.entry("type").or_insert(json!("object"));
            shown.entry("properties").or_insert(json!({}));
            Value::Object(shown)
        }
        other => other.clone(),
    }
}

/// Which tools are to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// Any, or none.
    #[default]
    Auto,
    /// None; the model is not shown any.
    None,
    /// At least one.
    Required,
    /// Exactly one call, of this one.
    Named(String),
}

/// What the answer's text must look like.
#[derive(Clone, Debug, Default)]
pub(crate) enum Format {
    /// Anything.
    #[default]
    Text,
    /// What a grammar admits. Tools stay callable instead of an answer.
    Held(GrammarSpec),
}

impl Format {
    /// Whether the answer is a JSON document.
    pub fn is_json(&self) -> bool {
        matches!(self, Format::Held(GrammarSpec::JsonSchema { .. } | GrammarSpec::JsonObject))
    }
}

/// How tokens are chosen and when an answer ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    /// Whom cached work is shared with: those of the same salt.
    pub salt: Option<std::sync::Arc<str>>,
    /// More goes first.
    pub priority: i32,
    /// How tokens are chosen. Choice `i` draws with the seed plus `i`.
    pub sampling: engine::Sampling,
    /// Most tokens of one answer; absent: as many as fit.
    pub max_tokens: Option<usize>,
    /// Tokens before a stop counts.
    pub min_tokens: usize,
    /// Whether the model's own end does not count.
    pub ignores_end: bool,
    /// Token ids that end an answer.
    pub stop_tokens: Vec<u32>,
    /// Texts that end an answer.
    pub stop_strings: Vec<String>,
    /// Whether what stopped an answer stays in its text.
    pub keeps_stop: bool,
    /// Whether special tokens have no text, where no response template reads them.
    pub skip_special: Option<bool>,
    /// Name for this request's log lines and for aborting it.
    pub rid: Option<String>,
}

/// What a protocol calls the fields that are shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldNames {
    /// Where the prompt comes from.
    pub prompt: &'static str,
    /// The answer's limit.
    pub max_tokens: &'static str,
    /// The answer's format: the field that was sent, if one was.
    pub format: &'static str,
    /// Path from a tool to its function, such as `.function`; empty where they are one.
    pub function: &'static str,
    /// What the schema of a function is called.
    pub parameters: &'static str,
}

impl Default for FieldNames {
    /// Those of Chat Completions.
    fn default() -> Self {
        FieldNames {
            prompt: "messages",
            max_tokens: "max_tokens",
            format: "response_format",
            function: ".function",
            parameters: "parameters",
        }
    }
}

impl FieldNames {
    /// The field of the answer's format, as the client sent it.
    pub fn format_param(&self) -> String {
        self.format.to_owned()
    }
}
