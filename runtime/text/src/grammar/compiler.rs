//! Compiles grammars for one tokenizer, within limits of size, work and time, and keeps them.

use super::lower::Use;
use super::masks::MaskKeeper;
use super::tokens::Vocabulary;
use super::wishes::{Found, Identities, Wishes};
use super::writer::Budget;
use super::{GrammarError, GrammarSpec, Lane, Matcher, admits, endless, lower};
use crate::Tokenizer;
use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::BiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// Stack of a compiling thread: schemas and grammars nest.
const STACK_BYTES: usize = 64 << 20;

/// How much compiling may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest time that [`Compiler::compile`] waits.
    pub time: Duration,
    /// Most grammars of each [`Lane`] that are compiled at once; one that takes too long counts until it has ended.
    pub running: usize,
    /// The same of long ones.
    pub long_running: usize,
    /// The same of those that have nothing of a request's own.
    pub usual_running: usize,
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
        let (kept, kept_bytes) = (64, 256 << 20);
        let (running, long_running, usual_running) = (4, 2, 2);
        let lexer_states = 50_000;
        Limits { time, running, long_running, usual_running, grammar_bytes, kept, kept_bytes, lexer_states }
    }
}

impl Limits {
    /// Places of a lane.
    pub fn places(&self, lane: Lane) -> usize {
        match lane {
            Lane::Usual => self.usual_running.max(1),
            Lane::Short => self.running,
            Lane::Long => self.long_running,
        }
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
    /// The control tokens.
    controls: Arc<[u32]>,
    /// Threads that compile, by lane.
    running: [AtomicUsize; 3],
    /// The last used ones, by their text.
    kept: Mutex<VecDeque<(String, Arc<Grammar>)>>,
    /// What was wished for lately.
    wishes: Mutex<Wishes>,
    identities: Identities,
}

/// A compiled grammar.
pub struct Grammar {
    prototype: Mutex<llguidance::Matcher>,
    cost: Cost,
    stop: Vec<u32>,
    controls: Arc<[u32]>,
    vocab: usize,
    /// A matcher of it failed: it is compiled anew for the next request.
    /// It shares it with what was derived from it, as they share their lexer.
    spoilt: Arc<AtomicBool>,
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
    /// answer.
    pub fn new(tokenizer: Arc<Tokenizer>, stop: &[u32], limits: Limits) -> Result<Compiler, GrammarError> {
        let vocabulary = Vocabulary::new(tokenizer, stop)?;
        let slices = lower::slices();
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
        let (controls, running, kept) = (vocabulary.controls().into(), Default::default(), Default::default());
        let (wishes, identities) = (Mutex::new(Wishes::new(4 * limits.kept)), Identities::default());
        Ok(Compiler(Arc::new(Inner {
            vocabulary,
            factory,
            limits,
            sorted,
            controls,
            running,
            kept,
            wishes,
            identities,
        })))
    }

    /// What compiling may cost.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// How many tokens the tokenizer has; masks need a bit for each.
    pub fn vocab(&self) -> usize {
        self.0.vocabulary.len()
    }

    /// What is known of a wish without compiling: its grammar, or that compiling it took too long before. `None` if nothing
    /// is. Takes as long as reading the wish once.
    pub fn kept(&self, spec: &GrammarSpec) -> Option<Result<Arc<Grammar>, GrammarError>> {
        let inner = &self.0;
        let identity = inner.identities.of(spec);
        let found = inner.wishes().find(identity)?;
        Some(match found {
            Found::Grammar(grammar) => {
                inner.used(&grammar);
                Ok(grammar)
            }
            Found::Slow(times) => Err(inner.too_slow(times)),
        })
    }

