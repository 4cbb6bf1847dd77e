//! Whose rows are whose, where token rows are spread over a mesh: a sequence stays with the ranks that hold what is cached of it.
//!
//! ```text
//! step ── of ──► a place for every sequence ── part ──► what each place's ranks run, with rows counted anew
//! ```
//!
//! Every rank has whole pools, and pages have the same numbers on all. Who wrote a page last is kept by page, so a sequence goes where the
//! row before its first one stands, whoever wrote that; a new sequence goes where the step has fewest rows.

use super::ranks::MOST_RANKS;
use crate::contract::Rows;
use engine::{SequenceRows, Step, StepError, WantedRow};
use ir::KvLayout;

/// Places of pages.
pub struct Homes {
    /// How many places there are; one where all ranks run all rows.
    places: usize,
    /// The place of all sequences, where one rank runs alone.
    only: Option<usize>,
    /// By kind and physical page.
    of_page: Vec<Vec<u8>>,
}

/// What the ranks of one place run of a step.
pub struct Part {
    /// Their rows.
    pub step: Step,
    /// What the step's check found of them.
    pub rows: Rows,
}

/// Of a page that nobody wrote.
const NOBODY: u8 = u8::MAX;

impl Homes {
    /// Places of a mesh's rows, with pools of so many pages.
    pub fn new(places: usize, only: Option<usize>, pool_pages: &[usize]) -> Homes {
        Homes {
            places: places.clamp(1, MOST_RANKS),
            only,
            of_page: pool_pages.iter().map(|n| vec![NOBODY; *n]).collect(),
        }
    }

    /// Whether ranks bring rows of their own.
    pub fn are_apart(&self) -> bool {
        self.places > 1
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.places
    }

    /// The place of every sequence of a step that was checked. What it writes is there from now on. Refused if a sequence reads pages
    /// of several places, as one that goes on behind what others have computed might.
    pub fn of(&mut self, step: &Step, rows: &Rows, kv: &[KvLayout]) -> Result<Vec<usize>, StepError> {
        // Windows drop pages; the row before the next one is inside all of them.
        let cached = kv.iter().position(|k| !k.layers.is_empty());
        let mut load = vec![0; self.places];
        let mut places = Vec::new();
        for (s, sequence) in step.sequences.iter().enumerate() {
            let first = rows.position.get(sequence.start).copied().unwrap_or(0);
            let before = first.checked_sub(1).filter(|before| *before >= rows.start).zip(cached);
            let known = before.and_then(|(before, kind)| {
                let page = rows.pages.get(kind)?.get(s)?.get(before / kv[kind].page_tokens as usize);
                self.of_page.get(kind)?.get(page).copied().filter(|place| *place != NOBODY)
            });
            let least = (0..self.places).min_by_key(|place| load[*place]).unwrap_or(0);
            let place = self.only.or(known.map(usize::from)).unwrap_or(least);
            load[place] += sequence.len;
            for (kind, layout) in kv.iter().enumerate().filter(|(_, layout)| first > 0 && !layout.layers.is_empty()) {
                let tokens = layout.page_tokens as usize;
                let oldest = layout.window.map_or(0, |window| (first + 1).saturating_sub(window as usize));
                let others = (oldest.max(rows.start) / tokens..first.div_ceil(tokens)).find_map(|page| {
                    let of = *self.of_page[kind].get(rows.pages[kind][s].get(page))?;
                    (self.only.is_none() && of != NOBODY && usize::from(of) != place).then_some((page, of))
                });
                if let Some((page, other)) = others {
                    return Err(StepError::Contract(format!(
                        "sequence {s} runs at place {place}, and its page {page} of kind {kind} is at place {other}"
                    )));
                }
            }
            for (kind, layout) in kv.iter().enumerate().filter(|(_, layout)| !layout.layers.is_empty()) {
                let tokens = layout.page_tokens as usize;
                for page in first / tokens..=(first + sequence.len - 1) / tokens {
                    let physical = rows.pages[kind][s].get(page);
                    self.of_page[kind].get_mut(physical).into_iter().for_each(|of| *of = place as u8);
                }
            }
            places.push(place);
        }
        Ok(places)
    }

    /// A page was copied to another, on all ranks.
    pub fn copied(&mut self, kind: usize, from: usize, to: usize) {
        let Some(pages) = self.of_page.get_mut(kind) else { return };
        if let (Some(place), Some(of)) = (pages.get(from).copied(), pages.get_mut(to)) {
            *of = place;
        }
    }
}

