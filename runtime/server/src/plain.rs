//! Prompts that are continued as they stand, for the routes without messages.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{token_id, wrong_type};
use crate::ids::word;
use crate::turn::{ByGrammar, FieldNames, Following, Format, Least, Params, Plan, Reading, compiled};
use engine::{Constraint, Namespace, PromptScores, Request};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::grammar::Grammar;

/// Most prompts of one request.
const MOST_PROMPTS: usize = 128;
/// Most different grammars of one request, and how long it may wait for all of them together.
const MOST_GRAMMARS: usize = 16;
const GRAMMARS_TIME: Duration = Duration::from_secs(4);

/// A prompt.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub ids: Vec<u32>,
    /// Its text, where it came as one.
    pub text: Option<String>,
}

/// How a prompt is continued.
pub(crate) struct Setting {
    pub params: Params,
    pub format: Format,
    /// What its fields are called.
    pub names: FieldNames,
    /// What stands before these names, such as `sampling_params.`.
    pub within: String,
}

impl Setting {
    /// The field of its format, as the client sent it.
    fn format_param(&self) -> String {
        format!("{}{}", self.within, self.names.format_param())
    }
}

/// How prompts are continued.
pub(crate) struct Continuing {
    /// How the first is.
    pub first: Setting,
    /// How the others are, one by one; all like the first where this is empty.
    pub others: Vec<Setting>,
    /// The limit where the request names none.
    pub default_max_tokens: usize,
    /// Answers to each prompt.
    pub choices: usize,
}

impl Continuing {
    /// How a prompt is continued.
    fn setting(&self, prompt: usize) -> &Setting {
        prompt.checked_sub(1).and_then(|other| self.others.get(other)).unwrap_or(&self.first)
    }

    /// The grammar of each prompt, with what its answers are to have before they end.
    async fn grammars(&self, app: &Arc<App>, prompts: usize) -> Result<Vec<Option<(Arc<Grammar>, Least)>>, ApiError> {
        let until = Instant::now() + GRAMMARS_TIME;
        let (mut grammars, mut different): (_, Vec<Arc<Grammar>>) = (Vec::new(), Vec::new());
        for setting in std::iter::once(&self.first).chain(&self.others) {
            let Format::Held(spec) = &setting.format else {
                grammars.push(None);
                continue;
            };
            let compiled = tokio::time::timeout_at(until.into(), compiled(app, spec.clone(), setting.names)).await;
            let grammar = compiled.unwrap_or_else(|_| Err(late())).map_err(|error| error.within(&setting.within))?;
            // Equal ones are found among those that are kept.
            if !different.iter().any(|other| Arc::ptr_eq(other, &grammar)) {
                different.push(grammar.clone());
            }
            if different.len() > MOST_GRAMMARS {
                let message =
                    format!("the request has more than {MOST_GRAMMARS} different formats; send several requests");
                return Err(ApiError::field(setting.format_param(), "request_too_large", message));
            }
            grammars.push(Some((grammar, Least::of(&setting.params))));
        }
        let last = grammars.last().cloned().flatten();
        grammars.resize(prompts.max(grammars.len()), last);
        Ok(grammars)
    }
}

/// All grammars of a request together took too long.
fn late() -> ApiError {
    let seconds = GRAMMARS_TIME.as_secs();
    let message =
        format!("compiling the request's formats took more than {seconds} s; send fewer of them, or try again later");
    ApiError::unavailable("grammars_busy", message)
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
    app.admits(how.first.params.rid.as_deref())?;
    prompts.iter().try_for_each(|prompt| app.fits(prompt.ids.len(), how.first.names.prompt))?;
    let tokens = prompts.iter().map(|prompt| prompt.ids.len()).sum::<usize>();
    app.affords(tokens.saturating_mul(how.choices), prompts.len().saturating_mul(how.choices), how.first.names.prompt)?;
    let grammars = how.grammars(app, prompts.len()).await?;
    let held = grammars.iter().take(prompts.len()).flatten();
    let mut following = Following::each(held.flat_map(|one| std::iter::repeat_n(one.clone(), how.choices)).collect());
    let mut choices = Vec::new();
    for (at, prompt) in prompts.iter().enumerate() {
        let is_held = grammars.get(at).is_some_and(Option::is_some);
        for index in 0..how.choices {
            let constraint = if is_held { following.next() } else { None };
            let how_now = (how.setting(at), index as u64);
            choices.push(choice(app, prompt, how, how_now, constraint, scores(prompt.ids.len())));
        }
    }
    Ok(Plan { choices, per_prompt: how.choices, rid: how.first.params.rid.clone().unwrap_or_else(word) })
}

fn choice(
    app: &App,
    prompt: &Plain,
    how: &Continuing,
    (setting, index): (&Setting, u64),
    following: Option<Following>,
    prompt_scores: Option<PromptScores>,
) -> (Request, Reading) {
    let params = &setting.params;
    let mut sampling = params.sampling.clone();
    sampling.seed = sampling.seed.wrapping_add(index);
    let asked = params.max_tokens.unwrap_or(how.default_max_tokens);
    let grammar = following.as_ref().map(|one| ByGrammar::of(one, setting.format_param()));
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
