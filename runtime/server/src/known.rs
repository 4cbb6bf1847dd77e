//! Every field that this server's protocols know, and those of other servers that would change an answer: where it is applied,
//! where it changes nothing, and where it is refused by its name. One table, and one rule for all routes: what would change the
//! answer is applied or refused, never passed over. Names that nobody knows are ignored.

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Some of the places where a request says what it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Routes(u8);

/// `/v1/chat/completions`, and `/tokenize` with messages.
pub(crate) const CHAT: Routes = Routes(1);
/// `/v1/completions`
pub(crate) const TEXTS: Routes = Routes(2);
/// `/v1/messages` and what counts its tokens.
pub(crate) const MESSAGES: Routes = Routes(4);
/// `/v1/responses` and what counts its tokens.
pub(crate) const RESPONSES: Routes = Routes(8);
/// `/generate`
pub(crate) const NATIVE: Routes = Routes(16);
/// `sampling_params` of `/generate`.
pub(crate) const SAMPLING: Routes = Routes(32);

const ALL: Routes = Routes(63);
const TURNS: Routes = CHAT.and(MESSAGES).and(RESPONSES);
const OPENAI: Routes = CHAT.and(TEXTS);
/// Where one object says everything.
const TOPS: Routes = TURNS.and(TEXTS).and(NATIVE);

impl Routes {
    /// These and others.
    pub const fn and(self, other: Routes) -> Routes {
        Routes(self.0 | other.0)
    }

    /// Whether one of the others is among these.
    pub const fn has(self, other: Routes) -> bool {
        self.0 & other.0 != 0
    }
}

/// Whether a value of a field changes nothing.
type Harmless = fn(&Value) -> bool;

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// It is read, and does what it says.
    Applied,
    /// It changes nothing in the answer.
    Idle,
    /// It is refused unless its value changes nothing; what to do instead.
    Refused(Harmless, &'static str),
}

/// A field in some places. Of several rows with its name the first that has a place counts there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Its name; behind a dot that of a field inside it.
    pub name: &'static str,
    pub on: Routes,
    pub how: How,
}

const fn applied(name: &'static str, on: Routes) -> Known {
    Known { name, on, how: How::Applied }
}

const fn idle(name: &'static str, on: Routes) -> Known {
    Known { name, on, how: How::Idle }
}

const fn refused(name: &'static str, on: Routes, is_harmless: Harmless, instead: &'static str) -> Known {
    Known { name, on, how: How::Refused(is_harmless, instead) }
}

const LEAVE_OUT: &str = "leave it out";
const IN_SAMPLING: &str = "put it into `sampling_params`";
const IN_CONFIG: &str = "use `output_config.format`";
const TEXT_ONLY: &str = "this model reads and writes text";
const NO_TURN: &str = "use `/v1/chat/completions`";
const ASK_AGAIN: &str = "ask several times";

fn never(_: &Value) -> bool {
    false
}

/// An empty list, object or text.
fn is_empty(value: &Value) -> bool {
    value == &json!([]) || value == &json!({}) || value == &json!("")
}

fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

fn is_true(value: &Value) -> bool {
    value == &Value::Bool(true)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0) || is_false(value)
}

fn is_standard(value: &Value) -> bool {
    value == "standard"
}

fn is_soonest(value: &Value) -> bool {
    is_empty(value) || value == &json!({"completion_window": "soonest"})
}

/// A word that leaves things as they are.
fn is_usual(value: &Value) -> bool {
    ["auto", "none", "disabled", "default"].iter().any(|word| value == word)
}

fn is_text_only(value: &Value) -> bool {
    value == &json!(["text"])
}

/// Reasoning is switched on, as it is anyway, and nothing is said of how much.
fn is_switched_on(value: &Value) -> bool {
    value == &json!({"type": "enabled"}) || value == &json!({"type": "adaptive"})
}

/// Edits that only choose which reasoning of earlier turns is kept, about which the chat template decides.
fn edits_thinking_only(value: &Value) -> bool {
    let is_about_thinking = |edit: &Value| edit["type"].as_str().is_some_and(|kind| kind.starts_with("clear_thinking"));
    match value.get("edits") {
        None => value.is_object(),
        Some(edits) => edits.as_array().is_some_and(|edits| edits.iter().all(is_about_thinking)),
    }
}

/// How tokens are chosen and when an answer ends: the same names in all protocols.
const SAMPLED: [&str; 15] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "seed",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "no_stop_trim",
    "include_stop_str_in_output",
    "skip_special_tokens",
];

