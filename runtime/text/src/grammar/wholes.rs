//! Schemas with whole numbers of 64 bits that a float does not hold. The library reads all numbers of a schema as floats, so the
//! parts from the root down to such numbers are written here, rule by rule; all parts beside them are the library's.

use super::disjoint::is_of;
use super::numbers;
use super::schema::{refers, refers_where};
use super::space::space;
use super::writer::{Writer, quoted, slashed};
use serde_json::{Map, Value, json};

/// Deepest nesting of such parts.
const DEPTH: usize = 24;
/// Most parts of one schema.
const PARTS: usize = 2_000;
/// Keywords that bound a number.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// A name of a property, without escapes by which it could spell another.
const NAME: &str = r#""(?:[^"\\\x00-\x1F\x7F]|\\[nrbtf\\"])*""#;

/// A part of a schema, and how it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// No value at all.
    Nothing,
    /// What the library holds.
    Library(Value),
    /// A text.
    Literal(String),
    /// Texts of an expression.
    Regex(String),
    Either(Vec<Part>),
    /// These, one after another.
    Tuple(Vec<Part>),
    /// So many of one kind at least and at most.
    List(Box<Part>, u64, Option<u64>),
    /// Properties with whether they are required, and others.
    Object(Vec<(String, bool, Part)>, Option<Box<Part>>),
}

/// Whether a prepared schema has numbers that the library would change.
pub(crate) fn are_needed(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map.iter().any(|(key, value)| match key.as_str() {
            "const" | "enum" => has_long(value),
            key if BOUNDS.contains(&key) => numbers::bounds_wholes(map) && is_long_bound(key, value),
            _ => are_needed(value),
        }),
        Value::Array(all) => all.iter().any(are_needed),
        _ => false,
    }
}

/// Whether the library would change the bound of whole numbers: of large ones it holds the last alone.
fn is_long_bound(key: &str, value: &Value) -> bool {
    let is_last = key == "maximum" && value.as_i64() == Some(i64::MAX);
    !is_last && numbers::whole(value).is_some_and(|whole| !numbers::is_small_whole(whole))
}

/// Whether a value has a whole number that is another as a float.
fn has_long(value: &Value) -> bool {
    match value {
        Value::Number(_) => !numbers::is_small(value),
        Value::Array(all) => all.iter().any(has_long),
        Value::Object(map) => map.values().any(has_long),
        _ => false,
    }
}

/// How a prepared schema with such numbers is written; `None` where they stand in parts that are not known here.
pub(crate) fn parts(root: &Value) -> Option<Part> {
    let definitions = root.get("$defs").cloned().unwrap_or(Value::Null);
    let mut reader = Reader { root, are_plain: !are_needed(&definitions), definitions, left: PARTS };
    reader.part(root, DEPTH)
}

struct Reader<'a> {
    root: &'a Value,
    definitions: Value,
    /// No definition has such numbers.
    are_plain: bool,
    left: usize,
}