    /// Compiles on a thread of its own, which tells the outcome and then ends. The thread takes a place of the wish's lane until
    /// it ends, whether or not anybody waits; it drops `held` with it.
    pub fn begin<H: Send + 'static>(
        &self,
        spec: &Arc<GrammarSpec>,
        held: H,
        tell: impl FnOnce(Result<Arc<Grammar>, GrammarError>) + Send + 'static,
    ) -> Result<(), GrammarError> {
        let place = Place::take(&self.0, spec.lane())?;
        let (running, limit) = (place.running(), place.limit());
        let spec = Arc::clone(spec);
        let work = move || {
            let inner = &place.inner;
            let mut outcome = inner.compile(&spec);
            // Reading a long wish takes time, so it is not done under the lock.
            let identity = inner.identities.of(&spec);
            match &mut outcome {
                Ok(grammar) => inner.wishes().met(identity, &spec, grammar),
                Err(GrammarError::Slow { times, .. }) => *times = inner.wishes().gave_up(identity, &spec),
                Err(_) => {}
            }
            drop((place, held));
            tell(outcome);
        };
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(work).map(drop).map_err(|_| GrammarError::Busy { running, limit })
    }

    /// Nobody waits for this wish any longer: until it is compiled after all, it is refused at once for a while, each time for
    /// a longer one. The error that says so.
    pub fn give_up(&self, spec: &GrammarSpec) -> GrammarError {
        let identity = self.0.identities.of(spec);
        let times = self.0.wishes().gave_up(identity, spec);
        self.0.too_slow(times)
    }

