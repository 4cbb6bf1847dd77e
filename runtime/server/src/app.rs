//! The application: what all routes share.

use crate::body::Room;
use crate::controls::Controls;
use crate::door::{Load, Turned};
use crate::error::{self, ApiError};
use crate::key::Key;
use crate::responses::Store;
use crate::service::{Generation, Service};
use axum::http::StatusCode;
use engine::Request;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use text::Text;
use text::TokenBytes;
use text::grammar::{Compiler, GrammarError, Lane, Limits};
use tokio::sync::{Semaphore, watch};

/// How many full bodies the server holds at once while they arrive and are read.
const FULL_BODIES: usize = 8;
/// Most answers of one request, to all its prompts together.
const MOST_ANSWERS: usize = 512;
/// Most prompt tokens of one request, each prompt counted as often as it has answers.
const MOST_PROMPT_TOKENS: usize = 16 << 20;

/// Most log-probabilities that one request may be told.
const MOST_LOGPROBS: usize = 1 << 20;
/// How often a response tells each of them: in the ends of its text and part, in the item and in the whole. They are values
/// of most of a kilobyte until then.
const TOLD_IN_RESPONSES: usize = 4;

/// What a server is told when it is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Largest request body.
    pub body_limit_bytes: usize,
    /// Whether every turn is held to the grammar of the response template, and not only where a request needs it.
    pub turn_grammar: bool,
    /// Whether the checkpoint's recommended sampling parameters are the defaults.
    pub checkpoint_sampling: bool,
    /// Whether reported log-probabilities are those of the untouched logits.
    pub untouched_logprobs: bool,
    /// Whether control tokens that messages spell are encoded as plain text.
    pub sanitize_control_tokens: bool,
    /// Whether an answer's limit beyond the context is lowered instead of refused.
    pub truncate: bool,
    /// Whether requests may bring a chat template of their own.
    pub request_templates: bool,
    /// Whether answers of the Messages API show reasoning where the request says nothing about it.
    pub show_thinking: bool,
    /// Key that requests must bring.
    pub api_key: Option<Key>,
    /// Key that control routes must bring; without it they take the other one.
    pub admin_key: Option<Key>,
    /// Origins that browsers may call from; `*` is any. Empty: none.
    pub origins: Vec<String>,
    /// What metrics' names begin with.
    pub metrics_prefix: String,
    /// Most responses that are stored for later requests; none with 0.
    pub stored_responses: usize,
    /// Most bytes that they take, about.
    pub stored_bytes: usize,
    /// What the drafter of the model does, as `/health` and `/server_info` say it; null where there is none.
    pub drafts: serde_json::Value,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            body_limit_bytes: 32 << 20,
            turn_grammar: true,
            checkpoint_sampling: true,
            untouched_logprobs: false,
            sanitize_control_tokens: false,
            truncate: false,
            request_templates: false,
            show_thinking: true,
            api_key: None,
            admin_key: None,
            origins: vec!["*".into()],
            metrics_prefix: "beam_run_".into(),
            stored_responses: 1000,
            stored_bytes: 256 << 20,
            drafts: serde_json::Value::Null,
        }
    }
}

/// What every route needs.
pub struct App {
    /// The engine.
    pub service: Service,
    /// Tokenizer and templates.
    pub text: Arc<Text>,
    /// Name under which the model is served.
    pub model: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// What the server was told when it was started.
    pub options: Options,
    /// Set on the way down: running requests finish, new ones are turned away.
    pub is_draining: AtomicBool,
    /// Compiles grammars, or says why it cannot.
    pub(crate) grammars: Result<Compiler, GrammarError>,
    /// Places for those who compile, by lane. One is taken until its thread has ended.
    places: [Arc<Semaphore>; 3],
    /// Places for those who render and encode: however many come, the threads for other work never run out.
    pub(crate) encoders: Arc<Semaphore>,
    /// The place of whoever looks whether a token can be made.
    pub(crate) probes: Semaphore,
    /// Room for bodies that arrive.
    pub(crate) room: Room,
    /// Whoever makes a response that no connection waits for listens here; the way down waits for them.
    pub(crate) background: watch::Sender<()>,
    /// Bytes of every token, where the tokenizer says them.
    pub(crate) tokens: Vec<TokenBytes>,
    /// The control tokens by their texts.
    pub(crate) controls: Arc<Controls>,
    /// Responses that can be asked for later.
    pub(crate) responses: Store,
}

