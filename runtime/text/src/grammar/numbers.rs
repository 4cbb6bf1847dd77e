//! Numbers of a schema: the library reads them as floats, so those that a float would change are refused.

use serde_json::{Map, Number, Value, json};

/// From here on whole numbers leave those of 64 bits with a sign, by which the library counts.
const SIGNED: f64 = 9_223_372_036_854_775_808.0;
/// From here on they leave those of 64 bits.
const UNSIGNED: f64 = 2.0 * SIGNED;
/// The lowest whole number of 64 bits that a float has and the library takes.
const LOWEST: i64 = -9_223_372_036_854_774_784;
/// From here on the library cannot count on from a bound.
const COUNTED: i128 = 1_000_000_000_000_000_000;
/// Most that is counted.
const MOST_COUNTED: u64 = i32::MAX as u64;
/// Most digits behind the point of a step.
const PLACES: u32 = 9;

/// Below this all whole numbers are floats, and so are those beside them.
const SMALL: i128 = 1 << 53;

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
        Value::Number(number) if !is_exact(number) => Err(inexact(number, "")),
        Value::Array(items) => items.iter().try_for_each(|item| are_exact(item, long)),
        Value::Object(map) => map.values().try_for_each(|item| are_exact(item, long)),
        _ => Ok(()),
    }
}

/// What is wrong with a number, in that place.
fn inexact(number: &Number, place: &str) -> String {
    let float = number.as_f64().unwrap_or(f64::NAN);
    match number.is_f64() && !(-SIGNED < float && float < UNSIGNED) {
        false => format!("has the number {number}, too long to be held exactly{place}"),
        // What was sent is not known any more.
        true => format!("has a number beyond 64 bits, near {number}, too long to be held exactly{place}"),
    }
}

/// Whether it is a number that the library reads as it is written, in any place.
pub(crate) fn is_small(value: &Value) -> bool {
    match (value.as_i64(), value.as_u64()) {
        (Some(whole), _) => is_small_whole(whole.into()),
        (None, Some(_)) => false,
        (None, None) => true,
    }
}

/// The same of a whole number.
pub(crate) fn is_small_whole(whole: i128) -> bool {
    whole.abs() < SMALL
}

/// Whether a schema's bounds are those of whole numbers alone.
pub(crate) fn bounds_wholes(map: &Map<String, Value>) -> bool {
    let is_whole =
        |name: &Value| matches!(name.as_str(), Some("integer" | "null" | "boolean" | "string" | "array" | "object"));
    match map.get("type") {
        Some(Value::Array(names)) => names.iter().all(is_whole),
        Some(name) => is_whole(name),
        None => false,
    }
}

/// A whole number, however it is written; `None` for others and for those that were rounded.
pub(crate) fn whole(value: &Value) -> Option<i128> {
    let of_float = || {
        let float = value.as_f64().filter(|float| float.fract() == 0.0 && -SIGNED < *float && *float < UNSIGNED)?;
        format!("{float}").parse().ok()
    };
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    whole.or_else(of_float)
}

/// Whether the library writes the number with the same digits: it counts with a sign, and takes the shortest digits of a float.
fn is_exact(number: &Number) -> bool {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(whole), _, Some(float)) => format!("{float}") == whole.to_string(),
        (None, None, Some(float)) => float.abs() < SIGNED,
        _ => false,
    }
}

/// A bound as the library holds it, or as it is where it is written digit by digit.
pub(crate) fn bound(map: &Map<String, Value>, key: &str, value: &Value, long: Long) -> Result<Value, String> {
    let number = match value {
        Value::Number(number) => number,
        // As drafts before the sixth say that another bound is exclusive.
        Value::Bool(_) if key.starts_with("exclusive") => return Ok(value.clone()),
        other => return Err(format!("is {other}, and no number")),
    };
    if !bounds_wholes(map) {
        let float = number.as_f64().unwrap_or(f64::NAN);
        let from_zero = if key.ends_with("inimum") { float } else { -float };
        return match is_exact(number) {
            true if from_zero >= COUNTED as f64 => {
                Err(format!("has the number {number}, which is too large to count on from"))
            }
            true => Ok(value.clone()),
            false => Err(inexact(number, "")),
        };
    }
    let Some(whole) = whole(value) else {
        // What has a fraction is small.
        return if number.as_f64().is_some_and(|n| n.fract() != 0.0) {
            Ok(value.clone())
        } else {
            Err(inexact(number, ""))
        };
    };
    let most = if key.starts_with("exclusive") { SMALL } else { COUNTED };
    match key {
        _ if long == Long::Written => Ok(value.clone()),
        "maximum" if whole == i128::from(i64::MAX) => Ok(json!(i64::MAX)),
        "minimum" | "exclusiveMinimum" if whole == i128::from(i64::MIN) => Ok(json!(LOWEST)),
        _ if whole.abs() < most && whole as f64 as i128 == whole => Ok(value.clone()),
        _ if map.contains_key("multipleOf") => Err(inexact(number, " and which is not held beside `multipleOf`")),
        _ => Err(inexact(number, "")),
    }
}