impl Reader<'_> {
    fn part(&mut self, schema: &Value, depth: usize) -> Option<Part> {
        let depth = depth.checked_sub(1)?;
        self.left = self.left.checked_sub(1)?;
        let own = without_definitions(schema);
        let refers = refers(&own);
        if !are_needed(&own) && (!refers || (self.are_plain && !refers_to_root(&own))) {
            return Some(Part::Library(self.alone(own, refers)));
        }
        let map = own.as_object()?;
        let only = |keys: &[&str]| map.keys().all(|key| keys.contains(&key.as_str()));
        if let (Some(target), true) = (map.get("$ref").and_then(Value::as_str), map.len() == 1) {
            let target = self.root.pointer(target.strip_prefix('#')?)?.clone();
            return self.part(&target, depth);
        }
        if let (Some(value), true) = (map.get("const"), only(&["const", "type"])) {
            return self.listed(map, std::slice::from_ref(value), depth);
        }
        if let (Some(Value::Array(values)), true) = (map.get("enum"), only(&["enum", "type"])) {
            return self.listed(map, values, depth);
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            if let (Some(Value::Array(members)), 1) = (map.get(key), map.len()) {
                return match members.as_slice() {
                    [one] => self.part(one, depth),
                    [] => None,
                    _ if key == "allOf" => None,
                    many => many.iter().map(|one| self.part(one, depth)).collect::<Option<_>>().map(either),
                };
            }
        }
        match map.get("type")? {
            Value::Array(kinds) => self.kinds(map, kinds, depth),
            kind if kind == "integer" && only(&["type", BOUNDS[0], BOUNDS[1], BOUNDS[2], BOUNDS[3]]) => {
                Some(integers(map)?.map_or(Part::Nothing, Part::Regex))
            }
            kind if kind == "array" && only(&["type", "items", "minItems", "maxItems"]) => {
                let count = |key: &str| map.get(key).and_then(Value::as_u64);
                let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
                let item = self.part(map.get("items")?, depth)?;
                let most = if item == Part::Nothing { Some(0) } else { most };
                Some(match most.is_some_and(|most| most < least) {
                    true => Part::Nothing,
                    false => Part::List(Box::new(item), least, most),
                })
            }
            kind if kind == "object" && only(&["type", "properties", "required", "additionalProperties"]) => {
                self.object(map, depth)
            }
            _ => None,
        }
    }

    /// A part that the library holds, with what it refers to.
    fn alone(&self, schema: Value, refers: bool) -> Value {
        match schema {
            Value::Object(mut map) if refers => {
                map.insert("$defs".to_owned(), self.definitions.clone());
                Value::Object(map)
            }
            other => other,
        }
    }

    /// One of some values.
    fn listed(&mut self, map: &Map<String, Value>, values: &[Value], depth: usize) -> Option<Part> {
        let kinds: Option<Vec<&str>> = match map.get("type") {
            None => None,
            Some(Value::Array(all)) => Some(all.iter().filter_map(Value::as_str).collect()),
            Some(one) => Some(vec![one.as_str()?]),
        };
        let is_meant = |value: &&Value| kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|kind| is_of(value, kind)));
        let (long, others): (Vec<&Value>, Vec<&Value>) =
            values.iter().filter(is_meant).partition(|value| has_long(value));
        let mut of = long.into_iter().map(|value| self.value(value, depth)).collect::<Option<Vec<Part>>>()?;
        of.extend((!others.is_empty()).then(|| Part::Library(json!({"enum": others}))));
        Some(either(of))
    }

    /// One value.
    fn value(&mut self, value: &Value, depth: usize) -> Option<Part> {
        let depth = depth.checked_sub(1)?;
        self.left = self.left.checked_sub(1)?;
        if !has_long(value) {
            return Some(Part::Library(json!({"const": value})));
        }
        match value {
            Value::Array(all) => all.iter().map(|one| self.value(one, depth)).collect::<Option<_>>().map(Part::Tuple),
            Value::Object(of) => {
                let of = of.iter().map(|(name, one)| Some((name.clone(), true, self.value(one, depth)?)));
                Some(Part::Object(of.collect::<Option<_>>()?, None))
            }
            number => Some(Part::Literal(number.to_string())),
        }
    }

    /// A value of one of several types.
    fn kinds(&mut self, map: &Map<String, Value>, kinds: &[Value], depth: usize) -> Option<Part> {
        if kinds.is_empty() || kinds.iter().any(|kind| kind == "number") {
            return None;
        }
        let of = |kind: &Value| {
            let mut one = map.clone();
            one.insert("type".to_owned(), kind.clone());
            // Bounds say nothing about others.
            one.retain(|key, _| kind == "integer" || !BOUNDS.contains(&key.as_str()));
            self.part(&Value::Object(one), depth)
        };
        kinds.iter().map(of).collect::<Option<_>>().map(either)
    }

    fn object(&mut self, map: &Map<String, Value>, depth: usize) -> Option<Part> {
        let others = map.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let required: Vec<&str> = match map.get("required") {
            None => Vec::new(),
            Some(list) => list.as_array()?.iter().filter_map(Value::as_str).collect(),
        };
        let none = Map::new();
        let properties = match map.get("properties") {
            None => &none,
            Some(of) => of.as_object()?,
        };
        // What is required and not listed has no place among the listed ones.
        if required.iter().any(|name| !properties.contains_key(*name)) {
            return None;
        }
        let mut of = Vec::new();
        for (name, schema) in properties {
            of.push((name.clone(), required.contains(&name.as_str()), self.part(schema, depth)?));
        }
        let others = match others {
            Value::Bool(false) => None,
            schema => Some(self.part(&schema, depth)?).filter(|part| *part != Part::Nothing).map(Box::new),
        };
        let is_never = of.iter().any(|(_, is_required, part)| *is_required && *part == Part::Nothing);
        Some(if is_never { Part::Nothing } else { Part::Object(of, others) })
    }
}

/// One of these, of which some may be of no value.
fn either(mut of: Vec<Part>) -> Part {
    of.retain(|part| *part != Part::Nothing);
    if of.is_empty() { Part::Nothing } else { Part::Either(of) }
}

fn without_definitions(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            Value::Object(map.iter().filter(|(k, _)| *k != "$defs").map(|(k, v)| (k.clone(), v.clone())).collect())
        }
        other => other.clone(),
    }
}

/// Whether references lead to the schema's root.
fn refers_to_root(schema: &Value) -> bool {
    refers_where(schema, &|target| target == "#")
}

