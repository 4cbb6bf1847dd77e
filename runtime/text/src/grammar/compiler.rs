//! Compiles grammars for one tokenizer, within limits of size, work and time, and keeps them.

use super::masks::MaskKeeper;
use super::tokens::Vocabulary;
use super::{GrammarError, GrammarSpec, Matcher, admits, lower};
use crate::Tokenizer;
use crate::response::ResponseTemplate;
use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::BiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Stack of a compiling thread: schemas and grammars nest.
const STACK_BYTES: usize = 64 << 20;

/// How much compiling may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest time that [`Compiler::compile`] waits.
    pub time: Duration,
    /// Most grammars that are compiled at once; one that takes too long counts until it has ended.
    pub running: usize,
    /// Most bytes of a grammar's text, schemas included.
    pub grammar_bytes: usize,
    /// Most grammars that are kept.
    pub kept: usize,
    /// Most bytes that the kept ones take: their texts, and the states and masks that were found while they were used.
    pub kept_bytes: usize,
    /// Most states of a grammar's lexer, of one to two KiB each.
    pub lexer_states: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let (time, grammar_bytes) = (Duration::from_secs(2), 1 << 20);
        Limits { time, running: 4, grammar_bytes, kept: 64, kept_bytes: 256 << 20, lexer_states: 50_000 }
    }
}

/// Compiles grammars for one tokenizer. A clone is the same compiler.
#[derive(Clone)]
pub struct Compiler(Arc<Inner>);

struct Inner {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
    limits: Limits,
    /// All tokens, ordered by their bytes.
    sorted: Arc<[u32]>,
    running: AtomicUsize,
    /// The last used ones, by their text.
    kept: Mutex<VecDeque<(String, Arc<Grammar>)>>,
}

/// A compiled grammar.
pub struct Grammar {
    prototype: Mutex<llguidance::Matcher>,
    cost: Cost,
    stop: Vec<u32>,
    vocab: usize,
    /// A matcher of it failed: it is compiled anew for the next request.
    spoilt: AtomicBool,
}

/// What tells how much memory a grammar takes; it grows while answers follow it.
#[derive(Clone)]
struct Cost {
    text_bytes: usize,
    /// Shares its lexer with all matchers of the grammar.
    parser: Arc<Mutex<llguidance::earley::Parser>>,
    masks: Arc<MaskKeeper>,
}

impl Cost {
    fn bytes(&self) -> usize {
        let lexer = self.parser.lock().unwrap_or_else(PoisonError::into_inner).lexer_stats().num_bytes;
        self.text_bytes + lexer + self.masks.bytes()
    }
}

impl Compiler {
    /// A compiler for a tokenizer, built once: it takes about a second for 150,000 tokens. `stop` are the tokens that end an
    /// answer. The template, if there is one, says which text can be markup, so that masks of all other text are quick.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        stop: &[u32],
        template: Option<&ResponseTemplate>,
        limits: Limits,
    ) -> Result<Compiler, GrammarError> {
        let vocabulary = Vocabulary::new(tokenizer, stop)?;
        let slices = lower::slices(template);
        let mut factory = ParserFactory::new(&vocabulary.env(), InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Tokenizer { problem: first_line(&error.to_string()) })?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_lexer_states: limits.lexer_states,
            max_grammar_size: 200_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let sorted = MaskKeeper::sorted(factory.tok_env().tok_trie());
        let (running, kept) = (AtomicUsize::new(0), Mutex::new(VecDeque::new()));
        Ok(Compiler(Arc::new(Inner { vocabulary, factory, limits, sorted, running, kept })))
    }

    /// How many tokens the tokenizer has; masks need a bit for each.
    pub fn vocab(&self) -> usize {
        self.0.vocabulary.len()
    }

    /// Compiles, or finds among the kept. Blocks for at most [`Limits::time`], so call it off the request path; work is
    /// done on a thread of its own and bounded there, too.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Arc<Grammar>, GrammarError> {
        let inner = Arc::clone(&self.0);
        let limit = inner.limits.running;
        let running = inner.running.fetch_add(1, Ordering::SeqCst);
        let place = Running(inner);
        if running >= limit {
            return Err(GrammarError::Busy { running, limit });
        }
        let (spec, time) = (spec.clone(), place.0.limits.time);
        let (send, receive) = mpsc::channel();
        let work = move || {
            let outcome = place.0.compile(&spec);
            drop(place);
            // Nobody waits any more if it took too long.
            let _ = send.send(outcome);
        };
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        if thread.spawn(work).is_err() {
            return Err(GrammarError::Busy { running, limit });
        }
        match receive.recv_timeout(time) {
            Ok(outcome) => outcome,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(GrammarError::Slow { place: "grammar".to_owned(), limit_ms: time.as_millis() as u64 })
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(GrammarError::bad("grammar", "cannot be compiled", "simplify it"))
            }
        }
    }

    /// Forgets the kept grammars; those in use go on.
    pub fn forget(&self) {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The text that is compiled for a wish, in llguidance's dialect of Lark.
    pub fn text(&self, spec: &GrammarSpec) -> Result<String, GrammarError> {
        lower::text(&self.0.vocabulary, spec, self.0.limits.grammar_bytes)
    }

    /// Bytes that the kept grammars take.
    pub fn kept_bytes(&self) -> usize {
        let kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|(_, grammar)| grammar.cost.bytes()).sum()
    }

    /// Whether the grammar admits a text as a complete answer: whether any tokens that spell it lead to its end. A control
    /// token in the text may be the token or mere text, as the grammar needs.
    pub fn admits(&self, grammar: &Arc<Grammar>, text: &str) -> Result<bool, GrammarError> {
        admits::admits(&self.0.vocabulary, &mut grammar.matcher(), text)
    }
}

