//! Parts of a grammar that nothing satisfies: a rule that leads back to itself before it can end, a terminal that no text matches.
//! Whoever begins such a part can neither end it nor go on otherwise, so a grammar with one is refused when it is compiled.

use llguidance::earley::{BiasComputer, CGrammar, CSymIdx, Parser, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokTrie};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// What is wrong with a grammar, if nothing satisfies it or a part that an answer can begin.
pub(crate) fn flaw(parser: &mut Parser, slicer: &Arc<dyn BiasComputer>) -> Option<&'static str> {
    let alive = alive(parser, slicer);
    let rules = Rules::of(parser.grammar());
    let ending = rules.ending(&alive);
    if !ending.contains(&rules.start) {
        return Some("nothing satisfies it");
    }
    rules.can_get_stuck(&ending).then_some("has a part that nothing satisfies, where an answer could only be stuck")
}

/// The terminals that some text matches, by their numbers.
fn alive(parser: &mut Parser, slicer: &Arc<dyn BiasComputer>) -> HashSet<usize> {
    let look = Look { slicer: Arc::clone(slicer), alive: Mutex::default() };
    // What begins with a byte is not taken for a mask of the grammar's beginning.
    parser.compute_bias(&look, b"x");
    look.alive.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Asks the lexer, which has looked at all terminals when it was built.
struct Look {
    slicer: Arc<dyn BiasComputer>,
    alive: Mutex<HashSet<usize>>,
}

impl BiasComputer for Look {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        let lexer = rec.lexer_mut();
        let all = lexer.lexer_spec().all_lexemes();
        let state = lexer.start_state(&all);
        let possible = lexer.possible_lexemes(state).iter().map(|lexeme| lexeme.as_usize()).collect();
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = possible;
        self.slicer.trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.slicer.trie()
    }
}

/// The rules that can be reached.
struct Rules<'a> {
    grammar: &'a CGrammar,
    start: CSymIdx,
    symbols: Vec<CSymIdx>,
    /// What is on the left, and what on the right.
    all: Vec<(CSymIdx, &'a [CSymIdx])>,
}

impl<'a> Rules<'a> {
    fn of(grammar: &'a CGrammar) -> Rules<'a> {
        let start = grammar.start();
        let (mut symbols, mut known, mut all) = (vec![start], HashSet::from([start]), Vec::new());
        let mut next = 0;
        while let Some(symbol) = symbols.get(next).copied() {
            next += 1;
            for rule in grammar.rules_of(symbol) {
                let (right, _, _) = grammar.rule_rhs(*rule);
                all.push((symbol, right));
                symbols.extend(right.iter().filter(|part| known.insert(**part)));
            }
        }
        Rules { grammar, start, symbols, all }
    }

    /// Symbols that some text satisfies.
    fn ending(&self, alive: &HashSet<usize>) -> HashSet<CSymIdx> {
        let mut uses: HashMap<CSymIdx, Vec<usize>> = HashMap::new();
        let mut missing: Vec<usize> = Vec::with_capacity(self.all.len());
        for (rule, (_, right)) in self.all.iter().enumerate() {
            missing.push(right.len());
            right.iter().for_each(|part| uses.entry(*part).or_default().push(rule));
        }
        let ends_at_once = |symbol: &CSymIdx| {
            let data = self.grammar.sym_data(*symbol);
            let is_matched = data.lexeme.is_some_and(|lexeme| alive.contains(&lexeme.as_usize()));
            is_matched || data.is_nullable || !data.cond_nullable.is_empty()
        };
        let mut new: Vec<CSymIdx> = self.symbols.iter().copied().filter(ends_at_once).collect();
        let mut ending: HashSet<CSymIdx> = new.iter().copied().collect();
        while let Some(symbol) = new.pop() {
            for rule in uses.get(&symbol).into_iter().flatten() {
                let (Some(left), Some((symbol, _))) = (missing.get_mut(*rule), self.all.get(*rule)) else { continue };
                *left = left.saturating_sub(1);
                if *left == 0 && ending.insert(*symbol) {
                    new.push(*symbol);
                }
            }
        }
        ending
    }

    /// Whether a rule has something that can be begun before a part that never ends.
    fn can_get_stuck(&self, ending: &HashSet<CSymIdx>) -> bool {
        let is_something =
            |part: &CSymIdx| self.grammar.sym_data(*part).is_terminal || !self.grammar.rules_of(*part).is_empty();
        self.all.iter().any(|(_, right)| {
            let before = right.iter().take_while(|part| ending.contains(part));
            before.clone().count() < right.len() && before.clone().any(is_something)
        })
    }
}
