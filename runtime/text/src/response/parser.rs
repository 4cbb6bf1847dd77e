//! One answer, read as it comes: text goes to the field that the template says, once it can no longer be markup.
//!
//! How the answer is cut into pieces does not matter: what goes out depends only on the text so far, and what went out is
//! never taken back.

use super::calls::{Call, OpenCall, Source};
use super::json_place::JsonPlace;
use super::pattern::PatternSet;
use super::scan::{Found, Scan};
use super::strip::Strip;
use super::template::{ResponseTemplate, Role};
use super::types::Tools;
use super::{Ended, Ending, Event, FinishReason, Held, ParseOptions, ResponseError, ToolCall};
use crate::grammar::TurnPlace;
use std::ops::Range;
use std::sync::Arc;

/// A byte of no text.
const NO_TEXT: u8 = 0xff;

/// Reads one answer.
#[derive(Debug)]
pub struct ResponseParser {
    template: Arc<ResponseTemplate>,
    tools: Arc<Tools>,
    options: ParseOptions,
    /// Text from offset `base` on; the offset counts from where the message begins, in the prompt.
    buf: String,
    /// The same as patterns see it: a control token that is only spelt has a byte that no text has.
    seen: Vec<u8>,
    base: usize,
    /// Offset of the first byte that has not gone to its region.
    done: usize,
    /// Where generated text begins.
    generated: usize,
    scan: Scan,
    region: Region,
    /// Offset of the region's text.
    opened_at: usize,
    /// Where an answer stands that a grammar holds to JSON.
    json: JsonPlace,
    strip: Strip,
    /// Fields that had a region already.
    met: Vec<bool>,
    answered: bool,
    events: Vec<Event>,
    /// Where the answer's text stands that has gone out since this was last taken.
    spans: Vec<Range<usize>>,
    calls: Vec<ToolCall>,
    /// Calls of declared tools that were opened.
    opened: usize,
    cut_off: Vec<String>,
    dropped: Vec<Option<String>>,
    failed: Option<ResponseError>,
}

#[derive(Debug)]
enum Region {
    Outside,
    Text(usize),
    Call(Box<OpenCall>),
}

impl ResponseParser {
    /// A parser in the state that the prompt leaves; nothing of the prompt comes out again.
    pub fn new(
        template: Arc<ResponseTemplate>,
        tools: Arc<Tools>,
        options: ParseOptions,
        prompt: &str,
    ) -> Result<ResponseParser, ResponseError> {
        let begun = template.begun(prompt).to_owned();
        let strip = Strip::new(template.rest.and_then(|f| template.fields.get(f)).is_some_and(|f| f.strip));
        let mut parser = ResponseParser {
            scan: Scan::new(&template.outside, 0),
            met: vec![false; template.fields.len()],
            generated: begun.len(),
            template,
            tools,
            options,
            buf: String::new(),
            seen: Vec::new(),
            base: 0,
            done: 0,
            region: Region::Outside,
            opened_at: 0,
            json: JsonPlace::default(),
            strip,
            answered: false,
            events: Vec::new(),
            spans: Vec::new(),
            calls: Vec::new(),
            opened: 0,
            cut_off: Vec::new(),
            dropped: Vec::new(),
            failed: None,
        };
        let events = parser.push(&begun)?;
        parser.forget_prompt(events);
        Ok(parser)
    }

    /// Where in a turn a prompt ends, and the text of the region that is open there.
    pub(crate) fn place_after(template: &Arc<ResponseTemplate>, prompt: &str) -> (TurnPlace, String) {
        let begun = template.begun(prompt);
        if begun.is_empty() {
            return (TurnPlace::MessageStart, String::new());
        }
        let options = ParseOptions { limit_bytes: usize::MAX, ..ParseOptions::default() };
        let parser = ResponseParser::new(Arc::clone(template), Arc::new(Tools::none()), options, prompt);
        let Ok(parser) = parser else { return (TurnPlace::AfterReasoning, String::new()) };
        let place = match &parser.region {
            Region::Outside => return (TurnPlace::AfterReasoning, String::new()),
            Region::Call(_) => TurnPlace::Call,
            Region::Text(field) => match template.fields.get(*field).map(|field| field.role) {
                Some(Role::Reasoning) => TurnPlace::Reasoning,
                _ => TurnPlace::Answer,
            },
        };
        (place, begun.get(parser.opened_at..).unwrap_or("").to_owned())
    }