/// The least and the most whole number between a schema's bounds, where it has such; `None` if one of them is no number of 64
/// bits.
pub(crate) fn whole_range(map: &Map<String, Value>) -> Option<(Option<i128>, Option<i128>)> {
    let near = |value: &Value, up: bool| {
        whole(value).or_else(|| {
            let float = value.as_f64().filter(|float| float.fract() != 0.0)?;
            Some(if up { float.ceil() } else { float.floor() } as i128)
        })
    };
    let end = |key: &str, exclusive: &str, up: bool| {
        let bound = map.get(key);
        let beyond = match map.get(exclusive) {
            Some(Value::Bool(is_so)) => bound.filter(|_| *is_so),
            other => other,
        };
        let bound = bound.map_or(Some(None), |bound| near(bound, up).map(Some))?;
        let beyond =
            beyond.map_or(Some(None), |bound| near(bound, !up).map(|n| Some(if up { n + 1 } else { n - 1 })))?;
        Some(bound.into_iter().chain(beyond))
    };
    let least = end("minimum", "exclusiveMinimum", true)?.max();
    let most = end("maximum", "exclusiveMaximum", false)?.min();
    Some((least, most))
}

/// What is wrong with bounds between which there is no number.
pub(crate) fn emptiness(map: &Map<String, Value>) -> Option<String> {
    let said = |keys: [&str; 2]| {
        let all = keys.into_iter().filter_map(|key| Some(format!("`{key}` {}", map.get(key)?)));
        all.collect::<Vec<_>>().join(" and ")
    };
    let float = |key: &str| map.get(key).and_then(Value::as_f64);
    let is_above = |one: &str, other: &str, equal: bool| match (float(one), float(other)) {
        (Some(least), Some(most)) => least > most || (equal && least == most),
        _ => false,
    };
    let (is_empty, what) = match bounds_wholes(map) {
        true => (
            whole_range(map).and_then(|(least, most)| least.zip(most)).is_some_and(|(least, most)| least > most),
            "whole number",
        ),
        false => {
            let ends = [("minimum", "maximum", false), ("minimum", "exclusiveMaximum", true)];
            let other = [("exclusiveMinimum", "maximum", true), ("exclusiveMinimum", "exclusiveMaximum", true)];
            (ends.into_iter().chain(other).any(|(one, other, equal)| is_above(one, other, equal)), "number")
        }
    };
    let (below, above) = (said(["minimum", "exclusiveMinimum"]), said(["maximum", "exclusiveMaximum"]));
    is_empty.then(|| format!("leaves no {what} between {below} and {above}"))
}

