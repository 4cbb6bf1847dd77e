//! `POST /generate`: the native route of another server, for trainers and benchmarks that expect it. Streams repeat the
//! text so far, unless `stream_output` asks for pieces.

use crate::app::App;
use crate::body::{self, json_body};
use crate::error::ApiError;
use crate::fields::{Fields, token_id, wrong_type};
use crate::format::format;
use crate::ids::word;
use crate::logprobs;
use crate::params::{self, LEAVE_OUT, ParamNames, Refused, at_most, is_false, never, refuse};
use crate::plain::{self, Continuing, Plain};
use crate::sse::{self, Frame, Spell};
use crate::turn::{Answers, FieldNames, Finish, FinishWord, Format, Matched, Params, Step, TurnEvent, Usage};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use engine::{PromptScores, SampledToken};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEFAULT_MAX_TOKENS: usize = 128;
/// Most alternatives that are reported for a token, and most ids that a request may list: streams repeat them all.
const MOST_REPORTED: usize = 128;
/// How long the one token of `/health_generate` may take.
const HEALTH_TIME: Duration = Duration::from_secs(20);
const NAMES: ParamNames = ParamNames { max_tokens: &["max_new_tokens", "max_tokens"], stop: "stop" };
/// Parameters of sampling whose names differ here.
const RENAMED: [(&str, &str); 2] = [("min_new_tokens", "min_tokens"), ("sampling_seed", "seed")];

const REFUSED: [Refused; 7] = [
    ("image_data", never, "this model reads text"),
    ("audio_data", never, "this model reads text"),
    ("video_data", never, "this model reads text"),
    ("input_embeds", never, "send `text` or `input_ids`"),
    ("lora_path", never, LEAVE_OUT),
    ("return_hidden_states", is_false, LEAVE_OUT),
    ("return_routed_experts", is_false, LEAVE_OUT),
];

/// What is reported of log-probabilities.
#[derive(Clone, Debug, Default)]
struct Wanted {
    logprobs: bool,
    /// First token of the prompt that is reported; none where absent.
    from: Option<usize>,
    top: u32,
    listed: Vec<u32>,
    text: bool,
}

struct Asked {
    prompts: Vec<Plain>,
    is_list: bool,
    how: Continuing,
    wanted: Wanted,
    stream: bool,
    pieces: bool,
    rid: String,
}

/// The handler.
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let shared = app.clone();
    let asked = app.encoding(move || read(&shared, &body)).await?;
    let wanted = asked.wanted.clone();
    let scores = |_: usize| {
        let from = wanted.from.filter(|_| wanted.logprobs)?;
        // The first that is reported has no score: what came before it is not looked at.
        Some(PromptScores { from: from + 1, top: wanted.top, listed: wanted.listed.clone() })
    };
    let plan = plain::plan(&app, &asked.prompts, &asked.how, scores).await?;
    let mut answers = Answers::start(&app, plan, asked.how.names.prompt, asked.how.names.max_tokens).await?;
    let stream = asked.stream;
    let is_list = asked.is_list || asked.how.choices > 1;
    let mut spell = Native::new(app, asked);
    if stream {
        return Ok(sse::events(answers, spell));
    }
    while let Some(step) = answers.next().await? {
        spell.take(step);
    }
    let text = App::off_thread(move || {
        let mut whole: Vec<Value> = (0..spell.choices.len()).map(|index| spell.object(index)).collect();
        let body = if is_list { Value::Array(whole) } else { whole.pop().unwrap_or_default() };
        Ok(body.to_string())
    });
    Ok(body::json_text(text.await?))
}

/// `GET /health_generate`: whether a token can be made right now.
pub(crate) async fn health_generate(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let params = Params { max_tokens: Some(1), ..Params::default() };
    let names = FieldNames { prompt: "prompt", ..FieldNames::default() };
    let how = Continuing { params, default_max_tokens: 1, choices: 1, format: Format::Text, names };
    let prompt = Plain { ids: vec![0], text: None };
    let one = async {
        let plan = plain::plan(&app, &[prompt], &how, |_| None).await?;
        let mut answers = Answers::start(&app, plan, "prompt", "max_tokens").await?;
        answers.collect().await
    };
    let outcome = tokio::time::timeout(HEALTH_TIME, one).await;
    let outcome = outcome.unwrap_or_else(|_| {
        let message = format!("no token was made within {} s; ask another server", HEALTH_TIME.as_secs());
        Err(ApiError::unavailable("engine_slow", message))
    });
    match outcome {
        Ok(_) => Ok(Json(json!({"status": "ok"}))),
        // Others get their tokens, as many as there is room for.
        Err(error) if error.code == "queue_full" => Ok(Json(json!({"status": "busy"}))),
        Err(error) => Err(error),
    }
}

