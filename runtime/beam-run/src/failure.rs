//! How a command ends badly: what is printed, and the exit code.

use serde_json::{Value, json};
use std::fmt::Display;
use std::io::Write;

/// What stands before a next step on a line of its own.
const HELP: &str = "\n  help: ";

/// The input is at fault.
const INPUT: u8 = 1;
/// The command line is at fault.
const USAGE: u8 = 2;
/// The build has no such capability.
const NOT_IN_THIS_BUILD: u8 = 3;
/// The output could not be written.
const OUTPUT: u8 = 4;
/// The device could not go on.
const DEVICE: u8 = 5;

/// A command's end without its result.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub exit: u8,
    /// Begins with a code where it has one: `A0101: text`.
    pub text: String,
}

impl Failure {
    /// The input is at fault. Messages of the libraries begin with their own code.
    pub fn input(message: impl Display) -> Self {
        Failure { exit: INPUT, text: message.to_string() }
    }

    /// The command line is at fault: a flag, or what several of them say together.
    pub fn usage(message: impl Display) -> Self {
        Failure { exit: USAGE, text: message.to_string() }
    }

    /// The output could not be written, or nothing can listen there.
    pub fn output(message: impl Display) -> Self {
        Failure { exit: OUTPUT, text: message.to_string() }
    }

    /// The device could not go on.
    pub fn device(message: impl Display) -> Self {
        Failure { exit: DEVICE, text: message.to_string() }
    }

    /// Whoever read the output has closed it: an end without a result, and nobody's fault.
    pub fn reader_gone() -> Self {
        Failure { exit: 0, text: String::new() }
    }

    /// What the output has already told in full: the device computed something wrong.
    pub fn reported_fault() -> Self {
        Failure { exit: DEVICE, text: String::new() }
    }

    /// A capability of the design that this build does not have.
    pub fn not_in_this_build(what: &str) -> Self {
        let text = format!("R0001: {what} is not in this build; README.md has the table of what is");
        Failure { exit: NOT_IN_THIS_BUILD, text }
    }

    /// Code and what follows it.
    fn parts(&self) -> (Option<&str>, &str) {
        match self.text.split_once(": ") {
            Some((code, rest)) if code.len() == 5 && code.bytes().skip(1).all(|c| c.is_ascii_digit()) => {
                (Some(code), rest)
            }
            _ => (None, &self.text),
        }
    }

    /// The object of `--json`. The next step has a key of its own where the text gives it lines of its own.
    fn json(&self) -> Value {
        let (code, text) = self.parts();
        let (message, help) = text.split_once(HELP).map_or((text, None), |(message, help)| (message, Some(help)));
        let help = help.map(|help| help.trim_end().replace(HELP, "\n"));
        json!({"ok": false, "error": {"code": code, "message": message.trim_end(), "help": help}})
    }

    /// Writes the failure where its readers look: the error stream, and with `--json` the output stream too.
    pub fn print(&self, json: bool) {
        if self.text.is_empty() {
            return;
        }
        let (code, message) = self.parts();
        let head = code.map_or("error".to_owned(), |code| format!("error[{code}]"));
        let _ = writeln!(std::io::stderr(), "{head}: {message}");
        if json {
            let _ = writeln!(std::io::stdout(), "{:#}", self.json());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_steps_are_apart_in_json() {
        let json = Failure::input("W0306: `a` is odd\n  help: one\n  help: two").json();
        assert_eq!(json["error"], json!({"code": "W0306", "message": "`a` is odd", "help": "one\ntwo"}));
        let json = Failure::usage("R0722: a is b; name c").json();
        assert_eq!(json["error"], json!({"code": "R0722", "message": "a is b; name c", "help": null}));
    }
}
