//! What a client sees of an output that is read in pieces; shared by the tests of the response parser.

#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use text::response::*;

pub fn fixture(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/response-parse");
    std::fs::read_to_string(folder.join(name)).expect("fixture")
}

pub fn template(name: &str) -> Arc<ResponseTemplate> {
    Arc::new(ResponseTemplate::from_json(&fixture(name)).expect("template"))
}

/// Numbers that are the same in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    pub fn pieces<'a>(&mut self, text: &'a str) -> Vec<&'a str> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        let longest = 1 + self.below(12);
        while !rest.is_empty() {
            let chars = self.below(longest + 1);
            let at = rest.char_indices().nth(chars).map_or(rest.len(), |(at, _)| at);
            pieces.push(&rest[..at]);
            rest = &rest[at..];
        }
        pieces
    }
}

/// All that a client sees.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub reasoning: String,
    pub content: String,
    /// Name, deltas, the arguments that its end told.
    pub streamed: Vec<(String, String, Option<String>)>,
    pub ended: Option<Ended>,
}

impl Seen {
    pub fn add(&mut self, events: &[Event]) -> [String; 2] {
        let mut new = [String::new(), String::new()];
        for event in events {
            match event {
                Event::Reasoning(text) => new[0].push_str(text),
                Event::Content(text) => new[1].push_str(text),
                Event::Call { index, name } => {
                    assert_eq!(*index, self.streamed.len(), "calls are numbered without gaps");
                    self.streamed.push((name.clone(), String::new(), None));
                }
                Event::Arguments { index, json } => self.streamed[*index].1.push_str(json),
                Event::CallDone { index, arguments } => self.streamed[*index].2 = Some(arguments.clone()),
            }
        }
        self.reasoning.push_str(&new[0]);
        self.content.push_str(&new[1]);
        new
    }
}

pub struct Case<'a> {
    pub template: &'a Arc<ResponseTemplate>,
    pub tools: Arc<Tools>,
    pub options: ParseOptions,
    pub prompt: &'a str,
    pub ending: Ending,
}

impl Case<'_> {
    pub fn read(&self, pieces: &[&str]) -> (Seen, Vec<[String; 2]>, [String; 2]) {
        let (template, tools) = (Arc::clone(self.template), Arc::clone(&self.tools));
        let mut parser = ResponseParser::new(template, tools, self.options.clone(), self.prompt).expect("prompt");
        let mut seen = Seen::default();
        let released = pieces.iter().map(|piece| seen.add(&parser.push(piece).expect("in limits"))).collect();
        let mut ended = parser.finish(self.ending).expect("in limits");
        let last = seen.add(&std::mem::take(&mut ended.events));
        let done: Vec<&(String, String, Option<String>)> =
            seen.streamed.iter().filter(|call| call.2.is_some()).collect();
        assert_eq!(done.len(), ended.tool_calls.len());
        for (call, (name, deltas, told)) in ended.tool_calls.iter().zip(done) {
            assert_eq!((&call.name, Some(&call.arguments)), (name, told.as_ref()));
            let whole: Value = serde_json::from_str(&call.arguments).expect("arguments are JSON");
            let streamed: Value = serde_json::from_str(deltas).expect("deltas are JSON");
            assert_eq!(whole.to_string(), streamed.to_string());
            // Only an argument that is written twice may make a difference in the text.
            assert!(
                deltas.len() >= call.arguments.len()
                    && (deltas.len() > call.arguments.len() || *deltas == call.arguments)
            );
        }
        seen.ended = Some(ended);
        (seen, released, last)
    }
}
