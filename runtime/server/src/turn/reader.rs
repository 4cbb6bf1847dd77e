//! One choice as it comes: tokens become characters, end at stop strings, and go to the fields that the response template
//! names.
//!
//! Text is taken token by token, so that how the engine cuts its steps changes nothing: not the text, not where a stop
//! string ends it, not what is counted.

use super::grammar::ByGrammar;
use super::spelling::Spelling;
use super::spoken::Spoken;
use crate::controls::Controls;
use crate::error::ApiError;
use engine::{FinishReason, SampledToken};
use std::ops::Range;
use std::sync::Arc;
use text::response::{self, Ending, ResponseParser};
use text::{Detokenizer, StopStrings, Text};

/// Something that a client is told of one choice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TurnEvent {
    /// More reasoning.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A call begins. Calls are numbered from 0 in each choice.
    CallOpened { index: usize, name: String },
    /// More of its arguments: text of one JSON object.
    CallArguments { index: usize, json: String },
    /// The call is complete, with all its arguments: an argument that was written twice is there once. One that is opened and
    /// never closed was cut off.
    CallClosed { index: usize, arguments: String },
    /// The choice is over; nothing comes after it.
    Finished(Finish),
}

/// Why a choice is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishWord {
    /// A stop token, a stop string or the end of the text.
    Stop,
    /// The token limit or the context.
    Length,
    /// Tools are to be called: a natural stop with complete calls and none cut off.
    ToolCalls,
    /// Given up by an operator.
    Abort,
}

impl FinishWord {
    /// The word of the OpenAI protocols.
    pub fn word(self) -> &'static str {
        match self {
            FinishWord::Stop => "stop",
            FinishWord::Length => "length",
            FinishWord::ToolCalls => "tool_calls",
            FinishWord::Abort => "abort",
        }
    }
}

/// What stopped a choice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Matched {
    /// A stop token.
    Token(u32),
    /// A stop string.
    Text(String),
}

/// The end of a choice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finish {
    /// Why.
    pub word: FinishWord,
    /// What stopped it, where something did.
    pub matched: Option<Matched>,
}

/// What one step adds to one choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Step {
    /// Which choice.
    pub choice: usize,
    /// In the order in which they are told: reasoning, calls or answer, the end.
    pub events: Vec<TurnEvent>,
    /// The step's tokens, each exactly once, whether or not their text is out yet.
    pub tokens: Vec<SampledToken>,
    /// Tokens that pieces of the answer are made of, each with the index of its event; only those with a log-probability.
    pub spoken: Vec<(usize, SampledToken)>,
    /// Scored tokens of the prompt, in order.
    pub scored: Vec<SampledToken>,
    /// Tokens of this choice's prompt that were in the cache.
    pub cached_tokens: usize,
}

impl Step {
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.tokens.is_empty() && self.scored.is_empty()
    }
}

/// How a reader reads.
pub(crate) struct Reading {
    /// The grammar that holds the choice, if one does.
    pub grammar: Option<ByGrammar>,
    pub stops: Vec<String>,
    /// Tokens before stop strings count.
    pub min_tokens: usize,
    pub keeps_stop: bool,
    pub skip_special: bool,
    /// Reads fields; without it all text is the answer's.
    pub parser: Option<ResponseParser>,
    /// Whether a token's text closes a call, so that it is read though it ends the answer.
    pub closers: Option<Arc<response::ResponseTemplate>>,
    /// The control tokens, which text may spell.
    pub controls: Arc<Controls>,
}

/// The state of one choice.
pub(crate) struct Reader {
    text: Arc<Text>,
    detokenizer: Detokenizer,
    stops: StopStrings,
    reading: Reading,
    spoken: Spoken,
    spelling: Spelling,
    completion_tokens: usize,
    reasoning_tokens: usize,
    /// Tokens of reasoning whose text is held back: reasoning or its end.
    undecided_tokens: usize,
    /// Reasoning that is out.
    reasoned_bytes: usize,
    /// Text that is out where no parser reads it.
    plain_bytes: usize,
    /// What stopped it, once something did.
    matched: Option<Matched>,
    /// Whether the last token of its text is a control token.
    ends_in_control: bool,
    is_over: bool,
}

