//! What a step must satisfy before anything of it runs, and the pages its rows will touch.
//!
//! Everything later may index by row, page and position without looking again.

use engine::{ExecutorFacts, PhysicalPage, Step, StepError};
use ir::{Bucket, KvLayout, RowsPerSequence};

/// A step with its page tables translated: the plan's one translation node.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Sequence of every row.
    pub sequence: Vec<usize>,
    /// Position of every row.
    pub position: Vec<usize>,
    /// Physical pages by kind, then by sequence.
    pub pages: Vec<Vec<Pages>>,
    /// First position of which anything is cached.
    pub start: usize,
}

/// Physical pages that a sequence's rows write or see.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    first: usize,
    physical: Vec<usize>,
}

impl Pages {
    /// Pages from one on.
    #[cfg(test)]
    pub fn of(first: usize, physical: &[usize]) -> Pages {
        Pages { first, physical: physical.to_vec() }
    }

    /// Physical page behind a page of the sequence that one of its rows writes or sees; the sink for any other.
    pub fn get(&self, page: usize) -> usize {
        self.physical.get(page.wrapping_sub(self.first)).copied().unwrap_or(0)
    }
}

fn refuse<T>(text: String) -> Result<T, StepError> {
    Err(StepError::Contract(text))
}

/// The first position that a query at `position` sees.
pub(crate) fn first_visible(layout: &KvLayout, position: usize, start: usize) -> usize {
    let window = layout.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
    window.max(start)
}

/// The smallest bucket of `buckets` that the step fits.
pub(crate) fn choose_bucket<'b>(step: &Step, mut buckets: impl Iterator<Item = (usize, &'b Bucket)>) -> Option<usize> {
    let fits = |b: &Bucket| {
        step.tokens.len() as u64 <= b.tokens
            && step.sequences.len() as u64 <= b.sequences
            && step.wanted.len() as u64 <= b.wanted
            && match b.rows {
                RowsPerSequence::One => step.sequences.iter().all(|s| s.len == 1),
                RowsPerSequence::Block(n) => step.sequences.iter().all(|s| s.len as u64 == n),
                RowsPerSequence::Ragged => true,
            }
    };
    buckets.find(|(_, b)| fits(b)).map(|(i, _)| i)
}

/// Checks a step against the facts; `tokens_end` is one past the largest token id, `start` the first cached position.
pub(crate) fn check(step: &Step, facts: &ExecutorFacts, tokens_end: usize, start: usize) -> Result<Rows, StepError> {
    check_behind(step, facts, tokens_end, start, 0)
}

/// The same for a step whose rows may stand for the tokens that as many wanted rows of the step before choose.
pub(crate) fn check_behind(
    step: &Step,
    facts: &ExecutorFacts,
    tokens_end: usize,
    start: usize,
    choices: usize,
) -> Result<Rows, StepError> {
    let rows = step.tokens.len();
    if rows == 0 || rows > facts.max_tokens {
        return refuse(format!("it has {rows} token rows, at least 1 and at most {} run in a step", facts.max_tokens));
    }
    if step.positions.len() != rows {
        return refuse(format!("it has {rows} tokens and {} positions; give one for each", step.positions.len()));
    }
    if step.sequences.is_empty() || step.sequences.len() > facts.max_sequences {
        return refuse(format!(
            "it has {} sequences, at least 1 and at most {} run",
            step.sequences.len(),
            facts.max_sequences
        ));
    }
    let is_known = |t: i32| usize::try_from(t).map_or_else(|_| (!t as usize) < choices, |t| t < tokens_end);
    if let Some((row, token)) = step.tokens.iter().enumerate().find(|(_, t)| !is_known(**t)) {
        return refuse(format!("row {row} has token {token}, the model knows 0 to {}", tokens_end.saturating_sub(1)));
    }
    if let Some((row, position)) = step.positions.iter().enumerate().find(|(_, p)| **p < 0) {
        return refuse(format!("row {row} has position {position}, positions start at 0"));
    }
    check_wanted(step, facts)?;
    let mut out = Rows { start, ..Rows::default() };
    out.position = step.positions.iter().map(|p| *p as usize).collect();
    out.sequence = check_sequences(step)?;
    if step.translation.len() != facts.kv.len() {
        return refuse(format!(
            "it has {} translation tables, the model has {} KV kinds",
            step.translation.len(),
            facts.kv.len()
        ));
    }
    for (kind, layout) in facts.kv.iter().enumerate() {
        out.pages.push(translate_kind(step, layout, &step.translation[kind], facts.pool_pages[kind], start)?);
    }
    Ok(out)
}

