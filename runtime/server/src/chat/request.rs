//! A chat request's JSON as a turn request.

use super::messages;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, missing, token_id, wrong_type};
use crate::format::format;
use crate::known::{self, CHAT};
use crate::params::{self, MOST_LOGPROBS, OPENAI};
use crate::parts;
use crate::turn::{FieldNames, Tool, ToolChoice, TurnRequest};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Words for how much to think.
const EFFORTS: [&str; 8] = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"];

/// Reads a whole request.
pub(crate) fn turn_request(app: &App, fields: Fields<'_>) -> Result<TurnRequest, ApiError> {
    known::check(fields, CHAT)?;
    let mut params = params::params(app, fields, OPENAI)?;
    params.sampling.logprobs = logprobs(fields)?;
    let names = FieldNames {
        max_tokens: if fields.get("max_completion_tokens").is_some() { "max_completion_tokens" } else { "max_tokens" },
        ..FieldNames::default()
    };
    let input_ids = fields.list("input_ids")?.map(|ids| {
        ids.iter().map(|id| token_id("input_ids", id, app.service.vocab())).collect::<Result<Vec<u32>, _>>()
    });
    let input_ids = input_ids.transpose()?;
    let messages = if input_ids.is_some() { Vec::new() } else { messages::messages(fields)? };
    let mut names = FieldNames { prompt: if input_ids.is_some() { "input_ids" } else { names.prompt }, ..names };
    let format = format(fields, &mut names)?;
    let tools = tools(fields)?;
    let (reasoning_effort, variables) = reasoning(app, fields, tools.is_empty())?;
    Ok(TurnRequest {
        input_ids,
        template: fields.string("chat_template")?.map(str::to_owned),
        continues: fields.boolean("continue_final_message")?.unwrap_or(false),
        tool_choice: tool_choice(fields, &tools)?,
        tools,
        parallel_tool_calls: fields.boolean("parallel_tool_calls")?.unwrap_or(true),
        reasoning_effort,
        add_generation_prompt: add_generation_prompt(fields, &variables)?,
        variables,
        format,
        choices: params::choices(fields)?,
        ..TurnRequest::new(messages, params, names)
    })
}

/// How many alternatives are reported, where log-probabilities are wanted.
fn logprobs(fields: Fields<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.whole("top_logprobs", 0)?;
    match top {
        Some(n) if n > MOST_LOGPROBS => Err(fields.outside("top_logprobs", &format!("from 0 to {MOST_LOGPROBS}"))),
        Some(n) if n > 0 && !wanted => {
            let message = format!("`top_logprobs` is {n}, which needs `logprobs`: set it to true");
            Err(ApiError::field("top_logprobs", "invalid_value", message))
        }
        top => Ok(wanted.then(|| top.and_then(|n| u32::try_from(n).ok()).unwrap_or(0))),
    }
}

/// Variables of the template, and how much to think.
fn reasoning(
    app: &App,
    fields: Fields<'_>,
    without_tools: bool,
) -> Result<(Option<Value>, Map<String, Value>), ApiError> {
    let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    for key in ["documents"] {
        if let Some(list) = fields.list(key)? {
            variables.insert(key.into(), Value::Array(list.clone()));
        }
    }
    if let Some(word) = verbosity("verbosity", fields.get("verbosity"))? {
        variables.insert("verbosity".into(), json!(word));
    }
    if let Some(value) = fields.get("chat_template").filter(|_| !app.options.request_templates) {
        let instead = "put the template into the model directory, or serve with `--trust-request-chat-template`";
        return Err(ApiError::unsupported("chat_template", value, instead));
    }
    let mut effort = effort("reasoning_effort", fields.get("reasoning_effort"))?;
    if let Some(map) = fields.object("reasoning")? {
        let settings = Fields(map);
        effort = effort.or(self::effort("reasoning.effort", settings.get("effort"))?);
        if settings.boolean("enabled").map_err(|error| error.inside("reasoning"))? == Some(false) {
            thinking_off(app, "reasoning.enabled", !without_tools, &mut variables)?;
        }
    }
    Ok((effort, variables))
}

/// Switches reasoning off, where the template offers that.
pub(crate) fn thinking_off(
    app: &App,
    param: &str,
    with_tools: bool,
    variables: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let switch = "enable_thinking";
    if !app.text.template_for(with_tools).is_some_and(|template| template.reads(switch)) {
        let message = format!("`{param}` switches reasoning off, but this model always reasons; leave it out");
        return Err(ApiError::field(param, "unsupported_parameter", message));
    }
    variables.insert(switch.into(), json!(false));
    Ok(())
}

