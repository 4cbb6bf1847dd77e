//! What the command line says about drafts: how long blocks are, how they are accepted, and what is forced.

use crate::failure::Failure;
use crate::flags;
use artifact::Artifact;
use clap::Args;
use engine::{AcceptRule, Counts, DraftLimits, Executor, Limits};
use serde_json::{Value, json};
use std::time::Instant;

/// Seconds that finding out what steps take may last; what is larger than fits is left out.
const MEASURING_SECONDS: f64 = 2.0;

/// Flags of drafts.
#[derive(Args, Clone, Debug)]
pub struct DraftArgs {
    /// Most tokens that a step verifies of one answer, the one before its drafts included: one of the lengths that the
    /// artifact has programs for, or 0 or 1, which draft nothing. The longest of them if absent, fewer where they do not pay.
    #[arg(long, visible_alias = "speculative-num-draft-tokens", value_name = "N")]
    pub draft_tokens: Option<u32>,
    /// How drafts are accepted where tokens are drawn, both without changing the distribution: one by one (token), or the
    /// longest beginning of a block (block); token if absent.
    #[arg(long, value_name = "RULE", value_parser = ["token", "block"])]
    draft_rule: Option<String>,
    /// How many rows a block has: as many as pay by what steps take and drafts do (adaptive), or always as many as may be
    /// (fixed); adaptive if absent.
    #[arg(long, value_name = "POLICY", value_parser = ["adaptive", "fixed"])]
    draft_policy: Option<String>,
    /// Draft each slot's best candidate by itself, not the path that the drafter chose.
    #[arg(long)]
    no_draft_selector: bool,
    /// For benchmarks: every block commits so many tokens on average, whatever the model says. The text is meaningless.
    #[arg(long, value_name = "TOKENS", value_parser = flags::within(1.0..=64.0), conflicts_with = "draft_rule")]
    pub simulate_acceptance: Option<f64>,
}

impl DraftArgs {
    /// As the engine wants it.
    pub fn limits(&self) -> DraftLimits {
        DraftLimits {
            rows: self.draft_tokens.map(|n| n as usize),
            rule: if self.draft_rule.as_deref() == Some("block") { AcceptRule::Block } else { AcceptRule::Token },
            costs: None,
            is_fixed: self.draft_policy.as_deref() == Some("fixed"),
            forced: self.simulate_acceptance,
            selects: !self.no_draft_selector,
        }
    }

    /// Whether drafts are switched off.
    fn is_off(&self) -> bool {
        self.draft_tokens.is_some_and(|rows| rows < 2)
    }

