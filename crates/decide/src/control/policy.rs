//! How the controller goes about it: what it wants, how sure it has to be, how often it may write.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::Goal;

/// What the operator wants, and how carefully it is kept.
///
/// Times are whole seconds in the configuration. The defaults are those of `docs/controller.md`,
/// with the reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// What is wanted.
    pub goal: Goal,
    /// A move that is reckoned by the cost model must gain at least this share of a CPU's time.
    pub min_gain: f64,
    /// So long a knob keeps its value before it may go back to one that it had lately.
    #[serde(with = "seconds")]
    pub dwell: Duration,
    /// So long without a wish for a change, and what was learned of a knob is forgotten: the next
    /// change is a first one.
    #[serde(with = "seconds")]
    pub calm: Duration,
    /// After its second change without a calm, a knob has to be wanted otherwise without a break
    /// for so long before it is changed again; it doubles with each further change.
    #[serde(with = "seconds")]
    pub hold_off: Duration,
    /// It doubles up to here.
    #[serde(with = "seconds")]
    pub hold_off_most: Duration,
    /// No more writes than this in any 60 seconds; reverts and what a reset undid count too, but
    /// are not held up by it.
    pub changes_per_minute: u32,
    /// So long a knob that someone else has written is left to them; `None` means until
    /// reconfigured.
    #[serde(with = "seconds::optional")]
    pub yield_for: Option<Duration>,
    /// Windows that are compared with those before, once something was written.
    pub verify_windows: u32,
    /// What was written is taken back when it is sure that a received megabyte costs more by this
    /// share.
    pub worse_by: f64,
}

/// The default observation window: one cycle.
pub const WINDOW: Duration = Duration::from_secs(10);

impl Default for Policy {
    fn default() -> Self {
        Self {
            goal: Goal::default(),
            min_gain: 0.0001,
            dwell: Duration::from_secs(120),
            calm: Duration::from_secs(1800),
            hold_off: Duration::from_secs(600),
            hold_off_most: Duration::from_secs(6 * 3600),
            changes_per_minute: 256,
            yield_for: None,
            verify_windows: 6,
            worse_by: 0.05,
        }
    }
}

impl Policy {
    /// The hold-off after so many others.
    pub(super) fn hold_off_at(&self, level: u32) -> Duration {
        self.hold_off.saturating_mul(1 << level.min(16)).min(self.hold_off_most)
    }
}

/// Durations as whole seconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(duration.as_secs())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_secs)
    }

    pub(super) mod optional {
        use std::time::Duration;

        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        pub(in crate::control) fn serialize<S: Serializer>(
            value: &Option<Duration>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            value.map(|duration| duration.as_secs()).serialize(serializer)
        }

        pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_secs))
        }
    }
}
