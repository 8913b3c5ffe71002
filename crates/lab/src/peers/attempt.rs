//! How a comparison goes on after its guest has hung or failed.

use anyhow::Error;

use crate::peers::setting::Setting;

/// How the lab begins to say that a guest has hung.
const HUNG: &str = "the guest has hung";

/// The most guests of one workload.
pub(super) const GUESTS: usize = 4;

/// A guest that hung or failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    /// The setting that was being placed or measured; `None` before the first one.
    pub(super) setting: Option<Setting>,
    /// Number of complete rounds before.
    pub(super) rounds: usize,
    /// Guests that this workload may still have.
    pub(super) guests_left: usize,
}

/// What to do in the next guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Keep the complete rounds, and go on with the next workload.
    Keep,
    /// The same workload without this setting.
    Without(Setting),
    /// The same workload: no setting was in force.
    Again,
    /// Go on with the next workload.
    GiveUp,
}

/// Complete rounds are kept: each of them has all settings. Without any, the setting of the failure
/// may be its cause, and the others are measured without it.
pub(super) fn next(failure: Failure) -> Next {
    match failure {
        Failure { rounds: 1.., .. } => Next::Keep,
        Failure { guests_left: 0, .. } => Next::GiveUp,
        Failure { setting: Some(setting), .. } => Next::Without(setting),
        Failure { setting: None, .. } => Next::Again,
    }
}

/// Why a guest failed, in one line: that it has hung, or else the first cause.
pub(super) fn reason(error: &Error) -> String {
    let causes = || error.chain().map(ToString::to_string);
    let hung = causes().any(|cause| cause.starts_with(HUNG));
    let cause = if hung { HUNG.to_owned() } else { causes().last().unwrap_or_default() };
    cause.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_hang_is_named_and_any_other_failure_by_its_cause() {
        let timeout = || anyhow!("no end after 3 minutes\nits output: ...");
        let hung =
            timeout().context("the guest has hung; its console: ...").context("in the guest");
        assert_eq!(reason(&hung), "the guest has hung");
        assert_eq!(reason(&timeout().context("in the guest")), "no end after 3 minutes");
    }

    #[test]
    fn a_fresh_guest_measures_what_it_can_and_a_workload_is_given_up_in_the_end() {
        let after = |setting, rounds, guests_left| next(Failure { setting, rounds, guests_left });
        let tune = Some(Setting::NetsiloTune);
        assert_eq!(after(tune, 0, 3), Next::Without(Setting::NetsiloTune));
        assert_eq!(after(tune, 2, 3), Next::Keep);
        assert_eq!(after(tune, 2, 0), Next::Keep);
        assert_eq!(after(None, 0, 1), Next::Again);
        assert_eq!(after(tune, 0, 0), Next::GiveUp);
    }
}