impl Reader {
    pub fn new(text: Arc<Text>, mut reading: Reading) -> Reader {
        let stops = StopStrings::new(std::mem::take(&mut reading.stops));
        let detokenizer = Detokenizer::new(reading.skip_special);
        let (completion_tokens, reasoning_tokens, undecided_tokens) = (0, 0, 0);
        let (matched, is_over) = (None, false);
        Reader {
            text,
            detokenizer,
            stops,
            spelling: Spelling::new(reading.controls.clone()),
            reading,
            spoken: Spoken::default(),
            completion_tokens,
            reasoning_tokens,
            undecided_tokens,
            reasoned_bytes: 0,
            plain_bytes: 0,
            matched,
            ends_in_control: false,
            is_over,
        }
    }

    pub fn completion_tokens(&self) -> usize {
        self.completion_tokens
    }

    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// What the prompt left to tell, such as a call that it opened.
    pub fn begin(&mut self) -> Result<Vec<TurnEvent>, ApiError> {
        let Some(parser) = &mut self.reading.parser else { return Ok(Vec::new()) };
        let events = parser.push("").map_err(broken)?;
        Ok(events.into_iter().map(TurnEvent::from).collect())
    }

    /// Takes a token; says whether the engine must be told to stop, because a stop string ended the choice.
    pub fn token(&mut self, token: SampledToken, stops: bool, step: &mut Step) -> Result<bool, ApiError> {
        if self.is_over {
            return Ok(false);
        }
        let id = token.id;
        self.completion_tokens += 1;
        if stops {
            step.tokens.push(token);
            self.stop_token(id, step)?;
            return Ok(false);
        }
        self.ends_in_control = self.reading.controls.text(id).is_some();
        let was_reasoning = self.is_reasoning();
        let reasoned = self.reasoned_bytes;
        let new = self.detokenizer.push(&self.text.tokenizer, id).map_err(broken)?;
        self.spoken.push(&token, new.len());
        self.spelling.bring(Some(id), &new);
        step.tokens.push(token);
        let ended = self.take_text(&new, step)?;
        if self.reasoned_bytes > reasoned {
            self.reasoning_tokens += self.undecided_tokens + 1;
            self.undecided_tokens = 0;
        } else if was_reasoning && self.is_reasoning() {
            self.undecided_tokens += 1;
        } else {
            self.undecided_tokens = 0;
        }
        if ended {
            self.finish(Ending::StopString, FinishWord::Stop, step)?;
        }
        Ok(ended)
    }

    /// The engine is done with this choice.
    pub fn finished(&mut self, reason: FinishReason, step: &mut Step) -> Result<(), ApiError> {
        if self.is_over {
            return Ok(());
        }
        let (ending, word) = match reason {
            FinishReason::Stop(token) => {
                self.matched.get_or_insert(Matched::Token(token));
                (Ending::StopToken, FinishWord::Stop)
            }
            FinishReason::Length => (Ending::Length, FinishWord::Length),
            FinishReason::Aborted => (Ending::Length, FinishWord::Abort),
            FinishReason::Error(text) => {
                let own = self.reading.grammar.as_ref().and_then(ByGrammar::fault);
                return Err(own.unwrap_or_else(|| ApiError::internal(text)));
            }
        };
        if ending != Ending::StopToken && self.rest(ending, step)? {
            return self.finish(Ending::StopString, FinishWord::Stop, step);
        }
        self.finish(ending, word, step)
    }

    /// A token that ends the answer. Its text is not part of it, unless it closes a call in itself.
    fn stop_token(&mut self, id: u32, step: &mut Step) -> Result<(), ApiError> {
        if self.rest(Ending::StopToken, step)? {
            return self.finish(Ending::StopString, FinishWord::Stop, step);
        }
        let text = self.text.tokenizer.decode(&[id], self.reading.skip_special).map_err(broken)?;
        let closes = self.reading.closers.as_ref().is_some_and(|template| template.closes_call(&text));
        if closes || self.reading.keeps_stop {
            self.spelling.bring(Some(id), &text);
            self.parse(&text, step)?;
        }
        Ok(())
    }

    /// What is held back although nothing can follow; says whether it ends with a stop string. Half a character is told of an
    /// answer that the model ended so, and not of one that was cut there.
    fn rest(&mut self, ending: Ending, step: &mut Step) -> Result<bool, ApiError> {
        let rest = match ending {
            Ending::Length => self.detokenizer.cut(&self.text.tokenizer),
            _ => self.detokenizer.finish(&self.text.tokenizer),
        };
        let rest = rest.map_err(broken)?;
        self.spoken.end(rest.len());
        self.spelling.bring(None, &rest);
        if self.take_text(&rest, step)? {
            return Ok(true);
        }
        let held = self.stops.finish();
        self.parse(&held, step)?;
        Ok(false)
    }

