//! [`Parts`]: what a vector costs on a CPU, by cause.

use serde::{Deserialize, Serialize};

/// The cost of one vector on one CPU, by what causes it, in CPU-nanoseconds per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Parts {
    /// IPIs of wakeups on other CPUs.
    pub wakeups: f64,
    /// Cache lines that the readers fetch.
    pub lines: f64,
    /// Cache lines fetched from the device's node.
    pub device: f64,
    /// Slower work on a slow core.
    pub slow: f64,
    /// Packets that one vector hands to another.
    pub handing: f64,
    /// Work of others on that CPU, or on its core, that waits while the vector is polled; a NAPI
    /// kthread's own waits.
    pub waiting: f64,
    /// Vectors that share a CPU or core, and CPUs that are full.
    pub crowding: f64,
}

impl Parts {
    /// All parts.
    pub fn total(&self) -> f64 {
        self.cpu_time() + self.waiting + self.crowding
    }

    /// The CPU time that a move saves in some parts and adds in others, added up; without what
    /// depends on other vectors.
    pub(super) fn changed(self, before: Self) -> f64 {
        let of = |it: Self| [it.wakeups, it.lines, it.device, it.slow];
        of(self).iter().zip(of(before)).map(|(after, before)| (after - before).abs()).sum()
    }

    /// What takes CPU time; the rest delays work.
    pub fn cpu_time(&self) -> f64 {
        self.wakeups + self.lines + self.device + self.slow + self.handing
    }

    /// Whole nanoseconds.
    pub fn rounded(mut self) -> Self {
        for part in self.each_mut() {
            // Adding 0 makes -0 positive.
            *part = part.round() + 0.0;
        }
        self
    }

    fn each_mut(&mut self) -> [&mut f64; 7] {
        let Self { wakeups, lines, device, slow, handing, waiting, crowding } = self;
        [wakeups, lines, device, slow, handing, waiting, crowding]
    }
}

impl std::ops::AddAssign for Parts {
    fn add_assign(&mut self, mut other: Self) {
        for (part, more) in self.each_mut().into_iter().zip(other.each_mut()) {
            *part += *more;
        }
    }
}
