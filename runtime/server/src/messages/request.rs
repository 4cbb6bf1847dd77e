//! A request's JSON as a turn request.

use super::thinking::{self, Shown};
use super::{blocks, tools};
use crate::app::App;
use crate::chat::effort;
use crate::error::ApiError;
use crate::fields::{Fields, missing, wrong_type};
use crate::format::check_schema;
use crate::params::{self, LEAVE_OUT, ParamNames, Refused, is_empty, is_false, never, refuse};
use crate::parts::optional_word;
use crate::turn::{FieldNames, Format, TurnRequest};
use serde_json::{Map, Value};
use text::grammar::GrammarSpec;

const NAMES: ParamNames = ParamNames { max_tokens: &["max_tokens"], stop: "stop_sequences" };

/// Where the answer's format is said.
const FORMAT: &str = "output_config.format";
const IN_CONFIG: &str = "use `output_config.format`";

/// Parameters that would change the answer.
const REFUSED: [Refused; 17] = [
    ("mcp_servers", is_empty, "declare their tools in `tools`"),
    ("container", never, LEAVE_OUT),
    ("context_management", edits_thinking_only, "send the messages as the model is to see them"),
    ("n", |n| n.as_u64() == Some(1), "ask several times"),
    // What other protocols and servers call it.
    ("stop", is_empty, "use `stop_sequences`"),
    ("max_completion_tokens", never, "use `max_tokens`"),
    ("logprobs", is_false, LEAVE_OUT),
    ("response_format", never, IN_CONFIG),
    ("structured_outputs", never, IN_CONFIG),
    ("structural_tag", never, IN_CONFIG),
    ("json_schema", never, IN_CONFIG),
    ("guided_json", never, IN_CONFIG),
    ("guided_choice", never, IN_CONFIG),
    ("guided_grammar", never, IN_CONFIG),
    ("guided_regex", never, IN_CONFIG),
    ("regex", never, IN_CONFIG),
    ("ebnf", never, IN_CONFIG),
];

/// A request that is read.
pub(super) struct Asked {
    pub turn: TurnRequest,
    /// Where the tools that are shown stand among those that were sent.
    pub places: Vec<usize>,
    pub shown: Shown,
    pub stream: bool,
}

/// Reads a request; one that only counts need not say how long the answer may be.
pub(super) fn asked(app: &App, fields: Fields<'_>, only_counts: bool) -> Result<Asked, ApiError> {
    params::model(app, fields)?;
    refuse(fields, &REFUSED)?;
    if !only_counts && fields.whole("max_tokens", 1)?.is_none() {
        return Err(missing("max_tokens"));
    }
    fields.number("temperature", "from 0 to 1", |x| (0.0..=1.0).contains(&x))?;
    if let Some(metadata) = fields.object("metadata")? {
        optional_word(Fields(metadata), "metadata", "user_id")?;
    }
    fields.only_strings(NAMES.stop)?;
    let params = params::params(app, fields, NAMES)?;
    let (messages, continues) = blocks::messages(fields)?;
    let (tools, places) = tools::tools(fields)?;
    let (tool_choice, parallel_tool_calls) = tools::choice(fields, &tools)?;
    let mut variables = Map::new();
    let shown = thinking::thinking(app, fields, !tools.is_empty(), params.max_tokens, &mut variables)?;
    let config = fields.object("output_config")?;
    let effort = effort("output_config.effort", config.and_then(|config| Fields(config).get("effort")))?;
    let (at, format) = format(fields, config)?;
    let names = FieldNames { format: at, function: "", parameters: "input_schema", ..FieldNames::default() };
    let turn = TurnRequest {
        continues,
        tools,
        tool_choice,
        parallel_tool_calls,
        reasoning_effort: effort,
        variables,
        format,
        ..TurnRequest::new(messages, params, names)
    };
    Ok(Asked { turn, places, shown, stream: fields.boolean("stream")?.unwrap_or(false) })
}

/// What the answer must look like, and the field that says it; clients of earlier versions say it in one of its own.
fn format(fields: Fields<'_>, config: Option<&Map<String, Value>>) -> Result<(&'static str, Format), ApiError> {
    let (new, old) = (config.and_then(|config| Fields(config).get("format")), fields.get("output_format"));
    let (at, value) = match (new, old) {
        (None, None) => return Ok((FORMAT, Format::Text)),
        (Some(value), None) => (FORMAT, value),
        (None, Some(value)) => ("output_format", value),
        (Some(_), Some(_)) => {
            let message = format!("`{FORMAT}` and `output_format` both say what the answer looks like; leave one out");
            return Err(ApiError::field("output_format", "invalid_value", message));
        }
    };
    let format = value.as_object().ok_or_else(|| wrong_type(at, value, "an object"))?;
    let at_type = format!("{at}.type");
    match format.get("type") {
        Some(kind) if kind == "json_schema" => {}
        Some(other) => return Err(wrong_type(&at_type, other, "`json_schema`")),
        None => return Err(missing(&at_type)),
    }
    let at_schema = format!("{at}.schema");
    let schema = Fields(format).get("schema").ok_or_else(|| missing(&at_schema))?;
    check_schema(&at_schema, schema)?;
    // This protocol promises the schema, so that what cannot be held is refused.
    Ok((at, Format::Held(GrammarSpec::JsonSchema { schema: schema.clone(), strict: true })))
}

/// Whether edits only choose which reasoning of earlier turns is kept, about which the chat template decides.
fn edits_thinking_only(value: &Value) -> bool {
    let is_about_thinking = |edit: &Value| edit["type"].as_str().is_some_and(|kind| kind.starts_with("clear_thinking"));
    match value.get("edits") {
        None => value.is_object(),
        Some(edits) => edits.as_array().is_some_and(|edits| edits.iter().all(is_about_thinking)),
    }
}
