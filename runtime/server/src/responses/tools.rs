//! Tools of a request as functions that the model sees, and the way back from a call to its item.
//!
//! | in the request | the model sees | a call comes back as |
//! |---|---|---|
//! | `function` | it | `function_call` |
//! | `custom` | a function with one text, `input` | `custom_tool_call` |
//! | `shell` on the client's machine | the function `bash` with one text, `command` | `shell_call` |
//! | `namespace` | its members as `namespace__name` | their item, with `namespace` and the short `name` |

use super::choice::{Chosen, chosen};
use crate::chat::tool_of;
use crate::error::ApiError;
use crate::fields::{Fields, missing, wrong_type};
use crate::parts;
use crate::turn::{Tool, ToolChoice};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use text::grammar::GrammarSpec;

/// What the model knows the shell as.
pub(super) const SHELL: &str = "bash";
/// The shell's argument.
pub(super) const COMMAND: &str = "command";
/// The argument of a custom tool.
pub(super) const INPUT: &str = "input";
/// Tools that run at the model's maker, not at the client's.
const HOSTED: [&str; 12] = [
    "web_search",
    "web_search_preview",
    "file_search",
    "computer",
    "computer_use_preview",
    "code_interpreter",
    "image_generation",
    "mcp",
    "local_shell",
    "apply_patch",
    "tool_search",
    "programmatic_tool_calling",
];

/// What a call of a tool is in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Function,
    Custom,
    Shell,
}

/// Where a function that the model sees comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub kind: Kind,
    pub namespace: Option<String>,
    /// Its name in its namespace.
    pub name: String,
    /// Where it stands in the request, such as `tools[0].tools[1]`.
    place: String,
}

impl Origin {
    /// A function that stands alone.
    pub fn function(name: &str) -> Origin {
        Origin { kind: Kind::Function, namespace: None, name: name.to_owned(), place: String::new() }
    }
}

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Declared {
    pub tools: Vec<Tool>,
    pub choice: ToolChoice,
    /// By the name that the model sees.
    pub origins: HashMap<String, Origin>,
}

/// The name under which the model sees a tool.
pub(super) fn seen(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}__{name}"))
}

impl Declared {
    /// Reads `tools` and `tool_choice`.
    pub fn read(fields: Fields<'_>) -> Result<Declared, ApiError> {
        let mut declared = Declared::default();
        for (i, tool) in fields.list("tools")?.into_iter().flatten().enumerate() {
            declared.add(tool, &format!("tools[{i}]"))?;
        }
        let Chosen { choice, only } = chosen(fields, &declared.origins)?;
        declared.choice = choice;
        if let Some(only) = only {
            declared.tools.retain(|tool| only.contains(&tool.name));
        }
        Ok(declared)
    }

    fn add(&mut self, tool: &Value, at: &str) -> Result<(), ApiError> {
        let map = tool.as_object().ok_or_else(|| wrong_type(at, tool, "an object"))?;
        let at_type = format!("{at}.type");
        match map.get("type") {
            None => Err(missing(&at_type)),
            Some(Value::String(kind)) => match kind.as_str() {
                "function" | "custom" => self.one(map, kind, at, None),
                "shell" => self.shell(map, at),
                "namespace" => self.namespace(map, at),
                hosted if HOSTED.contains(&hosted) => {
                    let message = format!(
                        "`{at}` is the hosted tool `{hosted}`, which this server does not run; declare a function for it"
                    );
                    Err(ApiError::field(at_type, "unsupported_tool", message))
                }
                _ => Err(wrong_type(&at_type, &json!(kind), KINDS)),
            },
            Some(other) => Err(wrong_type(&at_type, other, KINDS)),
        }
    }

    /// A function or custom tool, in a namespace or outside.
    fn one(
        &mut self,
        map: &Map<String, Value>,
        kind: &str,
        at: &str,
        within: Option<(&str, &str)>,
    ) -> Result<(), ApiError> {
        let mut tool = if kind == "custom" { custom(map, at)? } else { tool_of(at, map)? };
        let name = tool.name.clone();
        if let Some((namespace, description)) = within {
            tool.name = seen(Some(namespace), &name);
            tool.shown.insert("name".into(), json!(tool.name));
            let own = tool.shown.get("description").and_then(Value::as_str).unwrap_or_default();
            let both: Vec<&str> = [description, own].into_iter().filter(|text| !text.is_empty()).collect();
            let both = both.join("\n");
            if !both.is_empty() {
                tool.shown.insert("description".into(), json!(both));
            }
        }
        let kind = if kind == "custom" { Kind::Custom } else { Kind::Function };
        let namespace = within.map(|(namespace, _)| namespace.to_owned());
        self.insert(tool, Origin { kind, namespace, name, place: at.to_owned() })
    }

