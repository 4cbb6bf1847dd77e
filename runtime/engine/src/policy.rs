//! Whose turn it is: the order in which requests that wait are tried.

use std::str::FromStr;

/// What goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// What came first.
    #[default]
    FirstCome,
    /// What has the most of its prompt in the cache; among equals, what came first.
    LongestPrefix,
    /// The highest [`crate::Request::priority`]; among equals, what came first. It may take a running request's place.
    Priority,
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "fcfs" => Ok(Policy::FirstCome),
            "lpm" => Ok(Policy::LongestPrefix),
            "priority" => Ok(Policy::Priority),
            other => Err(format!("E0310: there is no policy `{other}`; take `fcfs`, `lpm` or `priority`")),
        }
    }
}

/// A request that waits, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its place in the queue.
    pub place: usize,
    pub priority: i32,
    pub cached_pages: usize,
    /// Requests that came later and started earlier.
    pub passed: usize,
}

/// Puts candidates in the order in which they are tried. One that was passed by `most_passed` others stands alone: nobody
/// starts before it does.
pub(crate) fn order(policy: Policy, most_passed: usize, candidates: &mut Vec<Candidate>) {
    if let Some(patient) = candidates.iter().find(|c| c.passed >= most_passed).copied() {
        candidates.clear();
        return candidates.push(patient);
    }
    match policy {
        Policy::FirstCome => {}
        Policy::LongestPrefix => candidates.sort_by_key(|c| (std::cmp::Reverse(c.cached_pages), c.place)),
        Policy::Priority => candidates.sort_by_key(|c| (std::cmp::Reverse(c.priority), c.place)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(policy: Policy, most_passed: usize) -> Vec<usize> {
        let candidate = |place, priority, cached_pages, passed| Candidate { place, priority, cached_pages, passed };
        let mut all = vec![candidate(0, 1, 0, 3), candidate(1, 5, 2, 0), candidate(2, 5, 7, 1), candidate(3, -1, 7, 0)];
        order(policy, most_passed, &mut all);
        all.iter().map(|c| c.place).collect()
    }

    #[test]
    fn policies_order_and_patience_ends() {
        assert_eq!(places(Policy::FirstCome, 9), [0, 1, 2, 3]);
        assert_eq!(places(Policy::LongestPrefix, 9), [2, 3, 1, 0]);
        assert_eq!(places(Policy::Priority, 9), [1, 2, 0, 3]);
        for policy in [Policy::FirstCome, Policy::LongestPrefix, Policy::Priority] {
            assert_eq!(places(policy, 3), [0]);
        }
        assert_eq!("lpm".parse(), Ok(Policy::LongestPrefix));
        assert!("best".parse::<Policy>().is_err_and(|e| e.starts_with("E0310")));
    }
}
