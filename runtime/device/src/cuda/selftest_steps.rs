//! Which steps a test of every kernel runs: kernels belong to buckets, so there is a step for each bucket that a step can fall into.

use ir::{Bucket, RowsPerSequence};

/// Longest prompt that is interpreted; larger buckets are reached by many short ones.
const LONGEST_PROMPT: usize = 600;

/// Rows that go on with a prompt, in a step of each phase.
const CHUNK: usize = 20;

/// Rows of one sequence in a step: which sequence, its first position, how many.
pub type Rows = (usize, usize, usize);

/// Steps of sequences that go on from one to the next.
#[derive(Default)]
pub struct Course {
    /// Rows of every step.
    pub steps: Vec<Vec<Rows>>,
    /// Rows that each sequence has at the end.
    pub lengths: Vec<usize>,
}

impl Course {
    /// A prompt of several sequences, some steps of a row each, and then a step for every bucket.
    pub fn of(lengths: &[usize], decoded: usize, buckets: &[Bucket]) -> Course {
        let mut course = Course::default();
        course.step(lengths.iter().copied().enumerate());
        for _ in 0..decoded {
            course.step((0..lengths.len()).map(|sequence| (sequence, 1)));
        }
        for (index, bucket) in buckets.iter().enumerate() {
            let before = |count: fn(&Bucket) -> u64| {
                let same = |b: &&Bucket| std::mem::discriminant(&b.rows) == std::mem::discriminant(&bucket.rows);
                buckets[..index].iter().filter(same).map(count).max().unwrap_or(0) as usize
            };
            let sequences = before(|b| b.sequences.min(b.wanted)) + 1;
            let rows: Vec<(usize, usize)> = match bucket.rows {
                RowsPerSequence::One => (0..sequences).map(|s| (s, 1)).collect(),
                RowsPerSequence::Block(rows) => {
                    (0..before(|b| b.sequences.min(b.tokens)) + 1).map(|s| (s, rows as usize)).collect()
                }
                RowsPerSequence::Ragged => match before(|b| b.tokens) + 1 {
                    rows @ 2..=LONGEST_PROMPT => vec![(course.lengths.len(), rows)],
                    _ => (0..sequences).map(|s| (s, 2)).collect(),
                },
            };
            // A bucket that is no larger than one before it is reached by no step.
            let fits = rows.len() as u64 <= bucket.sequences.min(bucket.wanted);
            if fits && rows.iter().map(|(_, count)| *count as u64).sum::<u64>() <= bucket.tokens {
                course.step(rows);
            }
        }
        course
    }

    /// One step of each phase: a prompt of several sequences, the rest of one's beside rows of the others, a row each, a row of one.
    pub fn of_phases(lengths: &[usize]) -> Course {
        let mut course = Course::default();
        course.step(lengths.iter().copied().enumerate());
        course.step((0..lengths.len()).map(|sequence| (sequence, if sequence == 0 { CHUNK } else { 1 })));
        course.step((0..lengths.len()).map(|sequence| (sequence, 1)));
        course.step([(0, 1)]);
        course
    }

    fn step(&mut self, rows: impl IntoIterator<Item = (usize, usize)>) {
        let mut step = Vec::new();
        for (sequence, count) in rows {
            if self.lengths.len() <= sequence {
                self.lengths.resize(sequence + 1, 0);
            }
            step.push((sequence, self.lengths[sequence], count));
            self.lengths[sequence] += count;
        }
        self.steps.push(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::choose_bucket;
    use engine::{SequenceRows, Step, WantedRow};

    fn bucket(rows: RowsPerSequence, tokens: u64, sequences: u64, wanted: u64) -> Bucket {
        Bucket { entry: "forward".to_owned(), rows, tokens, sequences, wanted }
    }

    /// The step as far as a bucket is chosen by it.
    fn step(rows: &[Rows]) -> Step {
        let mut step = Step::default();
        for (_, first, count) in rows {
            let start = step.tokens.len();
            step.tokens.extend(std::iter::repeat_n(0, *count));
            step.positions.extend((*first..first + count).map(|p| p as i32));
            step.sequences.push(SequenceRows { start, len: *count, pages: Vec::new().into() });
            step.wanted.push(WantedRow { row: step.tokens.len() - 1, sampling: None, mask: None, logits: true });
        }
        step
    }

    #[test]
    fn phases_go_on_where_sequences_were() {
        let course = Course::of_phases(&[70, 33, 1]);
        let prompt = vec![(0, 0, 70), (1, 0, 33), (2, 0, 1)];
        let chunk = vec![(0, 70, CHUNK), (1, 33, 1), (2, 1, 1)];
        assert_eq!(course.steps, [prompt, chunk, vec![(0, 90, 1), (1, 34, 1), (2, 2, 1)], vec![(0, 91, 1)]]);
        assert_eq!(course.lengths, [92, 35, 3]);
    }

    #[test]
    fn every_bucket_has_a_step_and_sequences_go_on_where_they_were() {
        use RowsPerSequence::{Block, One, Ragged};
        let ones = [1, 2, 4, 8, 16, 32, 64, 128, 256].map(|n| bucket(One, n, n, n));
        let blocks = [(8, 1), (32, 4), (128, 16), (512, 64)].map(|(t, s)| bucket(Block(8), t, s, t));
        let ragged = [(512, 64), (2048, 128), (8192, 256)].map(|(t, s)| bucket(Ragged, t, s, s));
        let mut buckets: Vec<Bucket> = ones.into_iter().chain(blocks).chain(ragged).collect();
        buckets.sort_by_key(|b| b.tokens);
        let course = Course::of(&[70, 33, 1], 3, &buckets);
        let of = |rows: &Vec<Rows>| choose_bucket(&step(rows), buckets.iter().enumerate());
        let mut reached: Vec<usize> = course.steps.iter().filter_map(of).collect();
        assert_eq!(reached.len(), course.steps.len(), "every step fits a bucket");
        reached.sort_unstable();
        reached.dedup();
        assert_eq!(reached, (0..buckets.len()).collect::<Vec<_>>());
        let mut lengths = vec![0; course.lengths.len()];
        for (sequence, first, count) in course.steps.iter().flatten() {
            assert_eq!(*first, lengths[*sequence]);
            lengths[*sequence] += count;
        }
        assert_eq!(lengths, course.lengths);
        assert!(course.steps.iter().any(|rows| rows.len() == 1 && rows[0].2 == 513), "a whole long prompt");
    }
}
