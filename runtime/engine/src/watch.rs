//! How long things take, for reports: nothing that is decided depends on it. Without a clock, which is an argument like all else,
//! nothing is measured.

/// Nanoseconds since some moment.
pub type Clock = fn() -> u64;

/// Durations of one kind of thing since they were last taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    clock: Option<Clock>,
    durations_ns: Vec<u64>,
}

/// Durations that nobody takes are no reason to grow.
const MOST: usize = 1 << 12;

impl Watch {
    pub fn set(&mut self, clock: Clock) {
        self.clock = Some(clock);
    }

    /// Now, if there is a clock.
    pub fn now(&self) -> Option<u64> {
        self.clock.map(|clock| clock())
    }

    /// Something that began then is over.
    pub fn over(&mut self, begun: Option<u64>) {
        if let (Some(begun), Some(now)) = (begun, self.now())
            && self.durations_ns.len() < MOST
        {
            self.durations_ns.push(now.saturating_sub(begun));
        }
    }

    /// What has been measured, in nanoseconds.
    pub fn take(&mut self, into: &mut Vec<u64>) {
        into.append(&mut self.durations_ns);
    }
}
