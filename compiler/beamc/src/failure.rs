//! How a command ends badly: what is printed, and the exit code.

use spec::{Diagnostic, Sources};
use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// The input is at fault.
pub const INPUT: u8 = 1;
/// The build has no such capability.
pub const NOT_IN_THIS_BUILD: u8 = 3;
/// The output could not be written.
pub const OUTPUT: u8 = 4;
/// The compiler is at fault, not what it was given.
pub const DEFECT: u8 = 6;

/// A command's end without its result.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub exit: u8,
    /// What is written to the error stream.
    pub text: String,
    /// What is written to the output stream, with `--json`.
    pub json: Option<serde_json::Value>,
}

impl Failure {
    /// The input is at fault; `code` is known to `beamc explain`.
    pub fn input(code: &str, message: impl Display) -> Self {
        Failure { exit: INPUT, text: format!("error[{code}]: {message}\n"), json: None }
    }

    /// The compiler is at fault.
    pub fn defect(code: &str, message: impl Display) -> Self {
        Failure { exit: DEFECT, text: format!("error[{code}]: {message}\n"), json: None }
    }

    /// The output could not be written.
    pub fn output(code: &str, message: impl Display) -> Self {
        Failure { exit: OUTPUT, text: format!("error[{code}]: {message}\n"), json: None }
    }

    /// A capability of the design that this build does not have.
    pub fn not_in_this_build(what: &str) -> Self {
        let text = format!("error[C0001]: {what} is not in this build\n");
        Failure { exit: NOT_IN_THIS_BUILD, text, json: None }.help("README.md has the table of what is")
    }

    /// Adds the next step.
    pub fn help(mut self, step: impl Display) -> Self {
        self.text += &format!("help: {step}\n");
        self
    }

    /// One finding outside a spec's text, in the form of all others.
    pub fn finding(finding: Diagnostic, sources: &Sources, json: bool) -> Self {
        let list = [finding];
        let text = spec::render(&list, sources, std::io::stderr().is_terminal());
        let listed = spec::render_json(&list, sources);
        let json = json.then(|| serde_json::json!({ "ok": false, "diagnostics": listed }));
        Failure { exit: INPUT, text: format!("{}\n", text.trim_end()), json }
    }

    /// Writes the failure where its readers look: words to the error stream and, with `--json`, an object to the output.
    pub fn print(&self, json: bool) {
        let _ = std::io::stderr().write_all(self.text.as_bytes());
        if json {
            let object = self.json.clone().unwrap_or_else(|| {
                let head = self.text.strip_prefix("error[").and_then(|t| t.split_once("]: "));
                let (code, rest) = head.map_or((None, self.text.as_str()), |(code, rest)| (Some(code), rest));
                let (message, help) = rest.split_once("help: ").map_or((rest, None), |(m, h)| (m, Some(h.trim_end())));
                serde_json::json!({ "ok": false, "error": { "code": code, "message": message.trim_end(), "help": help } })
            });
            let _ = writeln!(std::io::stdout(), "{object:#}");
        }
    }
}

/// The codes that this binary adds: code, explanation.
pub const CODES: [(&str, &str, &str); 8] = [
    (
        "C0001",
        "not in this build",
        "The command or flag belongs to the design and this build does not have it yet. README.md has the table of what works.",
    ),
    ("C0002", "a mesh not understood", "The mesh is written axis=size,axis=size with whole sizes from 1."),
    ("C0003", "a file that cannot be written", "A file could not be written; the operating system's words follow."),
    ("C0004", "no such stage", "The stage is one of model, graph, sharded, kernel, plan, cuda."),
    ("C0005", "no such code", "`beamc explain` knows the codes that errors and warnings print between brackets."),
    (
        "C0006",
        "no such option or alternative",
        "`--option NAME=ALTERNATIVE` chooses among the alternatives that the spec's `[options]` lists for the name.",
    ),
    ("C0007", "no such bucket", "The report has the buckets of the target that the artifact was compiled for."),
    (
        "C0008",
        "weights without a place",
        "The compiler checked where weights lie on each rank and found one that lies nowhere or twice. This is a defect of the compiler.",
    ),
];