/// Counts a compiling thread until it has ended.
struct Running(Arc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inner {
    fn compile(&self, spec: &GrammarSpec) -> Result<Arc<Grammar>, GrammarError> {
        lower::compiled(&self.vocabulary, spec, self.limits.grammar_bytes, &mut |text| self.grammar(text))
    }

    /// The grammar of a Lark text.
    fn grammar(&self, text: String) -> Result<Arc<Grammar>, String> {
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.retain(|(_, grammar)| !grammar.spoilt.load(Ordering::Relaxed));
            if let Some(at) = kept.iter().position(|(known, _)| *known == text)
                && let Some(entry) = kept.remove(at)
            {
                let grammar = Arc::clone(&entry.1);
                kept.push_back(entry);
                return Ok(grammar);
            }
        }
        let mut parser =
            self.factory.create_parser(TopLevelGrammar::from_lark(text.clone())).map_err(|e| e.to_string())?;
        let masks = Arc::new(MaskKeeper::new(self.factory.slicer(), Arc::clone(&self.sorted)));
        parser.bias_computer = Arc::clone(&masks) as Arc<dyn BiasComputer>;
        let shared = Arc::new(Mutex::new(parser.parser.clone()));
        let mut prototype = llguidance::Matcher::new(Ok(parser));
        // A grammar that nothing satisfies shows here, and the first mask is made off the request path.
        prototype
            .compute_mask_or_eos()
            .map_err(|e| format!("nothing satisfies it ({})", first_line(&e.to_string())))?;
        let grammar = Arc::new(Grammar {
            prototype: Mutex::new(prototype),
            // The text is kept here and, in other words, in the parser's rules.
            cost: Cost { text_bytes: 4 * text.len(), parser: shared, masks },
            stop: self.vocabulary.stop(),
            vocab: self.vocabulary.len(),
            spoilt: AtomicBool::new(false),
        });
        self.keep(text, &grammar);
        Ok(grammar)
    }

    /// Keeps a grammar; the ones that were not used for longest make room.
    fn keep(&self, text: String, grammar: &Arc<Grammar>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((text, Arc::clone(grammar)));
        let mut bytes: usize = kept.iter().map(|(_, grammar)| grammar.cost.bytes()).sum();
        while kept.len() > self.limits.kept || bytes > self.limits.kept_bytes {
            let Some((_, oldest)) = kept.pop_front() else { break };
            bytes = bytes.saturating_sub(oldest.cost.bytes());
        }
    }
}

impl Grammar {
    /// A matcher at the grammar's beginning.
    pub fn matcher(self: &Arc<Self>) -> Matcher {
        let prototype = self.prototype.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Matcher::new(Arc::clone(self), prototype)
    }

    /// The rest of the grammar behind a text.
    pub(crate) fn behind(self: Arc<Self>, tokens: &[u32]) -> Result<Arc<Grammar>, GrammarError> {
        let mut prototype = self.prototype.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if prototype.try_consume_tokens(tokens).ok() != Some(tokens.len()) {
            let problem = "begin an answer that its grammar does not admit";
            return Err(GrammarError::bad(
                "messages",
                problem,
                "let it begin as the grammar does, or leave the grammar out",
            ));
        }
        let (stop, vocab, cost) = (self.stop.clone(), self.vocab, self.cost.clone());
        Ok(Arc::new(Grammar { prototype: Mutex::new(prototype), cost, stop, vocab, spoilt: AtomicBool::new(false) }))
    }

    /// Tokens that end an answer.
    pub fn stop(&self) -> &[u32] {
        &self.stop
    }

    /// How many tokens the tokenizer has.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    pub(crate) fn spoil(&self) {
        self.spoilt.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").trim().to_owned()
}
