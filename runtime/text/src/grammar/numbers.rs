//! Numbers of a schema: the library reads them as floats, so those that a float would change are refused.

use serde_json::{Map, Number, Value, json};

/// From here on a whole number in a float may be another one that was rounded to it.
const WHOLE: f64 = 9_223_372_036_854_775_808.0;
/// The lowest whole number of 64 bits that a float has and the library takes.
const LOWEST: i64 = -9_223_372_036_854_774_784;
/// Most digits behind the point of a step.
const PLACES: u32 = 9;

/// Below this all whole numbers are floats, and so are those beside them.
const SMALL: i64 = 1 << 53;

/// Who holds the whole numbers that a float does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Long {
    /// They are written digit by digit, [`super::wholes`].
    Written,
    /// Nobody.
    Refused,
}

/// Whether all numbers in a value are read as they are written.
pub(crate) fn are_exact(value: &Value, long: Long) -> Result<(), String> {
    match value {
        Value::Number(number) if long == Long::Written && (number.is_i64() || number.is_u64()) => Ok(()),
        Value::Number(number) if !is_exact(number) => Err(inexact(number)),
        Value::Array(items) => items.iter().try_for_each(|item| are_exact(item, long)),
        Value::Object(map) => map.values().try_for_each(|item| are_exact(item, long)),
        _ => Ok(()),
    }
}

fn inexact(number: &Number) -> String {
    match number.is_f64() {
        false => format!("has the number {number}, whose digits a float does not hold"),
        // What was sent is not known any more.
        true => format!("has a number beyond 64 bits, near {number}, whose digits a float does not hold"),
    }
}

/// Whether it is a number that the library reads as it is written, in any place.
pub(crate) fn is_small(value: &Value) -> bool {
    match (value.as_i64(), value.as_u64()) {
        (Some(whole), _) => (-SMALL + 1..SMALL).contains(&whole),
        (None, Some(_)) => false,
        (None, None) => true,
    }
}

/// A whole number, however it is written; `None` for others and for those that were rounded.
pub(crate) fn whole(value: &Value) -> Option<i128> {
    let of_float = value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < SMALL as f64);
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    whole.or_else(|| of_float.map(|float| float as i128))
}

fn is_exact(number: &Number) -> bool {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(whole), _, Some(float)) => float as i128 == i128::from(whole),
        (None, Some(whole), Some(float)) => float as i128 == i128::from(whole),
        (None, None, Some(float)) => float.abs() < WHOLE,
        _ => false,
    }
}

/// A bound as the library holds it. Bounds that leave all whole numbers of 64 bits are held by those.
pub(crate) fn bound(map: &Map<String, Value>, key: &str, value: &Value, long: Long) -> Result<Value, String> {
    let number = match value {
        Value::Number(number) => number,
        // As drafts before the sixth say that another bound is exclusive.
        Value::Bool(_) if key.starts_with("exclusive") => return Ok(value.clone()),
        other => return Err(format!("is {other}, and no number")),
    };
    let is_whole =
        |name: &Value| matches!(name.as_str(), Some("integer" | "null" | "boolean" | "string" | "array" | "object"));
    let is_whole = match map.get("type") {
        Some(Value::Array(names)) => names.iter().all(is_whole),
        Some(name) => is_whole(name),
        None => false,
    };
    let float = number.as_f64().unwrap_or(f64::NAN);
    match key {
        _ if is_whole && long == Long::Written && (number.is_i64() || number.is_u64()) => Ok(value.clone()),
        "minimum" if is_whole && long == Long::Written && float <= -WHOLE => Ok(json!(i64::MIN)),
        "maximum" if is_whole && (float >= WHOLE || number.as_i64() == Some(i64::MAX)) => Ok(json!(i64::MAX)),
        "exclusiveMaximum" if is_whole && float >= WHOLE && number.as_i64().is_none() => Ok(json!(WHOLE)),
        "minimum" if is_whole && float <= -WHOLE => Ok(json!(LOWEST)),
        "exclusiveMinimum" if is_whole && float <= -WHOLE => Ok(json!(LOWEST)),
        _ if is_exact(number) => Ok(value.clone()),
        _ => Err(inexact(number)),
    }
}

