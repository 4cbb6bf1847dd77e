//! The grammar that a turn is held to, compiled off the request path.

use super::following::{Fault, Following};
use super::prompt::Prompt;
use super::request::{FieldNames, Format, ToolChoice, TurnRequest};
use crate::app::App;
use crate::error::ApiError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use text::grammar::{Choice, Compiler, Grammar, GrammarError, GrammarSpec, Lane, ToolSpec, TurnPlace, TurnSpec};
use text::response::Held;
use tokio::sync::oneshot;

/// A grammar, and what it says about how the answer is to be read.
pub(crate) struct HeldBy {
    pub grammar: Arc<Grammar>,
    pub held: Held,
    /// The field that brought it.
    pub param: String,
}

/// A grammar that one choice is held to, for whoever reads what became of it.
pub(crate) struct ByGrammar {
    fault: Fault,
    param: String,
}

impl ByGrammar {
    /// That of a choice; `param` is the field that brought it.
    pub fn of(following: &Following, param: String) -> ByGrammar {
        ByGrammar { fault: following.fault(), param }
    }

    /// The error that ends the choice, if its grammar is at fault.
    pub fn fault(&self) -> Option<ApiError> {
        Some(ApiError::field(&*self.param, "invalid_grammar", self.fault.reason()?))
    }
}

/// The grammar of a request; `None` leaves the model free.
pub(crate) async fn held_by(
    app: &Arc<App>,
    request: &Arc<TurnRequest>,
    prompt: &Arc<Prompt>,
) -> Result<Option<HeldBy>, ApiError> {
    let (own, names) = ((app.clone(), request.clone(), prompt.clone()), request.names);
    let wish = App::off_thread(move || spec(&own.0, &own.1, &own.2)).await?;
    let Some((spec, held)) = wish else { return Ok(None) };
    let param = whole_param(&spec, names);
    let grammar = compiled(app, spec, names).await?;
    Ok(Some(HeldBy { grammar, held, param }))
}

/// When a wish that was too slow may be tried again.
const AGAIN_SECONDS: u64 = 10;
/// How long a request waits for a place among those who compile.
const PLACE_TIME: Duration = Duration::from_secs(2);

/// Compiles a grammar, one of a few at a time, or finds it among those that are kept.
pub(crate) async fn compiled(app: &Arc<App>, spec: GrammarSpec, names: FieldNames) -> Result<Arc<Grammar>, ApiError> {
    let metrics = app.service.metrics();
    metrics.grammars.fetch_add(1, Ordering::Relaxed);
    let begun = Instant::now();
    let compiler = app.grammars.as_ref().map_err(|error| unable(error, names))?;
    let whole = whole_param(&spec, names);
    let outcome = found_or_compiled(app, compiler, Arc::new(spec)).await?;
    metrics.grammar_time.add(begun.elapsed());
    outcome.map_err(|error| {
        let counter = match &error {
            GrammarError::Slow { .. } => &metrics.grammar_timeouts,
            _ => &metrics.grammar_refusals,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        refused(&error, &whole, names)
    })
}

/// What is kept needs no place, and what all requests share has places of its own: whatever some send to be compiled, plain
/// requests go on. A thread that nobody waits for any more keeps its place until it ends.
async fn found_or_compiled(app: &App, compiler: &Compiler, spec: Arc<GrammarSpec>) -> Result<Known, ApiError> {
    let (lane, found) = known(compiler, &spec).await?;
    if let Some(found) = found {
        return Ok(found);
    }
    let limits = compiler.limits();
    let place = match tokio::time::timeout(PLACE_TIME, app.places(lane).clone().acquire_owned()).await {
        Ok(Ok(place)) => place,
        // Closed only with the application.
        Ok(Err(_)) => return Err(ApiError::internal("the server is going down")),
        Err(_) => {
            let limit = limits.places(lane);
            return Ok(Err(GrammarError::Busy { running: limit, limit }));
        }
    };
    // Another request may have brought the same meanwhile.
    if let (_, Some(found)) = known(compiler, &spec).await? {
        return Ok(found);
    }
    let (tell, told) = oneshot::channel();
    // Nobody listens any more if it took too long, or the client has gone.
    if let Err(error) = compiler.begin(&spec, place, move |outcome| drop(tell.send(outcome))) {
        return Ok(Err(error));
    }
    match tokio::time::timeout(limits.time, told).await {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(_)) => Err(ApiError::internal("a grammar hit a defect of the server; report it with the request")),
        Err(_) => Ok(Err(compiler.give_up(&spec))),
    }
}

