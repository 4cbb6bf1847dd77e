//! `tojson` as chat templates mean it: Python's `json.dumps`, not the HTML-safe filter of a web template.

use crate::exact::Digits;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// Arguments of `json.dumps`, with the defaults that chat templates get.
struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

/// Names of the arguments in their order.
const ARGUMENTS: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];

/// The filter: `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(crate) fn tojson(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut arguments: [Option<Value>; 4] = Default::default();
    if positional.len() > ARGUMENTS.len() {
        return Err(Error::new(ErrorKind::TooManyArguments, format!("`tojson` takes {}", ARGUMENTS.join(", "))));
    }
    for (i, (slot, name)) in arguments.iter_mut().zip(ARGUMENTS).enumerate() {
        let given: Option<Value> = named.get(name)?;
        *slot = given.or_else(|| positional.get(i).cloned()).filter(|v| !v.is_none() && !v.is_undefined());
    }
    named.assert_all_used()?;
    let [ascii, indent, separators, sort_keys] = arguments;
    let indent = indent.map(|v| indentation(&v)).transpose()?;
    let (item, key) = match separators {
        Some(pair) => separator_pair(&pair)?,
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let is_set = |v: Option<Value>| v.is_some_and(|v| v.is_true());
    let style = Style { ascii: is_set(ascii), indent, item, key, sort_keys: is_set(sort_keys) };
    let mut out = String::new();
    write_value(&mut out, value, &style, 0)?;
    Ok(Value::from(out))
}

fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = i64::try_from(value.clone())?;
    // Far beyond any use; keeps one template from asking for gigabytes.
    Ok(" ".repeat(spaces.clamp(0, 64) as usize))
}

fn separator_pair(pair: &Value) -> Result<(String, String), Error> {
    let mut parts = pair.try_iter()?.map(|part| part.as_str().map(str::to_owned));
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Some(item)), Some(Some(key)), None) => Ok((item, key)),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "`separators` of `tojson` must be two strings")),
    }
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?;
            write_list(out, ('[', ']'), items, style, depth, |out, item| write_value(out, &item, style, depth + 1))?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_list(out, ('{', '}'), keys.into_iter(), style, depth, |out, key| {
                write_key(out, &key, style.ascii)?;
                out.push_str(&style.key);
                write_value(out, &value.get_item(&key)?, style, depth + 1)
            })?;
        }
        other => match value.downcast_object_ref::<Digits>() {
            Some(Digits(digits)) => out.push_str(digits),
            None => {
                let message = format!("`tojson` cannot write an {other} value");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        },
    }
    Ok(())
}

fn write_list<T>(
    out: &mut String,
    (open, close): (char, char),
    items: impl Iterator<Item = T>,
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    };
    out.push(open);
    let mut is_empty = true;
    for item in items {
        if !is_empty {
            out.push_str(&style.item);
        }
        is_empty = false;
        new_line(out, depth + 1);
        write(out, item)?;
    }
    if !is_empty {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        out.push_str(&python_float(f64::try_from(value.clone())?));
    }
    Ok(())
}

/// Keys that are not strings become some, as in Python.
fn write_key(out: &mut String, key: &Value, ascii: bool) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => write_string(out, key.as_str().unwrap_or_default(), ascii),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            out.push('"');
            write_value(
                out,
                key,
                &Style { ascii, indent: None, item: String::new(), key: String::new(), sort_keys: false },
                0,
            )?;
            out.push('"');
        }
        other => {
            return Err(Error::new(ErrorKind::BadSerialization, format!("`tojson` cannot write an {other} as a key")));
        }
    }
    Ok(())
}

fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `repr` of a Python float: the shortest digits that read back, an exponent below 1e-4 and from 1e16 on.
pub(crate) fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        e if (-4..16).contains(&e) => {
            let plain = x.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        e => format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs()),
    }
}
