//! `beamc explain`.

use crate::args::ExplainArgs;
use crate::failure::{self, Failure};
use include_dir::{Dir, include_dir};
use serde_json::{Value, json};
use std::fmt::Write;

/// The pages that are documentation and test at once: a section a code, with an example and what the compiler says to it.
static PAGES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../tests/specs/codes");

/// First letters of codes that only `beam-run` prints: of its device, engine, text and command line, and of checkpoints.
const BEAM_RUN: [char; 5] = ['D', 'E', 'R', 'W', 'X'];

/// A code that some crate of the compiler can print.
struct Known {
    code: &'static str,
    title: &'static str,
    text: &'static str,
}

/// Every code of every crate, ascending within a crate.
fn known() -> Vec<Known> {
    let triple = |(code, title, text): &(&'static str, &'static str, &'static str)| Known { code, title, text };
    let mut list: Vec<Known> =
        spec::CODES.iter().map(|c| Known { code: c.code, title: c.title, text: c.text }).collect();
    list.extend(passes::CODES.iter().map(triple));
    list.extend(targets::CODES.iter().map(triple));
    list.extend(ir::CODES.iter().map(triple));
    list.extend(artifact::ERRORS.iter().map(|(code, text)| Known { code, title: "", text }));
    list.extend(codegen::CODES.iter().map(triple));
    list.extend(failure::CODES.iter().map(triple));
    list
}

/// What stands behind the prose of a code's section: the example and its exact words.
fn example(code: &str) -> Option<&'static str> {
    let heading = format!("\n## {code}");
    let page = PAGES.files().filter_map(|f| f.contents_utf8()).find(|t| t.contains(&heading))?;
    let section = page.get(page.find(&heading)? + 1..)?;
    let section = section.get(..section.find("\n## ").unwrap_or(section.len()))?;
    section.get(section.find("\n```")? + 1..)
}

/// Fenced blocks as indented ones, which read well on a terminal.
fn indented(markdown: &str) -> String {
    let (mut out, mut inside) = (String::new(), false);
    for line in markdown.trim_end().lines() {
        if let Some(info) = line.strip_prefix("```") {
            inside = !inside;
            let _ = match info.split_once(' ') {
                Some((_, name)) if inside => writeln!(out, "{name}:"),
                _ => Ok(()),
            };
            continue;
        }
        let _ = if line.is_empty() || !inside { writeln!(out, "{line}") } else { writeln!(out, "    {line}") };
    }
    out
}

/// Whether a code has the form of those of `beam-run`.
fn is_of_beam_run(code: &str) -> bool {
    let digits = code.strip_prefix(BEAM_RUN);
    digits.is_some_and(|digits| digits.len() == 4 && digits.bytes().all(|c| c.is_ascii_digit()))
}

/// Runs `beamc explain`.
pub fn explain(args: &ExplainArgs) -> Result<String, Failure> {
    let list = known();
    let Some(wanted) = &args.code else {
        if args.json {
            let all: Vec<Value> =
                list.iter().map(|k| json!({ "code": k.code, "title": k.title, "text": k.text })).collect();
            return Ok(format!("{:#}\n", json!(all)));
        }
        let first = |k: &Known| k.text.split(". ").next().unwrap_or(k.text).to_owned();
        let line = |k: &Known| {
            let what = if k.title.is_empty() { first(k) } else { k.title.to_owned() };
            format!("{}  {what}\n", k.code)
        };
        return Ok(list.iter().map(line).collect());
    };
    let code = wanted.to_ascii_uppercase();
    let Some(found) = list.iter().find(|k| k.code == code) else {
        let help = match spec::nearest(&code, list.iter().map(|k| k.code)) {
            _ if is_of_beam_run(&code) => {
                "it is a code of `beam-run`, whose messages explain themselves: the facts, and the next step behind them".to_owned()
            }
            Some(near) => format!("did you mean `{near}`?"),
            None => "`beamc explain` lists the compiler's codes; messages of beam-run explain themselves".to_owned(),
        };
        return Err(Failure::usage("C0005", format!("the compiler has no code `{wanted}`")).help(help));
    };
    let example = example(&code);
    if args.json {
        let Known { title, text, .. } = found;
        return Ok(format!("{:#}\n", json!({ "code": code, "title": title, "text": text, "example": example })));
    }
    let head = if found.title.is_empty() { code } else { format!("{code}: {}", found.title) };
    let example = example.map_or_else(String::new, |e| format!("\n{}", indented(e)));
    Ok(format!("{head}\n\n{}\n{example}", found.text))
}
