//! From a step's logits to its output: what every executor does once the rows are computed.

use crate::{SampleError, SampledToken, Step, StepOutput, accept, sample};

/// Chooses tokens from the wanted rows' logits and hands out those asked for; `logits` gives those of a wanted row by its
/// place among them.
pub fn answer<'l>(step: &Step, logits: impl Fn(usize) -> &'l [f32]) -> StepOutput {
    answer_beside(step, logits, |_| None)
}

/// The same where a device has chosen some of the tokens: `chosen` gives those, and what it found instead, by their places among the
/// wanted rows. Of blocks it chooses none. Logits are asked for of the other rows, and of those that want them.
pub fn answer_beside<'l>(
    step: &Step,
    logits: impl Fn(usize) -> &'l [f32],
    chosen: impl Fn(usize) -> Option<Result<SampledToken, SampleError>>,
) -> StepOutput {
    let mut output = StepOutput::default();
    let mut blocks = step.blocks.iter().peekable();
    while let Some(wanted) = step.wanted.get(output.tokens.len()) {
        let at = output.tokens.len();
        if let Some(block) = blocks.next_if(|block| block.wanted <= at) {
            let len = step.sequences.get(block.sequence).map_or(1, |s| s.len.max(1));
            let rows = step.wanted.get(at..).unwrap_or_default();
            let (run, fault) = accept(block, rows.get(..len).unwrap_or(rows), |row| logits(at + row));
            output.faults.extend(fault.map(|text| (at + run.len(), text)));
            output.tokens.extend(run.into_iter().map(Some));
            output.tokens.resize(at + len.min(rows.len()), None);
        } else {
            let own = || wanted.sampling.as_ref().map(|s| sample(logits(at), s, wanted.mask.as_deref()));
            let token = chosen(at).or_else(own);
            // One row that leaves no choice is the fault of its request; the others go on.
            if let Some(Err(error)) = &token {
                output.faults.push((at, error.to_string()));
            }
            output.tokens.push(token.and_then(Result::ok));
        }
    }
    output.logits.extend(step.wanted.iter().enumerate().map(|(at, w)| w.logits.then(|| logits(at).to_vec())));
    output
}

/// For each row of a step whether its token stays in its sequence: all but the rejected rows of blocks. A drafter's cache is
/// brought up to date with these.
pub fn lasting_rows(step: &Step, output: &StepOutput) -> Vec<bool> {
    let mut lasting = vec![true; step.tokens.len()];
    for block in &step.blocks {
        let Some(sequence) = step.sequences.get(block.sequence) else { continue };
        let rows = lasting.iter_mut().skip(sequence.start).take(sequence.len);
        for (row, stays) in rows.enumerate() {
            *stays = output.tokens.get(block.wanted + row).is_some_and(Option::is_some);
        }
    }
    lasting
}
