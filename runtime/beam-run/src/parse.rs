//! `beam-run parse`: recorded outputs, read with a response template; one JSON line a case.

use crate::failure::Failure;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use text::response::{
    Ended, Ending, Event, Held, ParseOptions, ResponseError, ResponseParser, ResponseTemplate, Tools,
};

/// Arguments of `parse`.
#[derive(clap::Args)]
pub struct ParseArgs {
    /// Response template, a JSON file.
    #[arg(long, value_name = "FILE")]
    pub template: PathBuf,
    /// Recorded outputs, one JSON object a line.
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
    prefix_tail: String,
    #[serde(default)]
    grammar: Grammar,
    #[serde(default)]
    tools: Value,
    output: String,
    finish: Finish,
    /// The output in pieces; whole if absent.
    chunks: Option<Vec<String>>,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Grammar {
    #[default]
    None,
    CallsOrAnswer,
    JsonAnswer,
}

#[derive(Deserialize)]
struct Finish {
    kind: Kind,
    token: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    StopToken,
    StopString,
    Length,
}

/// Runs the command.
pub fn parse(args: &ParseArgs) -> Result<(), Failure> {
    let template = ResponseTemplate::from_file(&args.template).map_err(|error| match error {
        ResponseError::Read { .. } => Failure::input(error),
        error => Failure::input(format!("{error} ({})", args.template.display())),
    })?;
    let template = Arc::new(template);
    let shown = args.cases.display();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in lines(&args.cases)? {
        let (number, line) = line?;
        let case: Case = serde_json::from_str(&line).map_err(|error| {
            let next = "tests/fixtures/response-parse/README.md has the form";
            Failure::input(format!("R0502: {shown}, line {number} is no recorded output: {error}; {next}"))
        })?;
        let done = run(&template, &case)
            .map_err(|error| Failure::input(format!("{error} ({shown}, line {number}, `{}`)", case.id)))?;
        written(writeln!(out, "{done}"))?;
    }
    written(out.flush())
}

/// The lines of a file of cases, with their numbers, without the empty ones.
pub(crate) fn lines(cases: &Path) -> Result<impl Iterator<Item = Result<(usize, String), Failure>>, Failure> {
    let shown = cases.display().to_string();
    let file = std::fs::File::open(cases)
        .map_err(|error| Failure::input(format!("R0501: {shown}: {error}; name a file of recorded outputs")))?;
    let lines = BufReader::new(file).lines().enumerate().map(move |(i, line)| match line {
        Ok(line) => Ok((i + 1, line)),
        Err(error) => Err(Failure::input(format!("R0501: {shown}, line {}: {error}; correct it", i + 1))),
    });
    Ok(lines.filter(|line| !matches!(line, Ok((_, text)) if text.trim().is_empty())))
}

pub(crate) fn written(outcome: std::io::Result<()>) -> Result<(), Failure> {
    outcome.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => {
            Failure::output(format!("R0503: the results cannot be written: {error}; free the place or choose another"))
        }
    })
}

/// Reads one case; the line to print.
fn run(template: &Arc<ResponseTemplate>, case: &Case) -> Result<String, ResponseError> {
    let held = match case.grammar {
        Grammar::None => Held::Free,
        Grammar::CallsOrAnswer => Held::Turn,
        Grammar::JsonAnswer => Held::JsonAnswer,
    };
    // A grammar sees to it that an argument ends; without one, only an argument that ended is one.
    let options = ParseOptions { held, early_values: held != Held::Free, ..ParseOptions::default() };
    let tools = Arc::new(Tools::declared(&case.tools));
    let mut parser = ResponseParser::new(Arc::clone(template), tools, options, &case.prefix_tail)?;
    let chunks = case.chunks.clone().unwrap_or_else(|| vec![case.output.clone()]);
    let mut left = parsed_len(template, case);
    let (mut all, mut released) = (Texts::default(), Vec::new());
    for chunk in &chunks {
        let piece = chunk.get(..left.min(chunk.len())).unwrap_or(chunk);
        left -= piece.len().min(left);
        released.push(all.add(&parser.push(piece)?));
    }
    let ending = match case.finish.kind {
        Kind::StopToken => Ending::StopToken,
        Kind::StopString => Ending::StopString,
        Kind::Length => Ending::Length,
    };
    let ended = parser.finish(ending)?;
    let at_end = all.add(&ended.events);
    Ok(line(case, &all, &released, &at_end, &ended))
}

/// Length of the output without the stop token's text, unless that closes a call by itself.
fn parsed_len(template: &ResponseTemplate, case: &Case) -> usize {
    let token = case.finish.token.as_deref().filter(|_| case.finish.kind == Kind::StopToken).unwrap_or("");
    let keeps = token.is_empty() || template.closes_call(token);
    let without = case.output.strip_suffix(token).filter(|_| !keeps);
    without.unwrap_or(&case.output).len()
}

/// Reasoning and answer so far.
#[derive(Default)]
struct Texts {
    reasoning: String,
    content: String,
}

impl Texts {
    /// Adds what the events say; returns that alone.
    fn add(&mut self, events: &[Event]) -> [String; 2] {
        let (mut reasoning, mut content) = (String::new(), String::new());
        for event in events {
            match event {
                Event::Reasoning(text) => reasoning.push_str(text),
                Event::Content(text) => content.push_str(text),
                Event::Call { .. } | Event::Arguments { .. } | Event::CallDone { .. } => {}
            }
        }
        self.reasoning.push_str(&reasoning);
        self.content.push_str(&content);
        [reasoning, content]
    }
}

/// The result. Arguments stand in it as they were written, because a JSON value would not keep all digits.
fn line(case: &Case, all: &Texts, released: &[[String; 2]], at_end: &[String; 2], ended: &Ended) -> String {
    let calls: Vec<String> = ended
        .tool_calls
        .iter()
        .map(|call| format!("{{\"name\":{},\"arguments\":{}}}", json!(call.name), one_line(&call.arguments)))
        .collect();
    let parts = [
        ("id", json!(case.id).to_string()),
        ("reasoning", json!(all.reasoning).to_string()),
        ("content", json!(all.content).to_string()),
        ("tool_calls", format!("[{}]", calls.join(","))),
        ("cut_off_calls", json!(ended.cut_off_calls).to_string()),
        ("dropped_calls", json!(ended.dropped_calls).to_string()),
        ("finish_reason", json!(ended.reason.word()).to_string()),
        ("released", json!(released).to_string()),
        ("released_at_end", json!(at_end).to_string()),
    ];
    let parts: Vec<String> = parts.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", parts.join(","))
}

/// JSON text without line breaks, which inside its strings are written as escapes anyway.
fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}
