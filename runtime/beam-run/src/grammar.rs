//! `beam-run grammar`: does the turn grammar admit recorded texts? One JSON line a case.

use crate::failure::Failure;
use crate::parse::{lines, written};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use text::Tokenizer;
use text::grammar::{Choice, Compiler, GrammarError, GrammarSpec, Limits, ToolSpec, TurnPlace, TurnSpec};
use text::response::ResponseTemplate;

/// Arguments of `grammar`.
#[derive(clap::Args)]
pub struct GrammarArgs {
    /// Response template, a JSON file; the model directory's own if absent.
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Model directory: tokenizer and ending tokens.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Texts, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub cases: PathBuf,
    /// Print JSON; errors too then.
    #[arg(long)]
    pub json: bool,
}

#[derive(Deserialize)]
struct Case {
    id: String,
    #[serde(default)]
    tools: Value,
    #[serde(default)]
    tool_choice: Value,
    parallel_tool_calls: Option<bool>,
    /// Schema of the answer.
    #[serde(default)]
    answer_schema: Value,
    /// The same as a request says it.
    #[serde(default)]
    response_format: Value,
    /// Whether generation begins at the start of the message; else behind the reasoning.
    starts_message: Option<bool>,
    /// How the prompt ends; decides where generation begins if `starts_message` is absent.
    prefix_tail: Option<String>,
    /// The text, the one of the ending token included or not.
    #[serde(alias = "output")]
    text: String,
}

/// Runs the command.
pub fn grammar(args: &GrammarArgs) -> Result<(), Failure> {
    let template = match &args.template {
        Some(file) => ResponseTemplate::from_file(file).map_err(Failure::input)?,
        None => ResponseTemplate::from_dir(&args.model).map_err(Failure::input)?.ok_or_else(|| {
            let dir = args.model.display();
            Failure::input(format!("R0601: {dir} has no response template; give one with `--template`"))
        })?,
    };
    let template = Arc::new(template);
    let tokenizer = Tokenizer::load(&args.model.join("tokenizer.json")).map_err(Failure::input)?;
    let stop = text::stop_tokens(&args.model, &[]).map_err(Failure::input)?;
    let compiler = Compiler::new(Arc::new(tokenizer), &stop, Limits::default());
    let compiler = compiler.map_err(Failure::input)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in lines(&args.cases)? {
        let (number, line) = line?;
        let case: Case = serde_json::from_str(&line).map_err(|error| {
            let (shown, next) = (args.cases.display(), "tests/fixtures/response-parse/README.md has the form");
            Failure::input(format!("R0602: {shown}, line {number} is no text of a turn: {error}; {next}"))
        })?;
        let done = match admitted(&compiler, &template, &case) {
            Ok(accept) => json!({"id": case.id, "accept": accept}),
            // A request that is refused admits nothing.
            Err(error) => json!({"id": case.id, "accept": false, "error": error.to_string()}),
        };
        written(writeln!(out, "{done}"))?;
    }
    written(out.flush())
}

fn admitted(compiler: &Compiler, template: &Arc<ResponseTemplate>, case: &Case) -> Result<bool, GrammarError> {
    let (place, begun) = match (case.starts_message, &case.prefix_tail) {
        (Some(false), _) => (TurnPlace::AfterReasoning, String::new()),
        (None, Some(tail)) => TurnPlace::of(template, tail),
        _ => (TurnPlace::MessageStart, String::new()),
    };
    let spec = TurnSpec {
        template: Arc::clone(template),
        tools: ToolSpec::from_json(&case.tools)?,
        choice: Choice::from_json(&case.tool_choice)?,
        parallel: case.parallel_tool_calls.unwrap_or(true),
        answer: answer(case),
        place,
        begun,
        goes_on: false,
    };
    let grammar = compiler.compile(&GrammarSpec::Turn(Box::new(spec)))?;
    compiler.admits(&grammar, &case.text)
}

/// What the answer must follow.
fn answer(case: &Case) -> Option<GrammarSpec> {
    if !case.answer_schema.is_null() {
        return Some(GrammarSpec::JsonSchema { schema: case.answer_schema.clone(), strict: false });
    }
    match case.response_format.get("type").and_then(Value::as_str) {
        Some("json_object") => Some(GrammarSpec::JsonObject),
        Some("json_schema") => {
            let format = case.response_format.get("json_schema").unwrap_or(&case.response_format);
            let schema = format.get("schema").cloned().unwrap_or_else(|| json!({}));
            let strict = format.get("strict").and_then(Value::as_bool).unwrap_or(false);
            Some(GrammarSpec::JsonSchema { schema, strict })
        }
        _ => None,
    }
}
