//! Prompts that are continued as they stand, for the routes without messages.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{token_id, wrong_type};
use crate::ids::word;
use crate::turn::{ByGrammar, FieldNames, Following, Format, Least, Params, Plan, Reading, compiled};
use engine::{Constraint, Namespace, PromptScores, Request};
use serde_json::Value;
use std::sync::Arc;

/// Most prompts of one request.
const MOST_PROMPTS: usize = 128;

/// A prompt.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub ids: Vec<u32>,
    /// Its text, where it came as one.
    pub text: Option<String>,
}

/// How prompts are continued.
pub(crate) struct Continuing {
    pub params: Params,
    /// The limit where the request names none.
    pub default_max_tokens: usize,
    /// Answers to each prompt.
    pub choices: usize,
    pub format: Format,
    pub names: FieldNames,
}

/// Reads a prompt, or several: a text, token ids, or a list of either. The answer says whether it was a list.
pub(crate) fn prompts(app: &App, param: &str, value: &Value) -> Result<(Vec<Plain>, bool), ApiError> {
    match value {
        Value::Array(list) if list.first().is_some_and(|first| !first.is_number()) => {
            if list.len() > MOST_PROMPTS {
                let message = format!("`{param}` has {} prompts, at most {MOST_PROMPTS} are allowed", list.len());
                return Err(ApiError::field(param, "invalid_value", message));
            }
            Ok((list.iter().map(|one| prompt(app, param, one)).collect::<Result<_, _>>()?, true))
        }
        one => Ok((vec![prompt(app, param, one)?], false)),
    }
}

fn prompt(app: &App, param: &str, value: &Value) -> Result<Plain, ApiError> {
    match value {
        Value::String(text) => Ok(Plain { ids: app.encode(text, true, param)?, text: Some(text.clone()) }),
        Value::Array(ids) => {
            let ids = ids.iter().map(|id| token_id(param, id, app.service.vocab())).collect::<Result<_, _>>()?;
            Ok(Plain { ids, text: None })
        }
        other => Err(wrong_type(param, other, "a string, a list of token ids, or a list of these")),
    }
}

/// The requests for these prompts, each with its choices. `scores` says what is scored of a prompt so long.
pub(crate) async fn plan(
    app: &Arc<App>,
    prompts: &[Plain],
    how: &Continuing,
    scores: impl Fn(usize) -> Option<PromptScores>,
) -> Result<Plan, ApiError> {
    app.admits()?;
    prompts.iter().try_for_each(|prompt| app.fits(prompt.ids.len(), how.names.prompt))?;
    let tokens = prompts.iter().map(|prompt| prompt.ids.len()).sum::<usize>();
    app.affords(tokens.saturating_mul(how.choices), prompts.len().saturating_mul(how.choices), how.names.prompt)?;
    let grammar = match &how.format {
        Format::Text => None,
        Format::Held(spec) => Some(compiled(app, spec.clone(), how.names).await?),
    };
    let all = prompts.len().saturating_mul(how.choices);
    let mut following = grammar.as_ref().map(|grammar| Following::choices(grammar, all, Least::of(&how.params)));
    let mut choices = Vec::new();
    for prompt in prompts {
        for _ in 0..how.choices {
            let index = choices.len() as u64;
            let constraint = following.as_mut().and_then(Iterator::next);
            choices.push(choice(app, prompt, how, index, constraint, scores(prompt.ids.len())));
        }
    }
    Ok(Plan { choices, per_prompt: how.choices, rid: how.params.rid.clone().unwrap_or_else(word) })
}

fn choice(
    app: &App,
    prompt: &Plain,
    how: &Continuing,
    index: u64,
    following: Option<Following>,
    prompt_scores: Option<PromptScores>,
) -> (Request, Reading) {
    let params = &how.params;
    let mut sampling = params.sampling.clone();
    sampling.seed = sampling.seed.wrapping_add(index % how.choices.max(1) as u64);
    let asked = params.max_tokens.unwrap_or(how.default_max_tokens);
    let grammar = following.as_ref().map(|one| ByGrammar::of(one, how.names.format_param()));
    let request = Request {
        prompt: prompt.ids.clone(),
        max_tokens: app.answer_tokens(Some(asked), prompt.ids.len()),
        min_tokens: params.min_tokens,
        sampling,
        namespace: Namespace { adapter: None, salt: params.salt.clone() },
        priority: params.priority,
        stop: params.stop_tokens.clone(),
        constraint: following.map(|one| Box::new(one) as Box<dyn Constraint>),
        prompt_scores,
    };
    let reading = Reading {
        grammar,
        stops: params.stop_strings.clone(),
        min_tokens: params.min_tokens,
        keeps_stop: params.keeps_stop,
        skip_special: params.skip_special.unwrap_or(true),
        parser: None,
        closers: None,
        controls: app.controls.clone(),
    };
    (request, reading)
}