/// A count, which may be written as `2.0`.
pub(crate) fn count(value: &Value) -> Result<Value, String> {
    let float = value.as_f64().filter(|float| float.fract() == 0.0 && (0.0..WHOLE).contains(float));
    match (value.as_u64(), float) {
        (Some(_), _) => Ok(value.clone()),
        (None, Some(float)) => Ok(json!(float as u64)),
        (None, None) => Err(format!("is {value}, and no whole number from 0 on")),
    }
}

/// What a number is a multiple of: a whole number of units of a power of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    units: u32,
    places: u32,
}

impl Step {
    /// As the library finds it: it multiplies by ten until nothing is left behind the point.
    pub fn of(value: &Value) -> Result<Step, String> {
        let float = value.as_f64().filter(|float| *float > 0.0);
        let mut float = float.ok_or_else(|| format!("is {value}, and no number above 0"))?;
        let written = format!("{float}");
        let mut places = 0;
        while float.fract() != 0.0 && places < PLACES {
            float *= 10.0;
            places += 1;
        }
        let (whole, behind) = written.split_once('.').unwrap_or((&written, ""));
        let is_same = format!("{whole}{behind}").parse() == Ok(float as u64) && behind.len() as u32 == places;
        match float <= f64::from(u32::MAX) && is_same {
            true => Ok(Step { units: float as u32, places }),
            false => Err(format!("is {value}, with more digits than can be held")),
        }
    }
}

/// Whether any two steps have a multiple in common that the library can write.
pub(crate) fn fit(steps: &[&Step]) -> bool {
    let places = steps.iter().map(|step| step.places).max().unwrap_or(0);
    let mut units: Vec<u128> =
        steps.iter().map(|step| u128::from(step.units) * 10u128.pow(places - step.places)).collect();
    units.sort_unstable();
    units.dedup();
    match units.as_slice() {
        [.., second, first] => second.checked_mul(*first).is_some_and(|both| both <= u128::from(u32::MAX)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn numbers_that_a_float_changes_are_told() {
        for (text, is_fine) in [
            ("1", true),
            ("-0.1", true),
            ("9007199254740992", true),
            ("9007199254740993", false),
            ("-9007199254740993", false),
            ("18446744073709551615", false),
            ("123456789012345678901234567890", false),
            ("1e18", true),
            ("1e19", false),
            ("{\"a\": [1, {\"b\": 9007199254740993}]}", false),
        ] {
            assert_eq!(are_exact(&read(text), Long::Refused).is_ok(), is_fine, "{text}");
            let is_fine = is_fine || !["123456789012345678901234567890", "1e19"].contains(&text);
            assert_eq!(are_exact(&read(text), Long::Written).is_ok(), is_fine, "{text}");
        }
    }

    #[test]
    fn bounds_beyond_all_whole_numbers_of_64_bits_are_theirs() {
        let of = |kind: &str, key: &str, text: &str| {
            let map = json!({"type": kind});
            bound(map.as_object().unwrap(), key, &read(text), Long::Refused).map_err(drop)
        };
        assert_eq!(of("integer", "maximum", "9223372036854775807"), Ok(json!(i64::MAX)));
        assert_eq!(of("integer", "maximum", "1e30"), Ok(json!(i64::MAX)));
        assert_eq!(of("integer", "minimum", "-9223372036854775808"), Ok(json!(LOWEST)));
        assert_eq!(of("integer", "minimum", "1e30"), Err(()));
        assert_eq!(of("integer", "exclusiveMaximum", "9223372036854775807"), Err(()));
        assert_eq!(of("number", "maximum", "1e30"), Err(()));
        assert_eq!(of("integer", "maximum", "9007199254740993"), Err(()));
    }

    #[test]
    fn steps_are_those_that_are_written() {
        for (text, is_fine) in
            [("0.01", true), ("3", true), ("0.07", false), ("0", false), ("-1", false), ("5000000000", false)]
        {
            assert_eq!(Step::of(&read(text)).is_ok(), is_fine, "{text}");
        }
        let of = |text: &str| Step::of(&read(text)).unwrap();
        assert!(fit(&[&of("0.5"), &of("3")]) && !fit(&[&of("100000"), &of("99999")]));
    }
}
