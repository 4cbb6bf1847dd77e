//! A worker process: reads units, one a line, and answers each with a line. NVRTC serialises inside one process, so units are
//! translated side by side by several.

use crate::find::Nvrtc;
use crate::generate::HEADERS;
use crate::nvrtc::Library;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::path::PathBuf;

/// What a worker is asked.
#[derive(Serialize, Deserialize)]
pub struct Question {
    /// Name of the unit.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Options.
    pub options: Vec<String>,
    /// File that gets the machine code.
    pub out: PathBuf,
}

/// What it answers.
#[derive(Serialize, Deserialize)]
pub struct Answer {
    /// Name of the unit.
    pub name: String,
    /// What was wrong; empty if nothing.
    pub error: String,
    /// What the compiler remarked.
    pub log: String,
}

/// The version of the library there, as `13.0`.
pub fn version(nvrtc: &Nvrtc) -> Result<String, String> {
    let (major, minor) = Library::open(&nvrtc.library, nvrtc.builtins.as_deref())?.version()?;
    Ok(format!("{major}.{minor}"))
}

/// Serves until the input ends. The error says why it cannot go on.
pub fn serve(nvrtc: &Nvrtc, input: impl BufRead, mut output: impl Write) -> Result<(), String> {
    let library = Library::open(&nvrtc.library, nvrtc.builtins.as_deref())?;
    for line in input.lines() {
        let line = line.map_err(|e| format!("the question cannot be read: {e}"))?;
        let question: Question = serde_json::from_str(&line).map_err(|e| format!("the question is malformed: {e}"))?;
        let made = library.translate(&question.name, &question.text, &HEADERS, &question.options);
        let (error, log) = match made {
            Ok((cubin, log)) => match std::fs::write(&question.out, cubin) {
                Ok(()) => (String::new(), log),
                Err(e) => (format!("{} cannot be written: {e}", question.out.display()), log),
            },
            Err(error) => (error, String::new()),
        };
        let answer = serde_json::to_string(&Answer { name: question.name, error, log });
        let answer = answer.map_err(|e| format!("the answer cannot be written: {e}"))?;
        writeln!(output, "{answer}").and_then(|()| output.flush()).map_err(|e| format!("nobody listens: {e}"))?;
    }
    Ok(())
}
