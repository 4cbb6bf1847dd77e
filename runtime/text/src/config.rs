//! The small JSON files beside the weights: ending tokens, sampling defaults, special tokens, chat templates.

use crate::error::read_if_present;
use crate::{ChatTemplate, TextError};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Sampling parameters that a checkpoint recommends. What is absent has the server's own default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Share of probability that is kept.
    pub top_p: Option<f32>,
    /// How many tokens are kept.
    pub top_k: Option<u32>,
    /// Least probability relative to the most probable token.
    pub min_p: Option<f32>,
    /// Divides or multiplies the logits of seen tokens.
    pub repetition_penalty: Option<f32>,
}

pub(crate) struct Generation {
    pub stop: Option<Vec<u32>>,
    pub defaults: GenerationDefaults,
}

pub(crate) struct Templates {
    pub plain: Option<ChatTemplate>,
    pub tools: Option<ChatTemplate>,
}

/// A JSON object from a file; empty if there is no file.
struct Config {
    file: PathBuf,
    map: Map<String, Value>,
}

impl Config {
    fn read(file: PathBuf) -> Result<Config, TextError> {
        let Some(text) = read_if_present(&file)? else { return Ok(Config { file, map: Map::new() }) };
        match serde_json::from_str(&text) {
            Ok(Value::Object(map)) => Ok(Config { file, map }),
            Ok(other) => Err(TextError::Value {
                file,
                key: "(whole file)".into(),
                found: kind(&other).into(),
                expected: "an object",
            }),
            Err(error) => Err(TextError::Json { file, error }),
        }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, value: &Value, expected: &'static str) -> TextError {
        let found = if value.is_number() { value.to_string() } else { kind(value).to_owned() };
        TextError::Value { file: self.file.clone(), key: key.into(), found, expected }
    }

    fn number(&self, key: &str) -> Result<Option<f32>, TextError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(|x| Some(x as f32)).ok_or_else(|| self.wrong(key, value, "a number"))
    }

    fn id(&self, key: &str, value: &Value) -> Result<u32, TextError> {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| self.wrong(key, value, "a token id or a list of them"))
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

pub(crate) fn read_generation(dir: &Path) -> Result<Generation, TextError> {
    let config = Config::read(dir.join("generation_config.json"))?;
    let key = "eos_token_id";
    let stop = match config.get(key) {
        None => None,
        Some(Value::Array(ids)) => Some(ids.iter().map(|id| config.id(key, id)).collect::<Result<_, _>>()?),
        Some(one) => Some(vec![config.id(key, one)?]),
    };
    // A negative or zero `top_k` keeps every token; so does a whole number beyond u32.
    let top_k = config.number("top_k")?.filter(|k| *k >= 1.0).map(|k| k as u32);
    let defaults = GenerationDefaults {
        temperature: config.number("temperature")?,
        top_p: config.number("top_p")?,
        top_k,
        min_p: config.number("min_p")?,
        repetition_penalty: config.number("repetition_penalty")?,
    };
    Ok(Generation { stop, defaults })
}

pub(crate) fn read_templates(dir: &Path) -> Result<Templates, TextError> {
    let config = Config::read(dir.join("tokenizer_config.json"))?;
    let special = special_tokens(dir, &config)?;
    let file = dir.join("chat_template.jinja");
    let compile = |file: &Path, source: &str| {
        ChatTemplate::new(source, special.clone()).map_err(|error| TextError::Template { file: file.to_owned(), error })
    };
    if let Some(source) = read_if_present(&file)? {
        return Ok(Templates { plain: Some(compile(&file, &source)?), tools: None });
    }
    let key = "chat_template";
    match config.get(key) {
        None => Ok(Templates { plain: None, tools: None }),
        Some(Value::String(source)) => Ok(Templates { plain: Some(compile(&config.file, source)?), tools: None }),
        Some(Value::Array(list)) => {
            let named = |wanted: &str| {
                let entry = list.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(wanted));
                let source = entry.and_then(|entry| entry.get("template")).and_then(Value::as_str);
                source.map(|source| compile(&config.file, source)).transpose()
            };
            Ok(Templates { plain: named("default")?, tools: named("tool_use")? })
        }
        Some(other) => Err(config.wrong(key, other, "a string or a list of {name, template}")),
    }
}