/// An expression for the whole numbers between the bounds, if there is any; `None` where the bounds are not known.
fn integers(map: &Map<String, Value>) -> Option<Option<String>> {
    let (least, most) = numbers::whole_range(map)?;
    if least.zip(most).is_some_and(|(least, most)| least > most) {
        return Some(None);
    }
    let mut ways = Vec::new();
    // Those below 0, by their digits.
    let nearest = most.map_or(1, |most| (-most).max(1));
    if least.is_none_or(|least| -least >= nearest) {
        ways.push(format!("-(?:{})", digits(nearest, least.map(|least| -least))));
    }
    let first = least.map_or(0, |least| least.max(0));
    if most.is_none_or(|most| most >= first) {
        ways.push(digits(first, most));
    }
    Some(Some(ways.join("|")))
}

/// An expression for the whole numbers from one to another, none below 0; the first is not above the last.
fn digits(from: i128, to: Option<i128>) -> String {
    let (first, last) = (from.to_string(), to.map(|to| to.to_string()));
    let longest = last.as_ref().map_or(first.len(), String::len);
    let mut ways = Vec::new();
    for len in first.len()..=longest {
        let low = if len == first.len() { first.clone() } else { format!("1{}", "0".repeat(len - 1)) };
        let high = last.clone().filter(|last| last.len() == len).unwrap_or_else(|| "9".repeat(len));
        ways.push(between(low.as_bytes(), high.as_bytes()));
    }
    if last.is_none() {
        ways.push(format!("[1-9][0-9]{{{},}}", longest));
    }
    ways.join("|")
}

/// Digits of one length from one text to another.
fn between(low: &[u8], high: &[u8]) -> String {
    let (Some((a, low)), Some((b, high))) = (low.split_first(), high.split_first()) else { return String::new() };
    let (a_digit, b_digit) = (char::from(*a), char::from(*b));
    let free = |from: u8, to: u8, len: usize| match from <= to {
        true => vec![format!("[{}-{}][0-9]{{{len}}}", char::from(from), char::from(to))],
        false => Vec::new(),
    };
    let is = |digits: &[u8], digit: u8| digits.iter().all(|d| *d == digit);
    if a == b {
        return format!("{a_digit}{}", between(low, high));
    }
    let len = low.len();
    let (mut from, mut to, mut ways) = (*a, *b, Vec::new());
    if !is(low, b'0') {
        ways.push(format!("{a_digit}{}", between(low, "9".repeat(len).as_bytes())));
        from += 1;
    }
    let mut behind = Vec::new();
    if !is(high, b'9') {
        behind.push(format!("{b_digit}{}", between("0".repeat(len).as_bytes(), high)));
        to -= 1;
    }
    ways.extend(free(from, to, len));
    ways.extend(behind);
    match ways.as_slice() {
        [one] => one.clone(),
        many => format!("(?:{})", many.join("|")),
    }
}

/// A rule for JSON of such a schema.
pub(crate) fn rule(writer: &mut Writer, schema: &Value, part: &Part, strict: bool) -> String {
    let regex = space(schema);
    let maybe = format!("{}?", writer.terminal(&slashed(&regex)));
    let content = written(writer, part, &Style { regex, maybe, strict });
    writer.rule(&content)
}

/// How all parts are written.
struct Style {
    /// White space between parts: as an expression, and as part of a rule, where it need not be.
    regex: String,
    maybe: String,
    strict: bool,
}

fn written(writer: &mut Writer, part: &Part, style: &Style) -> String {
    let space = &style.maybe;
    match part {
        Part::Nothing => writer.json_spaced(&Value::Bool(false), style.strict, &style.regex),
        Part::Library(schema) => writer.json_spaced(schema, style.strict, &style.regex),
        Part::Literal(text) => quoted(text),
        Part::Regex(regex) => writer.terminal(&slashed(regex)),
        Part::Either(of) => {
            let of: Vec<String> = of.iter().map(|one| written(writer, one, style)).collect();
            writer.rule(&of.join(" | "))
        }
        Part::Tuple(of) => {
            let of: Vec<String> = of.iter().map(|one| written(writer, one, style)).collect();
            let of = of.join(&format!(" {space} \",\" {space} "));
            format!("\"[\" {space} {of} {space} \"]\"")
        }
        Part::List(of, least, most) => {
            let one = written(writer, of, style);
            let one = writer.rule(&one);
            let empty = format!("\"[\" {space} \"]\"");
            if *most == Some(0) {
                return empty;
            }
            // The library has no repetition that ends at none.
            let more = match most {
                Some(1) => String::new(),
                most => {
                    let most = most.map_or(String::new(), |most| (most - 1).to_string());
                    format!("({space} \",\" {space} {one}){{{},{most}}}", least.saturating_sub(1))
                }
            };
            let some = format!("\"[\" {space} {one} {more} {space} \"]\"");
            if *least == 0 { writer.rule(&format!("{empty} | {some}")) } else { some }
        }
        Part::Object(of, others) => object(writer, of, others.as_deref(), style),
    }
}

