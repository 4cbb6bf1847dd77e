//! `POST /v1/completions`: prompts as text or token ids, continued as they stand.

use crate::app::{App, now_seconds};
use crate::body::{self, json_body};
use crate::chat::{matched_json, usage_json};
use crate::chunk::{CHUNK_BYTES, quote};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::format::format;
use crate::ids;
use crate::known::{self, TEXTS};
use crate::logprobs::{Columns, Offset, list};
use crate::params::{self, MOST_LOGPROBS, OPENAI, StreamOptions};
use crate::plain::{self, Continuing, Plain, Setting};
use crate::sse::{self, Frame, Spell};
use crate::turn::{Answers, FieldNames, Step, TurnEvent, Usage};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use engine::{PromptScores, SampledToken};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;

const DEFAULT_MAX_TOKENS: usize = 16;

/// A request that is read.
struct Asked {
    prompts: Vec<Plain>,
    how: Continuing,
    echo: bool,
    logprobs: Option<u32>,
    streaming: StreamOptions,
}

/// The handler.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = json_body(&app, &headers, body).await?;
    let shared = app.clone();
    let asked = app.encoding(move |_| read(&shared, &body)).await?;
    let (echo, logprobs) = (asked.echo, asked.logprobs);
    let scores = |prompt_tokens: usize| {
        let from = if logprobs.is_some() { 1 } else { prompt_tokens };
        echo.then(|| PromptScores { from, top: logprobs.unwrap_or(0), listed: Vec::new() })
    };
    let plan = plain::plan(&app, &asked.prompts, &asked.how, scores).await?;
    let mut answers =
        Answers::start(&app, plan, asked.how.first.names.prompt, asked.how.first.names.max_tokens).await?;
    let streaming = asked.streaming;
    let mut spell = Texts::new(app, asked)?;
    if streaming.stream {
        return Ok(sse::events(answers, spell));
    }
    let mut choices: Vec<Piece> = Vec::new();
    choices.resize_with(answers.len(), Default::default);
    spell.begin(answers.usage());
    while let Some(step) = answers.next().await? {
        let index = step.choice;
        for piece in spell.pieces(step) {
            let Some(choice) = choices.get_mut(index) else { continue };
            choice.text.push_str(&piece.text);
            choice.columns.append(&piece.columns);
            choice.end = piece.end.or(choice.end.take());
        }
    }
    let usage = usage_json(answers.usage(), streaming.usage_of_drafts);
    // Log-probabilities can make it long.
    let text = App::off_thread(move || {
        let choices = choices.iter().enumerate().map(|(index, piece)| (index, piece, logprobs.is_some()));
        Ok(spell.object(choices, Some(usage)))
    });
    Ok(body::json_text(text.await?))
}

fn read(app: &App, body: &Map<String, Value>) -> Result<Asked, ApiError> {
    let fields = Fields(body);
    params::model(app, fields)?;
    known::check(fields, TEXTS)?;
    let mut params = params::params(app, fields, OPENAI)?;
    let logprobs = match fields.whole("logprobs", 0)? {
        Some(n) if n > MOST_LOGPROBS => return Err(fields.outside("logprobs", &format!("from 0 to {MOST_LOGPROBS}"))),
        n => n.and_then(|n| u32::try_from(n).ok()),
    };
    params.sampling.logprobs = logprobs;
    let choices = params::choices(fields)?;
    if fields.whole("best_of", 1)?.is_some_and(|best_of| usize::try_from(best_of) != Ok(choices)) {
        return Err(fields.outside("best_of", "the same as `n`: no more answers are made than are returned"));
    }
    let Some(prompt) = fields.get("prompt") else {
        return Err(ApiError::field("prompt", "missing_parameter", "`prompt` is missing, add it"));
    };
    let mut names = FieldNames { prompt: "prompt", ..FieldNames::default() };
    let format = format(fields, &mut names)?;
    let (prompts, _) = plain::prompts(app, "prompt", prompt)?;
    let first = Setting { params, format, names, within: String::new() };
    let how = Continuing { first, others: Vec::new(), default_max_tokens: DEFAULT_MAX_TOKENS, choices };
    let echo = fields.boolean("echo")?.unwrap_or(false);
    Ok(Asked { prompts, how, echo, logprobs, streaming: params::stream_options(fields)? })
}

/// Writes a choice, or a piece of one, as JSON.
fn choice(json: &mut String, (index, piece, with_logprobs): (usize, &Piece, bool)) {
    let (finish, matched) =
        piece.end.as_ref().map_or((&Value::Null, &Value::Null), |(finish, matched)| (finish, matched));
    // Writing to memory cannot fail.
    let _ = write!(json, "{{\"index\":{index},\"text\":");
    quote(json, &piece.text);
    json.push_str(",\"logprobs\":");
    if with_logprobs {
        piece.columns.write(json);
    } else {
        json.push_str("null");
    }
    let _ = write!(json, ",\"finish_reason\":{finish},\"matched_stop\":{matched}}}");
}

/// One choice on its way.
struct Progress {
    /// The prompt, while it is still to be repeated.
    echo: Option<(String, Vec<u32>)>,
    /// Scores of the prompt so far; its first token has none.
    scored: Vec<SampledToken>,
    offset: Offset,
}

