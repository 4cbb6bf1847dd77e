//! What the command line says about drafts: how long blocks are, how they are accepted, and what is forced.

use crate::failure::Failure;
use crate::flags;
use clap::Args;
use engine::{AcceptRule, Counts, DraftLimits, Executor, Limits};
use serde_json::{Value, json};
use std::time::Instant;

/// Seconds that finding out what steps take may last; what is larger than fits is left out.
const MEASURING_SECONDS: f64 = 2.0;

/// Flags of drafts.
#[derive(Args, Clone, Debug)]
pub struct DraftArgs {
    /// Most tokens that a step verifies of one answer, the one before its drafts included; 0 and 1 draft nothing. As many as
    /// the artifact's drafter proposes if absent, fewer where they do not pay.
    #[arg(long, visible_alias = "speculative-num-draft-tokens", value_name = "N", value_parser = clap::value_parser!(u32).range(..=64))]
    pub draft_tokens: Option<u32>,
    /// How drafts are accepted where tokens are drawn, both without changing the distribution: one by one, or the longest
    /// beginning of a block.
    #[arg(long, value_name = "RULE", default_value = "token", value_parser = ["token", "block"])]
    draft_rule: String,
    /// How many rows a block has: as many as pay by what steps take and drafts do, or always as many as may be.
    #[arg(long, value_name = "POLICY", default_value = "adaptive", value_parser = ["adaptive", "fixed"])]
    draft_policy: String,
    /// Draft each slot's best candidate by itself, not the path that the drafter chose.
    #[arg(long)]
    no_draft_selector: bool,
    /// For benchmarks: every block commits so many tokens on average, whatever the model says. The text is meaningless.
    #[arg(long, value_name = "TOKENS", value_parser = flags::within(1.0..=64.0))]
    pub simulate_acceptance: Option<f64>,
}

impl DraftArgs {
    /// As the engine wants it.
    pub fn limits(&self) -> DraftLimits {
        DraftLimits {
            rows: self.draft_tokens.map(|n| n as usize),
            rule: if self.draft_rule == "block" { AcceptRule::Block } else { AcceptRule::Token },
            costs: None,
            is_fixed: self.draft_policy == "fixed",
            forced: self.simulate_acceptance,
            selects: !self.no_draft_selector,
        }
    }

    /// What every output that has forced runs behind it says; null where nothing is forced.
    pub fn forced(&self) -> Value {
        let of = |tokens| json!({"method": "match-expected", "tokens_per_block": tokens, "tokens": "real-draft-token"});
        self.simulate_acceptance.map_or(Value::Null, of)
    }
}

/// Finds out what steps take on an executor with a drafter, where the policy is to know it. Refuses wishes for drafts where
/// nobody drafts.
pub fn learn_costs<E: Executor>(executor: &mut E, limits: &mut Limits) -> Result<(), Failure> {
    agree(executor, &limits.draft)?;
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

/// Refuses wishes for drafts where nobody drafts.
pub fn agree<E: Executor>(executor: &E, limits: &DraftLimits) -> Result<(), Failure> {
    let flag = match (limits.rows, limits.forced) {
        (_, Some(_)) => "--simulate-acceptance",
        (Some(rows), None) if rows > 1 => "--draft-tokens",
        _ => return Ok(()),
    };
    if executor.facts().draft.is_some() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "R0110: `{flag}` is about drafts, and no drafter runs; compile with `beamc compile --draft` and name its weights with `--draft`, or leave the flag out"
    )))
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