    /// Finds among the kept, or compiles. Blocks for at most [`Limits::time`]; work is done on a thread of its own and
    /// bounded there, too.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Arc<Grammar>, GrammarError> {
        if let Some(known) = self.kept(spec) {
            return known;
        }
        let (send, receive) = mpsc::channel();
        // Nobody waits any more if it took too long.
        self.begin(&Arc::new(spec.clone()), (), move |outcome| drop(send.send(outcome)))?;
        match receive.recv_timeout(self.0.limits.time) {
            Ok(outcome) => outcome,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self.give_up(spec)),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(GrammarError::bad("grammar", "cannot be compiled", "simplify it"))
            }
        }
    }

    /// Forgets the kept grammars; those in use go on.
    pub fn forget(&self) {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.0.wishes().forget();
    }

    /// The text that is compiled for a wish, in llguidance's dialect of Lark.
    pub fn text(&self, spec: &GrammarSpec) -> Result<String, GrammarError> {
        lower::text(&self.0.vocabulary, spec, self.0.budget())
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
struct Place {
    inner: Arc<Inner>,
    lane: Lane,
}

impl Place {
    fn take(inner: &Arc<Inner>, lane: Lane) -> Result<Place, GrammarError> {
        let place = Place { inner: Arc::clone(inner), lane };
        let running = place.count().fetch_add(1, Ordering::SeqCst);
        let limit = place.limit();
        if running >= limit { Err(GrammarError::Busy { running, limit }) } else { Ok(place) }
    }

    fn count(&self) -> &AtomicUsize {
        let [usual, short, long] = &self.inner.running;
        match self.lane {
            Lane::Usual => usual,
            Lane::Short => short,
            Lane::Long => long,
        }
    }

    fn running(&self) -> usize {
        self.count().load(Ordering::SeqCst)
    }

    fn limit(&self) -> usize {
        self.inner.limits.places(self.lane)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count().fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inner {
    fn budget(&self) -> Budget {
        Budget::new(self.limits.grammar_bytes, self.limits.time)
    }

    fn compile(&self, spec: &GrammarSpec) -> Result<Arc<Grammar>, GrammarError> {
        lower::compiled(&self.vocabulary, spec, self.budget(), &mut |text, for_what| self.grammar(text, for_what))
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn too_slow(&self, times: u32) -> GrammarError {
        GrammarError::Slow { place: "grammar".to_owned(), limit_ms: self.limits.time.as_millis() as u64, times }
    }

    /// A grammar was wished for again.
    fn used(&self, grammar: &Arc<Grammar>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(_, known)| Arc::ptr_eq(known, grammar))
            && let Some(entry) = kept.remove(at)
        {
            kept.push_back(entry);
        }
    }

    /// The grammar of a Lark text.
    fn grammar(&self, text: String, for_what: Use) -> Result<Arc<Grammar>, String> {
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.retain(|(_, grammar)| !grammar.is_spoilt());
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
        if let Some(flaw) = endless::flaw(&mut parser.parser, &parser.bias_computer) {
            return Err(flaw.to_owned());
        }
        let shared = Arc::new(Mutex::new(parser.parser.clone()));
        let mut prototype = llguidance::Matcher::new(Ok(parser));
        let followed =
            |error: &dyn std::fmt::Display| format!("cannot be followed ({})", first_line(&error.to_string()));
        // The first mask is made off the request path; one that costs too much shows here, or with the first token of text
        // that is forced.
        prototype.compute_mask_or_eos().map_err(|e| followed(&e))?;
        if let Some(first) = prototype.compute_ff_tokens().first() {
            prototype.clone().try_consume_tokens(std::slice::from_ref(first)).map_err(|e| followed(&e))?;
        }
        let grammar = Arc::new(Grammar {
            prototype: Mutex::new(prototype),
            // The text is kept here and, in other words, in the parser's rules.
            cost: Cost { text_bytes: 4 * text.len(), parser: shared, masks },
            stop: self.vocabulary.stop(),
            controls: Arc::clone(&self.controls),
            vocab: self.vocabulary.len(),
            spoilt: Arc::default(),
        });
        if for_what == Use::Answers {
            self.keep(text, &grammar);
        }
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
        let taken = prototype.try_consume_tokens(tokens).map_err(|error| {
            self.spoil();
            GrammarError::Failed { problem: first_line(&error.to_string()) }
        })?;
        if taken != tokens.len() {
            let problem = "begin an answer that its grammar does not admit";
            return Err(GrammarError::bad(
                "messages",
                problem,
                "let it begin as the grammar does, or leave the grammar out",
            ));
        }
        let (stop, vocab, cost, spoilt) = (self.stop.clone(), self.vocab, self.cost.clone(), Arc::clone(&self.spoilt));
        let controls = Arc::clone(&self.controls);
        Ok(Arc::new(Grammar { prototype: Mutex::new(prototype), cost, stop, controls, vocab, spoilt }))
    }

    /// Tokens that end an answer.
    pub fn stop(&self) -> &[u32] {
        &self.stop
    }

    pub(crate) fn controls(&self) -> &[u32] {
        &self.controls
    }

    /// How many tokens the tokenizer has.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    pub(crate) fn is_spoilt(&self) -> bool {
        self.spoilt.load(Ordering::Relaxed)
    }

    pub(crate) fn spoil(&self) {
        self.spoilt.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_until_they_are_left() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano");
        let tokenizer = Arc::new(Tokenizer::load(&dir.join("tokenizer.json")).unwrap());
        let limits = Limits { running: 2, long_running: 1, usual_running: 1, ..Limits::default() };
        let compiler = Compiler::new(tokenizer, &[2046], limits).unwrap();
        let take = |lane| Place::take(&compiler.0, lane);
        let (one, two) = (take(Lane::Short).unwrap(), take(Lane::Short).unwrap());
        assert!(matches!(take(Lane::Short), Err(GrammarError::Busy { running: 2, limit: 2 })));
        let (usual, long) = (take(Lane::Usual).unwrap(), take(Lane::Long).unwrap());
        assert!(take(Lane::Usual).is_err() && take(Lane::Long).is_err());
        drop((one, usual));
        let again = take(Lane::Short).unwrap();
        assert!(take(Lane::Short).is_err() && take(Lane::Usual).is_ok() && take(Lane::Long).is_err());
        drop((two, again, long));
        assert_eq!(compiler.0.running.each_ref().map(|count| count.load(Ordering::SeqCst)), [0, 0, 0]);
    }
}