impl App {
    /// An application with the usual options.
    pub fn new(service: Service, text: Arc<Text>, model: String) -> App {
        App::with_options(service, text, model, Options::default())
    }

    /// An application.
    pub fn with_options(service: Service, text: Arc<Text>, model: String, options: Options) -> App {
        let limits = Limits::default();
        let lanes = [Lane::Usual, Lane::Short, Lane::Long];
        let places = lanes.map(|lane| Arc::new(Semaphore::new(limits.places(lane).max(1))));
        let grammars = Compiler::new(text.tokenizer.clone(), &text.stop, limits);
        let tokens = text.tokenizer.token_bytes().unwrap_or_default();
        let controls = Arc::new(Controls::of(&tokens));
        let (created, is_draining) = (now_seconds(), AtomicBool::new(false));
        let responses = Store::new(options.stored_responses, options.stored_bytes);
        let encoders = Arc::new(Semaphore::new(encoders()));
        let room = Room::new(options.body_limit_bytes.saturating_mul(FULL_BODIES));
        App {
            service,
            text,
            model,
            created,
            options,
            is_draining,
            grammars,
            places,
            encoders,
            probes: Semaphore::new(1),
            room,
            background: watch::Sender::new(()),
            tokens,
            controls,
            responses,
        }
    }

    /// What cannot be done with this model, for whoever starts the server; `None` if all can.
    pub fn cannot_hold(&self) -> Option<String> {
        self.grammars.as_ref().err().map(ToString::to_string)
    }

    /// Places for those who compile in a lane.
    pub(crate) fn places(&self, lane: Lane) -> &Arc<Semaphore> {
        let [usual, short, long] = &self.places;
        match lane {
            Lane::Usual => usual,
            Lane::Short => short,
            Lane::Long => long,
        }
    }

    /// Token ids of a prompt's text. A text that no encoding fits into the context is refused before it costs anything.
    pub(crate) fn encode(&self, text: &str, add_special: bool, param: &str) -> Result<Vec<u32>, ApiError> {
        self.may_fit(text.len(), param)?;
        let ids = self.text.tokenizer.encode(text, add_special);
        ids.map_err(|error| ApiError::field(param, "invalid_prompt", error.to_string()))
    }

    /// Refuses a text of so many bytes that no encoding fits into the context.
    pub(crate) fn may_fit(&self, bytes: usize, param: &str) -> Result<(), ApiError> {
        let limit_tokens = self.service.limit_tokens();
        match self.text.tokenizer.longest_token_bytes() {
            Some(longest) if bytes > limit_tokens.saturating_mul(longest) => {
                let message = format!(
                    "the prompt has {bytes} bytes, {limit_tokens} tokens of at most {longest} bytes fit; send a shorter one"
                );
                Err(ApiError::field(param, "context_length_exceeded", message))
            }
            _ => Ok(()),
        }
    }

    /// Most bytes of a prompt that fits into the context, if the tokenizer says how long its tokens are.
    pub(crate) fn most_prompt_bytes(&self) -> usize {
        let longest = self.text.tokenizer.longest_token_bytes().unwrap_or(usize::MAX);
        self.service.limit_tokens().saturating_mul(longest)
    }

    /// Refuses a prompt that leaves no room for an answer, before more is spent on it.
    pub(crate) fn fits(&self, prompt_tokens: usize, param: &str) -> Result<(), ApiError> {
        let limit = self.service.limit_tokens();
        if prompt_tokens < limit {
            return Ok(());
        }
        Err(error::refused(&engine::Refusal::PromptTooLong { prompt: prompt_tokens, limit }, param, "max_tokens"))
    }

    /// The limit of an answer: what is asked for, lowered to the room there is where that is allowed.
    pub(crate) fn answer_tokens(&self, asked: Option<usize>, prompt_tokens: usize) -> Option<usize> {
        let room = self.service.limit_tokens().saturating_sub(prompt_tokens);
        asked.map(|tokens| if self.options.truncate { tokens.min(room.max(1)) } else { tokens })
    }

