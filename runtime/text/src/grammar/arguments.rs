//! Arguments written as elements: a rule for each tool, from the template's `tag_pattern` and the tool's schema.
//!
//! Parameters come in declared or in alphabetical order. A rule for each place in the order says what may follow: it has
//! one form behind a value that was closed, and one behind a value that the next element's opener ended.

use super::pieces::{Part, Parts, parts, plain, spelt, written};
use super::prepared::{Fault, Problem};
use super::region::{ANY, SOME, Text, either, ended_text, joined};
use super::schema::{Form, Reader};
use super::spec::ToolSpec;
use super::writer::{Piece, Writer, quoted, slashed};
use super::{GrammarSpec, lower};
use crate::response::{Pattern, TagFormat, types_of, variants};
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_syntax::hir::{Capture, Hir, HirKind, Look};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Most ways in which a value may end.
const ENDINGS: usize = 32;
/// What a name of a parameter that is not declared may be: no line break, and nothing else that is not seen.
const NAME: &str = r"/[^\x00-\x1F\x7F]+/";

/// The elements of a template, in parts.
pub(crate) struct Elements {
    /// From an element's start to its key.
    before_key: Parts,
    key: Hir,
    /// Tells whether a whole text is a key.
    whole_key: Option<PikeVM>,
    /// What must not stand in a key: what ends the call, or the key itself.
    key_avoid: Vec<String>,
    /// What finds it there.
    key_carried: Option<Carried>,
    /// From the key to the value.
    before_value: Parts,
    /// What closes a value.
    closed: Vec<Parts>,
    /// What ends a value when the next element follows at once; contains the next one's `before_key`.
    cut: Vec<Parts>,
    /// What must not stand in a raw value.
    avoid: Vec<String>,
    /// What finds it there.
    carried: Option<Carried>,
    /// Values are JSON, strings too.
    json_values: bool,
}

impl Elements {
    /// Reads the template's elements; `closers` end a call. `None` for elements that a grammar cannot hold.
    pub fn new(writer: &Writer, format: &TagFormat, closers: &[String]) -> Option<Elements> {
        let opener = format.opener.patterns.first()?.hir();
        let HirKind::Concat(all) = opener.kind() else { return None };
        let key_of = |part: &Hir| match part.kind() {
            HirKind::Capture(Capture { name: Some(name), sub, .. }) if &**name == "key" => Some((**sub).clone()),
            _ => None,
        };
        let at = all.iter().position(|part| key_of(part).is_some())?;
        let none = |_: &str| None;
        let before_key = parts(writer, &Hir::concat(all.get(..at)?.to_vec()), &none)?;
        let behind_key = Hir::concat(all.get(at + 1..)?.to_vec());
        let before_value = parts(writer, &behind_key, &none)?;
        let begins = plain(&before_key);
        let (mut closed, mut cut, mut avoid) = (Vec::new(), Vec::new(), closers.to_vec());
        for (ending, ahead) in endings(format.terminator.patterns.first()?.hir())? {
            let ends = parts(writer, &ending, &none)?;
            match ahead {
                None => {
                    avoid.push(spelt(&ending));
                    closed.push(ends);
                }
                Some(ahead) => {
                    avoid.push(spelt(&ending) + &spelt(&ahead));
                    // The opener of the next element must be what was looked for.
                    let looked = plain(&parts(writer, &ahead, &none)?);
                    if looked.is_some() && looked == begins {
                        cut.push(joined(&ends, &before_key));
                    }
                }
            }
        }
        let key = key_of(all.get(at)?)?;
        let ends_key = Some(spelt(&behind_key)).filter(|regex| !regex.is_empty());
        let key_avoid: Vec<String> = closers.iter().cloned().chain(ends_key).collect();
        (!closed.is_empty()).then(|| Elements {
            before_key,
            whole_key: whole(&key),
            key,
            before_value,
            closed,
            cut,
            key_carried: Carried::avoiding(&key_avoid),
            key_avoid,
            carried: Carried::avoiding(&avoid),
            avoid,
            json_values: format.json_values,
        })
    }

    /// A rule for the arguments of any tool, whatever its schema.
    pub fn free(&self, writer: &mut Writer) -> Option<String> {
        let extra = Some(vec![Form::Text(Text::any())]);
        let own = Order { params: Vec::new(), extra, strict: false, declared: Vec::new() };
        self.order(writer, &own)
    }

