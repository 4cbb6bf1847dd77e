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
use crate::plain::{self, Continuing, Plain, Setting};
use crate::service::name_of;
use crate::sse::{self, Frame, Spell};
use crate::turn::{Answers, FieldNames, Finish, FinishWord, Matched, Step, TurnEvent, Usage};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use engine::{Event, FinishReason, PromptScores, Request, SampledToken};
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
    let asked = app.encoding(move |_| read(&shared, &body)).await?;
    let wanted = asked.wanted.clone();
    let scores = |_: usize| {
        let from = wanted.from.filter(|_| wanted.logprobs)?;
        // The first that is reported has no score: what came before it is not looked at.
        Some(PromptScores { from: from + 1, top: wanted.top, listed: wanted.listed.clone() })
    };
    let plan = plain::plan(&app, &asked.prompts, &asked.how, scores).await?;
    let mut answers =
        Answers::start(&app, plan, asked.how.first.names.prompt, asked.how.first.names.max_tokens).await?;
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
        let all = spell.choices.len();
        if !is_list {
            return Ok(spell.object(0));
        }
        let mut json = String::new();
        logprobs::list(&mut json, 0..all, |json, index| json.push_str(&spell.object(index)));
        Ok(json)
    });
    Ok(body::json_text(text.await?))
}

/// `GET /health_generate`: whether a token can be made right now, whoever else waits.
pub(crate) async fn health_generate(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    token_health(&app, tokio::time::sleep(HEALTH_TIME)).await.map(|word| Json(json!({"status": word})))
}

/// Whether a token is made until `time` is up, or others get theirs meanwhile.
pub(crate) async fn token_health(app: &App, time: impl Future<Output = ()>) -> Result<&'static str, ApiError> {
    app.serves()?;
    let before = app.service.metrics().generated();
    let outcome = tokio::select! {
        outcome = one_token(app) => outcome,
        () = time => {
            let message = format!("no token was made within {} s; ask another server", HEALTH_TIME.as_secs());
            Err(ApiError::unavailable("engine_slow", message))
        }
    };
    match outcome {
        Ok(()) => Ok("ok"),
        // As many as there is room for.
        Err(error) if error.status == StatusCode::SERVICE_UNAVAILABLE && app.service.metrics().generated() > before => {
            app.serves().map(|()| "busy")
        }
        Err(error) => Err(error),
    }
}

/// Makes one, behind no limit of the queue; one at a time, so that these never fill it.
async fn one_token(app: &App) -> Result<(), ApiError> {
    let _place = app.probes.acquire().await.map_err(|_| ApiError::internal("the server is going down"))?;
    let prompt = app.text.tokenizer.encode("1", true).ok().filter(|ids| !ids.is_empty()).unwrap_or_else(|| vec![0]);
    let request = Request { prompt, max_tokens: Some(1), ..Request::default() };
    let generation = app.service.probe(request, word()).await;
    let mut generation = generation.map_err(|turned| app.turned(turned, "prompt", "max_tokens"))?;
    while let Some(events) = generation.next().await {
        for (_, event) in events {
            match event {
                Event::Finished { reason: FinishReason::Error(error), .. } => return Err(ApiError::internal(error)),
                Event::Finished { .. } => return Ok(()),
                _ => {}
            }
        }
    }
    Err(ApiError::internal("the engine has stopped; restart the server"))
}

fn read(app: &App, body: &Map<String, Value>) -> Result<Asked, ApiError> {
    let fields = Fields(body);
    refuse(fields, &REFUSED)?;
    let wanted = wanted(app, fields)?;
    let rid = params::rid(fields)?.unwrap_or_else(word);
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
    let common = Common { wanted: &wanted, rid: &rid, prompt: param };
    let (first, others, choices) = settings(app, fields, &common, is_list.then_some(prompts.len()))?;
    let how = Continuing { first, others, default_max_tokens: DEFAULT_MAX_TOKENS, choices };
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

/// What all prompts of a request have in common.
struct Common<'a> {
    wanted: &'a Wanted,
    rid: &'a str,
    /// The field that the prompts come from.
    prompt: &'static str,
}

/// `sampling_params`: one object for all prompts, or a list with one for each of so many; and the answers to each prompt.
fn settings(
    app: &App,
    fields: Fields<'_>,
    common: &Common<'_>,
    prompts: Option<usize>,
) -> Result<(Setting, Vec<Setting>, usize), ApiError> {
    let name = "sampling_params";
    let each = match fields.get(name) {
        Some(Value::Array(each)) => each,
        _ => {
            let one = fields.object(name)?.cloned().unwrap_or_default();
            let (first, choices) = setting(app, one, common, format!("{name}."))?;
            return Ok((first, Vec::new(), choices));
        }
    };
    if prompts != Some(each.len()) {
        let found = prompts.map_or("one prompt that is no list".to_owned(), |n| format!("{n} prompts"));
        let message = format!("`{name}` is a list of {}, for {found}; send one for each prompt", each.len());
        return Err(ApiError::field(name, "invalid_value", message));
    }
    let mut all = Vec::new();
    for (i, one) in each.iter().enumerate() {
        let at = format!("{name}[{i}]");
        let one = one.as_object().ok_or_else(|| wrong_type(&at, one, "an object"))?;
        all.push(setting(app, one.clone(), common, format!("{at}."))?);
    }
    let choices = all.first().map_or(1, |(_, choices)| *choices);
    if let Some(i) = all.iter().position(|(_, n)| *n != choices) {
        let message =
            format!("`n` differs between the first and number {i} of `{name}`; ask for as many answers to each");
        return Err(ApiError::field(format!("{name}[{i}].n"), "invalid_value", message));
    }
    let mut all = all.into_iter().map(|(setting, _)| setting);
    let first = all.next().ok_or_else(|| fields.outside(name, "an object, or one for each prompt"))?;
    Ok((first, all.collect(), choices))
}

