//! `beamc explain`.

use crate::args::ExplainArgs;
use crate::failure::{self, Failure};
use serde_json::json;

/// A code with its title (where it has one) and its explanation.
fn find(code: &str) -> Option<(String, String)> {
    let code = code.to_ascii_uppercase();
    let titled = |found: Option<(&str, &str)>| found.map(|(title, text)| (title.to_owned(), text.to_owned()));
    spec::explain(&code)
        .map(|c| (c.title.to_owned(), c.text.to_owned()))
        .or_else(|| titled(passes::explain(&code)))
        .or_else(|| titled(targets::explain(&code)))
        .or_else(|| titled(ir::explain(&code)))
        .or_else(|| artifact::explain(&code).map(|text| (String::new(), text.to_owned())))
        .or_else(|| {
            failure::CODES
                .iter()
                .find(|(c, ..)| *c == code)
                .map(|(_, title, text)| ((*title).to_owned(), (*text).to_owned()))
        })
}

/// Runs `beamc explain`.
pub fn explain(args: &ExplainArgs) -> Result<String, Failure> {
    let Some((title, text)) = find(&args.code) else {
        return Err(Failure::input(
            "C0005",
            format!(
                "the compiler has no code `{}`; its codes look like B0281, and messages of beam-run (D, E, I, R, W) explain themselves",
                args.code
            ),
        ));
    };
    let code = args.code.to_ascii_uppercase();
    if args.json {
        return Ok(format!("{:#}\n", json!({ "code": code, "title": title, "text": text })));
    }
    Ok(if title.is_empty() { format!("{code}\n\n{text}\n") } else { format!("{code}: {title}\n\n{text}\n") })
}