/// Properties in their order, those that need not be there left out or not, then others.
fn object(writer: &mut Writer, of: &[(String, bool, Part)], others: Option<&Part>, style: &Style) -> String {
    let space = &style.maybe;
    let pair = |name: &str, value: &str| format!("{name} {space} \":\" {space} {value}");
    // What follows some property, and what may come first of all.
    let (mut rest, mut first) = ("\"\"".to_owned(), None::<String>);
    if let Some(others) = others {
        let listed: Vec<String> = of.iter().map(|(name, ..)| quoted(&json!(name).to_string())).collect();
        let but = if listed.is_empty() { String::new() } else { format!(" & ~({})", listed.join(" | ")) };
        let name = writer.terminal(&format!("{}{but}", slashed(NAME)));
        let value = written(writer, others, style);
        let value = writer.rule(&value);
        let one = writer.rule(&pair(&name, &value));
        rest = writer.rule(&format!("({space} \",\" {space} {one})*"));
        first = Some(writer.rule(&format!("{one} {rest}")));
    }
    for (name, is_required, part) in of.iter().rev().filter(|(.., part)| *part != Part::Nothing) {
        let value = written(writer, part, style);
        let this = writer.rule(&format!("{} {rest}", pair(&quoted(&json!(name).to_string()), &value)));
        let behind = format!("{space} \",\" {space} {this}");
        (first, rest) = match (is_required, first) {
            (false, Some(later)) => {
                (Some(writer.rule(&format!("{this} | {later}"))), writer.rule(&format!("{behind} | {rest}")))
            }
            (false, None) => (Some(this), writer.rule(&format!("{behind} | {rest}"))),
            (true, _) => (Some(this), writer.rule(&behind)),
        };
    }
    let may_be_empty = of.iter().all(|(_, is_required, _)| !is_required);
    let empty = format!("\"{{\" {space} \"}}\"");
    let some = first.map(|first| format!("\"{{\" {space} {first} {space} \"}}\""));
    match some {
        None => empty,
        Some(some) if may_be_empty => writer.rule(&format!("{empty} | {some}")),
        Some(some) => some,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex_automata::nfa::thompson::pikevm::PikeVM;

    /// Whether each of the numbers is between the bounds.
    fn takes(schema: &Value, numbers: &[i128]) -> Vec<bool> {
        let known = integers(schema.as_object().unwrap()).expect("bounds of 64 bits");
        let Some(regex) = known else { return vec![false; numbers.len()] };
        let vm = PikeVM::new(&format!("^(?:{regex})$")).unwrap();
        let mut cache = vm.create_cache();
        numbers.iter().map(|number| vm.is_match(&mut cache, &number.to_string())).collect()
    }

    #[test]
    fn bounds_hold_exactly_what_is_between() {
        let mut state = 5u64;
        let mut any_below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            i128::from((state >> 33) % most)
        };
        let (lowest, highest) = (i128::from(i64::MIN), i128::from(u64::MAX));
        for round in 0..300 {
            let mut any = || match any_below(4) {
                0 => any_below(24) - 12,
                1 => lowest + any_below(1100),
                2 => highest - any_below(1100),
                _ => (lowest + (any_below(1 << 31) << 32) + any_below(1 << 31)) >> any_below(60),
            };
            let (a, b) = (any(), any());
            let (least, most) = (a.min(b), a.max(b));
            let keys = if round % 2 == 0 { ["minimum", "maximum"] } else { ["exclusiveMinimum", "exclusiveMaximum"] };
            let number = |n: i128| u64::try_from(n).map_or_else(|_| json!(n as i64), |n| json!(n));
            let schema = json!({keys[0]: number(least), keys[1]: number(most)});
            let above = |n: i128| if round % 2 == 0 { least <= n } else { least < n };
            let below = |n: i128| if round % 2 == 0 { n <= most } else { n < most };
            let open = json!({keys[0]: number(least)});
            let up_to = json!({keys[1]: number(most)});
            let near = [least, most, (least + most) / 2, 0, -least, -most];
            let near: Vec<i128> = near.iter().flat_map(|at| [-10, -1, 0, 1, 10].map(|by| at + by)).collect();
            let of = |is: &dyn Fn(i128) -> bool| near.iter().map(|n| is(*n)).collect::<Vec<bool>>();
            assert_eq!(takes(&schema, &near), of(&|n| above(n) && below(n)), "{schema} {near:?}");
            assert_eq!(takes(&open, &near), of(&above), "{open} {near:?}");
            assert_eq!(takes(&up_to, &near), of(&below), "{up_to} {near:?}");
        }
    }
}
