//! What came of a run, as a table or as JSON.

use super::drive::Measured;
use super::sessions::Shape;
use crate::bench::stats::{number, percentile, spread};
use clap::ValueEnum;
use engine::HostUse;
use serde_json::{Value, json};
use std::io::Write;

/// A run.
pub struct Run {
    pub model: String,
    pub artifact: String,
    pub shape: Shape,
    pub sessions: usize,
    pub concurrency: usize,
    pub devices: u64,
    pub page_tokens: usize,
    pub cache_tokens: usize,
    pub preempted: u64,
    pub steps: u64,
    /// How runs of drafts were forced, if they were.
    pub forced_acceptance: Value,
    /// What became of drafts, where there is a drafter.
    pub drafts: Option<Value>,
    pub host: HostUse,
    pub turns: Vec<Measured>,
    /// From the first prompt to the last token.
    pub seconds: f64,
    /// The target whose times these are, where nothing was measured.
    pub predicted_for: Option<String>,
    /// Share of the time in which the device ran.
    pub busy_share: Option<f64>,
}

/// Sums of some turns.
#[derive(Default)]
struct Sums {
    prompt: usize,
    cached: usize,
    ideal: usize,
    answer: usize,
}

impl Sums {
    fn of<'t>(turns: impl Iterator<Item = &'t Measured>) -> Sums {
        turns.fold(Sums::default(), |mut sums, t| {
            sums.prompt += t.prompt_tokens;
            sums.cached += t.cached_tokens;
            sums.ideal += t.ideal_tokens;
            sums.answer += t.answer_tokens;
            sums
        })
    }

    fn share(&self, tokens: usize) -> f64 {
        tokens as f64 / self.prompt.max(1) as f64
    }
}

impl Run {
    fn report(&self) -> Value {
        let sums = Sums::of(self.turns.iter());
        let rate = |tokens: usize| number(tokens as f64 / self.seconds / self.devices as f64);
        // A user waits for the first token and then reads the rest.
        let speed = |t: &Measured| (t.answer_tokens > 1).then(|| (t.answer_tokens - 1) as f64 / (t.last - t.first));
        let speeds: Vec<f64> = self.turns.iter().filter_map(speed).filter(|s| s.is_finite()).collect();
        let mut sorted = speeds.clone();
        sorted.sort_by(f64::total_cmp);
        let waits = self.turns.iter().map(|t| t.first - t.asked).collect();
        let wrong = self.turns.iter().filter(|t| t.cached_tokens != t.ideal_tokens).count();
        let word = self.shape.to_possible_value().map(|v| v.get_name().to_owned());
        json!({
            "ok": true,
            "predicted": self.predicted_for.is_some(),
            "target": self.predicted_for,
            "model": self.model,
            "artifact": self.artifact,
            "shape": word,
            "sessions": self.sessions,
            "concurrency": self.concurrency,
            "devices": self.devices,
            "seconds": number(self.seconds),
            "steps": self.steps,
            "forced_acceptance": self.forced_acceptance,
            "drafts": self.drafts,
            "device_busy_share": self.busy_share,
            "tokens_per_second_per_device": {
                "all_input_and_output": rate(sums.prompt + sums.answer),
                "computed_input_and_output": rate(sums.prompt - sums.cached + sums.answer),
                "output": rate(sums.answer),
            },
            "user_tokens_per_second": spread(speeds, "token/s"),
            // Nine of ten users are at least so fast.
            "user_tokens_per_second_of_nine_in_ten": number(percentile(&sorted, 0.1)),
            "time_to_first_token": spread(waits, "s"),
            "cache": {
                "page_tokens": self.page_tokens,
                "tokens": self.cache_tokens,
                "hit_rate": number(sums.share(sums.cached)),
                "ideal_hit_rate": number(sums.share(sums.ideal)),
                "points_below_ideal": number(100.0 * (sums.share(sums.ideal) - sums.share(sums.cached))),
                "turns_below_ideal": wrong,
                "preempted": self.preempted,
                "host_bytes": self.host.total_bytes,
                "pages_to_host": self.host.backed_up_pages,
                "pages_from_host": self.host.loaded_pages,
            },
            "turns": self.by_turn(),
        })
    }

    fn by_turn(&self) -> Vec<Value> {
        let last = self.turns.iter().map(|t| t.turn).max().unwrap_or(0);
        let of = |turn: usize| {
            let all = || self.turns.iter().filter(move |t| t.turn == turn);
            let (sums, count) = (Sums::of(all()), all().count().max(1));
            let mut waits: Vec<f64> = all().map(|t| t.first - t.asked).collect();
            waits.sort_by(f64::total_cmp);
            json!({
                "turn": turn,
                "prompt_tokens": sums.prompt / count,
                "cached_tokens": sums.cached / count,
                "ideal_tokens": sums.ideal / count,
                "time_to_first_token_p50_s": number(percentile(&waits, 0.5)),
            })
        };
        (0..=last).map(of).collect()
    }

    /// Writes the report.
    pub fn print(&self, json: bool) {
        let report = self.report();
        let text = if json { format!("{report:#}\n") } else { self.table(&report) };
        // A closed pipe is the reader's decision, not a fault.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    fn table(&self, report: &Value) -> String {
        let at = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let how = match &self.predicted_for {
            Some(target) => format!("PREDICTED by the cost model of {target}, nothing is measured"),
            None => "measured".to_owned(),
        };
        let how = match self.forced_acceptance["tokens_per_block"].as_f64() {
            Some(tokens) => format!("{how}; runs of drafts FORCED to {tokens} tokens, the text is meaningless"),
            None => how,
        };
        let mut text = format!(
            "{} for {}, {} devices, {} sessions, {} at once: {how}\n\
             {:.2} s in {} steps; tokens a second and device: {:.1} with cached input, {:.1} without, {:.1} of output\n\
             user: {:.1} token/s in the middle, nine of ten have {:.1}; first token after {:.3} s in the middle, {:.3} s for nine of ten\n\
             cache of {} tokens: {:.2} % found, {:.2} % at best, {} of {} turns below their best; {} pages from the host, {} preemptions\n\
             turn   prompt   cached    ideal   first token\n",
            self.model,
            self.artifact,
            self.devices,
            self.sessions,
            self.concurrency,
            self.seconds,
            self.steps,
            at("/tokens_per_second_per_device/all_input_and_output"),
            at("/tokens_per_second_per_device/computed_input_and_output"),
            at("/tokens_per_second_per_device/output"),
            at("/user_tokens_per_second/p50"),
            at("/user_tokens_per_second_of_nine_in_ten"),
            at("/time_to_first_token/p50"),
            at("/time_to_first_token/p90"),
            self.cache_tokens,
            at("/cache/hit_rate") * 100.0,
            at("/cache/ideal_hit_rate") * 100.0,
            report["cache"]["turns_below_ideal"],
            self.turns.len(),
            self.host.loaded_pages,
            self.preempted,
        );
        for turn in report["turns"].as_array().into_iter().flatten() {
            let n = |key: &str| turn[key].as_u64().unwrap_or(0);
            text += &format!(
                "{:>4} {:>8} {:>8} {:>8} {:>10.3} s\n",
                n("turn"),
                n("prompt_tokens"),
                n("cached_tokens"),
                n("ideal_tokens"),
                turn["time_to_first_token_p50_s"].as_f64().unwrap_or(f64::NAN),
            );
        }
        text
    }
}
