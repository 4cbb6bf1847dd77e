//! From a request to a turn under way.

use super::answers::{Answers, Collected, Plan, Usage};
use super::following::{Following, Least};
use super::grammar::{ByGrammar, HeldBy, held_by};
use super::prompt::{Prompt, prompt};
use super::reader::Reading;
use super::request::{ToolChoice, TurnRequest};
use crate::app::App;
use crate::error::ApiError;
use crate::ids::word;
use engine::{Constraint, Namespace, Request};
use serde_json::Value;
use std::sync::Arc;
use text::response::{Held, ParseOptions, ResponseParser, Tools};

/// A turn under way: its choices are admitted and none has been told of yet. Dropping it aborts what still runs;
/// [`Answers::next`] tells it step by step.
pub(crate) struct Turn {
    answers: Answers,
}

impl Turn {
    /// Renders, compiles and queues: everything that can be wrong with a request is found here, before a response begins.
    pub async fn start(app: &Arc<App>, request: TurnRequest) -> Result<Turn, ApiError> {
        app.admits(request.params.rid.as_deref())?;
        let request = Arc::new(request);
        let given = Arc::new(Turn::prompt(app, &request).await?);
        app.fits(given.ids.len(), request.names.prompt)?;
        app.affords(given.ids.len().saturating_mul(request.choices), request.choices, "n")?;
        let held = held_by(app, &request, &given).await?;
        let (app_, request_) = (app.clone(), request.clone());
        let plan = App::off_thread(move || plan(&app_, &request_, &given, held.as_ref())).await?;
        let answers = Answers::start(app, plan, request.names.prompt, request.names.max_tokens).await?;
        Ok(Turn { answers })
    }

    /// The prompt's token ids.
    pub async fn ids(app: &Arc<App>, request: TurnRequest) -> Result<Vec<u32>, ApiError> {
        Ok(Turn::prompt(app, &Arc::new(request)).await?.ids)
    }

    async fn prompt(app: &Arc<App>, request: &Arc<TurnRequest>) -> Result<Prompt, ApiError> {
        let (shared, request) = (app.clone(), request.clone());
        app.encoding(move |gone| prompt(&shared, &request, gone)).await
    }

    /// All that is left of all choices.
    pub async fn collect(&mut self) -> Result<Vec<Collected>, ApiError> {
        self.answers.collect().await
    }

    /// The cost so far.
    pub fn usage(&self) -> Usage {
        self.answers.usage()
    }

    /// How many choices there are.
    pub fn len(&self) -> usize {
        self.answers.len()
    }
}

impl From<Turn> for Answers {
    fn from(turn: Turn) -> Answers {
        turn.answers
    }
}

fn plan(app: &App, request: &TurnRequest, given: &Prompt, held: Option<&HeldBy>) -> Result<Plan, ApiError> {
    let params = &request.params;
    let shown = if request.tool_choice == ToolChoice::None { &[][..] } else { &request.tools };
    let tools: Value = shown.iter().map(super::Tool::json).collect();
    let tools = Arc::new(Tools::declared(&tools));
    let mut following = held.map(|held| Following::choices(&held.grammar, request.choices, Least::of(params)));
    let mut choices = Vec::new();
    for choice in 0..request.choices {
        let parser = match &app.text.response {
            None => None,
            Some(template) => {
                let by = held.map_or(Held::Free, |held| held.held);
                // A grammar sees to it that an argument ends; without one, only an argument that ended is one.
                let options = ParseOptions { held: by, early_values: by != Held::Free, ..ParseOptions::default() };
                let parser = ResponseParser::new(template.clone(), tools.clone(), options, &given.text);
                Some(parser.map_err(|error| {
                    ApiError::field(request.names.prompt, "context_length_exceeded", error.to_string())
                })?)
            }
        };
        let following = following.as_mut().and_then(Iterator::next);
        let reading = Reading {
            grammar: following.as_ref().zip(held).map(|(one, held)| ByGrammar::of(one, held.param.clone())),
            stops: params.stop_strings.clone(),
            min_tokens: params.min_tokens,
            keeps_stop: params.keeps_stop,
            skip_special: parser.is_none() && params.skip_special.unwrap_or(true),
            parser,
            closers: app.text.response.clone(),
            controls: app.controls.clone(),
        };
        let mut sampling = params.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(choice as u64);
        choices.push((
            Request {
                prompt: given.ids.clone(),
                max_tokens: app.answer_tokens(params.max_tokens, given.ids.len()),
                min_tokens: params.min_tokens,
                sampling,
                namespace: Namespace { adapter: None, salt: params.salt.clone() },
                priority: params.priority,
                stop: params.stop_tokens.clone(),
                constraint: following.map(|one| Box::new(one) as Box<dyn Constraint>),
                ..Request::default()
            },
            reading,
        ));
    }
    let rid = params.rid.clone().unwrap_or_else(word);
    Ok(Plan { choices, per_prompt: request.choices, rid })
}