    /// Keeps of the prompt only the state and a call that is open.
    fn forget_prompt(&mut self, events: Vec<Event>) {
        self.calls.clear();
        self.dropped.clear();
        self.met.fill(false);
        self.opened = 0;
        self.strip.forget();
        match &mut self.region {
            Region::Outside => {}
            Region::Text(field) => {
                if let Some(met) = self.met.get_mut(*field) {
                    *met = true;
                }
            }
            Region::Call(call) => {
                if call.index.is_none() && call.known() {
                    self.dropped.push(call.name.clone());
                }
                let Some(old) = call.index else { return };
                call.index = Some(0);
                self.opened = 1;
                self.events = events.into_iter().filter_map(|event| event.renumbered(old, 0)).collect();
            }
        }
    }

    /// Takes text of the answer; returns what is certain now, in the order of the text.
    pub fn push(&mut self, text: &str) -> Result<Vec<Event>, ResponseError> {
        self.push_spelt(text, &[])
    }

    /// The same of text in which some control tokens are only spelt by others: `spelt` are the places in it of their last
    /// characters, in bytes. No pattern of the template matches across one.
    pub fn push_spelt(&mut self, text: &str, spelt: &[usize]) -> Result<Vec<Event>, ResponseError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let begin = self.seen.len();
        self.buf.push_str(text);
        self.seen.extend_from_slice(text.as_bytes());
        for at in spelt {
            if let Some(byte) = self.seen.get_mut(begin + at) {
                *byte = NO_TEXT;
            }
        }
        self.advance(false);
        self.compact();
        self.check_limits()?;
        Ok(merged(std::mem::take(&mut self.events)))
    }

    /// Whether the text that comes next belongs to reasoning, as far as it is known.
    pub fn is_reasoning(&self) -> bool {
        let Region::Text(field) = self.region else { return false };
        self.template.fields.get(field).is_some_and(|field| field.role == Role::Reasoning)
    }

    /// Where the answer's text stands that has gone out since the last call of this: places in what was pushed, in bytes.
    pub fn take_spans(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.spans)
    }

    /// How much of what was pushed has gone to its region or is markup, in bytes.
    pub fn decided(&self) -> usize {
        self.done.saturating_sub(self.generated)
    }

    /// The answer ends; what was undecided belongs to the region that is open.
    pub fn finish(mut self, ending: Ending) -> Result<Ended, ResponseError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.advance(true);
        let closed = self.end_at_half_closer();
        self.release(self.base + self.buf.len());
        let held = self.options.held != Held::Free && ending == Ending::StopToken;
        self.close(closed || held);
        let reason = match ending {
            Ending::Length => FinishReason::Length,
            _ if !self.calls.is_empty() && self.cut_off.is_empty() => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        Ok(Ended {
            events: merged(self.events),
            spans: self.spans,
            tool_calls: self.calls,
            cut_off_calls: self.cut_off,
            dropped_calls: self.dropped,
            reason,
        })
    }

    fn check_limits(&mut self) -> Result<(), ResponseError> {
        let limit = self.options.limit_bytes;
        let call = match &self.region {
            Region::Call(call) => self.done.saturating_sub(call.begins),
            _ => 0,
        };
        for (what, bytes) in [("text that may still become markup", self.buf.len()), ("one call", call)] {
            if bytes > limit {
                let error = ResponseError::Limit { what, bytes, limit };
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Forgets text that has gone out. Moving the rest costs its length, so that what is cut pays for it.
    fn compact(&mut self) {
        let cut = self.done.saturating_sub(self.base).min(self.buf.len());
        if cut >= self.buf.len() - cut {
            self.buf.drain(..cut);
            self.seen.drain(..cut);
            self.base += cut;
        }
    }

    fn advance(&mut self, at_end: bool) {
        let template = Arc::clone(&self.template);
        loop {
            let found = if self.reads_held() {
                self.search_held(&template, at_end)
            } else {
                let set = self.enders(&template);
                let found = self.scan.feed(set, &self.seen, self.base);
                let found = found.or_else(|| self.scan.at_end().filter(|_| at_end));
                if found.is_none() {
                    self.release(self.scan.certain());
                }
                found
            };
            let Some(found) = found else { return };
            self.release(found.start);
            self.turn(&template, found);
        }
    }

    /// Patterns that end the region.
    fn enders<'a>(&self, template: &'a ResponseTemplate) -> &'a PatternSet {
        let field = match &self.region {
            Region::Outside => return &template.outside,
            Region::Text(field) => *field,
            Region::Call(call) => call.field,
        };
        template.fields.get(field).map_or(&template.never, |of| &of.closers)
    }

    fn reads_held(&self) -> bool {
        (self.options.held != Held::Free && matches!(self.region, Region::Call(_))) || self.is_json_answer()
    }

    /// Whether the region is an answer that a grammar held to JSON.
    fn is_json_answer(&self) -> bool {
        let Region::Text(field) = &self.region else { return false };
        let role = self.template.fields.get(*field).map(|field| field.role);
        self.options.held == Held::JsonAnswer && role == Some(Role::Content)
    }

    /// Whether the text ended inside a JSON string that a grammar holds.
    fn in_json_string(&self) -> bool {
        match &self.region {
            Region::Call(call) => call.in_json_string(),
            _ => self.is_json_answer() && self.json.in_string,
        }
    }

    /// Searches for the end of a region that a grammar held to JSON, in whole or in part: inside JSON strings nothing ends
    /// it, and where these are is known only when the text before has been read.
    fn search_held(&mut self, template: &ResponseTemplate, at_end: bool) -> Option<Found> {
        loop {
            let rest = self.buf.as_bytes().get(self.done - self.base..).filter(|rest| !rest.is_empty())?;
            if self.in_json_string() {
                let end = rest.iter().position(|b| *b == b'"' || *b < b' ').map_or(rest.len(), |n| n + 1);
                self.release(self.done + end);
                continue;
            }
            let set = self.enders(template);
            let may_begin = rest.iter().position(|b| set.first[usize::from(*b)]);
            match may_begin {
                None => self.release(self.done + rest.len()),
                Some(0) => {
                    let mut scan = Scan::at(set, self.done);
                    let found = scan.feed(set, &self.seen, self.base);
                    let found = found.or_else(|| scan.at_end().filter(|_| at_end));
                    if found.is_some() || (scan.undecided() && !at_end) {
                        return found;
                    }
                    let first = self.buf.get(self.done - self.base..).and_then(|rest| rest.chars().next());
                    if scan.undecided() && self.half_closer().is_some() {
                        return None;
                    }
                    self.release(self.done + first.map_or(1, char::len_utf8));
                }
                Some(n) => self.release(self.done + n),
            }
        }
    }

    /// Gives text up to the offset `to` to its region.
    fn release(&mut self, to: usize) {
        if to <= self.done {
            return;
        }
        let json_answer = self.is_json_answer();
        let text = self.buf.get(self.done - self.base..to - self.base).unwrap_or("");
        if json_answer {
            text.bytes().for_each(|byte| self.json.read(byte));
        }
        let from = std::mem::replace(&mut self.done, to);
        let template = &self.template;
        match &mut self.region {
            Region::Call(call) => {
                let source = Source { template, tools: &self.tools, options: &self.options };
                call.push(source, text, &mut self.events);
            }
            Region::Outside | Region::Text(_) => {
                let field = match self.region {
                    Region::Text(field) => Some(field),
                    _ => template.rest,
                };
                let Some(role) = field.and_then(|field| template.fields.get(field)).map(|field| field.role) else {
                    return;
                };
                // The prompt's part moves the state only.
                let (old, new) =
                    text.split_at_checked(self.generated.saturating_sub(from).min(text.len())).unwrap_or(("", text));
                if !old.is_empty() {
                    self.strip.push(old);
                    self.strip.forget();
                }
                if role == Role::Content && !new.is_empty() {
                    span(&mut self.spans, to - self.generated - new.len()..to - self.generated);
                }
                let new = self.strip.push(new);
                self.text(role, new);
            }
        }
    }

    fn text(&mut self, role: Role, text: String) {
        if !text.is_empty() {
            self.events.push(if role == Role::Reasoning { Event::Reasoning(text) } else { Event::Content(text) });
        }
    }

    /// A pattern matched: the region ends, or one begins.
    fn turn(&mut self, template: &ResponseTemplate, found: Found) {
        let text = self.buf.get(found.start - self.base..found.end - self.base).unwrap_or("");
        let set = self.enders(template);
        let caught = set.patterns.get(found.pattern).map(|pattern| pattern.caught(text));
        let end = found.start + caught.as_ref().map_or(text.len(), |caught| caught.len);
        let opens = match self.region {
            Region::Outside => template.opens.get(found.pattern).copied().flatten(),
            _ => None,
        };
        self.close(true);
        self.done = end;
        if let Some(field) = opens {
            self.open(template, field, caught.map(|caught| caught.groups).unwrap_or_default());
        }
        self.scan = Scan::new(self.enders(template), end);
    }

    fn open(&mut self, template: &ResponseTemplate, index: usize, groups: Vec<(String, String)>) {
        let Some(field) = template.fields.get(index) else { return };
        self.opened_at = self.done;
        self.json = JsonPlace::at(self.done);
        if let Some(call) = &field.call {
            // Behind a held answer there are no calls.
            let usable = !(self.answered && self.options.held != Held::Free);
            let mut open = OpenCall::new(index, call, groups, self.done);
            let name = open.name.clone().filter(|_| open.known());
            if usable && name.as_deref().is_some_and(|name| self.tools.has(name)) {
                open.index = Some(self.opened);
                self.events.push(Event::Call { index: self.opened, name: name.unwrap_or_default() });
                self.opened += 1;
            } else if usable && open.known() {
                self.dropped.push(name);
            }
            open.usable = usable;
            self.region = Region::Call(Box::new(open));
            return;
        }
        self.answered |= field.role == Role::Content;
        self.strip = Strip::new(field.strip);
        if let Some(met) = self.met.get_mut(index)
            && std::mem::replace(met, true)
            && let Some(join) = &field.join
        {
            self.text(field.role, join.clone());
        }
        self.region = Region::Text(index);
    }

    /// The region ends.
    fn close(&mut self, complete: bool) {
        let rest = self.template.rest.and_then(|f| self.template.fields.get(f));
        let region = std::mem::replace(&mut self.region, Region::Outside);
        if !matches!(region, Region::Outside) {
            self.strip = Strip::new(rest.is_some_and(|f| f.strip));
        }
        let Region::Call(call) = region else { return };
        let source = Source { template: &self.template, tools: &self.tools, options: &self.options };
        let (name, index) = (call.name.clone(), call.index);
        for finished in call.finish(source, complete, &mut self.events) {
            match finished {
                Call::Complete { name, arguments, new } => {
                    let index = if new { self.opened } else { index.unwrap_or(self.opened) };
                    if new {
                        self.opened += 1;
                        self.events.push(Event::Call { index, name: name.clone() });
                        self.events.push(Event::Arguments { index, json: arguments.clone() });
                    }
                    self.events.push(Event::CallDone { index, arguments: arguments.clone() });
                    self.calls.push(ToolCall { name, arguments });
                }
                Call::Dropped(name) => self.dropped.push(name),
                Call::Cut => self.cut_off.extend(name.clone()),
            }
        }
    }

    /// At the end of the stream: where the region's text ends, if the text ends inside the second half of a closer, the
    /// start of a next message.
    fn half_closer(&self) -> Option<usize> {
        let field = match &self.region {
            Region::Outside => return None,
            Region::Text(field) => *field,
            Region::Call(call) => call.field,
        };
        if self.in_json_string() {
            return None;
        }
        let of = self.template.fields.get(field)?;
        let rest = self.seen.get(self.done - self.base..)?;
        let cuts = of.half_closers.iter().flat_map(|(closer, half)| {
            let lens = half + 1..closer.len();
            let beginning = |len: &usize| closer.get(..*len).is_some_and(|text| rest.ends_with(text.as_bytes()));
            lens.rev().find(beginning).map(|len| self.done + rest.len() - len)
        });
        cuts.min()
    }

    fn end_at_half_closer(&mut self) -> bool {
        let Some(cut) = self.half_closer() else { return false };
        self.release(cut);
        self.buf.truncate(cut - self.base);
        self.seen.truncate(cut - self.base);
        true
    }
}

/// Adds a place; one that goes on where the last ends becomes part of it.
fn span(spans: &mut Vec<Range<usize>>, new: Range<usize>) {
    match spans.last_mut().filter(|last| last.end == new.start) {
        Some(last) => last.end = new.end,
        None => spans.push(new),
    }
}

/// Neighbouring texts of one kind as one.
fn merged(events: Vec<Event>) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::with_capacity(events.len());
    for event in events {
        match (out.last_mut(), event) {
            (Some(Event::Reasoning(a)), Event::Reasoning(b)) | (Some(Event::Content(a)), Event::Content(b)) => {
                a.push_str(&b)
            }
            (Some(Event::Arguments { index: i, json: a }), Event::Arguments { index: j, json: b }) if *i == j => {
                a.push_str(&b);
            }
            (_, event) => out.push(event),
        }
    }
    out
}
