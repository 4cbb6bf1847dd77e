//! The grammar that a turn is held to: compiled off the request path, followed on the engine's thread.

use super::prompt::Prompt;
use super::request::{FieldNames, Format, ToolChoice, TurnRequest};
use crate::app::App;
use crate::error::ApiError;
use engine::{Constraint, TokenMask, Verdict};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use text::grammar::{Choice, Grammar, GrammarError, GrammarSpec, Matcher, ToolSpec, TurnPlace, TurnSpec};
use text::response::Held;

/// A grammar, and what it says about how the answer is to be read.
pub(crate) struct HeldBy {
    pub grammar: Arc<Grammar>,
    pub held: Held,
}

/// The grammar of a request; `None` leaves the model free.
pub(crate) async fn held_by(
    app: &Arc<App>,
    request: &TurnRequest,
    prompt: &Prompt,
) -> Result<Option<HeldBy>, ApiError> {
    let Some((spec, held)) = spec(app, request, prompt)? else { return Ok(None) };
    let grammar = compiled(app, spec, request.names).await?;
    Ok(Some(HeldBy { grammar, held }))
}

/// Compiles a grammar, one of a few at a time.
pub(crate) async fn compiled(app: &Arc<App>, spec: GrammarSpec, names: FieldNames) -> Result<Arc<Grammar>, ApiError> {
    let metrics = app.service.metrics();
    metrics.grammars.fetch_add(1, Ordering::Relaxed);
    // Closed only with the application.
    let _place = app.compiling.acquire().await.map_err(|_| ApiError::internal("the server is going down"))?;
    let begun = Instant::now();
    let shared = app.clone();
    let outcome = App::off_thread(move || {
        let compiler = shared.grammars.as_ref().map_err(|error| unable(error, names))?;
        Ok(compiler.compile(&spec))
    })
    .await?;
    metrics.grammar_time.add(begun.elapsed());
    outcome.map_err(|error| {
        let counter = match &error {
            GrammarError::Slow { .. } => &metrics.grammar_timeouts,
            _ => &metrics.grammar_refusals,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        refused(&error, names)
    })
}

/// What is to be held, if anything is.
fn spec(app: &App, request: &TurnRequest, prompt: &Prompt) -> Result<Option<(GrammarSpec, Held)>, ApiError> {
    let answer = match &request.format {
        Format::Text => None,
        Format::Held(spec) => Some(spec.clone()),
    };
    let calls_matter = !request.tools.is_empty()
        && (matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_))
            || (request.tool_choice == ToolChoice::Auto
                && (!request.parallel_tool_calls || request.tools.iter().any(|tool| tool.strict))));
    let is_needed = answer.is_some() || calls_matter;
    let Some(template) = &app.text.response else {
        if calls_matter {
            let message = "the model directory has no response template, so no call can be asked for; leave it out or serve with `--response-template`";
            return Err(ApiError::field("tool_choice", "unsupported_parameter", message));
        }
        return Ok(answer.map(|spec| (spec, Held::Free)));
    };
    let begins = request.add_generation_prompt || request.continues || request.input_ids.is_some();
    let is_usual = app.options.turn_grammar && app.grammars.is_ok() && begins;
    if !(is_needed || is_usual) {
        return Ok(None);
    }
    let (place, begun) = TurnPlace::of(template, &prompt.text);
    if place == TurnPlace::Call {
        return Ok(None);
    }
    let tools = request.tools.iter().map(|tool| ToolSpec {
        name: tool.name.clone(),
        parameters: tool.parameters.clone(),
        strict: tool.strict,
        held: tool.held.clone(),
    });
    let choice = match &request.tool_choice {
        ToolChoice::Auto => Choice::Auto,
        ToolChoice::None => Choice::None,
        ToolChoice::Required => Choice::Required,
        ToolChoice::Named(name) => Choice::Named(name.clone()),
    };
    let held = if request.format.is_json() { Held::JsonAnswer } else { Held::Turn };
    let turn = TurnSpec {
        template: template.clone(),
        tools: tools.collect(),
        choice: if request.tools.is_empty() { Choice::None } else { choice },
        parallel: request.parallel_tool_calls,
        answer,
        place,
        begun,
    };
    Ok(Some((GrammarSpec::Turn(Box::new(turn)), held)))
}

/// A grammar that cannot be compiled, in the request's words.
fn refused(error: &GrammarError, names: FieldNames) -> ApiError {
    let message = error.to_string();
    match error {
        GrammarError::Busy { .. } => ApiError::unavailable("grammars_busy", message),
        GrammarError::Tokenizer { .. } => unable(error, names),
        _ => ApiError::field(param(error.place(), names), "invalid_grammar", message),
    }
}

fn unable(error: &GrammarError, names: FieldNames) -> ApiError {
    ApiError::field(names.format, "unsupported_parameter", error.to_string())
}

/// `tools.0.parameters.a` is `tools[0].function.parameters.a` where clients put tools that way; all else belongs to the
/// format.
fn param(place: Option<&str>, names: FieldNames) -> String {
    let Some(place) = place else { return names.format.to_owned() };
    if place.starts_with("tool_choice") {
        return place.to_owned();
    }
    let Some(rest) = place.strip_prefix("tools.") else { return names.format.to_owned() };
    let (index, path) = rest.split_once('.').unwrap_or((rest, ""));
    let path = match path.strip_prefix("parameters") {
        Some(rest) => format!("{}{rest}", names.parameters),
        None => path.to_owned(),
    };
    let dot = if path.is_empty() { "" } else { "." };
    format!("tools[{index}]{}{dot}{path}", names.function)
}

/// One choice's place in a grammar.
pub(crate) struct Following(pub Matcher, pub usize);

impl Following {
    /// At the beginning of a grammar.
    pub fn new(grammar: &Arc<Grammar>) -> Following {
        Following(grammar.matcher(), grammar.vocab().div_ceil(32))
    }
}

impl std::fmt::Debug for Following {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a grammar's state")
    }
}

impl Constraint for Following {
    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        let mut words = vec![0; self.1];
        self.0.mask(&mut words).map_err(|error| error.to_string())?;
        Ok(Some(words))
    }

    fn masks(&mut self, run: &[u32]) -> Result<Vec<Option<TokenMask>>, String> {
        let masks = self.0.masks(run, self.1).map_err(|error| error.to_string())?;
        Ok(masks.into_iter().map(Some).collect())
    }

    fn advance(&mut self, token: u32) -> Result<Verdict, String> {
        self.0.advance(token).map_err(|error| error.to_string())?;
        Ok(if self.0.ended() { Verdict::Complete } else { Verdict::Open })
    }
}