/// What an answer must look like, in the words of several servers.
const FORMATS: [&str; 9] = [
    "regex",
    "ebnf",
    "json_schema",
    "structural_tag",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

/// Fields with rows of their own.
const ROWS: &[Known] = &[
    // Who is asked, and how the answer comes.
    applied("model", TURNS.and(TEXTS)),
    idle("model", ALL),
    applied("stream", TOPS),
    idle("stream", ALL),
    applied("stream_options", OPENAI.and(RESPONSES)),
    idle("stream_options", ALL),
    applied("stream_output", NATIVE),
    idle("stream_output", ALL),
    applied("rid", TOPS),
    idle("rid", ALL),
    applied("request_id", TOPS),
    idle("request_id", ALL),
    applied("cache_salt", ALL),
    applied("priority", ALL),
    refused("extra_key", ALL, never, "use `cache_salt`"),
    applied("store", RESPONSES),
    idle("store", ALL),
    applied("background", RESPONSES),
    refused("background", ALL, is_false, "use `/v1/responses`"),
    applied("metadata", RESPONSES.and(MESSAGES)),
    idle("metadata", ALL),
    applied("user", RESPONSES),
    idle("user", ALL),
    applied("safety_identifier", RESPONSES),
    idle("safety_identifier", ALL),
    applied("prompt_cache_key", RESPONSES),
    idle("prompt_cache_key", ALL),
    applied("prompt_cache_retention", RESPONSES),
    idle("prompt_cache_retention", ALL),
    applied("service_tier", RESPONSES),
    idle("service_tier", ALL),
    applied("cache_control", MESSAGES),
    idle("cache_control", ALL),
    // Who pays, and what is kept ready: nobody does, and every prefix is.
    idle("prompt_cache_options", ALL),
    idle("billing_policy", ALL),
    idle("fallback_credit_token", ALL),
    // A guess at the answer, which could only make it come sooner.
    idle("prediction", ALL),
    refused("extra_body", ALL, is_empty, "send its fields beside the others"),
    applied("sampling_params", NATIVE),
    refused("sampling_params", ALL, is_empty, "send its fields beside the others"),
    // What is answered.
    applied("messages", CHAT.and(MESSAGES)),
    refused("messages", RESPONSES, never, "use `input`"),
    refused("messages", ALL, never, NO_TURN),
    applied("input", RESPONSES),
    refused("input", CHAT.and(MESSAGES), never, "use `messages`"),
    refused("input", TEXTS, never, "use `prompt`"),
    refused("input", ALL, never, "use `text`"),
    applied("prompt", TEXTS),
    refused("prompt", RESPONSES, never, "send its text as `instructions` and `input`"),
    refused("prompt", CHAT.and(MESSAGES), never, "use `messages`, or `/v1/completions`"),
    refused("prompt", ALL, never, "use `text`"),
    applied("text", RESPONSES.and(NATIVE)),
    refused("text", ALL, never, "use the field of this route"),
    applied("input_ids", CHAT.and(NATIVE)),
    refused("input_ids", TEXTS, never, "use `prompt`"),
    refused("input_ids", RESPONSES, never, "use `input`, or `/v1/chat/completions`"),
    refused("input_ids", ALL, never, NO_TURN),
    applied("instructions", RESPONSES),
    refused("instructions", MESSAGES, never, "use `system`"),
    refused("instructions", ALL, never, "put it into the prompt"),
    applied("system", MESSAGES),
    refused("system", RESPONSES, never, "use `instructions`"),
    refused("system", ALL, never, "put it into the prompt"),
    applied("previous_response_id", RESPONSES),
    refused("previous_response_id", ALL, never, "use `/v1/responses`"),
    refused("conversation", RESPONSES, never, "use `previous_response_id`"),
    refused("conversation", ALL, never, LEAVE_OUT),
    applied("truncation", RESPONSES),
    refused("truncation", ALL, is_usual, "send a shorter prompt"),
    refused("truncate_prompt_tokens", ALL, never, "send a shorter prompt"),
    refused("context_management", MESSAGES, edits_thinking_only, "send the messages as the model is to see them"),
    refused("context_management", RESPONSES, is_empty, "use `truncation`"),
    refused("context_management", ALL, is_empty, LEAVE_OUT),
    refused("session_params", ALL, is_empty, LEAVE_OUT),
    refused("compaction", ALL, never, "send the messages as the model is to see them"),
    refused("suffix", ALL, is_empty, LEAVE_OUT),
    refused("modalities", ALL, is_text_only, TEXT_ONLY),
    refused("image", ALL, is_empty, TEXT_ONLY),
    refused("audio", ALL, never, TEXT_ONLY),
    refused("image_data", ALL, is_empty, TEXT_ONLY),
    refused("audio_data", ALL, is_empty, TEXT_ONLY),
    refused("video_data", ALL, is_empty, TEXT_ONLY),
    refused("input_embeds", ALL, is_empty, "send text or token ids"),
    refused("prompt_embeds", ALL, is_empty, "send text or token ids"),
    refused("mm_processor_kwargs", ALL, is_empty, TEXT_ONLY),
    // What the chat template makes of it.
    applied("documents", CHAT),
    refused("documents", ALL, is_empty, "put them into the prompt"),
    applied("chat_template", CHAT),
    refused("chat_template", ALL, never, NO_TURN),
    applied("chat_template_kwargs", TURNS),
    refused("chat_template_kwargs", ALL, is_empty, NO_TURN),
    applied("add_generation_prompt", CHAT),
    refused("add_generation_prompt", ALL, is_true, NO_TURN),
    refused("add_special_tokens", TURNS, is_false, "the chat template writes them"),
    refused("add_special_tokens", ALL, is_true, "send token ids"),
    applied("continue_final_message", CHAT.and(RESPONSES)),
    refused("continue_final_message", MESSAGES, is_true, "let the messages end with another's"),
    refused("continue_final_message", ALL, is_false, NO_TURN),
    // Reasoning.
    applied("reasoning", CHAT.and(RESPONSES)),
    refused("reasoning", MESSAGES, is_empty, "use `thinking` and `output_config.effort`"),
    refused("reasoning", ALL, is_empty, NO_TURN),
    refused("reasoning.max_tokens", CHAT.and(RESPONSES), never, LEAVE_OUT),
    refused("reasoning.exclude", CHAT.and(RESPONSES), is_false, LEAVE_OUT),
    refused("reasoning.context", CHAT.and(RESPONSES), is_usual, "the chat template decides what it keeps"),
    refused("reasoning.mode", CHAT.and(RESPONSES), is_standard, "use `reasoning.effort`"),
    applied("reasoning_effort", CHAT),
    refused("reasoning_effort", RESPONSES, never, "use `reasoning.effort`"),
    refused("reasoning_effort", MESSAGES, never, "use `output_config.effort`"),
    refused("reasoning_effort", ALL, never, NO_TURN),
    applied("thinking", MESSAGES),
    refused("thinking", ALL, is_switched_on, "use `reasoning`"),
    refused("thinking_token_budget", ALL, never, LEAVE_OUT),
    refused("enable_thinking", ALL, is_true, "use `chat_template_kwargs`"),
    refused("include_reasoning", ALL, is_true, LEAVE_OUT),
    applied("separate_reasoning", CHAT),
    refused("separate_reasoning", ALL, is_true, NO_TURN),
    applied("stream_reasoning", CHAT),
    refused("stream_reasoning", ALL, is_true, NO_TURN),
    applied("verbosity", CHAT),
    refused("verbosity", RESPONSES, never, "use `text.verbosity`"),
    refused("verbosity", ALL, never, LEAVE_OUT),
    // Tools.
    applied("tools", TURNS),
    refused("tools", ALL, is_empty, NO_TURN),
    applied("tool_choice", TURNS),
    refused("tool_choice", ALL, is_usual, NO_TURN),
    applied("parallel_tool_calls", CHAT.and(RESPONSES)),
    refused("parallel_tool_calls", MESSAGES, is_true, "use `tool_choice.disable_parallel_tool_use`"),
    idle("parallel_tool_calls", ALL),
    applied("max_tool_calls", RESPONSES),
    refused("max_tool_calls", ALL, never, LEAVE_OUT),
    refused("functions", ALL, is_empty, "use `tools`"),
    refused("function_call", ALL, is_usual, "use `tool_choice`"),
    refused("mcp_servers", ALL, is_empty, "declare their tools in `tools`"),
    refused("container", ALL, never, LEAVE_OUT),
    // Another history, model, place, speed or limit than the request's own.
    refused("thread", ALL, never, "send the whole conversation"),
    refused("fallbacks", ALL, is_empty, LEAVE_OUT),
    refused("speed", ALL, is_standard, LEAVE_OUT),
    refused("inference_geo", ALL, never, LEAVE_OUT),
    refused("task_budget", ALL, never, LEAVE_OUT),
    idle("diagnostics", ALL),
    // Judges, programs, styles and terms that are a service's own.
    refused("moderation", ALL, is_empty, "judge texts yourself"),
    refused("access_programs", ALL, is_empty, LEAVE_OUT),
    refused("background_options", ALL, is_soonest, LEAVE_OUT),
    refused("personality", ALL, never, "say it in the prompt"),
    refused("web_search_options", ALL, never, "declare a tool for it"),
    // How long the answer is, how many there are, and what ends them.
    applied("max_tokens", CHAT.and(TEXTS).and(MESSAGES).and(SAMPLING)),
    refused("max_tokens", RESPONSES, never, "use `max_output_tokens`"),
    refused("max_tokens", ALL, never, IN_SAMPLING),
    applied("max_completion_tokens", OPENAI),
    refused("max_completion_tokens", MESSAGES, never, "use `max_tokens`"),
    refused("max_completion_tokens", RESPONSES, never, "use `max_output_tokens`"),
    refused("max_completion_tokens", ALL, never, "use `sampling_params.max_new_tokens`"),
    applied("max_output_tokens", RESPONSES),
    refused("max_output_tokens", ALL, never, "use `max_tokens`"),
    applied("max_new_tokens", SAMPLING),
    refused("max_new_tokens", NATIVE, never, IN_SAMPLING),
    refused("max_new_tokens", RESPONSES, never, "use `max_output_tokens`"),
    refused("max_new_tokens", ALL, never, "use `max_tokens`"),
    applied("min_new_tokens", SAMPLING),
    refused("min_new_tokens", NATIVE, is_zero, IN_SAMPLING),
    refused("min_new_tokens", ALL, is_zero, "use `min_tokens`"),
    applied("sampling_seed", SAMPLING),
    refused("sampling_seed", NATIVE, never, IN_SAMPLING),
    refused("sampling_seed", ALL, never, "use `seed`"),
    refused("n_predict", ALL, never, "use `max_tokens`"),
    applied("n", OPENAI.and(SAMPLING)),
    refused("n", NATIVE, is_one, IN_SAMPLING),
    refused("n", ALL, is_one, ASK_AGAIN),
    applied("best_of", TEXTS),
    refused("best_of", ALL, is_one, ASK_AGAIN),
    applied("stop", OPENAI.and(RESPONSES).and(SAMPLING)),
    refused("stop", MESSAGES, is_empty, "use `stop_sequences`"),
    refused("stop", ALL, is_empty, IN_SAMPLING),
    applied("stop_sequences", MESSAGES),
    refused("stop_sequences", ALL, is_empty, "use `stop`"),
    refused("stop_regex", ALL, is_empty, "use `stop` with plain strings"),
    applied("echo", TEXTS),
    refused("echo", ALL, is_false, "put the prompt in front of the answer yourself"),
    // What it must look like.
    applied("response_format", OPENAI.and(SAMPLING)),
    refused("response_format", RESPONSES, never, "use `text.format`"),
    refused("response_format", MESSAGES, never, IN_CONFIG),
    refused("response_format", ALL, never, IN_SAMPLING),
    applied("output_config", MESSAGES),
    refused("output_config", ALL, is_empty, "use `response_format` and `reasoning_effort`"),
    refused("output_config.task_budget", MESSAGES, never, LEAVE_OUT),
    applied("output_format", MESSAGES),
    refused("output_format", ALL, never, "use `response_format`"),
    refused("grammar", ALL, is_empty, "use `guided_grammar` or `ebnf`"),
    refused("guided_whitespace_pattern", ALL, never, LEAVE_OUT),
    // What is told of its tokens.
    applied("logprobs", OPENAI),
    refused("logprobs", RESPONSES, is_false, "use `top_logprobs`, or `include` with `message.output_text.logprobs`"),
    refused("logprobs", NATIVE.and(SAMPLING), is_false, "use `return_logprob`"),
    refused("logprobs", ALL, is_false, LEAVE_OUT),
    applied("top_logprobs", CHAT.and(RESPONSES)),
    refused("top_logprobs", TEXTS, is_zero, "use `logprobs`"),
    refused("top_logprobs", NATIVE.and(SAMPLING), is_zero, "use `top_logprobs_num`"),
    refused("top_logprobs", ALL, is_zero, LEAVE_OUT),
    applied("include", RESPONSES),
    refused("include", ALL, is_empty, LEAVE_OUT),
    applied("return_logprob", NATIVE),
    refused("return_logprob", ALL, is_false, "use `logprobs`"),
    applied("logprob_start_len", NATIVE),
    refused("logprob_start_len", ALL, |value| value.as_i64() == Some(-1), "use `echo` with `logprobs`"),
    applied("top_logprobs_num", NATIVE),
    refused("top_logprobs_num", ALL, is_zero, "use `top_logprobs`"),
    applied("token_ids_logprob", NATIVE),
    refused("token_ids_logprob", ALL, is_empty, "use `/generate`"),
    applied("return_text_in_logprobs", NATIVE),
    idle("return_text_in_logprobs", ALL),
    refused("prompt_logprobs", ALL, never, "use `/v1/completions` with `echo` and `logprobs`"),
    refused("return_tokens_as_token_ids", ALL, is_false, LEAVE_OUT),
    refused("return_token_ids", ALL, is_false, "use `/generate`"),
    applied("return_prediction_tokens", OPENAI),
    refused("return_prediction_tokens", ALL, is_false, "ask on `/v1/chat/completions`, or see `/metrics`"),
    refused("return_hidden_states", ALL, is_false, LEAVE_OUT),
    refused("return_routed_experts", ALL, is_false, LEAVE_OUT),
    // Ways to choose tokens that this server does not have.
    refused("use_beam_search", ALL, is_false, LEAVE_OUT),
    refused("length_penalty", ALL, is_one, LEAVE_OUT),
    refused("early_stopping", ALL, is_false, LEAVE_OUT),
    refused("allowed_token_ids", ALL, never, "use `logit_bias`, or a format"),
    refused("bad_words", ALL, is_empty, "use `logit_bias`"),
    refused("lora_path", ALL, never, LEAVE_OUT),
    refused("custom_logit_processor", ALL, never, LEAVE_OUT),
    refused("custom_params", ALL, is_empty, LEAVE_OUT),
    refused("logits_processors", ALL, is_empty, LEAVE_OUT),
    refused("vllm_xargs", ALL, is_empty, LEAVE_OUT),
    refused("spaces_between_special_tokens", ALL, is_true, LEAVE_OUT),
    refused("repeat_penalty", ALL, is_one, "use `repetition_penalty`"),
    refused("typical_p", ALL, is_one, LEAVE_OUT),
    refused("top_a", ALL, is_zero, LEAVE_OUT),
    refused("tfs_z", ALL, is_one, LEAVE_OUT),
    refused("mirostat", ALL, is_zero, LEAVE_OUT),
    refused("dry_multiplier", ALL, is_zero, LEAVE_OUT),
    refused("xtc_probability", ALL, is_zero, LEAVE_OUT),
];

/// All rows.
pub(crate) fn rows() -> impl Iterator<Item = Known> {
    let sampled = SAMPLED.iter().flat_map(|name| [refused(name, NATIVE, never, IN_SAMPLING), applied(name, ALL)]);
    let formats = FORMATS.iter().flat_map(|name| {
        let openai = applied(name, OPENAI.and(RESPONSES).and(SAMPLING));
        [openai, refused(name, MESSAGES, never, IN_CONFIG), refused(name, ALL, never, IN_SAMPLING)]
    });
    ROWS.iter().copied().chain(sampled).chain(formats)
}

/// What becomes of a field in a place.
#[cfg(test)]
pub(crate) fn how(name: &str, on: Routes) -> Option<How> {
    rows().find(|known| known.name == name && known.on.has(on)).map(|known| known.how)
}

/// A field that a place refuses, the values that change nothing, and what to do instead.
type Refused = (&'static str, Harmless, &'static str);

/// What each place refuses, by the bit of the place.
static REFUSED: LazyLock<Vec<Vec<Refused>>> = LazyLock::new(|| {
    let of_place = |bit: u32| {
        let (place, mut met) = (Routes(1 << bit), std::collections::HashSet::new());
        let here = rows().filter(|known| known.on.has(place) && met.insert(known.name));
        here.filter_map(|known| match known.how {
            How::Refused(is_harmless, instead) => Some((known.name, is_harmless, instead)),
            How::Applied | How::Idle => None,
        })
        .collect()
    };
    (0..Routes::COUNT).map(of_place).collect()
});

impl Routes {
    /// How many places there are.
    const COUNT: u32 = ALL.0.count_ones();
}

/// Refuses what a request says in vain; `on` is the place where it says so.
pub(crate) fn check(fields: Fields<'_>, on: Routes) -> Result<(), ApiError> {
    let refused = REFUSED.get(on.0.trailing_zeros() as usize).map_or(&[][..], Vec::as_slice);
    for (name, is_harmless, instead) in refused {
        if let Some(value) = found(fields, name).filter(|value| !is_harmless(value)) {
            return Err(ApiError::unsupported(name, value, instead));
        }
    }
    Ok(())
}

/// The value of a field, or of one inside it.
fn found<'a>(fields: Fields<'a>, name: &str) -> Option<&'a Value> {
    match name.split_once('.') {
        None => fields.get(name),
        Some((outer, inner)) => fields.get(outer)?.get(inner).filter(|value| !value.is_null()),
    }
}