/// What the ranks of a place run.
pub fn part(step: &Step, rows: &Rows, places: &[usize], place: usize) -> Part {
    let mut own = Step { entry: step.entry.clone(), ..Step::default() };
    let mut found =
        Rows { start: rows.start, pages: rows.pages.iter().map(|_| Vec::new()).collect(), ..Rows::default() };
    for (s, sequence) in step.sequences.iter().enumerate().filter(|(s, _)| places.get(*s) == Some(&place)) {
        let (start, of) = (own.tokens.len(), sequence.start..sequence.start + sequence.len);
        let moved = |w: &&WantedRow| of.contains(&w.row);
        let wanted = step.wanted.iter().filter(moved);
        own.wanted.extend(wanted.map(|w| WantedRow { row: start + w.row - of.start, ..w.clone() }));
        own.tokens.extend_from_slice(&step.tokens[of.clone()]);
        own.positions.extend_from_slice(&step.positions[of.clone()]);
        found.position.extend_from_slice(&rows.position[of.clone()]);
        found.sequence.extend(of.map(|_| own.sequences.len()));
        for (to, from) in found.pages.iter_mut().zip(&rows.pages) {
            to.push(from[s].clone());
        }
        own.sequences.push(SequenceRows { start, ..sequence.clone() });
    }
    Part { step: own, rows: found }
}

/// Where each wanted row is computed: the place, and which of the wanted rows there.
pub fn wanted(step: &Step, places: &[usize]) -> Vec<(usize, usize)> {
    let mut counts = [0; MOST_RANKS];
    let of = |row: usize| step.sequences.iter().position(|s| (s.start..s.start + s.len).contains(&row));
    let place = |w: &WantedRow| of(w.row).and_then(|s| places.get(s).copied()).unwrap_or(0);
    let mut found = Vec::new();
    for at in step.wanted.iter().map(place) {
        found.push((at, counts[at]));
        counts[at] += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Pages;
    use std::sync::Arc;

    fn layout() -> KvLayout {
        KvLayout {
            kind: "full".to_owned(),
            layers: vec![0],
            lives_in: None,
            first: 0,
            dtype: ir::DType::Bf16,
            page_tokens: 4,
            page_stride: 64,
            layer_stride: 64,
            token_stride: 16,
            head_stride: 16,
            v_offset: 8,
            heads: 1,
            head_elements: 8,
            window: None,
        }
    }

    /// Sequences by first position, rows and pages.
    fn step(sequences: &[(usize, usize, &[usize])]) -> (Step, Rows) {
        let (mut step, mut rows) = (Step::default(), Rows { pages: vec![Vec::new()], ..Rows::default() });
        for (s, (first, len, pages)) in sequences.iter().enumerate() {
            let start = step.tokens.len();
            step.sequences.push(SequenceRows { start, len: *len, pages: Arc::default() });
            for position in *first..first + len {
                step.tokens.push(position as i32);
                step.positions.push(position as i32);
                rows.position.push(position);
                rows.sequence.push(s);
            }
            step.wanted.push(WantedRow { row: step.tokens.len() - 1, sampling: None, mask: None, logits: true });
            rows.pages[0].push(Pages::of(0, pages));
        }
        (step, rows)
    }

    #[test]
    fn sequences_stay_where_their_pages_are() {
        let kv = [layout()];
        let mut homes = Homes::new(2, None, &[16]);
        let (first, rows) = step(&[(0, 5, &[1, 2]), (0, 3, &[3]), (0, 1, &[4])]);
        assert_eq!(homes.of(&first, &rows, &kv).unwrap(), [0, 1, 1]);
        // In another order, one with a page of another and one that is new where fewest rows are.
        let (next, rows) = step(&[(3, 1, &[3]), (5, 1, &[1, 2]), (4, 1, &[1, 5]), (0, 1, &[6])]);
        let places = homes.of(&next, &rows, &kv).unwrap();
        assert_eq!(places, [1, 0, 0, 1]);
        assert_eq!(wanted(&next, &places), [(1, 0), (0, 0), (0, 1), (1, 1)]);
        let part = part(&next, &rows, &places, 0);
        assert_eq!((part.step.positions, part.rows.sequence), (vec![5, 4], vec![0, 1]));
        assert_eq!(part.step.wanted.iter().map(|w| w.row).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(part.rows.pages[0][1].get(1), 5);
        // A page goes on as a copy.
        homes.copied(0, 1, 9);
        let (copied, rows) = step(&[(2, 1, &[9])]);
        assert_eq!(homes.of(&copied, &rows, &kv).unwrap(), [0]);
        // Behind pages of both places nobody can go on.
        let (mixed, rows) = step(&[(5, 1, &[1, 3])]);
        assert!(matches!(homes.of(&mixed, &rows, &kv), Err(StepError::Contract(_))));
    }
}
