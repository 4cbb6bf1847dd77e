//! What a cache that loses nothing would find: prefixes by page, of all that was ever computed.

use std::collections::HashSet;

/// Hashes of the prefixes that end with a whole page.
#[derive(Debug)]
pub struct Ideal {
    page_tokens: usize,
    known: HashSet<u64>,
}

impl Ideal {
    /// Nothing is known yet.
    pub fn new(page_tokens: usize) -> Self {
        Ideal { page_tokens: page_tokens.max(1), known: HashSet::new() }
    }

    fn pages<'t>(&self, tokens: &'t [u32]) -> impl Iterator<Item = u64> + use<'t> {
        let mix = |hash: u64, token: &u32| {
            (hash ^ (u64::from(*token) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        };
        tokens.chunks_exact(self.page_tokens).scan(0u64, move |hash, page| {
            *hash = page.iter().fold(*hash, mix);
            Some(*hash)
        })
    }

    /// Tokens of a prompt whose keys and values exist, in whole pages. The last token is always computed.
    pub fn find(&self, prompt: &[u32]) -> usize {
        let most = prompt.get(..prompt.len().saturating_sub(1)).unwrap_or_default();
        self.pages(most).take_while(|hash| self.known.contains(hash)).count() * self.page_tokens
    }

    /// All of these have been computed.
    pub fn learn(&mut self, tokens: &[u32]) {
        let all: Vec<u64> = self.pages(tokens).collect();
        self.known.extend(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_of_what_was_seen_are_found() {
        let mut ideal = Ideal::new(4);
        ideal.learn(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let found = |prompt: &[u32]| ideal.find(prompt);
        assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), 8);
        assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7, 8]), 4, "the last token is computed");
        assert_eq!(found(&[1, 2, 3, 4, 5, 5, 7, 8, 9]), 4);
        assert_eq!(found(&[5, 6, 7, 8, 1]), 0);
    }
}
