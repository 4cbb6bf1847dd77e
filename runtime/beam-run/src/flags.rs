//! Values of flags that are refused where the command line is read, in words that say what to give instead.

use std::ops::RangeInclusive;
use std::path::PathBuf;

/// More seconds than anybody waits: ten years.
pub const MOST_SECONDS: u64 = 10 * 365 * 24 * 60 * 60;
/// More memory than machines have, in 10^9 bytes.
pub const MOST_GIGABYTES: f64 = 1e6;
/// Least bytes that a body of a request may be limited to; in less there is hardly a question.
pub const LEAST_BODY_BYTES: usize = 1024;
/// Least tokens of a sequence: one of a prompt and one of an answer.
pub const LEAST_CONTEXT_TOKENS: usize = 2;

/// A whole number from `least` on.
pub fn at_least(least: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse::<usize>() {
        Ok(n) if n >= least => Ok(n),
        Ok(_) => Err(format!("must be at least {least}")),
        Err(_) => Err(format!("must be a whole number of at least {least}")),
    }
}

/// A number inside a range, its ends included.
pub fn within(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse::<f64>().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be a number from {} to {}", range.start(), range.end()))
    }
}

/// A number above 0, up to `most`.
pub fn above_zero(most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= most);
        number.ok_or_else(|| format!("must be a number above 0 and at most {most}"))
    }
}

/// A temperature.
pub fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "must be a number of at least 0".to_owned())
}

/// A share of probability.
pub fn share(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "must be a number above 0 and at most 1".to_owned())
}

/// A name that is shown to others.
pub fn name(text: &str) -> Result<String, String> {
    let is_plain = !text.trim().is_empty() && !text.chars().any(char::is_control);
    if is_plain { Ok(text.to_owned()) } else { Err("must be a name; leave the flag out for the usual one".to_owned()) }
}

/// A path of a file or folder.
pub fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("must be a path".to_owned()) } else { Ok(text.into()) }
}

/// An origin as browsers send it: scheme, host and maybe a port; or `*`, `none`, `null`.
pub fn origin(text: &str) -> Result<String, String> {
    let wrong = || Err("must be `*`, `none`, or an origin such as http://localhost:3000, without a path".to_owned());
    if matches!(text, "*" | "none" | "null") {
        return Ok(text.to_owned());
    }
    let Some((scheme, place)) = text.split_once("://") else { return wrong() };
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && scheme.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"+-.".contains(&c));
    let is_place = !place.is_empty() && place.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._:[]".contains(&c));
    // The part behind the last colon is a port, unless it belongs to an address in brackets.
    let port = place.rsplit_once(':').filter(|_| !place.ends_with(']'));
    let is_port = port.is_none_or(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_scheme && is_place && is_port { Ok(text.to_owned()) } else { wrong() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send() {
        for text in
            ["*", "none", "null", "http://a", "https://a.b:8443", "http://[::1]:80", "http://[::1]", "app-x://y"]
        {
            assert_eq!(origin(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "foo",
            "a.b:80",
            "http://",
            "http://a/",
            "http://a/b",
            "http://a:x",
            "http://a:99999",
            "http://:80",
            "HTTP://a",
            "http://a b",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_keep_to_their_ranges() {
        assert_eq!((at_least(2)("2"), within(0.0..=1e6)("0"), above_zero(5.0)("5")), (Ok(2), Ok(0.0), Ok(5.0)));
        for text in ["1", "-3", "x", "", "99999999999999999999999"] {
            assert!(at_least(2)(text).is_err(), "{text}");
        }
        for text in ["nan", "inf", "-1", "", "1e7"] {
            assert!(within(0.0..=1e6)(text).is_err() && above_zero(5.0)(text).is_err(), "{text}");
        }
        assert!(above_zero(5.0)("0").is_err() && share("0").is_err() && share("1.5").is_err() && share("1").is_ok());
        assert!(temperature("nan").is_err() && temperature("-1").is_err() && temperature("0").is_ok());
        assert!(name("").is_err() && name(" ").is_err() && name("a\nb").is_err() && name("a b").is_ok());
    }
}
