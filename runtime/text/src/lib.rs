//! Text: what stands between characters and token ids, all of it read from a model directory.
//!
//! [`Text`] holds a tokenizer, a chat template and the tokens that end an answer. [`OutputText`] turns the tokens of one
//! answer back into characters as they come: no half characters, no part of a stop string, nothing lost. No
//! tokenizer, template or token name is built in, and this crate knows neither HTTP nor the engine.

mod config;
mod detokenizer;
mod error;
mod exact;
pub mod grammar;
mod json_filter;
mod output;
pub mod response;
mod splits;
mod stops;
mod template;
mod tokenizer;

pub use config::GenerationDefaults;
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use exact::exact_json;
pub use output::{OutputText, Piece};
pub use stops::StopStrings;
pub use template::{Allowance, ChatTemplate, NoPrompt, TemplateError};
pub use tokenizer::{TokenBytes, Tokenizer};

use response::ResponseTemplate;
use std::path::Path;
use std::sync::Arc;

/// The tokens that end an answer, by the directory's `generation_config.json`, else `otherwise`.
pub fn stop_tokens(dir: &Path, otherwise: &[u32]) -> Result<Vec<u32>, TextError> {
    Ok(config::read_generation(dir)?.stop.unwrap_or_else(|| otherwise.to_vec()))
}

/// Everything about text that a model directory holds.
pub struct Text {
    /// Characters to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template for requests without tools, if the directory has any.
    pub template: Option<ChatTemplate>,
    /// The one for requests with tools, where it differs.
    pub tool_template: Option<ChatTemplate>,
    /// How answers are written: reasoning, answer text, calls; `None` where the directory does not say.
    pub response: Option<Arc<ResponseTemplate>>,
    /// Token ids that end an answer.
    pub stop: Vec<u32>,
    /// Sampling parameters that the checkpoint recommends.
    pub defaults: GenerationDefaults,
}

impl Text {
    /// Reads `tokenizer.json` and, where present, `tokenizer_config.json`, `special_tokens_map.json`,
    /// `chat_template.jinja` and `generation_config.json`. `stop` is used if the last names no ending token.
    pub fn load(dir: &Path, stop: &[u32]) -> Result<Text, TextError> {
        let generation = config::read_generation(dir)?;
        let templates = config::read_templates(dir)?;
        Ok(Text {
            tokenizer: Arc::new(Tokenizer::load(&dir.join("tokenizer.json"))?),
            template: templates.plain,
            tool_template: templates.tools,
            response: ResponseTemplate::from_dir(dir)?.map(Arc::new),
            stop: generation.stop.unwrap_or_else(|| stop.to_vec()),
            defaults: generation.defaults,
        })
    }

    /// The template that a request is rendered with.
    pub fn template_for(&self, with_tools: bool) -> Option<&ChatTemplate> {
        if with_tools { self.tool_template.as_ref().or(self.template.as_ref()) } else { self.template.as_ref() }
    }
}