fn read(app: &App, body: &Map<String, Value>) -> Result<Asked, ApiError> {
    let fields = Fields(body);
    refuse(fields, &REFUSED)?;
    let mut sampling = fields.object("sampling_params")?.cloned().unwrap_or_default();
    for (from, to) in RENAMED {
        if let Some(value) = sampling.remove(from) {
            sampling.insert(to.into(), value);
        }
    }
    let settings = Fields(&sampling);
    let wanted = wanted(app, fields)?;
    let mut params = params::params(app, settings, NAMES)?;
    params.sampling.logprobs = wanted.logprobs.then_some(wanted.top);
    params.sampling.listed = if wanted.logprobs { wanted.listed.clone() } else { Vec::new() };
    let rid = params::rid(fields)?.unwrap_or_else(word);
    params.rid = Some(rid.clone());
    let (param, value) = match (fields.get("text"), fields.get("input_ids")) {
        (Some(text), None) => ("text", text),
        (None, Some(ids)) => ("input_ids", ids),
        (None, None) => {
            let message = "neither `text` nor `input_ids` is given; send one of them";
            return Err(ApiError::field("text", "missing_parameter", message));
        }
        (Some(_), Some(_)) => {
            let message = "`text` and `input_ids` are both given; leave one out";
            return Err(ApiError::field("input_ids", "invalid_value", message));
        }
    };
    let (prompts, is_list) = plain::prompts(app, param, value)?;
    let (max_tokens, within) = ("max_new_tokens", "sampling_params.");
    let mut names = FieldNames { prompt: param, max_tokens, within, ..FieldNames::default() };
    let format = format(settings, &mut names)?;
    let choices = params::choices(settings)?;
    let how = Continuing { params, default_max_tokens: DEFAULT_MAX_TOKENS, choices, format, names };
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let pieces = fields.boolean("stream_output")?.unwrap_or(false);
    if stream && !pieces && wanted.logprobs {
        let many = [("top_logprobs_num", wanted.top > 0), ("token_ids_logprob", !wanted.listed.is_empty())];
        if let Some((name, _)) = many.iter().find(|(_, is_wanted)| *is_wanted) {
            let message =
                format!("`{name}` would be repeated with every token; set `stream_output` to true, or leave it out");
            return Err(ApiError::field(*name, "unsupported_parameter", message));
        }
    }
    Ok(Asked { prompts, is_list, how, wanted, stream, pieces, rid })
}

fn wanted(app: &App, fields: Fields<'_>) -> Result<Wanted, ApiError> {
    let top = fields.whole("top_logprobs_num", 0)?.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if top > MOST_REPORTED {
        return Err(fields.outside("top_logprobs_num", &format!("from 0 to {MOST_REPORTED}")));
    }
    let listed = match fields.get("token_ids_logprob") {
        None => Vec::new(),
        Some(Value::Array(ids)) => {
            at_most("token_ids_logprob", "ids", ids.len(), MOST_REPORTED)?;
            ids.iter().map(|id| token_id("token_ids_logprob", id, app.service.vocab())).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong_type("token_ids_logprob", other, "a list of token ids")),
    };
    Ok(Wanted {
        logprobs: fields.boolean("return_logprob")?.unwrap_or(false),
        from: fields.whole("logprob_start_len", -1)?.and_then(|from| usize::try_from(from).ok()),
        top: top.min(app.service.vocab()) as u32,
        listed,
        text: fields.boolean("return_text_in_logprobs")?.unwrap_or(false),
    })
}

/// One choice on its way.
#[derive(Default)]
struct Progress {
    text: String,
    tokens: Vec<SampledToken>,
    scored: Vec<SampledToken>,
    finish: Option<Finish>,
    prompt: Vec<u32>,
    cached_tokens: usize,
    /// What has been told, where only pieces are.
    told: (usize, usize),
    /// Whether the prompt's part has been told; in a stream it is told again only at the end.
    is_prompt_told: bool,
}

/// The answer in the words of this route.
struct Native {
    app: Arc<App>,
    rid: String,
    wanted: Wanted,
    pieces: bool,
    begun: Instant,
    choices: Vec<Progress>,
}

impl Native {
    fn new(app: Arc<App>, asked: Asked) -> Native {
        let n = asked.how.choices;
        let prompts = asked.prompts.into_iter().flat_map(|prompt| std::iter::repeat_n(prompt.ids, n));
        let choices = prompts.map(|prompt| Progress { prompt, ..Progress::default() }).collect();
        let (rid, wanted, pieces) = (asked.rid, asked.wanted, asked.pieces);
        Native { app, rid, wanted, pieces, begun: Instant::now(), choices }
    }

