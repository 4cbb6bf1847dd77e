//! What the endpoint is told on the command line besides model and address.

use crate::failure::Failure;
use crate::flags;
use clap::Args;
use server::{Door, Key, Log, LogFormat, Options};
use std::path::PathBuf;
use std::time::Duration;

/// Variables that keys are read from where the command line, which others can see, does not have them.
const KEY_VARIABLE: &str = "BEAM_RUN_API_KEY";
const ADMIN_KEY_VARIABLE: &str = "BEAM_RUN_ADMIN_API_KEY";

/// Flags of the endpoint.
#[derive(Args)]
pub struct EndpointArgs {
    /// Key that every request must bring, also from the variable BEAM_RUN_API_KEY; without it anybody may ask.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Key of the control routes, also from the variable BEAM_RUN_ADMIN_API_KEY; without it they take the other key.
    #[arg(long, value_name = "KEY")]
    admin_api_key: Option<String>,
    /// Origin that browsers may call from, repeatable; `*` is any, `none` is none.
    #[arg(long, value_name = "ORIGIN", default_value = "*", value_parser = flags::origin)]
    allow_origin: Vec<String>,
    /// Largest request body.
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20, value_parser = flags::at_least(flags::LEAST_BODY_BYTES))]
    max_body_bytes: usize,
    /// Most answers that wait for room, beside those that run; more are answered with 429.
    #[arg(long, value_name = "N", default_value_t = Door::default().queued)]
    max_queued_requests: usize,
    /// How long a request may wait for room; then it is answered with 503. With 0 it waits on.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=flags::MOST_SECONDS))]
    max_wait_seconds: u64,
    /// An engine that has work and finishes no step for so long is reported as stuck by `/health`, and takes no requests.
    #[arg(long, value_name = "SECONDS", default_value_t = Door::default().stuck.as_secs(), value_parser = clap::value_parser!(u64).range(1..=flags::MOST_SECONDS))]
    stuck_seconds: u64,
    /// Time between two pieces of a stream where 256 streams and more go on with every step, so that tokens of several steps leave
    /// in one write; beginnings and ends never wait. With 0 every token leaves by itself.
    #[arg(long, value_name = "MS", default_value_t = Door::default().pause.as_millis() as u64, value_parser = clap::value_parser!(u64).range(..=10_000))]
    stream_pause_ms: u64,
    /// Most responses that are kept for later requests, the oldest go first; with 0 none is.
    #[arg(long, value_name = "N", default_value_t = Options::default().stored_responses)]
    stored_responses: usize,
    /// Most memory that kept responses take, about.
    #[arg(long, value_name = "BYTES", default_value_t = Options::default().stored_bytes)]
    stored_response_bytes: usize,
    /// How long running requests may go on after the first signal.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=flags::MOST_SECONDS))]
    grace_seconds: u64,
    /// Hold every turn to the grammar of the response template, or only those whose request needs it.
    #[arg(long, value_name = "WHEN", default_value = "always", value_parser = ["always", "needed"])]
    turn_grammar: String,
    /// Response template, instead of the one in the model directory.
    #[arg(long, value_name = "FILE")]
    pub response_template: Option<PathBuf>,
    /// Defaults of sampling parameters: those that the model directory recommends, or OpenAI's.
    #[arg(long, value_name = "WHOSE", default_value = "model", value_parser = ["model", "openai"])]
    sampling_defaults: String,
    /// Log-probabilities that are reported: behind bias, penalties, mask and temperature, or of the untouched logits.
    #[arg(long, value_name = "WHICH", default_value = "processed", value_parser = ["processed", "untouched"])]
    logprobs: String,
    /// Let requests bring chat templates of their own.
    #[arg(long)]
    trust_request_chat_template: bool,
    /// What the Messages API shows of reasoning where a request says nothing about it.
    #[arg(long, value_name = "WHAT", default_value = "shown", value_parser = ["shown", "hidden"])]
    messages_thinking: String,
    /// Encode control tokens that messages spell as plain text.
    #[arg(long)]
    sanitize_control_tokens: bool,
    /// Lower an answer's limit that is beyond the context, instead of refusing the request.
    #[arg(long)]
    allow_auto_truncate: bool,
    /// What the names of metrics begin with: our own prefix, or that of another server, for its dashboards.
    #[arg(long, value_name = "WHOSE", default_value = "own", value_parser = ["own", "sglang"])]
    metrics_names: String,
    /// Log of requests and load on the error stream, a line each: as words, or as JSON objects.
    #[arg(long, value_name = "FORMAT", default_value = "none", value_parser = ["none", "text", "json"])]
    log: String,
}

impl EndpointArgs {
    /// As the server wants it. An empty key would let everybody in who sends one.
    pub fn options(&self) -> Result<Options, Failure> {
        let usual = Options::default();
        if self.allow_origin.len() > 1 && self.allow_origin.iter().any(|origin| origin == "none") {
            return Err(Failure::usage(
                "R0109: `--allow-origin none` lets no page in, and another `--allow-origin` one; leave one out",
            ));
        }
        let origins = self.allow_origin.iter().filter(|origin| *origin != "none").cloned().collect();
        Ok(Options {
            body_limit_bytes: self.max_body_bytes,
            turn_grammar: self.turn_grammar == "always",
            checkpoint_sampling: self.sampling_defaults == "model",
            untouched_logprobs: self.logprobs == "untouched",
            sanitize_control_tokens: self.sanitize_control_tokens,
            truncate: self.allow_auto_truncate,
            request_templates: self.trust_request_chat_template,
            show_thinking: self.messages_thinking == "shown",
            api_key: key(self.api_key.as_deref(), KEY_VARIABLE, "--api-key")?,
            admin_key: key(self.admin_api_key.as_deref(), ADMIN_KEY_VARIABLE, "--admin-api-key")?,
            origins,
            stored_responses: self.stored_responses,
            stored_bytes: self.stored_response_bytes,
            drafts: usual.drafts.clone(),
            metrics_prefix: if self.metrics_names == "sglang" {
                "sglang:".into()
            } else {
                usual.metrics_prefix.clone()
            },
        })
    }

    /// Who may wait for the engine, and how long.
    pub fn door(&self) -> Door {
        let wait = (self.max_wait_seconds > 0).then(|| Duration::from_secs(self.max_wait_seconds));
        let (stuck, pause) = (Duration::from_secs(self.stuck_seconds), Duration::from_millis(self.stream_pause_ms));
        Door { queued: self.max_queued_requests, wait, stuck, pause }
    }

    /// The log that is asked for.
    pub fn log(&self) -> Result<Option<Log>, Failure> {
        let format = match self.log.as_str() {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            _ => return Ok(None),
        };
        let log = Log::to(format, std::io::stderr())
            .map_err(|e| Failure::device(format!("R0301: no thread for the log: {e}; end other programs")))?;
        Ok(Some(log))
    }

    /// How long running requests may go on after the first signal.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_seconds)
    }
}

fn key(given: Option<&str>, variable: &str, flag: &str) -> Result<Option<Key>, Failure> {
    let key = given.map(str::to_owned).or_else(|| std::env::var(variable).ok());
    match key {
        Some(key) if key.trim().is_empty() => {
            let message =
                format!("the key of `{flag}`, or of the variable {variable}, is empty; give it one, or leave it out");
            Err(Failure::usage(format!("R0106: {message}")))
        }
        key => Ok(key.map(Key::from)),
    }
}