    /// Takes characters; says whether a stop string ended them.
    fn take_text(&mut self, new: &str, step: &mut Step) -> Result<bool, ApiError> {
        if self.completion_tokens < self.reading.min_tokens {
            self.parse(new, step)?;
            return Ok(false);
        }
        if self.stops.is_empty() {
            self.parse(new, step)?;
            return Ok(self.matched.is_some());
        }
        let (mut text, stop) = self.stops.push(new);
        if let Some(stop) = stop {
            if self.reading.keeps_stop {
                text.push_str(&stop);
            }
            self.matched = Some(Matched::Text(stop));
        }
        self.parse(&text, step)?;
        Ok(self.matched.is_some())
    }

    fn parse(&mut self, text: &str, step: &mut Step) -> Result<(), ApiError> {
        if text.is_empty() {
            return Ok(());
        }
        let Some(parser) = &mut self.reading.parser else {
            let begin = self.plain_bytes;
            self.plain_bytes += text.len();
            add(&mut step.events, TurnEvent::Content(text.to_owned()));
            self.told(
                step.events.len().checked_sub(1),
                std::slice::from_ref(&(begin..self.plain_bytes)),
                self.plain_bytes,
                step,
            );
            return Ok(());
        };
        let events = parser.push_spelt(text, &self.spelling.spelt(text)).map_err(broken)?;
        let (spans, decided) = (parser.take_spans(), parser.decided());
        self.tell(events.into_iter().map(TurnEvent::from).collect(), &spans, decided, step);
        Ok(())
    }

    /// Adds events to a step, with the tokens of the answer's text among them.
    fn tell(&mut self, events: Vec<TurnEvent>, spans: &[Range<usize>], decided: usize, step: &mut Step) {
        let mut said = None;
        for event in events {
            if let TurnEvent::Reasoning(text) = &event {
                self.reasoned_bytes += text.len();
            }
            let is_content = matches!(event, TurnEvent::Content(_));
            add(&mut step.events, event);
            if is_content {
                said = step.events.len().checked_sub(1);
            }
        }
        self.told(said, spans, decided, step);
    }

    /// The tokens of text that was told last, in the event with this index.
    fn told(&mut self, said: Option<usize>, spans: &[Range<usize>], decided: usize, step: &mut Step) {
        let tokens = self.spoken.take(spans, decided, said.is_some());
        step.spoken.extend(tokens.into_iter().filter_map(|token| Some((said?, token))));
    }

    fn finish(&mut self, ending: Ending, word: FinishWord, step: &mut Step) -> Result<(), ApiError> {
        self.is_over = true;
        let mut word = word;
        if let Some(mut parser) = self.reading.parser.take() {
            // Under a grammar a control token is nothing that the region says: it has begun to end it.
            if self.reading.grammar.is_some() && self.ends_in_control {
                parser.ends_in_control();
            }
            let ended = parser.finish(ending).map_err(broken)?;
            let events = ended.events.into_iter().map(TurnEvent::from).collect();
            self.tell(events, &ended.spans, usize::MAX, step);
            if word == FinishWord::Stop && ended.reason == response::FinishReason::ToolCalls {
                word = FinishWord::ToolCalls;
            }
        }
        step.events.push(TurnEvent::Finished(Finish { word, matched: self.matched.take() }));
        Ok(())
    }

    fn is_reasoning(&self) -> bool {
        self.reading.parser.as_ref().is_some_and(ResponseParser::is_reasoning)
    }
}

/// Adds an event; neighbouring texts of one kind become one.
fn add(events: &mut Vec<TurnEvent>, event: TurnEvent) {
    match (events.last_mut(), event) {
        (Some(TurnEvent::Reasoning(a)), TurnEvent::Reasoning(b))
        | (Some(TurnEvent::Content(a)), TurnEvent::Content(b)) => a.push_str(&b),
        (Some(TurnEvent::CallArguments { index: i, json: a }), TurnEvent::CallArguments { index: j, json: b })
            if *i == j =>
        {
            a.push_str(&b);
        }
        (_, event) => events.push(event),
    }
}

impl From<response::Event> for TurnEvent {
    fn from(event: response::Event) -> Self {
        match event {
            response::Event::Reasoning(text) => TurnEvent::Reasoning(text),
            response::Event::Content(text) => TurnEvent::Content(text),
            response::Event::Call { index, name } => TurnEvent::CallOpened { index, name },
            response::Event::Arguments { index, json } => TurnEvent::CallArguments { index, json },
            response::Event::CallDone { index, arguments } => TurnEvent::CallClosed { index, arguments },
        }
    }
}

fn broken(error: impl std::fmt::Display) -> ApiError {
    ApiError::internal(error.to_string())
}