    /// A rule for a tool's arguments of a prepared schema; the problem if that cannot be held.
    pub fn of_tool(&self, writer: &mut Writer, tool: &ToolSpec, schema: &Value) -> Result<String, Problem> {
        let here = |problem: String| problem_at("", problem);
        let carries = |text: &str| self.carried.as_ref().is_none_or(|c| c.carries(text));
        let reader = Reader { root: schema, strict: tool.strict, carries: &carries };
        let variants = variants(schema).map_err(here)?;
        let names = |map: &Map<String, Value>| -> Vec<String> {
            map.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect()
        };
        let mut declared: Vec<String> = variants.iter().flat_map(names).collect();
        declared.sort();
        declared.dedup();
        if variants.len() > 1 {
            same_types(schema, &variants, &declared)?;
        }
        let mut ways = Vec::new();
        for map in &variants {
            check_object(tool, map)?;
            let order = Order { declared: declared.clone(), ..self.parameters(&reader, tool, map)? };
            ways.push(self.in_orders(writer, order)?);
        }
        match ways.as_slice() {
            [one] => Ok(one.clone()),
            many => Ok(writer.rule(&many.join(" | "))),
        }
    }

    /// A rule for parameters in declared or in alphabetical order.
    fn in_orders(&self, writer: &mut Writer, order: Order) -> Result<String, Problem> {
        let mut sorted = order.params.clone();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let unwritten = || problem_at("", "has parameters that the template cannot write".to_owned());
        let declared = self.order(writer, &order).ok_or_else(unwritten)?;
        if sorted.iter().map(|p| &p.name).eq(order.params.iter().map(|p| &p.name)) {
            return Ok(declared);
        }
        let sorted = self.order(writer, &Order { params: sorted, ..order }).ok_or_else(unwritten)?;
        Ok(writer.rule(&format!("{declared} | {sorted}")))
    }

