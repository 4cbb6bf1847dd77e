//! The formats of strings that a schema can name, as expressions over the raw text.

use serde_json::{Value, json};

/// An octet of an IPv4 address.
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
/// A label of a host name.
const LABEL: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
/// A character of a URI's path.
const PATH: &str = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

/// The expression of a format; `None` for one that only annotates.
pub(crate) fn format(name: &str) -> Option<String> {
    Some(match name {
        "date" => date(),
        "time" => time(),
        "date-time" => format!("(?:{})[Tt]{}", date(), time()),
        "email" => {
            let atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
            format!(r"{atom}(?:\.{atom})*@{LABEL}(?:\.{LABEL})*")
        }
        "hostname" => format!(r"{LABEL}(?:\.{LABEL})*"),
        "ipv4" => ipv4(),
        "ipv6" => ipv6(),
        "uuid" => "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}".to_owned(),
        "uri" => uri(),
        "duration" => duration(),
        _ => return None,
    })
}

/// Whether a format is held; all others only annotate.
pub(crate) fn is_format(name: &str) -> bool {
    format(name).is_some()
}

/// A schema whose dates and times are expressions: llguidance's own take the 29th of February of every year.
pub(crate) fn with_dates(schema: &mut Value) {
    match schema {
        Value::Array(members) => members.iter_mut().for_each(with_dates),
        Value::Object(map) => {
            let name = map.get("format").and_then(Value::as_str);
            let regex = name.filter(|name| ["date", "date-time", "time"].contains(name)).and_then(format);
            if let Some(regex) = regex {
                map.remove("format");
                let pattern = Value::from(format!("^(?:{regex})$"));
                match map.contains_key("pattern") {
                    false => drop(map.insert("pattern".to_owned(), pattern)),
                    true => {
                        let both = json!({"pattern": pattern});
                        match map.get_mut("allOf").and_then(Value::as_array_mut) {
                            Some(members) => members.push(both),
                            None => drop(map.insert("allOf".to_owned(), json!([both]))),
                        }
                    }
                }
            }
            let values = ["const", "enum", "default", "example", "examples"];
            let members = map.iter_mut().filter(|(key, _)| !values.contains(&key.as_str()));
            members.for_each(|(_, member)| with_dates(member));
        }
        _ => {}
    }
}

/// A day of the calendar, leap years and all, from the year 1 on.
fn date() -> String {
    let long = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])";
    let short = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)";
    let february = "02-(?:0[1-9]|1[0-9]|2[0-8])";
    let fourth = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
    let year = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
    format!("(?:{year}-(?:{long}|{short}|{february})|{fourth}-02-29)")
}

/// A time of the day with its zone.
fn time() -> String {
    let minutes = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
    format!(r"{minutes}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:[Zz]|[+-]{minutes})")
}

/// A duration, as RFC 3339 writes it.
fn duration() -> String {
    let n = "[0-9]{1,19}";
    let time = format!("T(?:{n}H(?:{n}M(?:{n}S)?)?|{n}M(?:{n}S)?|{n}S)");
    let date = format!("(?:{n}Y(?:{n}M(?:{n}D)?)?|{n}M(?:{n}D)?|{n}D)");
    format!("P(?:{date}(?:{time})?|{time}|{n}W)")
}

fn ipv4() -> String {
    format!(r"(?:{OCTET}\.){{3}}{OCTET}")
}

fn ipv6() -> String {
    let group = "[0-9A-Fa-f]{1,4}";
    let last = format!("(?:{group}:{group}|{})", ipv4());
    let mut forms = vec![format!("(?:{group}:){{6}}{last}"), format!("::(?:{group}:){{5}}{last}")];
    for before in 0..5 {
        // So many groups before the gap at most, `4 - before` and the last two behind it.
        let behind = 4 - before;
        forms.push(format!("(?:(?:{group}:){{0,{before}}}{group})?::(?:{group}:){{{behind}}}{last}"));
    }
    forms.push(format!("(?:(?:{group}:){{0,5}}{group})?::{group}"));
    forms.push(format!("(?:(?:{group}:){{0,6}}{group})?::"));
    format!("(?:{})", forms.join("|"))
}

fn uri() -> String {
    let authority = format!(r"(?:[A-Za-z0-9._~!$&'()*+,;=:-]+@)?(?:\[{}\]|[A-Za-z0-9._~-]+)(?::[0-9]{{1,5}})?", ipv6());
    let query = format!("(?:{PATH}|[/?])*");
    format!(r"[A-Za-z][A-Za-z0-9+.-]*:(?://{authority}(?:/{PATH}*)*|/?{PATH}+(?:/{PATH}*)*)(?:\?{query})?(?:#{query})?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex_automata::nfa::thompson::pikevm::PikeVM;

    #[test]
    fn formats_take_what_they_name() {
        for (name, yes, no) in [
            (
                "date",
                vec!["2026-11-30", "2024-02-29", "2000-02-29"],
                vec!["2026-13-30", "2026-02-29", "1900-02-29", "2026-04-31"],
            ),
            ("time", vec!["23:59:59Z", "00:00:00.5+01:00"], vec!["24:00:00Z", "12:00:00", "12:00Z"]),
            ("date-time", vec!["2026-11-30T01:02:03Z"], vec!["2026-11-30", "2026-11-30 01:02:03Z"]),
            ("email", vec!["a.b+c@d-e.org", "x@y"], vec!["a@", "@b", "a b@c", "a..b@c"]),
            ("hostname", vec!["a", "a-b.c0"], vec!["", "-a", "a-", "a..b", "a_b"]),
            ("ipv4", vec!["0.0.0.0", "255.1.20.3"], vec!["256.0.0.0", "1.2.3", "01.2.3.4"]),
            (
                "ipv6",
                vec!["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "1:2::7:8", "::1.2.3.4", "1:2:3:4:5:6:1.2.3.4"],
                vec![":", "1:2", "1::2::3", "1:2:3:4:5:6:7:8:9"],
            ),
            (
                "uuid",
                vec!["123e4567-e89b-12d3-a456-426614174000"],
                vec!["123e4567e89b12d3a456426614174000", "x23e4567-e89b-12d3-a456-426614174000"],
            ),
            ("duration", vec!["P1Y2M3DT4H5M6S", "PT5M", "P2W"], vec!["P", "PT", "P1S", "1D", "P1Y2D"]),
            (
                "uri",
                vec!["https://a.b/c?d=e#f", "urn:x:y", "http://[::1]:80/", "mailto:a@b"],
                vec!["a", "//a", "http://a b", "http://a/<"],
            ),
        ] {
            let regex = PikeVM::new(&format!("^(?:{})$", format(name).unwrap())).unwrap();
            let mut cache = regex.create_cache();
            for (texts, expected) in [(yes, true), (no, false)] {
                for text in texts {
                    assert_eq!(regex.is_match(&mut cache, text), expected, "{name} {text}");
                }
            }
        }
        assert_eq!(format("colour"), None);
    }
}