/// One object of `sampling_params`, and how many answers it asks for; `within` stands before its fields' names in errors.
fn setting(
    app: &App,
    mut sampling: Map<String, Value>,
    common: &Common<'_>,
    within: String,
) -> Result<(Setting, usize), ApiError> {
    for (from, to) in RENAMED {
        if let Some(value) = sampling.remove(from) {
            sampling.insert(to.into(), value);
        }
    }
    let fields = Fields(&sampling);
    let placed = |error: ApiError| error.within(&within);
    let mut params = params::params(app, fields, NAMES).map_err(placed)?;
    let wanted = common.wanted;
    params.sampling.logprobs = wanted.logprobs.then_some(wanted.top);
    params.sampling.listed = if wanted.logprobs { wanted.listed.clone() } else { Vec::new() };
    params.rid = Some(common.rid.to_owned());
    let max_tokens = "sampling_params.max_new_tokens";
    let mut names = FieldNames { prompt: common.prompt, max_tokens, ..FieldNames::default() };
    let format = format(fields, &mut names).map_err(placed)?;
    let choices = params::choices(fields).map_err(placed)?;
    Ok((Setting { params, format, names, within }, choices))
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
    /// The first token of the prompt that is told of; it has no score.
    unscored: Option<SampledToken>,
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
        let from = asked.wanted.from.unwrap_or(usize::MAX);
        let unscored = |prompt: &[u32]| {
            let id = prompt.get(from.min(prompt.len().saturating_sub(1)))?;
            Some(SampledToken { id: *id, ..SampledToken::default() })
        };
        let new = |prompt: Vec<u32>| Progress { unscored: unscored(&prompt), prompt, ..Progress::default() };
        let choices = prompts.map(new).collect();
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

    /// The choice so far, or what is new of it, as JSON.
    fn object(&mut self, index: usize) -> String {
        let several = self.choices.len() > 1;
        let Some(choice) = self.choices.get_mut(index) else { return "null".into() };
        let now = (choice.text.len(), choice.tokens.len());
        let told = std::mem::replace(&mut choice.told, now);
        let is_prompt_told = std::mem::replace(&mut choice.is_prompt_told, true);
        let told = if self.pieces { told } else { (0, 0) };
        let Some(choice) = self.choices.get(index) else { return "null".into() };
        let text = choice.text.get(told.0..).unwrap_or_default();
        let tokens = choice.tokens.get(told.1..).unwrap_or_default();
        let mut json = format!("{{\"text\":{},\"output_ids\":", json!(text));
        logprobs::list(&mut json, tokens, |json, token| json.push_str(&token.id.to_string()));
        json.push_str(",\"meta_info\":");
        let mut info = json!({
            "id": if several { name_of(&self.rid, index) } else { self.rid.clone() },
            "finish_reason": choice.finish.as_ref().map_or(Value::Null, |finish| finish_json(finish, choice.tokens.len())),
            "prompt_tokens": choice.prompt.len(),
            "completion_tokens": choice.tokens.len(),
            "cached_tokens": choice.cached_tokens,
            "weight_version": "default",
        });
        if choice.finish.is_some() {
            info["e2e_latency"] = json!(self.begun.elapsed().as_secs_f64());
        }
        json.push_str(&info.to_string());
        if self.wanted.logprobs {
            // The object goes on.
            json.pop();
            if !is_prompt_told || choice.finish.is_some() {
                self.logprobs(&mut json, "input", &self.scored(choice));
            }
            self.logprobs(&mut json, "output", &tokens.iter().collect::<Vec<_>>());
            json.push('}');
        }
        if several {
            json.push_str(&format!(",\"index\":{index}"));
        }
        json.push('}');
        json
    }

    /// What is told of the prompt: a first token without a score, and those that have one.
    fn scored<'a>(&self, choice: &'a Progress) -> Vec<&'a SampledToken> {
        choice.unscored.iter().chain(&choice.scored).collect()
    }

    fn logprobs(&self, json: &mut String, name: &str, tokens: &[&SampledToken]) {
        json.push_str(&format!(",\"{name}_token_logprobs\":"));
        logprobs::list(json, tokens, |json, token| self.triple(json, token.id, token.logprob));
        let mut many = |kind: &str, of: fn(&SampledToken) -> &[(u32, f32)]| {
            json.push_str(&format!(",\"{name}_{kind}_logprobs\":"));
            logprobs::list(json, tokens, |json, token| match token.logprob {
                None => json.push_str("null"),
                Some(_) => {
                    logprobs::list(json, of(token), |json, (id, logprob)| self.triple(json, *id, Some(*logprob)))
                }
            });
        };
        if self.wanted.top > 0 {
            many("top", |token| &token.top);
        }
        if !self.wanted.listed.is_empty() {
            many("token_ids", |token| &token.listed);
        }
    }

    fn triple(&self, json: &mut String, id: u32, logprob: Option<f32>) {
        let text = if self.wanted.text { json!(logprobs::text(&self.app, id)) } else { Value::Null };
        json.push_str(&format!("[{},{id},{text}]", logprobs::number(logprob)));
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