/// A word, or a share from 0 to less than 1.
pub(crate) fn effort(param: &str, value: Option<&Value>) -> Result<Option<Value>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let is_known = match value {
        Value::String(word) => EFFORTS.contains(&word.as_str()),
        other => other.as_f64().is_some_and(|share| (0.0..1.0).contains(&share)),
    };
    if is_known {
        return Ok(Some(value.clone()));
    }
    Err(wrong_type(param, value, &format!("one of {}, or a number from 0 to less than 1", EFFORTS.join(", "))))
}

/// How much to say.
pub(crate) fn verbosity<'a>(param: &str, value: Option<&'a Value>) -> Result<Option<&'a str>, ApiError> {
    match value {
        None => Ok(None),
        Some(Value::String(word)) if ["low", "medium", "high"].contains(&word.as_str()) => Ok(Some(word)),
        Some(other) => Err(wrong_type(param, other, "`low`, `medium` or `high`")),
    }
}

fn add_generation_prompt(fields: Fields<'_>, variables: &Map<String, Value>) -> Result<bool, ApiError> {
    let given = fields.boolean("add_generation_prompt")?;
    Ok(given.or(variables.get("add_generation_prompt").and_then(Value::as_bool)).unwrap_or(true))
}

/// The tools of a request, checked.
pub(crate) fn tools(fields: Fields<'_>) -> Result<Vec<Tool>, ApiError> {
    let mut tools = Tools::default();
    for (i, tool) in fields.list("tools")?.into_iter().flatten().enumerate() {
        let at = format!("tools[{i}]");
        if let Some(kind) = tool.get("type").filter(|kind| *kind != "function") {
            return Err(wrong_type(&format!("{at}.type"), kind, "`function`"));
        }
        let at = format!("{at}.function");
        let function = tool.get("function").and_then(Value::as_object).ok_or_else(|| missing(&at))?;
        tools.add(tool_of(&at, function)?, &at)?;
    }
    Ok(tools.into_list())
}

/// Tools, each under a name of its own.
#[derive(Default)]
pub(crate) struct Tools(Vec<Tool>, HashSet<String>);

impl Tools {
    /// Adds a tool; `at` is its place in the request.
    pub fn add(&mut self, tool: Tool, at: &str) -> Result<(), ApiError> {
        if !self.1.insert(tool.name.clone()) {
            let message = format!("`{at}.name` is `{}`, which an earlier tool has; name each once", tool.name);
            return Err(ApiError::field(format!("{at}.name"), "invalid_value", message));
        }
        self.0.push(tool);
        Ok(())
    }

    /// All of them, in their order.
    pub fn into_list(self) -> Vec<Tool> {
        self.0
    }
}

/// One function, shown to the template with its keys in the order in which they were sent.
pub(crate) fn tool_of(at: &str, function: &Map<String, Value>) -> Result<Tool, ApiError> {
    let fields = Fields(function);
    let name = parts::name(fields, at)?;
    let description = parts::optional_word(fields, at, "description")?;
    let parameters = parts::object_schema(fields, at, "parameters")?.cloned().unwrap_or(Value::Null);
    let strict = parts::switch(fields, at, "strict")?.unwrap_or(false);
    let tool = Tool::new(name, description, parameters, Some(strict));
    let sent = function.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str());
    let mut shown = Map::new();
    for key in sent.chain(["parameters"]) {
        if let Some(value) = tool.shown.get(key) {
            shown.insert(key.to_owned(), value.clone());
        }
    }
    Ok(Tool { shown, ..tool })
}

fn tool_choice(fields: Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let param = "tool_choice";
    let expected = "`none`, `auto`, `required` or an object that names a function";
    let choice = match fields.get(param) {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(ToolChoice::None),
            "auto" => return Ok(ToolChoice::Auto),
            "required" | "any" => ToolChoice::Required,
            _ => return Err(wrong_type(param, &json!(word), expected)),
        },
        Some(Value::Object(map)) => {
            let kind = map.get("type").and_then(Value::as_str).unwrap_or("function");
            if kind != "function" {
                let message = format!("`{param}.type` is `{kind}`, it must be `function`; choose a function");
                return Err(ApiError::field(format!("{param}.type"), "unsupported_parameter", message));
            }
            let named = map.get("function").unwrap_or(&Value::Null).get("name").or(map.get("name"));
            let name = named.and_then(Value::as_str).ok_or_else(|| missing(&format!("{param}.function.name")))?;
            ToolChoice::Named(name.to_owned())
        }
        Some(other) => return Err(wrong_type(param, other, expected)),
    };
    parts::allowed(choice, param, tools)
}
