//! How a command ends badly: what is printed, and the exit code.

use serde_json::{Value, json};
use spec::{Diagnostic, Sources};
use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// The input is at fault.
pub const INPUT: u8 = 1;
/// The command line is at fault.
pub const USAGE: u8 = 2;
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
    said: Said,
}

/// What is told.
#[derive(Debug)]
enum Said {
    /// One fact outside of a spec's text.
    Fact { code: String, message: String, help: Option<String> },
    /// Text for the error stream and, with `--json`, an object for the output.
    Page { text: String, json: Option<Value> },
}

impl Failure {
    /// The input is at fault; `code` is known to `beamc explain`.
    pub fn input(code: &str, message: impl Display) -> Self {
        Failure::fact(INPUT, code, message)
    }

    /// The command line is at fault: a flag's value, or what several flags say together.
    pub fn usage(code: &str, message: impl Display) -> Self {
        Failure::fact(USAGE, code, message)
    }

    /// The compiler is at fault.
    pub fn defect(code: &str, message: impl Display) -> Self {
        Failure::fact(DEFECT, code, message)
    }

    /// The output could not be written.
    pub fn output(code: &str, message: impl Display) -> Self {
        Failure::fact(OUTPUT, code, message)
    }

    /// A capability of the design that this build does not have.
    pub fn not_in_this_build(what: &str) -> Self {
        let message = format!("{what} is not in this build");
        Failure::fact(NOT_IN_THIS_BUILD, "C0001", message).help("README.md has the table of what is")
    }

    /// An error about an artifact, which is written `CODE: message` with its help on a line of its own.
    pub fn artifact(exit: u8, error: &dyn Display) -> Self {
        let text = error.to_string();
        let (code, rest) = text.split_once(": ").unwrap_or(("", &text));
        match rest.split_once("\n  help: ") {
            Some((message, help)) => Failure::fact(exit, code, message).help(help),
            None => Failure::fact(exit, code, rest),
        }
    }

    /// An error about a target.
    pub fn target(e: &targets::TargetError) -> Self {
        Failure::input(e.code, format!("{}: {}", e.place, e.message)).help(&e.help)
    }

    /// The same as a fault of the command line.
    pub fn of_usage(self) -> Self {
        Failure { exit: USAGE, ..self }
    }

    fn fact(exit: u8, code: &str, message: impl Display) -> Self {
        let said = Said::Fact { code: code.to_owned(), message: message.to_string(), help: None };
        Failure { exit, said }
    }

    /// Adds the next step.
    pub fn help(mut self, step: impl Display) -> Self {
        if let Said::Fact { help, .. } = &mut self.said {
            *help = Some(step.to_string());
        }
        self
    }

    /// A page of its own, with the object that says the same.
    pub fn page(exit: u8, text: String, json: Option<Value>) -> Self {
        Failure { exit, said: Said::Page { text, json } }
    }

    /// Findings, `hidden` more of which are not listed.
    pub fn findings(list: &[Diagnostic], sources: &Sources, hidden: usize) -> Self {
        let text = spec::render(list, sources, std::io::stderr().is_terminal());
        let more = if hidden > 0 { format!("{hidden} more findings are not shown\n") } else { String::new() };
        let json = refusal(spec::render_json(list, sources), hidden);
        Failure::page(INPUT, format!("{}\n{more}", text.trim_end()), Some(json))
    }

    /// Writes the failure where its readers look: words to the error stream and, with `--json`, an object to the output.
    pub fn print(&self, json: bool) {
        let _ = std::io::stderr().write_all(self.text().as_bytes());
        if json {
            let _ = writeln!(std::io::stdout(), "{:#}", self.json());
        }
    }

    fn text(&self) -> String {
        match &self.said {
            Said::Page { text, .. } => text.clone(),
            Said::Fact { code, message, help } => {
                let help = help.as_ref().map_or_else(String::new, |help| format!("help: {help}\n"));
                format!("error[{code}]: {message}\n{help}")
            }
        }
    }

    /// The one form of all failures but those of `verify`, which have verdicts.
    fn json(&self) -> Value {
        match &self.said {
            Said::Page { json: Some(json), .. } => json.clone(),
            Said::Page { text, json: None } => json!({ "ok": false, "text": text }),
            Said::Fact { code, message, help } => {
                let finding = json!({
                    "severity": "error", "code": code, "message": message, "at": null, "notes": [], "help": help, "fix": null,
                });
                refusal(json!([finding]), 0)
            }
        }
    }
}

fn refusal(diagnostics: Value, hidden: usize) -> Value {
    json!({ "ok": false, "diagnostics": diagnostics, "hidden": hidden })
}

/// The codes that this binary adds: code, explanation.
pub const CODES: [(&str, &str, &str); 14] = [
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
    (
        "C0009",
        "the CUDA compiler cannot be used",
        "NVRTC, which translates kernels, was found and cannot be loaded, or not be run as a process of its own. `beamc doctor` says which one was found.",
    ),
    (
        "C0011",
        "no such length of block",
        "`--draft-tokens` lists how many rows a drafted block has, the known token among them: from 2 to 16.",
    ),
    (
        "C0012",
        "no kernels to tune",
        "`--tunable` and `--tuning` choose among kernels of CUDA devices. The target is compiled for another architecture, whose kernels are part of the runtime.",
    ),
    (
        "C0013",
        "tuning results that cannot be used",
        "The file of `--tuning` is not what `beam-run tune` writes, or was measured on a device of another architecture.",
    ),
    (
        "C0014",
        "an output where an input is",
        "What is to be written would replace a file that is read, or lie in a directory that is read, or hold either. Nothing was written.",
    ),
    ("C0010", "no such weight", "`--unpack NAME` names a weight of the spec, as `W.NAME` is written in its text."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_findings_without_a_place() {
        let failure = Failure::usage("C0004", "a: b help: c").help("help: d");
        assert_eq!(failure.text(), "error[C0004]: a: b help: c\nhelp: help: d\n");
        let json = failure.json();
        assert_eq!((&json["ok"], &json["diagnostics"][0]["help"]), (&false.into(), &"help: d".into()));
        assert_eq!(json["diagnostics"][0]["message"], "a: b help: c");
    }

    #[test]
    fn errors_of_artifacts_keep_their_parts() {
        let failure = Failure::artifact(INPUT, &"A0101: `x` holds nothing: so\n  help: name another");
        assert_eq!(failure.text(), "error[A0101]: `x` holds nothing: so\nhelp: name another\n");
    }
}
