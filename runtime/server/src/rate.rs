//! How fast tokens come while there is work, however short its stretches are.

use std::time::{Duration, Instant};

/// Time of work that a rate is taken over, and after how much of it the log has a line about the load.
const RATE: Duration = Duration::from_secs(1);
const LINE: Duration = Duration::from_secs(10);

/// Adds up the time in which there is work. Times are arguments.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// When it was last looked at; nothing while there is no work.
    since: Option<Instant>,
    /// Work since the last rate was taken, and tokens by then.
    worked: Duration,
    tokens: u64,
    /// Work since the last line.
    line: Duration,
    per_second: f64,
}

impl Rate {
    /// Looks at the work: by now there were so many tokens, and there is more to do or not. Whether a line is due.
    pub fn look(&mut self, now: Instant, tokens: u64, is_working: bool) -> bool {
        if let Some(since) = self.since {
            self.worked += now.saturating_duration_since(since);
        }
        self.since = is_working.then_some(now);
        if self.worked < RATE {
            return false;
        }
        self.per_second = tokens.saturating_sub(self.tokens) as f64 / self.worked.as_secs_f64();
        self.tokens = tokens;
        self.line += std::mem::take(&mut self.worked);
        let is_due = self.line >= LINE;
        if is_due {
            self.line = Duration::ZERO;
        }
        is_due
    }

    /// Tokens a second over the last second of work.
    pub fn per_second(&self) -> f64 {
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_do_not_count_and_lose_nothing() {
        let (start, mut rate, mut lines) = (Instant::now(), Rate::default(), Vec::new());
        // A quarter of a second of work every five seconds, five tokens each.
        for i in 0..80u32 {
            let begun = start + Duration::from_secs(5) * i;
            lines.push(rate.look(begun, 5 * u64::from(i), true));
            lines.push(rate.look(begun + Duration::from_millis(250), 5 * u64::from(i + 1), false));
            assert_eq!(rate.per_second(), if i < 3 { 0.0 } else { 20.0 }, "{i}");
        }
        let due: Vec<usize> = lines.iter().enumerate().filter(|(_, due)| **due).map(|(at, _)| at).collect();
        assert_eq!(due, [79, 159]);
    }
}
