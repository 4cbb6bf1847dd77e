//! Text with parts that follow grammars of their own: `structural_tag`, in its older form (structures and triggers) and in
//! the one that composes formats.

use super::pieces::{Part, Parts, first_control, plain, written};
use super::region::{Text, either, ended_text, open_text};
use super::writer::{Piece, Writer, slashed};
use super::{GrammarError, ebnf, guard};
use serde_json::{Value, json};

/// Deepest nesting of formats.
const DEPTH: usize = 24;

/// Content of a rule for a structural tag.
pub(crate) fn lowered(writer: &mut Writer, tag: &Value) -> Result<String, GrammarError> {
    if let Some(structures) = tag.get("structures").and_then(Value::as_array) {
        let tags: Vec<Value> = structures
            .iter()
            .map(|s| json!({"type": "tag", "begin": s["begin"], "end": s["end"], "content": {"type": "json_schema", "json_schema": s["schema"]}}))
            .collect();
        let format = json!({"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags});
        return Format { value: &format, place: "structural_tag".to_owned(), depth: 0 }.content(writer);
    }
    let value = tag.get("format").unwrap_or(tag);
    Format { value, place: "structural_tag.format".to_owned(), depth: 0 }.content(writer)
}

/// A format and where it stands.
struct Format<'a> {
    value: &'a Value,
    place: String,
    depth: usize,
}

impl<'a> Format<'a> {
    fn wrong(&self, problem: &str, next: &str) -> GrammarError {
        GrammarError::bad(&self.place, problem, next)
    }

    fn kind(&self) -> &'a str {
        self.value.get("type").and_then(Value::as_str).unwrap_or("")
    }

    fn text(&self, key: &str) -> Result<&'a str, GrammarError> {
        let text = self.value.get(key).and_then(Value::as_str);
        text.ok_or_else(|| self.wrong(&format!("has no text `{key}`"), "give it one"))
    }

    fn inner(&self, key: &str) -> Result<Format<'a>, GrammarError> {
        let value = self.value.get(key).filter(|v| v.is_object());
        let value = value.ok_or_else(|| self.wrong(&format!("has no format `{key}`"), "give it one"))?;
        Ok(Format { value, place: format!("{}.{key}", self.place), depth: self.depth + 1 })
    }

    fn list(&self, key: &str) -> Result<Vec<Format<'a>>, GrammarError> {
        let all = self.value.get(key).and_then(Value::as_array).filter(|all| !all.is_empty());
        let all = all.ok_or_else(|| self.wrong(&format!("has no list `{key}`"), "give it one that is not empty"))?;
        let of = |(i, value)| Format { value, place: format!("{}.{key}.{i}", self.place), depth: self.depth + 1 };
        Ok(all.iter().enumerate().map(of).collect())
    }

    fn flag(&self, key: &str) -> bool {
        self.value.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Texts of a key that is one or a list.
    fn texts(&self, key: &str) -> Result<Vec<String>, GrammarError> {
        let texts = match self.value.get(key) {
            Some(Value::String(one)) => Some(vec![one.clone()]),
            Some(Value::Array(all)) => all.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        texts
            .filter(|t| !t.is_empty())
            .ok_or_else(|| self.wrong(&format!("has no text `{key}`"), "give it one, or a list"))
    }

    fn content(&self, writer: &mut Writer) -> Result<String, GrammarError> {
        if self.depth > DEPTH {
            return Err(self.wrong(&format!("nests deeper than {DEPTH}"), "flatten it"));
        }
        writer.in_time(&self.place)?;
        Ok(match self.kind() {
            "const_string" => {
                let parts = self.parts_of(writer, self.text("value")?)?;
                written(writer, &parts)
            }
            "json_schema" => {
                let schema = self.value.get("json_schema").unwrap_or(&Value::Null);
                writer.schema(&format!("{}.json_schema", self.place), schema, false)?
            }
            "regex" => {
                let regex = self.text("pattern")?;
                writer.left.expression(&self.place, regex)?;
                writer.terminal(&slashed(regex))
            }
            "grammar" => ebnf::lowered(writer, self.text("grammar")?)?,
            "any_text" => open_text(writer, &Text::any(), &self.excluded()),
            "sequence" => self.sequence(writer)?,
            "or" => {
                let all: Result<Vec<String>, _> = self.list("elements")?.iter().map(|f| f.content(writer)).collect();
                format!("({})", all?.join(" | "))
            }
            "optional" => format!("({})?", self.inner("content")?.content(writer)?),
            "star" => format!("({})*", self.inner("content")?.content(writer)?),
            "plus" => format!("({})+", self.inner("content")?.content(writer)?),
            "tag" => {
                let begin = self.parts_of(writer, self.text("begin")?)?;
                let (begin, rest) = (written(writer, &begin), self.tag_rest(writer)?);
                format!("{begin} {rest}")
            }
            "triggered_tags" => self.triggered(writer)?,
            "tags_with_separator" => self.separated(writer)?,
            other => {
                let known = "use const_string, json_schema, regex, grammar, any_text, sequence, or, tag, triggered_tags or tags_with_separator";
                return Err(self.wrong(&format!("has the type `{other}`"), known));
            }
        })
    }

    /// A text in parts. In a turn all of it is text; elsewhere control tokens are those, but for the ones that end the answer.
    fn parts_of(&self, writer: &Writer, text: &str) -> Result<Parts, GrammarError> {
        if writer.in_turn {
            return Ok(vec![Part::Piece(Piece::Text(text.to_owned()))]);
        }
        let pieces = writer.pieces(text);
        let stop = writer.vocabulary().stop();
        let ends = pieces.iter().find_map(|piece| match piece {
            Piece::Control(id) if stop.contains(id) => Some(*id),
            _ => None,
        });
        match ends {
            Some(id) => Err(guard::token(&self.place, &writer.vocabulary().text(id), true)),
            None => Ok(pieces.into_iter().map(Part::Piece).collect()),
        }
    }

    fn excluded(&self) -> Vec<String> {
        self.texts("excludes").unwrap_or_default().iter().map(|text| regex_syntax::escape(text)).collect()
    }

    /// Elements one after another; free text ends where the next element's text begins.
    fn sequence(&self, writer: &mut Writer) -> Result<String, GrammarError> {
        let elements = self.list("elements")?;
        let mut out = Vec::new();
        let mut i = 0;
        while let Some(element) = elements.get(i) {
            i += 1;
            let Some(next) = elements.get(i).filter(|_| element.kind() == "any_text") else {
                out.push(element.content(writer)?);
                continue;
            };
            let (text, rest) = match next.kind() {
                "const_string" => (next.text("value")?, String::new()),
                "tag" => (next.text("begin")?, next.tag_rest(writer)?),
                _ => {
                    return Err(element
                        .wrong("is free text whose end cannot be known", "put a const_string or a tag behind it"));
                }
            };
            i += 1;
            let mut avoid = element.excluded();
            avoid.push(regex_syntax::escape(text));
            let end = self.parts_of(writer, text)?;
            out.push(self.ended(writer, &avoid, &end)?);
            out.push(rest);
        }
        out.retain(|part| !part.is_empty());
        Ok(format!("({})", out.join(" ")))
    }

    fn ended(&self, writer: &mut Writer, avoid: &[String], end: &Parts) -> Result<String, GrammarError> {
        let ended = ended_text(writer, &Text::any(), avoid, end);
        ended.ok_or_else(|| self.wrong("ends with text and a control token behind it", "let it end with one of them"))
    }

    /// A tag behind its begin.
    fn tag_rest(&self, writer: &mut Writer) -> Result<String, GrammarError> {
        let (content, ends) = (self.inner("content")?, self.texts("end")?);
        let spelt: Vec<String> = ends.iter().map(|end| regex_syntax::escape(end)).collect();
        let free = content.kind() == "any_text";
        let inner = if free { String::new() } else { content.content(writer)? };
        let mut ways = Vec::new();
        for end in &ends {
            let end = self.parts_of(writer, end)?;
            ways.push(match free {
                true => {
                    let avoid = [spelt.as_slice(), &content.excluded()].concat();
                    self.ended(writer, &avoid, &end)?
                }
                false => written(writer, &end),
            });
        }
        Ok(writer.rule(&format!("{inner} ({})", ways.join(" | "))))
    }

    /// Free text in which a trigger begins a tag.
    fn triggered(&self, writer: &mut Writer) -> Result<String, GrammarError> {
        let (triggers, tags) = (self.texts("triggers")?, self.list("tags")?);
        let mut avoid: Vec<String> = triggers.iter().map(|t| regex_syntax::escape(t)).collect();
        avoid.extend(self.excluded());
        let mut ways = Vec::new();
        for tag in &tags {
            let begin = tag.text("begin")?;
            if !triggers.iter().any(|trigger| begin.starts_with(trigger.as_str())) {
                return Err(tag.wrong("has a `begin` that no trigger begins", "add the trigger, or change `begin`"));
            }
            let (begin, rest) = (self.parts_of(writer, begin)?, tag.tag_rest(writer)?);
            let begin = match (first_control(&begin), plain(&begin)) {
                (None, Some(regex)) => {
                    let any = "/(?s:.*)/";
                    writer.terminal(&format!("({any} & ~({any} ({}) {any})) {}", either(&avoid), slashed(&regex)))
                }
                _ => format!("{} {}", open_text(writer, &Text::any(), &avoid), written(writer, &begin)),
            };
            ways.push(format!("{begin} {rest}"));
        }
        let one = writer.rule(&ways.join(" | "));
        let text = open_text(writer, &Text::any(), &avoid);
        Ok(match (self.flag("at_least_one"), self.flag("stop_after_first")) {
            (true, true) => one,
            (true, false) => format!("({one})+ {text}"),
            (false, true) => format!("({one} | {text})"),
            (false, false) => format!("({one})* {text}"),
        })
    }

    /// Tags with a text between them.
    fn separated(&self, writer: &mut Writer) -> Result<String, GrammarError> {
        let tags: Result<Vec<String>, _> = self.list("tags")?.iter().map(|tag| tag.content(writer)).collect();
        let one = writer.rule(&tags?.join(" | "));
        let separator = self.parts_of(writer, self.text("separator")?)?;
        let separator = written(writer, &separator);
        let some = if self.flag("stop_after_first") { one } else { format!("{one} ({separator} {one})*") };
        Ok(if self.flag("at_least_one") { some } else { format!("({some})?") })
    }
}
