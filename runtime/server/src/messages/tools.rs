//! Tools, and which of them are to be called.

use crate::chat::Tools;
use crate::error::{ApiError, brief};
use crate::fields::{Fields, missing, wrong_type};
use crate::parts::{self, word};
use crate::turn::{Tool, ToolChoice};
use serde_json::json;

/// Tools that the other server runs itself and answers from: none of them is the client's, so nobody waits for its call.
/// A date or the like may follow.
const SERVER_RUN: [&str; 5] =
    ["web_search", "web_fetch", "code_execution", "tool_search_tool_regex", "tool_search_tool_bm25"];

/// The tools that the model is shown, and where they stand in the request. Those that another server would run itself,
/// which their type says, are skipped; those that a client runs and that only their type describes cannot be shown.
pub(super) fn tools(fields: Fields<'_>) -> Result<(Vec<Tool>, Vec<usize>), ApiError> {
    let (mut tools, mut places) = (Tools::default(), Vec::new());
    for (i, value) in fields.list("tools")?.into_iter().flatten().enumerate() {
        let at = format!("tools[{i}]");
        let map = value.as_object().map(Fields).ok_or_else(|| wrong_type(&at, value, "an object"))?;
        match parts::optional_word(map, &at, "type")? {
            None | Some("custom") => {}
            Some(kind) if is_server_run(kind) => continue,
            Some(kind) => return Err(unknown(kind, &at)),
        }
        tools.add(tool(map, &at)?, &at)?;
        places.push(i);
    }
    Ok((tools.into_list(), places))
}

fn is_server_run(kind: &str) -> bool {
    SERVER_RUN.iter().any(|name| kind.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
}

/// A tool that the client would run, described by its type alone: the model was not taught it, and must not miss it unseen.
fn unknown(kind: &str, at: &str) -> ApiError {
    let (at, kind) = (format!("{at}.type"), brief(&json!(kind)));
    let message = format!(
        "`{at}` is {kind}, which this model was not taught; declare the tool with `name`, `description` and `input_schema`, and without `type`"
    );
    ApiError::field(at, "unsupported_tool", message)
}

fn tool(map: Fields<'_>, at: &str) -> Result<Tool, ApiError> {
    let name = parts::name(map, at)?;
    let description = parts::optional_word(map, at, "description")?;
    let key = "input_schema";
    let schema = parts::object_schema(map, at, key)?.ok_or_else(|| missing(&format!("{at}.{key}")))?;
    Ok(Tool::new(name, description, schema.clone(), parts::switch(map, at, "strict")?))
}

/// Which tools are to be called, and whether there may be several calls.
pub(super) fn choice(fields: Fields<'_>, tools: &[Tool]) -> Result<(ToolChoice, bool), ApiError> {
    let param = "tool_choice";
    let Some(map) = fields.object(param)?.map(Fields) else { return Ok((ToolChoice::Auto, true)) };
    let is_parallel = !parts::switch(map, param, "disable_parallel_tool_use")?.unwrap_or(false);
    let choice = match word(map, param, "type")? {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(word(map, param, "name")?.to_owned()),
        other => {
            let expected = "`auto`, `any`, `tool` or `none`";
            return Err(wrong_type(&format!("{param}.type"), &json!(other), expected));
        }
    };
    Ok((parts::allowed(choice, "tool_choice.name", tools)?, is_parallel))
}

/// An error about a tool that is shown, put down to its place in the request.
pub(super) fn at_place(mut error: ApiError, places: &[usize]) -> ApiError {
    let Some(param) = &error.param else { return error };
    let parts = param.strip_prefix("tools[").and_then(|rest| rest.split_once(']'));
    let place = parts.and_then(|(index, rest)| Some((places.get(index.parse::<usize>().ok()?)?, rest)));
    if let Some((place, rest)) = place {
        error.param = Some(format!("tools[{place}]{rest}"));
    }
    error
}
