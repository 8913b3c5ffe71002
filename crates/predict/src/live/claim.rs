//! What is claimed of a forecast in a word, and from which figures on.

use std::fmt;

use netsilo_trial::stats::Estimate;
use serde::{Deserialize, Serialize};

use crate::limit::FULL;

/// Smallest change that matters: less is noise.
pub const CLEAR: f64 = 0.05;

/// The effect of a setting on the load that the machine can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// It raises the maximum load: the whole interval of the gain is above [`CLEAR`].
    Help,
    /// It cannot raise the maximum load, and may lower it: no part of the interval is positive, and
    /// it holds a loss of [`CLEAR`].
    Hurt,
    /// Neither is shown, or nothing is full.
    NoClearChange,
    /// A quantity that decides it was not measured.
    Unknown,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Help => "helps",
            Self::Hurt => "hurts",
            Self::NoClearChange => "no clear change",
            Self::Unknown => "unknown",
        })
    }
}

/// Whether the load cannot grow by much before something is full.
pub fn is_near_full(fits: f64) -> bool {
    fits <= 1.0 / FULL
}

impl Claim {
    /// What is claimed of a gain, where the present load fits `now` times, and would fit `then`
    /// times. Where nothing is full and nothing becomes full, a change of the room is no effect.
    pub(crate) fn of(gain: Estimate, now: f64, then: f64) -> Self {
        if !is_near_full(now) && then >= 1.0 {
            Self::NoClearChange
        } else if gain.low >= CLEAR {
            Self::Help
        } else if gain.high <= 0.0 && gain.low <= -CLEAR {
            Self::Hurt
        } else {
            Self::NoClearChange
        }
    }

    /// What is claimed of a setting that is on, if switching it off would gain this: the same as of
    /// switching it on where it is off. The load fits `now` times, and would fit `off` times.
    pub fn of_setting_that_is_on(gain_off: Estimate, now: f64, off: f64) -> Self {
        let on = |gain: f64| 1.0 / (1.0 + gain) - 1.0;
        let Estimate { value, low, high } = gain_off;
        let gain = Estimate { value: on(value), low: on(high), high: on(low) };
        Self::of(gain, now.min(off), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_needs_an_interval_on_one_side_of_zero_and_something_that_is_full() {
        let gain = |value: f64, low: f64, high: f64| Estimate { value, low, high };
        let of = |gain, now| Claim::of(gain, now, 1.1);
        assert_eq!(of(gain(0.5, 0.1, 0.9), 1.2), Claim::Help);
        assert_eq!(of(gain(0.5, 0.04, 0.9), 1.2), Claim::NoClearChange);
        assert_eq!(of(gain(-0.3, -0.5, -0.1), 1.2), Claim::Hurt);
        assert_eq!(of(gain(-0.3, -0.5, 0.1), 1.2), Claim::NoClearChange);
        assert_eq!(of(gain(-0.01, -0.04, -0.005), 1.2), Claim::NoClearChange);
        assert_eq!(of(gain(0.5, 0.1, 0.9), 2.0), Claim::NoClearChange, "nothing is full");
        let overflows = Claim::of(gain(-0.6, -0.7, -0.5), 2.0, 0.8);
        assert_eq!(overflows, Claim::Hurt, "the load does not fit any more");
    }

    #[test]
    fn a_setting_has_one_claim_whether_it_is_on_or_off() {
        let of = |value: f64, low: f64, high: f64, now, off| {
            Claim::of_setting_that_is_on(Estimate { value, low, high }, now, off)
        };
        assert_eq!(of(0.1, 0.01, 0.3, 1.2, 1.3), Claim::Hurt, "off cannot lose");
        assert_eq!(of(0.1, -0.01, 0.3, 1.2, 1.3), Claim::NoClearChange);
        assert_eq!(of(-0.3, -0.5, -0.1, 1.5, 1.1), Claim::Help, "it relieves what would be full");
        assert_eq!(of(-0.3, -0.5, -0.1, 3.0, 2.1), Claim::NoClearChange, "nothing is full");
    }
}