    fn parameters(&self, reader: &Reader, tool: &ToolSpec, map: &Map<String, Value>) -> Result<Order, Problem> {
        let get = |key: &str| map.get(key);
        let none = Map::new();
        let properties = match get("properties") {
            Some(Value::Object(properties)) => properties,
            Some(_) => return Err(problem_at("properties", "is not an object".to_owned())),
            None => &none,
        };
        let listed: Vec<&str> =
            get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let required: HashSet<&str> = listed.iter().copied().collect();
        let others = match get("additionalProperties") {
            Some(schema) => schema.clone(),
            None => Value::Bool(true),
        };
        let mut params = Vec::new();
        let mut seen = HashSet::new();
        let undeclared = listed.iter().filter(|name| !properties.contains_key(**name) && seen.insert(**name));
        let names = properties.iter().map(|(name, schema)| (name.as_str(), schema));
        for (name, schema) in names.chain(undeclared.map(|name| (*name, &others))) {
            let required = required.contains(name);
            let place = format!("properties.{name}");
            if !self.can_be_key(name) {
                match required {
                    true => return Err(problem_at(&place, "has a name that the template cannot write".to_owned())),
                    false => continue,
                }
            }
            let held = tool.held.iter().find(|(held, _)| held == name).map(|(_, spec)| spec.clone());
            let forms = match held {
                Some(spec) => vec![ParamForm::Held(spec)],
                // What nothing satisfies can be left out.
                None if !required && *schema == Value::Bool(false) => continue,
                None if self.json_values => vec![ParamForm::Form(Form::Json(reader.alone(schema)))],
                None => match reader.forms(schema) {
                    Ok(forms) => forms.into_iter().map(ParamForm::Form).collect(),
                    Err(problem) => return Err(problem_at(&place, problem)),
                },
            };
            params.push(Param { name: name.to_owned(), required, strict: tool.strict, forms });
        }
        let extra = match get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            Some(schema) => Some(self.extra(reader, schema).map_err(|p| problem_at("additionalProperties", p))?),
            None if get("properties").is_none() => Some(self.extra(reader, &others).unwrap_or_default()),
            None => None,
        };
        let extra = extra.filter(|forms| !forms.is_empty());
        Ok(Order { params, extra, strict: tool.strict, declared: Vec::new() })
    }

    fn extra(&self, reader: &Reader, schema: &Value) -> Result<Vec<Form>, String> {
        if self.json_values { Ok(vec![Form::Json(reader.alone(schema))]) } else { reader.forms(schema) }
    }

    /// Whether an element can have the key, so that it is read as it is written.
    fn can_be_key(&self, name: &str) -> bool {
        self.whole_key.as_ref().is_some_and(|vm| vm.is_match(&mut vm.create_cache(), name))
            && self.key_carried.as_ref().is_none_or(|c| c.carries(name))
    }

    /// Rules for one order of parameters; the first's name.
    fn order(&self, writer: &mut Writer, order: &Order) -> Option<String> {
        let extra = match &order.extra {
            Some(forms) => Some(self.extra_rules(writer, order, forms)?),
            None => None,
        };
        // Behind the last one: nothing, or parameters that are not declared.
        let (mut closed, mut opened) = match &extra {
            Some((closed, opened)) => (closed.clone(), Some(opened.clone())),
            None => ("\"\"".to_owned(), None),
        };
        let mut may_end = true;
        for param in order.params.iter().rev() {
            let key = vec![Part::Piece(Piece::Text(param.name.clone()))];
            let key = written(writer, &joined(&key, &self.before_value));
            let value = self.value(writer, param, &closed, opened.as_deref())?;
            let this = format!("{key} {value}");
            let next = match (&opened, param.required) {
                (Some(later), false) => writer.rule(&format!("{this} | {later}")),
                _ => writer.rule(&this),
            };
            may_end &= !param.required;
            let begin = self.begin(writer);
            let empty = if may_end { " | \"\"" } else { "" };
            closed = writer.rule(&format!("{begin} {next}{empty}"));
            opened = Some(next);
        }
        Some(closed)
    }

    /// An element's start behind a closed value, or the first one's, with a line break before it if it likes.
    fn begin(&self, writer: &mut Writer) -> String {
        match plain(&self.before_key) {
            Some(regex) => writer.terminal(&slashed(&format!("\\n?{regex}"))),
            None => format!("\"\\n\"? {}", written(writer, &self.before_key)),
        }
    }

    /// Rules for undeclared parameters: behind a closed value, and behind an opened element.
    fn extra_rules(&self, writer: &mut Writer, order: &Order, forms: &[Form]) -> Option<(String, String)> {
        let (closed, opened) = (writer.forward(), writer.forward());
        let other = match order.declared.as_slice() {
            [] => String::new(),
            names => {
                let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
                format!(" & ~({})", names.join(" | "))
            }
        };
        let key = format!("({} & {NAME}{other})", slashed(&spelt(&self.key)));
        let not = |regexes: &[String], behind: &str| match regexes {
            [] => String::new(),
            regexes => format!(" & ~({ANY} ({}) {behind})", either(regexes)),
        };
        let head = match plain(&self.before_value) {
            // What ends the key is found where it first stands.
            Some(then) if !then.is_empty() => {
                let (ends, whole) = (not(std::slice::from_ref(&then), SOME), format!("({key} {})", slashed(&then)));
                let closers = self.key_avoid.split_last().map_or(&[][..], |(_, closers)| closers);
                writer.terminal(&format!("{whole}{}{ends}", not(closers, ANY)))
            }
            _ => {
                let key = format!("{key}{}", not(&self.key_avoid, ANY));
                format!("{} {}", writer.terminal(&key), written(writer, &self.before_value))
            }
        };
        let forms = forms.iter().cloned().map(ParamForm::Form).collect();
        let param = Param { name: String::new(), required: false, strict: order.strict, forms };
        let value = self.value(writer, &param, &closed, Some(&opened))?;
        let begin = self.begin(writer);
        writer.fill(&closed, &format!("{begin} {opened} | \"\""));
        writer.fill(&opened, &format!("{head} {value}"));
        Some((closed, opened))
    }

    /// A value and what follows it: `closed` behind what closes it, `opened` behind the start of a next element.
    fn value(&self, writer: &mut Writer, param: &Param, closed: &str, opened: Option<&str>) -> Option<String> {
        let mut ways = Vec::new();
        let ends = self.closed.iter().map(|end| (end, Some(closed))).chain(self.cut.iter().map(|end| (end, opened)));
        for (end, then) in ends {
            let Some(then) = then else { continue };
            for form in &param.forms {
                let content = match form {
                    ParamForm::Form(Form::Text(text)) => ended_text(writer, text, &self.avoid, end)?,
                    ParamForm::Form(Form::Json(schema)) => {
                        let json = writer.json(schema, param.strict);
                        format!("{json} {}", written(writer, end))
                    }
                    ParamForm::Held(spec) => match lower::raw_text(spec) {
                        Some(text) => ended_text(writer, &text, &self.avoid, end)?,
                        None => {
                            let inner = lower::lowered(writer, spec).ok()?;
                            format!("({inner}) {}", written(writer, end))
                        }
                    },
                };
                ways.push(format!("{content} {then}"));
            }
        }
        Some(writer.rule(&ways.join(" | ")))
    }
}

/// Parameters of one tool in one order.
#[derive(Clone)]
struct Order {
    params: Vec<Param>,
    /// Values of undeclared ones, if there may be any.
    extra: Option<Vec<Form>>,
    /// Whether those follow a schema strictly.
    strict: bool,
    /// Names that they do not have.
    declared: Vec<String>,
}