fn check_wanted(step: &Step, facts: &ExecutorFacts) -> Result<(), StepError> {
    if step.wanted.len() > facts.max_wanted {
        return refuse(format!(
            "it wants {} rows, at most {} may be wanted in a step",
            step.wanted.len(),
            facts.max_wanted
        ));
    }
    for (i, wanted) in step.wanted.iter().enumerate() {
        if wanted.row >= step.tokens.len() {
            return refuse(format!("it wants row {}, it has {} rows", wanted.row, step.tokens.len()));
        }
        if i > 0 && step.wanted[i - 1].row >= wanted.row {
            return refuse(format!("wanted row {} follows {}, they must ascend", wanted.row, step.wanted[i - 1].row));
        }
    }
    Ok(())
}

fn check_sequences(step: &Step) -> Result<Vec<usize>, StepError> {
    let rows = step.tokens.len();
    let mut of_row = Vec::with_capacity(rows);
    for (s, sequence) in step.sequences.iter().enumerate() {
        if sequence.start != of_row.len() || sequence.len == 0 {
            return refuse(format!(
                "sequence {s} starts at row {} with {} rows, {} was to be its first row and it must have one",
                sequence.start,
                sequence.len,
                of_row.len()
            ));
        }
        if sequence.len > rows - sequence.start {
            return refuse(format!(
                "sequence {s} ends at row {}, it has {rows} rows",
                sequence.start.saturating_add(sequence.len)
            ));
        }
        for row in sequence.start..sequence.start + sequence.len {
            if row > sequence.start && step.positions[row] != step.positions[row - 1].saturating_add(1) {
                let (before, here) = (step.positions[row - 1], step.positions[row]);
                return refuse(format!(
                    "position {here} of row {row} follows {before} in sequence {s}, they must be consecutive"
                ));
            }
            of_row.push(s);
        }
    }
    if of_row.len() == rows {
        Ok(of_row)
    } else {
        refuse(format!("its sequences have {} rows, it has {rows}", of_row.len()))
    }
}

/// Pages of one kind for every sequence of a step that was checked.
pub(crate) fn translate_kind(
    step: &Step,
    layout: &KvLayout,
    table: &[PhysicalPage],
    pool_pages: usize,
    start: usize,
) -> Result<Vec<Pages>, StepError> {
    (0..step.sequences.len()).map(|s| translate(step, s, layout, table, pool_pages, start)).collect()
}

/// Physical pages of every page that a row of the sequence writes or sees.
fn translate(
    step: &Step,
    s: usize,
    layout: &KvLayout,
    table: &[PhysicalPage],
    pool_pages: usize,
    start: usize,
) -> Result<Pages, StepError> {
    if layout.layers.is_empty() {
        return Ok(Pages::default());
    }
    let sequence = &step.sequences[s];
    let first = step.positions[sequence.start] as usize;
    let last = first + sequence.len - 1;
    if first < start {
        return refuse(format!(
            "sequence {s} has a row at position {first}, its first position was declared to be {start}"
        ));
    }
    let page_tokens = layout.page_tokens as usize;
    let from = first_visible(layout, first, start) / page_tokens;
    let mut pages = Pages { first: from, physical: Vec::with_capacity(last / page_tokens + 1 - from) };
    for page in from..=last / page_tokens {
        let Some(virtual_page) = sequence.pages.get(page) else {
            return refuse(format!(
                "sequence {s} has {} pages of {page_tokens} tokens, its row at position {last} needs page {page}",
                sequence.pages.len()
            ));
        };
        let physical = table.get(*virtual_page as usize).copied().unwrap_or(-1);
        match usize::try_from(physical) {
            Ok(physical) if physical > 0 && physical < pool_pages => pages.physical.push(physical),
            _ => {
                return refuse(format!(
                    "virtual page {virtual_page} (page {page} of sequence {s}) is physical page {physical} of KV kind \
                     `{}`, rows from position {first} on need one of 1 to {}",
                    layout.kind,
                    pool_pages - 1
                ));
            }
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Rows of a sequence each, without a cache.
    fn checked(tokens: &[i32], choices: usize) -> Result<(), String> {
        let facts = ExecutorFacts {
            vocab: 8,
            max_tokens: 4,
            max_sequences: 4,
            max_wanted: 4,
            kv: Vec::new(),
            pool_pages: Vec::new(),
            shared_bytes: None,
            takes_choices: true,
            draft: None,
        };
        let rows = |start| engine::SequenceRows { start, len: 1, pages: Arc::default() };
        let step = Step {
            tokens: tokens.to_vec(),
            positions: vec![5; tokens.len()],
            sequences: (0..tokens.len()).map(rows).collect(),
            ..Step::default()
        };
        check_behind(&step, &facts, 8, 0, choices).map(drop).map_err(|e| e.to_string())
    }

    #[test]
    fn rows_stand_for_choices_that_the_step_before_makes() {
        assert_eq!(checked(&[7, -1, -3], 3), Ok(()));
        assert_eq!(checked(&[-4], 3), Err("step refused: row 0 has token -4, the model knows 0 to 7".to_owned()));
        assert!(checked(&[-1], 0).is_err() && checked(&[8], 9).is_err() && checked(&[i32::MIN], 9).is_err());
    }
}