/// The lane of a wish, and what is known of it already. Reading a long one takes time.
async fn known(compiler: &Compiler, spec: &Arc<GrammarSpec>) -> Result<(Lane, Option<Known>), ApiError> {
    let (compiler, spec) = (compiler.clone(), spec.clone());
    App::off_thread(move || Ok((spec.lane(), compiler.kept(&spec)))).await
}

/// A grammar, or why there is none.
type Known = Result<Arc<Grammar>, GrammarError>;

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
    ends_by_itself(request, answer.as_ref())?;
    let (place, begun) = TurnPlace::of(template, &prompt.text);
    let begun = prompt.mark.map_or(begun.clone(), |mark| begun.replace(mark, ""));
    if place == TurnPlace::Call {
        if is_needed {
            let message = "the prompt ends inside a call, where no format and no choice of tools can be held; let it end elsewhere, or leave them out";
            return Err(ApiError::field(request.names.prompt, "invalid_value", message));
        }
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
        tools: if request.tool_choice == ToolChoice::None { Vec::new() } else { tools.collect() },
        choice: if request.tools.is_empty() { Choice::None } else { choice },
        parallel: request.parallel_tool_calls,
        answer,
        place,
        begun,
        goes_on: request.params.ignores_end || request.params.min_tokens > 0,
    };
    Ok(Some((GrammarSpec::Turn(Box::new(turn)), held)))
}

/// Refuses an answer that is never to end beside a format or a choice of tools that says where it does.
fn ends_by_itself(request: &TurnRequest, answer: Option<&GrammarSpec>) -> Result<(), ApiError> {
    let is_one_call = match request.tool_choice {
        ToolChoice::Named(_) => true,
        ToolChoice::Required => !request.parallel_tool_calls,
        ToolChoice::Auto | ToolChoice::None => false,
    };
    let other = match answer {
        _ if !request.params.ignores_end => return Ok(()),
        Some(spec) if spec.is_bounded() => request.names.format_param(),
        None if is_one_call => "tool_choice".to_owned(),
        _ => return Ok(()),
    };
    let message = format!("`ignore_eos` is true, and `{other}` says where the answer ends; leave one out");
    Err(ApiError::field("ignore_eos", "invalid_value", message))
}

/// A grammar that cannot be compiled, in the request's words.
fn refused(error: &GrammarError, whole: &str, names: FieldNames) -> ApiError {
    let message = error.to_string();
    match error {
        GrammarError::Busy { .. } => ApiError::unavailable("grammars_busy", message),
        // What was slow once may have met a busy machine.
        GrammarError::Slow { times: 1, .. } => {
            let error = ApiError::unavailable("grammar_too_slow", message);
            ApiError { retry_after_seconds: Some(AGAIN_SECONDS), ..error }
        }
        GrammarError::Tokenizer { .. } => unable(error, names),
        _ => ApiError::field(param(error.place(), whole, names), "invalid_grammar", message),
    }
}

fn unable(error: &GrammarError, names: FieldNames) -> ApiError {
    ApiError::field(names.format_param(), "unsupported_parameter", error.to_string())
}

/// The field that a grammar as a whole belongs to.
fn whole_param(spec: &GrammarSpec, names: FieldNames) -> String {
    match spec {
        GrammarSpec::Turn(turn) if turn.answer.is_none() && !turn.tools.is_empty() => "tools".to_owned(),
        _ => names.format_param(),
    }
}

/// `tools.0.parameters.a` is `tools[0].function.parameters.a` where clients put tools that way; what is no place of the request's
/// belongs to the `whole`.
fn param(place: Option<&str>, whole: &str, names: FieldNames) -> String {
    match place {
        Some("messages") => return names.prompt.to_owned(),
        Some(place) if place.starts_with("tool_choice") => return place.to_owned(),
        None | Some("grammar" | "tools") => return whole.to_owned(),
        Some(_) => {}
    }
    let rest = place.and_then(|place| place.strip_prefix("tools."));
    let Some(rest) = rest else { return names.format_param() };
    let (index, path) = rest.split_once('.').unwrap_or((rest, ""));
    let path = match (path.strip_prefix("parameters"), path.starts_with("held.")) {
        (Some(rest), _) => format!("{}{rest}", names.parameters),
        // The grammar of a tool that takes free text.
        (None, true) => "format".to_owned(),
        (None, false) => path.to_owned(),
    };
    let dot = if path.is_empty() { "" } else { "." };
    format!("tools[{index}]{}{dot}{path}", names.function)
}
