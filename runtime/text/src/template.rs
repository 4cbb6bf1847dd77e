//! The chat template: a Jinja program from the model directory that writes the prompt.
//!
//! The environment is the one chat templates are written for: `trim_blocks` and `lstrip_blocks`, loop controls, Python's
//! string and dictionary methods, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, and `generation`
//! blocks (which mark text and change none).

use crate::exact::variable;
use crate::json_filter::{python_float, tojson};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Map;
use std::io::{self, Write};

/// Steps that one rendering may take where nobody says less: a long chat takes some hundred thousand.
const FUEL: u64 = 50_000_000;

const NAME: &str = "chat";

/// A compiled template with the special tokens it may name.
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: Map<String, serde_json::Value>,
}

/// Why a template does not parse, or why it wrote no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chat template{}: {message}", .line.map_or(String::new(), |line| format!(", line {line}")))]
pub struct TemplateError {
    /// One sentence.
    pub message: String,
    /// Line of the template.
    pub line: Option<usize>,
}

/// What one rendering may cost.
pub struct Allowance<'a> {
    /// Steps of the template; copied and compared bytes count as well.
    pub steps: u64,
    /// Most bytes of the prompt.
    pub bytes: usize,
    /// Whether nobody waits for the prompt any more; asked before each piece of it.
    pub is_gone: &'a dyn Fn() -> bool,
}

/// Why there is no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPrompt {
    /// The template does not want to, or cannot.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// It took all steps that were allowed.
    #[error("the chat template needs more than {0} steps")]
    Steps(u64),
    /// The prompt became longer than so many bytes.
    #[error("the prompt is longer than {0} bytes")]
    Bytes(usize),
    /// Nobody waits for it any more.
    #[error("nobody waits for the prompt any more")]
    Gone,
}

/// A prompt on its way.
struct Written<'a> {
    text: Vec<u8>,
    allowance: &'a Allowance<'a>,
    /// Why it goes no further.
    why: Option<NoPrompt>,
}

impl Write for Written<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let Allowance { bytes, is_gone, .. } = *self.allowance;
        let why = match self.text.len().saturating_add(piece.len()) {
            _ if is_gone() => NoPrompt::Gone,
            length if length > bytes => NoPrompt::Bytes(bytes),
            _ => {
                self.text.extend_from_slice(piece);
                return Ok(piece.len());
            }
        };
        self.why = Some(why);
        Err(io::ErrorKind::Other.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let message = match error.detail() {
            // What the template itself has to say.
            Some(detail) if kind == ErrorKind::InvalidOperation => detail.to_owned(),
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        };
        TemplateError { message, line: error.line() }
    }
}

impl ChatTemplate {
    /// Compiles a template. `special` are variables such as `bos_token`.
    pub fn new(source: &str, special: Map<String, serde_json::Value>) -> Result<ChatTemplate, TemplateError> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.set_formatter(print);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, without_generation_blocks(source))?;
        Ok(ChatTemplate { environment, special })
    }

    /// Another template with the same special tokens.
    pub fn with_source(&self, source: &str) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::new(source, self.special.clone())
    }

    /// Whether the template reads a variable that it does not set itself.
    pub fn reads(&self, variable: &str) -> bool {
        let template = self.environment.get_template(NAME);
        template.is_ok_and(|template| template.undeclared_variables(false).contains(variable))
    }

    /// Renders with these variables (`messages`, `tools`, `add_generation_prompt`, …), which go before the special
    /// tokens of the same name.
    pub fn render(&self, variables: Map<String, serde_json::Value>) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME)?;
        Ok(template.render(self.with_special(variables))?)
    }

    /// The same, as far as the allowance goes.
    pub fn render_within(
        &self,
        variables: Map<String, serde_json::Value>,
        allowance: &Allowance<'_>,
    ) -> Result<String, NoPrompt> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(allowance.steps.min(FUEL)));
        let template = environment.get_template(NAME).map_err(TemplateError::from)?;
        let mut written = Written { text: Vec::new(), allowance, why: None };
        let outcome = template.render_captured_to(self.with_special(variables), &mut written).map(drop);
        match (outcome, written.why) {
            (Ok(()), _) => Ok(String::from_utf8(written.text)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())),
            (Err(_), Some(why)) => Err(why),
            (Err(error), None) if is_out_of_fuel(&error) => Err(NoPrompt::Steps(allowance.steps.min(FUEL))),
            (Err(error), None) => Err(TemplateError::from(error).into()),
        }
    }

    fn with_special(&self, variables: Map<String, serde_json::Value>) -> Value {
        let mut all = self.special.clone();
        all.extend(variables);
        Value::from_pairs(all.into_iter().map(|(name, value)| (name, variable(value))))
    }
}

/// Whether an error is, or comes from, the end of the steps that were allowed.
fn is_out_of_fuel(error: &Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = source {
        if one.downcast_ref::<Error>().is_some_and(|one| one.kind() == ErrorKind::OutOfFuel) {
            return true;
        }
        source = one.source();
    }
    false
}

/// Prints a value; numbers as Python does, also large and small ones.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match f64::try_from(value.clone()) {
        Ok(number) if value.kind() == ValueKind::Number && !value.is_integer() && number.is_finite() => {
            Ok(out.write_str(&python_float(number))?)
        }
        _ => escape_formatter(out, state, value),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The local time, the only thing a prompt may depend on besides the request.
fn strftime_now(format: String) -> Result<String, Error> {
    let now = jiff::Zoned::now();
    jiff::fmt::strtime::format(&format, &now).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
}

/// Replaces `{% generation %}` and `{% endgeneration %}` by a condition that holds, line for line.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_start_matches("{%").trim_end_matches("%}");
        let word = word.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests;