    /// Refuses when no request is taken now, before anything is spent on it; its name, where that is known.
    pub(crate) fn admits(&self, rid: Option<&str>) -> Result<(), ApiError> {
        self.serves()?;
        self.service.admits(rid).map_err(|load| self.full(1, load))
    }

    /// Refuses when the engine can do nothing for anybody.
    pub(crate) fn serves(&self) -> Result<(), ApiError> {
        if self.is_draining.load(Ordering::Acquire) {
            return Err(ApiError::unavailable("shutting_down", "the server is shutting down; ask another one"));
        }
        if self.service.is_stuck() {
            return Err(stuck());
        }
        Ok(())
    }

    /// Refuses requests whose prompts, each counted as often as it has answers, take too much memory while they wait.
    pub(crate) fn affords(&self, tokens: usize, answers: usize, param: &str) -> Result<(), ApiError> {
        let too_many = |what: &str, found: usize, most: usize| {
            let message =
                format!("the request asks for {found} {what}, at most {most} are allowed; send several requests");
            Err(ApiError::field(param, "request_too_large", message))
        };
        let under_way = self.service.most_answers();
        if answers > under_way.all() {
            return Err(too_many_at_once(answers, under_way, param));
        }
        if answers > MOST_ANSWERS {
            return too_many("answers to all its prompts", answers, MOST_ANSWERS);
        }
        if tokens > MOST_PROMPT_TOKENS {
            return too_many("prompt tokens, counted once for each answer", tokens, MOST_PROMPT_TOKENS);
        }
        Ok(())
    }

    /// Sees to it that requests are told no more log-probabilities than there is memory for: answers without a limit get one,
    /// others are refused.
    fn affords_logprobs(&self, requests: &mut [Request], max_tokens: &str) -> Result<(), ApiError> {
        let room = |request: &Request| self.service.limit_tokens().saturating_sub(request.prompt.len());
        let each = |request: &Request| {
            let sampling = &request.sampling;
            sampling.logprobs.map_or(0, |top| 1 + top as usize).saturating_add(sampling.listed.len())
        };
        let scored = |request: &Request| {
            request.prompt_scores.as_ref().map_or(0, |scores| {
                let each = 1 + scores.top as usize + scores.listed.len();
                request.prompt.len().saturating_sub(scores.from).saturating_mul(each)
            })
        };
        let sum = |of: &dyn Fn(&Request) -> usize| requests.iter().map(of).fold(0usize, usize::saturating_add);
        let most = |request: &Request| room(request).min(request.max_tokens.unwrap_or(usize::MAX));
        let all = sum(&|request| most(request).saturating_mul(each(request)).saturating_add(scored(request)));
        let allowed = match max_tokens {
            "max_output_tokens" => MOST_LOGPROBS / TOLD_IN_RESPONSES,
            _ => MOST_LOGPROBS,
        };
        if all <= allowed {
            return Ok(());
        }
        let asked = |request: &Request| request.max_tokens.map_or(0, |_| most(request));
        let told = sum(&|request| asked(request).saturating_mul(each(request)).saturating_add(scored(request)));
        let open = sum(&|request| if request.max_tokens.is_none() { each(request) } else { 0 });
        let left = allowed.checked_sub(told).and_then(|left| left.checked_div(open)).filter(|left| *left > 0);
        let Some(left) = left else {
            let message = format!(
                "the request could be told {all} log-probabilities, at most {allowed} are allowed; lower `{max_tokens}`, or ask for fewer alternatives or answers"
            );
            return Err(ApiError::field(max_tokens, "request_too_large", message));
        };
        for request in requests.iter_mut().filter(|request| request.max_tokens.is_none()) {
            request.max_tokens = Some(left.min(self.service.limit_tokens().saturating_sub(request.prompt.len())));
        }
        Ok(())
    }

