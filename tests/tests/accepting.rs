//! Acceptance of recorded blocks: how many drafts stand and which token follows, greedily and by both rules, as another
//! implementation has it.

use engine::{AcceptRule, Block, Draft, Sampling, WantedRow, accept};
use std::collections::BTreeMap;
use std::sync::Arc;
use suites::fixture;
use suites::safetensors_file::{Numbers, read};

/// top-p and top-k of the three recorded requests; the last takes the best token.
const FILTERS: [(f32, u32); 3] = [(0.99, 0), (0.9, 20), (1.0, 1)];

struct Golden {
    file: BTreeMap<String, Numbers>,
    rows: usize,
}

impl Golden {
    /// The part of a tensor that belongs to a request.
    fn of(&self, name: &str, request: usize) -> &[f32] {
        let name = format!("b{}.f32.{name}", self.rows);
        let numbers = &self.file.get(&name).unwrap_or_else(|| panic!("{name}")).data;
        let each = numbers.len() / FILTERS.len();
        &numbers[request * each..(request + 1) * each]
    }

    fn ids(&self, name: &str, request: usize) -> Vec<u32> {
        self.of(name, request).iter().map(|id| *id as u32).collect()
    }

    /// Tokens of the accepted run of a recorded block, and the one behind it.
    fn run(&self, request: usize, rule: AcceptRule, sampling: &Sampling) -> Vec<u32> {
        let draft = Draft {
            tokens: self.ids("c1.sampled_tokens", request),
            candidates: self.ids("c1.candidate_ids", request),
            probabilities: self.of("c1.q_rows", request).to_vec(),
        };
        let mut coins = self.of("in.accept_coins", request).to_vec();
        coins.extend(self.of("in.final_coins", request));
        let block = Block { sequence: 0, wanted: 0, draft: Arc::new(draft), rule, coins, forced: None };
        let wanted = |row| WantedRow { row, sampling: Some(sampling.clone()), mask: None, logits: false };
        let wanted: Vec<WantedRow> = (0..self.rows).map(wanted).collect();
        let logits = self.of("verify.target_logits", request);
        let vocab = logits.len() / self.rows;
        let (run, fault) = accept(&block, &wanted, |row| &logits[row * vocab..(row + 1) * vocab]);
        assert_eq!(fault, None);
        run.into_iter().map(|token| token.id).collect()
    }
}

#[test]
fn recorded_blocks_are_accepted_as_recorded() {
    for rows in [4, 8] {
        let golden = Golden { file: read(&fixture("dflash2-tiny").join("golden.safetensors")), rows };
        for (request, (top_p, top_k)) in FILTERS.into_iter().enumerate() {
            let temperature = golden.of("in.temperatures", request)[0];
            let drawn = Sampling { temperature, top_p, top_k, ..Sampling::default() };
            let drafts = golden.ids("c1.sampled_tokens", request);
            for (name, rule, sampling) in [
                ("greedy", AcceptRule::Token, &Sampling::default()),
                ("token", AcceptRule::Token, &drawn),
                ("block", AcceptRule::Block, &drawn),
            ] {
                let run = golden.run(request, rule, sampling);
                let accepted = golden.ids(&format!("verify.{name}_accept"), request)[0] as usize;
                let mut expected = drafts[..accepted].to_vec();
                expected.extend(golden.ids(&format!("verify.{name}_bonus"), request));
                assert_eq!(run, expected, "{name}, block of {rows}, request {request}");
            }
        }
    }
}
