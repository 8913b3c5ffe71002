//! Why a wanted change is not written in this window.

use std::fmt;
use std::time::Duration;

/// The reason to hold a change.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Hold {
    /// The knob is left to this program.
    Yielded(String),
    /// The kernel refused it for this reason. The next attempt is at this time.
    Refused(Duration, String),
    /// Its gain is too small, in CPU-nanoseconds per second.
    SmallGain(i64),
    /// The consumers would follow the knob.
    Followed,
    /// The workload did not change.
    Noise,
    /// How many windows wanted it, and how many must.
    TooShort(u32, u32),
    /// The knob changed twice without a calm. The hold-off ends at this time.
    Restless(Duration),
    /// It would return to an earlier value. The dwell ends at this time.
    Dwell(Duration),
    /// The budget of this many changes per minute is used up.
    Budget(u32),
    /// XPS waiting for the interrupts of its netdev.
    WaitsForInterrupts,
    /// The current value is being reverted.
    Reverting,
}

impl Hold {
    /// Whether one of the next windows can end it.
    pub(super) fn is_short(&self) -> bool {
        matches!(self, Self::TooShort(..) | Self::Budget(_) | Self::WaitsForInterrupts)
    }

    /// Whether it lasts as long as the windows look alike.
    pub(super) fn is_lasting(&self) -> bool {
        matches!(self, Self::Yielded(_) | Self::SmallGain(_) | Self::Followed | Self::Noise)
    }

    /// Whether it ends at a known time.
    pub(super) fn is_timed(&self) -> bool {
        matches!(self, Self::Restless(_) | Self::Dwell(_) | Self::Refused(..))
    }

    /// Whether it is logged. The two most frequent reasons would fill the log.
    pub(super) fn is_logged(&self) -> bool {
        !matches!(self, Self::TooShort(..) | Self::Noise)
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yielded(owner) => write!(f, "left to another program ({owner})"),
            Self::Refused(until, why) => {
                write!(f, "refused ({why}); next attempt at {} s", until.as_secs())
            }
            Self::SmallGain(ns) => {
                write!(f, "gains only {:.3} ms of cpu time per second", *ns as f64 / 1e6)
            }
            Self::Followed => {
                f.write_str("its consumers followed it after earlier moves and would follow again")
            }
            Self::Noise => f.write_str("the workload has not changed: measurement noise"),
            Self::TooShort(windows, needed) => {
                write!(f, "wanted for {windows} of {needed} windows")
            }
            Self::Restless(until) => write!(
                f,
                "it changed several times recently: must be wanted without interruption until {} s",
                until.as_secs()
            ),
            Self::Dwell(until) => {
                write!(f, "it had that value recently; not before {} s", until.as_secs())
            }
            Self::Budget(most) => write!(f, "{most} changes were made within a minute"),
            Self::Reverting => f.write_str("its current value is being reverted"),
            Self::WaitsForInterrupts => f.write_str("waiting for the interrupts of its netdev"),
        }
    }
}