    /// The queue has no places for so many answers more.
    fn full(&self, more: usize, load: Load) -> ApiError {
        let (Load { running, waiting }, most) = (load, self.service.most_answers().waiting);
        let asked = if more == 1 { "1 more finds".to_owned() } else { format!("the {more} of this request find") };
        let message = format!(
            "the queue is full: {running} answers are made, {waiting} wait where {most} may, and {asked} no place; try again later"
        );
        let seconds = self.service.metrics().retry_after_seconds();
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message);
        ApiError { retry_after_seconds: Some(seconds), ..error }
    }

    /// Queues requests, all or none; `prompt` and `max_tokens` are the fields that a refusal is put down to.
    pub(crate) async fn submit(
        &self,
        mut requests: Vec<Request>,
        rid: String,
        prompt: &str,
        max_tokens: &str,
    ) -> Result<Generation, ApiError> {
        self.admits(Some(&rid))?;
        self.affords_logprobs(&mut requests, max_tokens)?;
        self.service.submit(requests, rid).await.map_err(|turned| self.turned(turned, prompt, max_tokens))
    }

    /// Why requests were not taken; `prompt` and `max_tokens` are the fields that a refusal is put down to.
    pub(crate) fn turned(&self, turned: Turned, prompt: &str, max_tokens: &str) -> ApiError {
        match turned {
            Turned::Refused(refusal) => error::refused(&refusal, prompt, max_tokens),
            Turned::Full(more, load) => self.full(more, load),
            Turned::TooMany(answers, most) => too_many_at_once(answers, most, prompt),
            Turned::Late(waited) => {
                let seconds = self.service.metrics().retry_after_seconds();
                let message = format!("no room for this request within {} s; try again later", waited.as_secs_f32());
                let error = ApiError::unavailable("waited_too_long", message);
                ApiError { retry_after_seconds: Some(seconds), ..error }
            }
            Turned::Named(rid) => {
                let message = format!("`rid` is `{rid}`, which a request has that is not finished; choose another");
                ApiError::field("rid", "rid_in_use", message)
            }
            Turned::Stuck => stuck(),
            Turned::Stopped => ApiError::internal("the engine has stopped; restart the server"),
        }
    }

    /// Runs work that may take long outside the threads that serve connections.
    pub(crate) async fn off_thread<T: Send + 'static>(
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let broken = |_| ApiError::internal("this request hit a defect of the server; report it with the request");
        tokio::task::spawn_blocking(work).await.map_err(broken)?
    }

    /// The same for what renders or encodes a prompt: it waits for one of a few places, however many come.
    pub(crate) async fn encoding<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Gone) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.encoders.clone().acquire_owned().await;
        let place = place.map_err(|_| ApiError::internal("the server is going down"))?;
        let gone = Gone::default();
        // A client that hangs up drops this.
        let _waits = Waits(gone.clone());
        App::off_thread(move || {
            // Taken until the work is done, even where its client has gone.
            let _place = place;
            work(&gone)
        })
        .await
    }

    /// The bytes of a token.
    pub(crate) fn token_bytes(&self, id: u32) -> Vec<u8> {
        match self.tokens.get(id as usize) {
            Some(token) => token.bytes.clone(),
            None => self.text.tokenizer.decode(&[id], false).unwrap_or_default().into_bytes(),
        }
    }

    /// Whether a token is a control token.
    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|token| token.special)
    }
}

/// More answers in one request than ever find places together.
fn too_many_at_once(answers: usize, most: Load, param: &str) -> ApiError {
    let Load { running, waiting } = most;
    let all = most.all();
    let message = format!(
        "the request asks for {answers} answers, this server has places for {all}, {running} that run and {waiting} that wait; ask for fewer, or send several requests"
    );
    ApiError::field(param, "request_too_large", message)
}

/// Whether the client that a piece of work is for has gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone(Arc<AtomicBool>);

impl Gone {
    /// Whether it has.
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whoever waits for that work.
struct Waits(Gone);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// How many prompts are encoded at once: more than processors would only take each other's time.
fn encoders() -> usize {
    std::thread::available_parallelism().map_or(4, |n| 2 * n.get()).clamp(4, 64)
}

/// The engine does not come back from a step.
pub(crate) fn stuck() -> ApiError {
    ApiError::unavailable("engine_stuck", "the engine makes no progress; ask another server, and restart this one")
}

/// Seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
