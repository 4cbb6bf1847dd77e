//! Reasoning in blocks: whether it is shown, and what its signature is for.
//!
//! A block that shows its text is signed with a digest of it, since clients drop blocks without a signature from their
//! history; nothing is checked when it comes back. A block whose text is left out carries the text in its signature, so
//! that the model still has it in the next request.

use crate::app::App;
use crate::chat::thinking_off;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::parts::{optional_word, word};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// What the signature of shown text begins with.
const DIGEST: &str = "d1.";
/// What a signature that carries the text begins with.
const CARRIES: &str = "t1.";

/// What is shown of the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Its text.
    Text,
    /// A block with a signature and no text.
    Signature,
    /// Nothing.
    Nothing,
}

/// Reads `thinking`; what it asks of the model goes to the template's variables.
pub(super) fn thinking(
    app: &App,
    fields: Fields<'_>,
    with_tools: bool,
    max_tokens: Option<usize>,
    variables: &mut Map<String, Value>,
) -> Result<Shown, ApiError> {
    let Some(map) = fields.object("thinking")? else {
        return Ok(if app.options.show_thinking { Shown::Text } else { Shown::Nothing });
    };
    let map = Fields(map);
    match word(map, "thinking", "type")? {
        "enabled" | "adaptive" => {}
        "disabled" => {
            thinking_off(app, "thinking.type", with_tools, variables)?;
            return Ok(Shown::Nothing);
        }
        other => return Err(wrong_type("thinking.type", &json!(other), "`enabled`, `adaptive` or `disabled`")),
    }
    if let Some(budget) = budget(app, map, max_tokens)? {
        variables.insert("thinking_budget".into(), budget);
    }
    match map.get("display") {
        None => Ok(Shown::Text),
        Some(display) if display == "summarized" => Ok(Shown::Text),
        Some(display) if display == "omitted" => Ok(Shown::Signature),
        Some(other) => Err(wrong_type("thinking.display", other, "`summarized` or `omitted`")),
    }
}

/// Fewest tokens that the protocol lets a model think for, where the context has room for more.
const LEAST_BUDGET: usize = 1024;

/// How many tokens the model should think for, less than the whole answer may have.
fn budget(app: &App, map: Fields<'_>, max_tokens: Option<usize>) -> Result<Option<Value>, ApiError> {
    let at = "thinking.budget_tokens";
    let Some(value) = map.get("budget_tokens") else { return Ok(None) };
    let least = if app.service.limit_tokens() > LEAST_BUDGET { LEAST_BUDGET } else { 1 };
    let budget = value.as_u64().map(|budget| usize::try_from(budget).unwrap_or(usize::MAX));
    let budget = budget.filter(|budget| *budget >= least);
    let budget = budget.ok_or_else(|| wrong_type(at, value, &format!("a whole number of at least {least}")))?;
    match max_tokens {
        Some(most) if budget >= most => {
            let message = format!("`{at}` is {budget} and `max_tokens` {most}, which must be more; lower the budget");
            Err(ApiError::field(at, "invalid_value", message))
        }
        _ => Ok(Some(json!(budget))),
    }
}

/// The signature of a block.
pub(super) fn signature(thought: &str, shown: Shown) -> String {
    match shown {
        Shown::Signature => format!("{CARRIES}{}", URL_SAFE_NO_PAD.encode(thought)),
        Shown::Text | Shown::Nothing => format!("{DIGEST}{}", URL_SAFE_NO_PAD.encode(Sha256::digest(thought))),
    }
}

/// The reasoning of an earlier block: its text, or what its signature carries.
pub(super) fn thought(block: Fields<'_>, at: &str) -> Result<String, ApiError> {
    let text = word(block, at, "thinking")?;
    match optional_word(block, at, "signature")? {
        Some(signature) if text.is_empty() && signature.starts_with(CARRIES) => {
            carried(signature, &format!("{at}.signature"))
        }
        _ => Ok(text.to_owned()),
    }
}

/// The reasoning of an earlier block without text, if this server made it.
pub(super) fn redacted(block: Fields<'_>, at: &str) -> Result<String, ApiError> {
    carried(word(block, at, "data")?, &format!("{at}.data"))
}

fn carried(signature: &str, at: &str) -> Result<String, ApiError> {
    let bytes = signature.strip_prefix(CARRIES).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| {
        let message =
            format!("`{at}` was not made by this server, so the reasoning in it cannot be read; remove the block");
        ApiError::field(at, "invalid_value", message)
    })
}