/// Whether parameters of these members can be held.
fn check_object(tool: &ToolSpec, map: &Map<String, Value>) -> Result<(), Problem> {
    let here = |problem: String| Err(problem_at("", problem));
    let is_object =
        |kind: &Value| kind == "object" || kind.as_array().is_some_and(|all| all.iter().any(|t| t == "object"));
    if map.get("type").is_some_and(|kind| !is_object(kind)) {
        return here("does not describe an object".to_owned());
    }
    let held_elsewhere = ["const", "enum", "not", "if", "then", "else", "patternProperties"];
    if let Some(key) = held_elsewhere.iter().find(|key| map.contains_key(**key)) {
        return here(format!("has `{key}` beside its properties, which cannot be held"));
    }
    let counted = ["minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas"];
    match counted.iter().find(|key| tool.strict && map.contains_key(**key)) {
        Some(key) => here(format!("has `{key}`, which cannot be held")),
        None => Ok(()),
    }
}

/// Text is read by a parameter's name: what it may be must not depend on which alternative is meant.
fn same_types(root: &Value, variants: &[Map<String, Value>], names: &[String]) -> Result<(), Problem> {
    for name in names {
        let of =
            variants.iter().filter_map(|map| map.get("properties")?.get(name)).filter(|of| **of != Value::Bool(false));
        let mut types = of.map(|schema| types_of(root, schema));
        let first = types.next();
        if first.is_some_and(|first| types.any(|other| !first.same(&other))) {
            return Err(problem_at(
                "",
                format!("has alternatives in which `{name}` is of different types, which cannot be held"),
            ));
        }
    }
    Ok(())
}

fn problem_at(inside: &str, problem: String) -> Problem {
    Problem { inside: inside.to_owned(), problem, fault: Fault::Unheld }
}

#[derive(Clone)]
struct Param {
    name: String,
    required: bool,
    strict: bool,
    forms: Vec<ParamForm>,
}

#[derive(Clone)]
enum ParamForm {
    Form(Form),
    /// Text that follows a grammar of the request.
    Held(GrammarSpec),
}

/// Finds what a raw value or a key cannot have in it.
struct Carried(PikeVM);

impl Carried {
    fn avoiding(regexes: &[String]) -> Option<Carried> {
        PikeVM::new(&regexes.join("|")).ok().filter(|_| !regexes.is_empty()).map(Carried)
    }

    fn carries(&self, text: &str) -> bool {
        !self.0.is_match(&mut self.0.create_cache(), text)
    }
}

/// What tells whether a text as a whole is of the expression. Building it costs far more than asking it: build it once.
pub(crate) fn whole(hir: &Hir) -> Option<PikeVM> {
    let whole = Hir::concat(vec![Hir::look(Look::Start), hir.clone(), Hir::look(Look::End)]);
    PikeVM::new(&whole.to_string()).ok()
}

/// Whether the expression finds something in the text.
pub(crate) fn matches(regex: &str, text: &str) -> bool {
    PikeVM::new(regex).is_ok_and(|vm| vm.is_match(&mut vm.create_cache(), text))
}

/// The ways in which a pattern ends: what is read, and what is only looked at behind it.
fn endings(hir: &Hir) -> Option<Vec<(Hir, Option<Hir>)>> {
    let mut all: Vec<(Vec<Hir>, Option<Vec<Hir>>)> = vec![(Vec::new(), None)];
    extend(hir, &mut all)?;
    let ending = |(read, ahead): (Vec<Hir>, Option<Vec<Hir>>)| (Hir::concat(read), ahead.map(Hir::concat));
    Some(all.into_iter().map(ending).collect())
}

fn extend(hir: &Hir, all: &mut Vec<(Vec<Hir>, Option<Vec<Hir>>)>) -> Option<()> {
    match hir.kind() {
        HirKind::Capture(capture) if capture.name.as_deref().is_some_and(Pattern::is_marker) => {
            all.iter_mut().for_each(|(_, ahead)| *ahead = Some(ahead.take().unwrap_or_default()));
        }
        HirKind::Capture(capture) => extend(&capture.sub, all)?,
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| extend(part, all))?,
        HirKind::Alternation(options) => {
            let mut out = Vec::new();
            for option in options {
                let mut one = all.clone();
                extend(option, &mut one)?;
                out.extend(one);
                if out.len() > ENDINGS {
                    return None;
                }
            }
            *all = out;
        }
        _ => all.iter_mut().for_each(|(read, ahead)| ahead.as_mut().unwrap_or(read).push(hir.clone())),
    }
    Some(())
}