    fn take(&mut self, step: Step) {
        let Some(choice) = self.choices.get_mut(step.choice) else { return };
        choice.cached_tokens = step.cached_tokens;
        choice.tokens.extend(step.tokens);
        choice.scored.extend(step.scored);
        for event in step.events {
            match event {
                TurnEvent::Content(text) => choice.text.push_str(&text),
                TurnEvent::Finished(finish) => choice.finish = Some(finish),
                _ => {}
            }
        }
    }

    /// The choice so far, or what is new of it.
    fn object(&mut self, index: usize) -> Value {
        let pieces = self.pieces;
        let Some(choice) = self.choices.get_mut(index) else { return Value::Null };
        let told = if pieces { choice.told } else { (0, 0) };
        choice.told = (choice.text.len(), choice.tokens.len());
        let Some(choice) = self.choices.get(index) else { return Value::Null };
        let text = choice.text.get(told.0..).unwrap_or_default();
        let tokens = choice.tokens.get(told.1..).unwrap_or_default();
        let with_prompt = !choice.is_prompt_told || choice.finish.is_some();
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let mut info = json!({
            "id": self.rid,
            "finish_reason": choice.finish.as_ref().map_or(Value::Null, |finish| finish_json(finish, choice.tokens.len())),
            "prompt_tokens": choice.prompt.len(),
            "completion_tokens": choice.tokens.len(),
            "cached_tokens": choice.cached_tokens,
            "weight_version": "default",
        });
        if let Some(info) = info.as_object_mut() {
            if choice.finish.is_some() {
                info.insert("e2e_latency".into(), json!(self.begun.elapsed().as_secs_f64()));
            }
            if self.wanted.logprobs {
                self.logprobs(info, choice, tokens, with_prompt);
            }
        }
        let mut whole = json!({"text": text, "output_ids": ids, "meta_info": info});
        if let Some(choice) = self.choices.get_mut(index) {
            choice.is_prompt_told = true;
        }
        if self.choices.len() > 1
            && let Some(whole) = whole.as_object_mut()
        {
            whole.insert("index".into(), json!(index));
        }
        whole
    }

    fn logprobs(&self, info: &mut Map<String, Value>, choice: &Progress, tokens: &[SampledToken], with_prompt: bool) {
        let start = self.wanted.from.unwrap_or(usize::MAX).min(choice.prompt.len().saturating_sub(1));
        let first = choice.prompt.get(start).map(|id| SampledToken { id: *id, ..SampledToken::default() });
        let prompt: Vec<&SampledToken> = first.iter().chain(&choice.scored).collect();
        let output: Vec<&SampledToken> = tokens.iter().collect();
        for (name, tokens) in [("input", &prompt), ("output", &output)] {
            if name == "input" && !with_prompt {
                continue;
            }
            let own = tokens.iter().map(|token| self.triple(token.id, token.logprob));
            info.insert(format!("{name}_token_logprobs"), own.collect());
            let many = |of: fn(&SampledToken) -> &[(u32, f32)]| -> Value {
                let one = |token: &&SampledToken| match token.logprob {
                    None => Value::Null,
                    Some(_) => of(token).iter().map(|(id, logprob)| self.triple(*id, Some(*logprob))).collect(),
                };
                tokens.iter().map(one).collect()
            };
            if self.wanted.top > 0 {
                info.insert(format!("{name}_top_logprobs"), many(|token| &token.top));
            }
            if !self.wanted.listed.is_empty() {
                info.insert(format!("{name}_token_ids_logprobs"), many(|token| &token.listed));
            }
        }
    }

    fn triple(&self, id: u32, logprob: Option<f32>) -> Value {
        let text = if self.wanted.text { json!(logprobs::text(&self.app, id)) } else { Value::Null };
        json!([logprobs::number(logprob), id, text])
    }
}

fn finish_json(finish: &Finish, tokens: usize) -> Value {
    match (finish.word, &finish.matched) {
        (FinishWord::Length, _) => json!({"type": "length", "length": tokens}),
        (FinishWord::Abort, _) => json!({"type": "abort", "message": "aborted"}),
        (_, Some(Matched::Token(id))) => json!({"type": "stop", "matched": id}),
        (_, Some(Matched::Text(text))) => json!({"type": "stop", "matched": text}),
        (_, None) => json!({"type": "stop"}),
    }
}

impl Spell for Native {
    fn begin(&mut self, _: Usage) -> Vec<Frame> {
        Vec::new()
    }

    fn step(&mut self, step: Step, _: Usage) -> Vec<Frame> {
        let index = step.choice;
        let speaks = !step.events.is_empty() || !step.tokens.is_empty();
        self.take(step);
        if speaks { vec![Frame::data(self.object(index))] } else { Vec::new() }
    }

    fn end(&mut self, _: Usage) -> Vec<Frame> {
        sse::done(None)
    }
}