/// A count, which may be written as `2.0`; `None` for a most that no answer comes to.
pub(crate) fn count(key: &str, value: &Value) -> Result<Option<Value>, String> {
    let float = value.as_f64().filter(|float| float.fract() == 0.0 && (0.0..SIGNED).contains(float));
    let count = value.as_u64().or_else(|| float.map(|float| float as u64));
    match count.ok_or_else(|| format!("is {value}, and no whole number from 0 on"))? {
        count if count <= MOST_COUNTED => Ok(Some(json!(count))),
        _ if key.starts_with("max") => Ok(None),
        count => Err(format!("is {count}, which no answer comes to; the limit is {MOST_COUNTED}")),
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

    /// Whether every whole number is a multiple of it.
    pub fn has_all_wholes(&self) -> bool {
        10u128.pow(self.places).is_multiple_of(self.units.into())
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
            ("9223372036854775808", false),
            ("18446744073709551615", false),
            // As a float it is written with other digits behind the first 17.
            ("4611686018427387904", false),
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
    fn bounds_are_held_as_they_are_or_refused() {
        let of = |kind: &str, key: &str, text: &str, long: Long| {
            let map = json!({"type": kind});
            bound(map.as_object().unwrap(), key, &read(text), long).map_err(drop)
        };
        for (kind, key, text) in [
            ("integer", "maximum", "9223372036854775807"),
            ("integer", "maximum", "9007199254740992"),
            ("integer", "minimum", "0.5"),
            ("integer", "exclusiveMaximum", "9007199254740991"),
            ("number", "maximum", "9007199254740992"),
            ("number", "minimum", "-1e18"),
            ("number", "exclusiveMaximum", "1e18"),
        ] {
            assert_eq!(of(kind, key, text, Long::Refused), Ok(read(text)), "{kind} {key} {text}");
        }
        assert_eq!(of("integer", "minimum", "-9223372036854775808", Long::Refused), Ok(json!(LOWEST)));
        for (kind, key, text) in [
            ("integer", "maximum", "9007199254740993"),
            ("integer", "maximum", "18446744073709551615"),
            // What the library counts on from goes over its end, or is rounded.
            ("integer", "minimum", "9223372036854775808"),
            ("integer", "minimum", "1000000000000000000"),
            ("integer", "exclusiveMinimum", "9007199254740992"),
            ("integer", "exclusiveMaximum", "9223372036854775807"),
            ("number", "maximum", "9223372036854775808"),
            ("number", "maximum", "4611686018427387904"),
            ("number", "minimum", "1e18"),
            ("number", "exclusiveMaximum", "-1e18"),
        ] {
            assert_eq!(of(kind, key, text, Long::Refused), Err(()), "{kind} {key} {text}");
            let is_whole = kind == "integer";
            assert_eq!(of(kind, key, text, Long::Written).is_ok(), is_whole, "{kind} {key} {text}");
        }
        for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
            for text in ["1e30", "-1e30", "18446744073709551616", "-9223372036854775809"] {
                for (kind, long) in [("integer", Long::Written), ("integer", Long::Refused), ("number", Long::Written)]
                {
                    assert_eq!(of(kind, key, text, long), Err(()), "{kind} {key} {text}");
                }
            }
        }
    }

    #[test]
    fn ranges_of_whole_numbers_are_those_between_the_bounds() {
        for (schema, expected) in [
            (r#"{"minimum": 0.5, "maximum": 18446744073709551615}"#, Some((Some(1), Some(i128::from(u64::MAX))))),
            (r#"{"exclusiveMinimum": 2.5, "exclusiveMaximum": -2.5}"#, Some((Some(3), Some(-3)))),
            (r#"{"exclusiveMinimum": 2, "exclusiveMaximum": 4}"#, Some((Some(3), Some(3)))),
            (
                r#"{"minimum": 2, "exclusiveMinimum": true, "maximum": 9, "exclusiveMaximum": false}"#,
                Some((Some(3), Some(9))),
            ),
            (r#"{"minimum": 1e19}"#, Some((Some(10_000_000_000_000_000_000), None))),
            (r#"{"minimum": 5, "exclusiveMinimum": 4}"#, Some((Some(5), None))),
            ("{}", Some((None, None))),
            (r#"{"maximum": 1e30}"#, None),
            (r#"{"maximum": "x"}"#, None),
        ] {
            assert_eq!(whole_range(read(schema).as_object().unwrap()), expected, "{schema}");
        }
    }

    #[test]
    fn steps_are_those_that_are_written() {
        for (text, is_fine) in
            [("0.01", true), ("3", true), ("0.07", false), ("0", false), ("-1", false), ("5000000000", false)]
        {
            assert_eq!(Step::of(&read(text)).is_ok(), is_fine, "{text}");
        }
        let of = |text: &str| Step::of(&read(text)).unwrap();
        assert!(["1", "1.0", "0.5", "0.01", "0.25"].iter().all(|text| of(text).has_all_wholes()));
        assert!(["2", "1.5", "0.3", "0.75", "10"].iter().all(|text| !of(text).has_all_wholes()));
        assert!(fit(&[&of("0.5"), &of("3")]) && !fit(&[&of("100000"), &of("99999")]));
    }
}