/// `bos_token` and the like, as strings; the tokenizer's own configuration goes first.
fn special_tokens(dir: &Path, config: &Config) -> Result<Map<String, Value>, TextError> {
    let older = Config::read(dir.join("special_tokens_map.json"))?;
    let mut special = Map::new();
    for (key, value) in config.map.iter().chain(&older.map) {
        let content = value.get("content").unwrap_or(value);
        if key.ends_with("_token") && content.is_string() && !special.contains_key(key) {
            special.insert(key.clone(), content.clone());
        }
    }
    Ok(special)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dir(files: &[(&str, Value)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in files {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn rendered(template: Option<ChatTemplate>) -> Option<String> {
        template.map(|t| t.render(Map::new()).unwrap())
    }

    #[test]
    fn ending_tokens_are_one_many_or_none() {
        let stop = |value: Value| read_generation(dir(&[("generation_config.json", value)]).path()).map(|g| g.stop);
        assert_eq!(stop(json!({"eos_token_id": 5})).unwrap(), Some(vec![5]));
        assert_eq!(stop(json!({"eos_token_id": [5, 6]})).unwrap(), Some(vec![5, 6]));
        assert_eq!(stop(json!({"eos_token_id": null})).unwrap(), None);
        assert_eq!(stop(json!({})).unwrap(), None);
        assert_eq!(read_generation(dir(&[]).path()).unwrap().stop, None);
        assert!(stop(json!({"eos_token_id": -1})).unwrap_err().to_string().contains("`eos_token_id`"));
        assert!(stop(json!({"eos_token_id": ["a"]})).unwrap_err().to_string().contains("a string"));
        assert!(stop(json!([1])).unwrap_err().to_string().contains("a list, expected an object"));
        assert!(stop(json!("{\"eos_token")).unwrap_err().to_string().starts_with("X0102"));
    }

    #[test]
    fn sampling_defaults_are_read() {
        let values = json!({"temperature": 0.5, "top_k": -1, "top_p": 0.5, "min_p": 0, "do_sample": true});
        let d = read_generation(dir(&[("generation_config.json", values)]).path()).unwrap().defaults;
        assert_eq!((d.temperature, d.top_k, d.top_p, d.min_p), (Some(0.5), None, Some(0.5), Some(0.0)));
        assert!(read_generation(dir(&[("generation_config.json", json!({"top_p": "x"}))]).path()).is_err());
    }

    #[test]
    fn templates_come_from_the_first_place_that_has_one() {
        let listed = json!({
            "bos_token": {"content": "<s>"},
            "chat_template": [
                {"name": "default", "template": "d{{ bos_token }}"},
                {"name": "tool_use", "template": "t{{ eos_token }}"}
            ]
        });
        let older = json!({"eos_token": "</s>", "bos_token": "no"});
        let both = dir(&[("tokenizer_config.json", listed.clone()), ("special_tokens_map.json", older)]);
        let found = read_templates(both.path()).unwrap();
        assert_eq!((rendered(found.plain).unwrap(), rendered(found.tools).unwrap()), ("d<s>".into(), "t</s>".into()));
        std::fs::write(both.path().join("chat_template.jinja"), "own").unwrap();
        assert_eq!(rendered(read_templates(both.path()).unwrap().plain).unwrap(), "own");
        let text = dir(&[("tokenizer_config.json", json!({"chat_template": "x"}))]);
        assert_eq!(rendered(read_templates(text.path()).unwrap().plain).unwrap(), "x");
        assert!(read_templates(dir(&[]).path()).unwrap().plain.is_none());
        assert!(read_templates(dir(&[("tokenizer_config.json", json!({"chat_template": 3}))]).path()).is_err());
        let broken = dir(&[("chat_template.jinja", json!("a\n{% if %}"))]);
        let Err(error) = read_templates(broken.path()) else { panic!("parsed") };
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