    fn insert(&mut self, tool: Tool, origin: Origin) -> Result<(), ApiError> {
        if let Some(other) = self.origins.get(&tool.name) {
            let is_shell = origin.kind == Kind::Shell || other.kind == Kind::Shell;
            let param = if is_shell { "tools".to_owned() } else { format!("{}.name", origin.place) };
            let message =
                format!("`{}` and `{}` are both `{}` to the model; rename one", other.place, origin.place, tool.name);
            return Err(ApiError::field(param, "invalid_value", message));
        }
        self.origins.insert(tool.name.clone(), origin);
        self.tools.push(tool);
        Ok(())
    }

    fn shell(&mut self, map: &Map<String, Value>, at: &str) -> Result<(), ApiError> {
        let environment = map.get("environment").filter(|value| !value.is_null());
        let kind = environment.map(|value| value.get("type").and_then(Value::as_str).unwrap_or("(none)"));
        if let Some(kind) = kind.filter(|kind| *kind != "local") {
            let message = format!(
                "`{at}.environment.type` is `{kind}`, the shell runs on the client's machine; set it to `local`"
            );
            return Err(ApiError::field(format!("{at}.environment"), "unsupported_parameter", message));
        }
        let parameters = json!({
            "type": "object",
            "properties": {COMMAND: {"type": "string", "description": "The command line."}},
            "required": [COMMAND],
            "additionalProperties": false,
        });
        let tool = Tool::new(SHELL, Some("Run a command line in a shell."), parameters, None);
        self.insert(tool, Origin { kind: Kind::Shell, namespace: None, name: SHELL.into(), place: at.to_owned() })
    }

    fn namespace(&mut self, map: &Map<String, Value>, at: &str) -> Result<(), ApiError> {
        let fields = Fields(map);
        let name = parts::name(fields, at)?;
        let description = parts::optional_word(fields, at, "description")?.unwrap_or_default();
        let at_tools = format!("{at}.tools");
        let tools = fields.get("tools").ok_or_else(|| missing(&at_tools))?;
        let tools = tools.as_array().ok_or_else(|| wrong_type(&at_tools, tools, "a list"))?;
        if tools.is_empty() {
            let message = format!("`{at_tools}` is empty, a namespace has at least one tool; add one or remove it");
            return Err(ApiError::field(at_tools, "invalid_value", message));
        }
        for (i, tool) in tools.iter().enumerate() {
            let at = format!("{at_tools}[{i}]");
            let map = tool.as_object().ok_or_else(|| wrong_type(&at, tool, "an object"))?;
            match map.get("type").and_then(Value::as_str) {
                Some(kind @ ("function" | "custom")) => self.one(map, kind, &at, Some((name, description)))?,
                _ => {
                    let kind = map.get("type").unwrap_or(&Value::Null);
                    return Err(wrong_type(&format!("{at}.type"), kind, "`function` or `custom`"));
                }
            }
        }
        Ok(())
    }

    /// The field of the request that a field of the model's functions stands for: `tools[2].parameters.a` is
    /// `tools[1].tools[0].parameters.a`, or the grammar of a custom tool.
    pub fn place(&self, param: &str) -> Option<String> {
        let (index, rest) = param.strip_prefix("tools[")?.split_once(']')?;
        let tool = self.tools.get(index.parse::<usize>().ok()?)?;
        let origin = self.origins.get(&tool.name)?;
        let is_grammar = origin.kind == Kind::Custom && (rest.starts_with(".parameters") || rest == ".format");
        Some(format!("{}{}", origin.place, if is_grammar { ".format.definition" } else { rest }))
    }
}

const KINDS: &str = "`function`, `custom`, `shell` or `namespace`";

/// A tool that takes free text, perhaps held by a grammar.
fn custom(map: &Map<String, Value>, at: &str) -> Result<Tool, ApiError> {
    let shown = ["name", "description"].into_iter().filter_map(|key| Some((key.to_owned(), map.get(key)?.clone())));
    let mut function: Map<String, Value> = shown.collect();
    let parameters = json!({
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": false,
    });
    function.insert("parameters".into(), parameters);
    let mut tool = tool_of(at, &function)?;
    let Some(format) = map.get("format").filter(|format| !format.is_null()) else { return Ok(tool) };
    let at = format!("{at}.format");
    let text = |key: &str| format.get(key).and_then(Value::as_str);
    match text("type") {
        Some("text") => {}
        Some("grammar") => {
            let definition = text("definition").ok_or_else(|| missing(&format!("{at}.definition")))?.to_owned();
            let spec = match text("syntax") {
                Some("lark") => GrammarSpec::Lark(definition),
                Some("regex") => GrammarSpec::Regex(definition),
                _ => {
                    let given = format.get("syntax").unwrap_or(&Value::Null);
                    return Err(wrong_type(&format!("{at}.syntax"), given, "`lark` or `regex`"));
                }
            };
            // A grammar that cannot be held is refused, as nothing else says what the text may be.
            tool.strict = true;
            tool.held = vec![(INPUT.to_owned(), spec)];
        }
        _ => {
            let given = format.get("type").unwrap_or(&Value::Null);
            return Err(wrong_type(&format!("{at}.type"), given, "`text` or `grammar`"));
        }
    }
    Ok(tool)
}