    /// A flag that says how drafts are to be.
    fn wish(&self) -> Option<&'static str> {
        let wishes = [
            (self.simulate_acceptance.is_some(), "--simulate-acceptance"),
            (self.draft_tokens.is_some_and(|rows| rows > 1), "--draft-tokens"),
            (self.draft_rule.is_some(), "--draft-rule"),
            (self.draft_policy.is_some(), "--draft-policy"),
            (self.no_draft_selector, "--no-draft-selector"),
        ];
        wishes.into_iter().find_map(|(is_wished, flag)| is_wished.then_some(flag))
    }

    /// Refuses wishes for drafts where nobody drafts, and lengths of blocks that the artifact has no program for. `runs` is
    /// whether the artifact's drafter gets weights.
    pub fn agree(&self, artifact: &Artifact, runs: bool) -> Result<(), Failure> {
        let blocks = artifact.drafter.as_ref().filter(|_| runs).map(|drafter| &drafter.blocks);
        match (self.wish(), blocks, self.draft_tokens) {
            (Some(flag), None, _) => Err(Failure::usage(format!(
                "R0110: `{flag}` is about drafts, and no drafter runs; compile with `beamc compile --draft` and name its weights with `--draft`, or leave the flag out"
            ))),
            (Some(flag), _, Some(off)) if self.is_off() => Err(Failure::usage(format!(
                "R0110: `{flag}` is about drafts, and `--draft-tokens {off}` switches them off; leave one of them out"
            ))),
            (_, Some(blocks), Some(rows)) if rows > 1 && blocks.iter().all(|b| b.tokens != u64::from(rows)) => {
                let lengths: Vec<String> = blocks.iter().map(|b| b.tokens.to_string()).collect();
                Err(Failure::usage(format!(
                    "R0113: `--draft-tokens` asks for blocks of {rows}, and the artifact has programs for blocks of {}; name one of these, or 0 for no drafts, or compile with `beamc compile --draft-tokens {rows}`",
                    lengths.join(", ")
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses steps of so few rows that no block of the artifact's drafter ever finds room.
    pub fn find_room(&self, artifact: &Artifact, step_tokens: Option<usize>) -> Result<(), Failure> {
        let shortest = artifact.drafter.iter().flat_map(|drafter| &drafter.blocks).map(|b| b.tokens).min();
        match (step_tokens, shortest.filter(|_| !self.is_off())) {
            (Some(rows), Some(shortest)) if (rows as u64) < shortest => Err(Failure::usage(format!(
                "R0113: `--chunked-prefill-size` lets a step take {rows} rows, and the shortest block has {shortest}; let it take more, or say `--draft-tokens 0` for no drafts"
            ))),
            _ => Ok(()),
        }
    }

    /// What the drafter of an artifact does when it is served, for whoever asks; null where the artifact has none.
    pub fn told(&self, artifact: &Artifact, runs: bool) -> Value {
        let Some(drafter) = &artifact.drafter else { return Value::Null };
        if !runs {
            return json!({"runs": false, "because": "`--draft` names no weights of the artifact's drafter"});
        }
        if self.is_off() {
            return json!({"runs": false, "because": "`--draft-tokens` switches drafts off"});
        }
        let most = self.draft_tokens.map_or(u64::MAX, u64::from);
        let blocks: Vec<u64> = drafter.blocks.iter().map(|b| b.tokens).filter(|rows| *rows <= most).collect();
        json!({
            "runs": true,
            "blocks": blocks,
            "rule": self.draft_rule.as_deref().unwrap_or("token"),
            "policy": self.draft_policy.as_deref().unwrap_or("adaptive"),
        })
    }

    /// What every output that has forced runs behind it says; null where nothing is forced.
    pub fn forced(&self) -> Value {
        let of = |tokens| json!({"method": "match-expected", "tokens_per_block": tokens, "tokens": "real-draft-token"});
        self.simulate_acceptance.map_or(Value::Null, of)
    }
}

/// Finds out what steps take on an executor with a drafter, where the policy is to know it.
pub fn learn_costs<E: Executor>(executor: &mut E, limits: &mut Limits) -> Result<(), Failure> {
    let draft = &limits.draft;
    if draft.rows.is_some_and(|rows| rows < 2) || draft.forced.is_some() || draft.is_fixed {
        return Ok(());
    }
    let start = Instant::now();
    let mut now = || start.elapsed().as_secs_f64();
    limits.draft.costs =
        engine::measure(executor, &limits.entry, MEASURING_SECONDS, &mut now).map_err(Failure::device)?;
    Ok(())
}

/// What became of drafts between two counts.
pub fn report(before: &Counts, after: &Counts) -> Value {
    let (a, b) = (&before.draft, &after.draft);
    let (blocks, drafted) = (b.verified - a.verified, b.drafted - a.drafted);
    let (accepted, committed) = (b.accepted - a.accepted, b.committed - a.committed);
    let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
    let slots =
        a.slots.iter().zip(&b.slots).map(|(a, b)| (b.0 - a.0, b.1 - a.1)).take_while(|(reached, _)| *reached > 0);
    json!({
        "steps": after.steps - before.steps,
        "blocks": blocks,
        "tokens_per_block": share(committed, blocks),
        "accept_rate": share(accepted, drafted),
        "accept_rate_by_position": slots.map(|(reached, stood)| share(stood, reached)).collect::<Vec<_>>(),
    })
}
