//! Reading a request's JSON object field by field, with an error that names the field and what stands there.

use crate::error::{ApiError, brief};
use serde_json::{Map, Value};

/// A JSON object. A field that is null counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ApiError> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub fn string(&self, key: &str) -> Result<Option<&'a str>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| wrong_type(key, value, "a string"))
    }

    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| wrong_type(key, value, "an object"))
    }

    pub fn list(&self, key: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_array().map(Some).ok_or_else(|| wrong_type(key, value, "a list"))
    }

    /// A number inside a range that `range` says in words.
    pub fn number(&self, key: &str, range: &str, is_inside: impl Fn(f32) -> bool) -> Result<Option<f32>, ApiError> {
        let number = self.read(key, "a number", Value::as_f64)?.map(|x| x as f32);
        match number {
            Some(x) if !(x.is_finite() && is_inside(x)) => Err(self.outside(key, range)),
            number => Ok(number),
        }
    }

    /// A whole number of at least `least`.
    pub fn whole(&self, key: &str, least: i64) -> Result<Option<i64>, ApiError> {
        if self.get(key).is_some_and(is_beyond) {
            return Err(self.outside(key, &format!("a whole number from {least} to {}", i64::MAX)));
        }
        match self.read(key, "a whole number", Value::as_i64)? {
            Some(n) if n < least => Err(self.outside(key, &format!("at least {least}"))),
            number => Ok(number),
        }
    }

    /// A list of strings.
    pub fn only_strings(&self, key: &str) -> Result<(), ApiError> {
        let texts = self.list(key)?.map_or(&[][..], Vec::as_slice);
        texts
            .iter()
            .find(|text| !text.is_string())
            .map_or(Ok(()), |other| Err(wrong_type(key, other, "a list of strings")))
    }

    /// A string or a list of strings.
    pub fn strings(&self, key: &str) -> Result<Vec<String>, ApiError> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::String(one)) => Ok(vec![one.clone()]),
            Some(Value::Array(many)) => many
                .iter()
                .map(|s| {
                    s.as_str().map(str::to_owned).ok_or_else(|| wrong_type(key, s, "a string or a list of strings"))
                })
                .collect(),
            Some(other) => Err(wrong_type(key, other, "a string or a list of strings")),
        }
    }

    pub fn outside(&self, key: &str, range: &str) -> ApiError {
        let value = self.get(key).unwrap_or(&Value::Null);
        ApiError::field(key, "invalid_value", format!("`{key}` is {}, it must be {range}", brief(value)))
    }

    fn read<T>(&self, key: &str, what: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong_type(key, value, what))
    }
}

/// Whether a value is a whole number that 64 bits do not hold.
fn is_beyond(value: &Value) -> bool {
    value.as_i64().is_none() && (value.is_u64() || value.as_f64().is_some_and(|x| x.fract() == 0.0 && x.abs() >= 9e18))
}

/// The error for a value of the wrong type; `param` may be a path such as `messages[2].role`.
pub(crate) fn wrong_type(param: &str, value: &Value, expected: &str) -> ApiError {
    ApiError::field(param, "invalid_type", format!("`{param}` is {}, it must be {expected}", brief(value)))
}

/// The error for a field that is not there.
pub(crate) fn missing(param: &str) -> ApiError {
    ApiError::field(param, "missing_parameter", format!("`{param}` is missing, add it"))
}

/// A token id below the vocabulary.
pub(crate) fn token_id(param: &str, value: &Value, vocab: usize) -> Result<u32, ApiError> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.filter(|id| (*id as usize) < vocab).ok_or_else(|| {
        let expected = format!("a token id from 0 to {}", vocab.saturating_sub(1));
        ApiError::field(param, "invalid_value", format!("`{param}` has {}, it must be {expected}", brief(value)))
    })
}
