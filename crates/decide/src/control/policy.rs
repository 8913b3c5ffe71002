//! The policy: what is wanted, how certain the controller must be, and how often it may write.

use std::time::Duration;

use netsilo_model::cost::problem::SECOND_NS;
use serde::{Deserialize, Serialize};

use crate::plan::Goal;

/// What the operator wants, and how cautiously the controller pursues it.
///
/// Times are whole seconds in the configuration. `docs/daemon.md` has the reasons for the defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// What is wanted.
    pub goal: Goal,
    /// A move that is estimated by the cost model must gain at least this share of a CPU's time.
    pub min_gain: f64,
    /// A knob keeps its value for at least this long before it may return to an earlier one.
    #[serde(with = "seconds")]
    pub dwell: Duration,
    /// If no change of a knob is wanted for this long, the knob has had a calm: its next change
    /// counts as the first.
    #[serde(with = "seconds")]
    pub calm: Duration,
    /// After the second change of a knob without a calm, the next change must be wanted for this
    /// long without interruption. The time doubles with each further change. A change that gains
    /// twice [`HELD_GAIN`] loses twice as much while it is held, and is held half as long.
    #[serde(with = "seconds")]
    pub hold_off: Duration,
    /// Maximum hold-off after doubling.
    #[serde(with = "seconds")]
    pub hold_off_most: Duration,
    /// Maximum number of writes in any 60 seconds. Includes reverts, which come first, and
    /// re-applications.
    pub changes_per_minute: u32,
    /// A knob that another program has written is left to it for this long. `None` means until the
    /// next configuration.
    #[serde(with = "seconds::optional")]
    pub yield_for: Option<Duration>,
    /// Number of windows after a write that are compared with those before it.
    pub verify_windows: u32,
    /// A batch is reverted if a received megabyte costs at least this share more, with 99%
    /// confidence.
    pub worse_by: f64,
}

/// The gain, as a share of a CPU's time, of a change that is held for [`Policy::hold_off`].
const HELD_GAIN: f64 = 0.05;

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
    /// The hold-off at a level, of a change with this gain (CPU-nanoseconds per second). There is
    /// none at level 0.
    pub(super) fn hold_off_at(&self, level: u32, gain: Option<i64>) -> Duration {
        let Some(doubled) = level.checked_sub(1) else { return Duration::ZERO };
        let cost = gain.map_or(1.0, |gain| gain.max(1) as f64 / (HELD_GAIN * SECOND_NS));
        let seconds = self.hold_off.as_secs_f64() * f64::from(1_u32 << doubled.min(16)) / cost;
        Duration::from_secs_f64(seconds.min(self.hold_off_most.as_secs_f64()))
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

        pub(in super::super) fn serialize<S: Serializer>(
            value: &Option<Duration>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            value.map(|duration| duration.as_secs()).serialize(serializer)
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_secs))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gains_more_is_held_for_a_shorter_time() {
        let held = |level, gain| Policy::default().hold_off_at(level, gain).as_secs();
        assert_eq!([0, 1, 2].map(|level| held(level, None)), [0, 600, 1200]);
        assert_eq!([50_000_000, 500_000_000].map(|gain| held(1, Some(gain))), [600, 60]);
        assert_eq!([1_000_000, 0, -1].map(|gain| held(1, Some(gain))), [6 * 3600; 3]);
    }

    #[test]
    fn a_policy_is_read_in_seconds_and_an_unknown_key_refused() {
        let policy: Policy = serde_json::from_str(r#"{ "dwell": 30, "yield-for": 600 }"#).unwrap();
        assert_eq!(
            (policy.dwell, policy.yield_for),
            (Duration::from_secs(30), Some(Duration::from_secs(600)))
        );
        assert_eq!(policy.hold_off, Policy::default().hold_off);
        assert!(serde_json::from_str::<Policy>(r#"{ "dwel": 30 }"#).is_err());
        let json = serde_json::to_string(&Policy::default()).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), Policy::default());
    }
}