/// A piece of one choice.
#[derive(Default)]
struct Piece {
    text: String,
    columns: Columns,
    /// Finish reason and what matched.
    end: Option<(Value, Value)>,
}

/// The answer in the words of this route.
struct Texts {
    app: Arc<App>,
    /// What all its objects begin with.
    begin: String,
    logprobs: bool,
    skip_special: bool,
    options: StreamOptions,
    choices: Vec<Progress>,
}

impl Texts {
    fn new(app: Arc<App>, asked: Asked) -> Result<Texts, ApiError> {
        let skip_special = asked.how.first.params.skip_special.unwrap_or(true);
        let mut choices = Vec::new();
        for prompt in asked.prompts {
            let decoded = || app.text.tokenizer.decode(&prompt.ids, skip_special);
            let text = match (&prompt.text, asked.echo) {
                (_, false) => None,
                (Some(text), true) => Some(text.clone()),
                (None, true) => Some(decoded().map_err(|error| ApiError::internal(error.to_string()))?),
            };
            for _ in 0..asked.how.choices {
                let echo = text.clone().map(|text| (text, prompt.ids.clone()));
                choices.push(Progress { echo, scored: Vec::new(), offset: Offset::default() });
            }
        }
        let id = asked.how.first.params.rid.unwrap_or_else(|| ids::name("cmpl-"));
        let (id, created, model) = (json!(id), now_seconds(), json!(app.model));
        let begin = format!(
            "{{\"id\":{id},\"object\":\"text_completion\",\"created\":{created},\"model\":{model},\"choices\":"
        );
        let (logprobs, options) = (asked.logprobs.is_some(), asked.streaming);
        Ok(Texts { app, begin, logprobs, skip_special, options, choices })
    }

    /// The answer, or a chunk of it, as JSON.
    fn object<'p>(&self, choices: impl IntoIterator<Item = (usize, &'p Piece, bool)>, usage: Option<Value>) -> String {
        let mut json = String::with_capacity(self.begin.len() + CHUNK_BYTES);
        json.push_str(&self.begin);
        list(&mut json, choices, choice);
        if let Some(usage) = usage {
            let _ = write!(json, ",\"usage\":{usage}");
        }
        json.push('}');
        json
    }

    /// What a step adds to its choice.
    fn pieces(&mut self, step: Step) -> Vec<Piece> {
        let (app, logprobs, skip_special) = (&self.app, self.logprobs, self.skip_special);
        let Some(choice) = self.choices.get_mut(step.choice) else { return Vec::new() };
        let mut pieces = Vec::new();
        choice.scored.extend(step.scored);
        let is_shown = |id: u32| !skip_special || !app.is_control(id);
        let is_scored = |ids: &[u32]| !logprobs || choice.scored.len() + 1 >= ids.len();
        let begins = !step.tokens.is_empty() || !step.events.is_empty();
        if let Some((text, ids)) = choice.echo.take_if(|(_, ids)| is_scored(ids) || begins) {
            let mut columns = Columns::default();
            if logprobs {
                let first = ids.first().map(|id| SampledToken { id: *id, ..SampledToken::default() });
                for token in first.iter().chain(&choice.scored) {
                    columns.add(app, token, &mut choice.offset, is_shown(token.id));
                }
            }
            pieces.push(Piece { text, columns, end: None });
        }
        let (mut text, mut columns, mut end) = (String::new(), Columns::default(), None);
        for event in step.events {
            match event {
                TurnEvent::Content(more) if text.is_empty() => text = more,
                TurnEvent::Content(more) => text.push_str(&more),
                TurnEvent::Finished(finish) => {
                    end = Some((json!(finish.word.word()), matched_json(finish.matched.as_ref())));
                }
                _ => {}
            }
        }
        if logprobs {
            for token in &step.tokens {
                columns.add(app, token, &mut choice.offset, is_shown(token.id));
            }
        }
        if !text.is_empty() || !columns.is_empty() || end.is_some() {
            pieces.push(Piece { text, columns, end });
        }
        pieces
    }

    fn chunk(&self, choice: Option<(usize, &Piece, bool)>, usage: Option<Usage>) -> Frame {
        let usage = usage
            .map(|usage| usage_json(usage, self.options.usage_of_drafts))
            .or(self.options.usage_at_end.then_some(Value::Null));
        Frame { event: None, data: self.object(choice, usage) }
    }
}

impl Spell for Texts {
    fn begin(&mut self, _: Usage) -> Vec<Frame> {
        Vec::new()
    }

    fn step(&mut self, step: Step, usage: Usage) -> Vec<Frame> {
        let index = step.choice;
        let usage = self.options.usage_always.then_some(usage);
        let pieces = self.pieces(step).into_iter().map(|piece| {
            let with_logprobs = !piece.columns.is_empty();
            self.chunk(Some((index, &piece, with_logprobs)), usage)
        });
        pieces.collect()
    }

    fn end(&mut self, usage: Usage) -> Vec<Frame> {
        sse::done(self.options.usage_at_end.then(|| self.chunk(None, Some(usage))))
    }
}
