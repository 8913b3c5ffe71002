//! Whether the plan wants another value of a knob, and since when.

use std::time::Duration;

use super::pattern::Workload;
use super::planned::Planned;
use netsilo_model::change::{Change, Value};

/// Number of consecutive windows that must want a change before it is written.
pub(super) const WINDOWS_WANTED: u32 = 2;

/// The same number for a workload that did not change, or whose readers move all the time: 15
/// minutes.
pub(super) const WINDOWS_OF_NOISE: u32 = 90;

/// Whether the plan wants another value.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Demand {
    /// Not known: no window was planned since a reset, a return or a revert.
    Unjudged,
    /// No: the last plan kept the value, or we have just written what the plan wanted.
    #[default]
    Content,
    /// Yes.
    Wanted(Box<Want>),
}

/// A change that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Want {
    /// The change in the form of the last window.
    pub(super) change: Change,
    /// Windows in a row.
    pub(super) windows: u32,
    /// The end of the first window that wanted it.
    pub(super) since: Duration,
    /// What the workload did in the first window that wanted it.
    workload: Workload,
    /// It began without a change of the workload that could explain it, or was held together with
    /// another noisy want.
    pub(super) noise: bool,
    /// Its gain was too small when it was old enough. Noise may make it look larger in a later
    /// window.
    pub(super) gained_too_little: bool,
    /// An earlier window of this workload kept the value.
    was_content: bool,
    /// The value that was requested in the last window. An observer's requests are never written.
    pub(super) requested: Option<Value>,
}

impl Demand {
    /// The demand after a window, and whether it abandoned a want that was not old enough yet.
    pub(super) fn planned(
        self,
        now: Duration,
        planned: &Planned<'_>,
        abandoned: u32,
    ) -> (Self, bool) {
        let (was_content, previous) = match self {
            Self::Unjudged => (false, None),
            Self::Content => (true, None),
            Self::Wanted(want) => (want.was_content, Some(want)),
        };
        match (previous, planned.change) {
            (Some(want), Some(change)) if want.goes_on(planned, abandoned) => {
                (Self::Wanted(Box::new(want.next(change, planned.workload))), false)
            }
            (previous, change) => {
                let gave_up = previous
                    .as_ref()
                    .is_some_and(|want| want.is_fresh() && !want.is_old(abandoned));
                let first = |change| Want::first(now, change, planned.workload, was_content);
                let requested = previous.and_then(|want| want.requested);
                let want = change.map(|change| Want { requested, ..first(change) });
                (want.map_or(Self::Content, |want| Self::Wanted(Box::new(want))), gave_up)
            }
        }
    }
}

impl Want {
    fn first(now: Duration, change: &Change, workload: Workload, was_content: bool) -> Self {
        let settled = matches!(workload, Workload::JustChanged | Workload::Same);
        Self {
            change: change.clone(),
            windows: 1,
            since: now,
            workload,
            noise: was_content && settled,
            gained_too_little: false,
            was_content: was_content && workload != Workload::Changed,
            requested: None,
        }
    }

    fn next(self, change: &Change, workload: Workload) -> Self {
        Self {
            change: change.clone(),
            windows: self.windows.saturating_add(1),
            was_content: self.was_content && workload != Workload::Changed,
            gained_too_little: self.gained_too_little && workload != Workload::Changed,
            ..self
        }
    }

    /// Whether the want of a window continues this one. Right after a change of the workload,
    /// another value is the same want, because the knob has not decided where to go. This does not
    /// apply if the knob has abandoned wants.
    fn goes_on(&self, planned: &Planned<'_>, abandoned: u32) -> bool {
        let Planned { same, workload, .. } = *planned;
        let early = matches!(workload, Workload::Changed | Workload::JustChanged) && abandoned == 0;
        (early && self.is_fresh() || same) && (self.is_fresh() || workload != Workload::Changed)
    }

    /// Number of consecutive windows needed. One abandoned want is forgiven, because its window may
    /// have been half of the old workload and half of the new.
    pub(super) fn windows_needed(&self, abandoned: u32) -> u32 {
        match self.workload {
            Workload::Changed => {
                WINDOWS_WANTED.max(abandoned.saturating_add(1)).min(WINDOWS_OF_NOISE)
            }
            Workload::JustChanged | Workload::Same | Workload::Unrest => WINDOWS_OF_NOISE,
        }
    }

    /// Records that its gain is too small in this window. While its readers move all the time,
    /// every window is a different workload.
    pub(super) fn note_small_gain(&mut self, abandoned: u32) {
        self.gained_too_little |= self.workload != Workload::Unrest && self.is_old(abandoned);
    }

    fn is_old(&self, abandoned: u32) -> bool {
        self.windows >= self.windows_needed(abandoned)
    }

    /// Whether it began with a change of the workload, so that it is not noise.
    fn is_fresh(&self) -> bool {
        self.workload == Workload::Changed && !self.noise
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::Target;
    use netsilo_model::change::knobs;

    fn change() -> Change {
        let (old, new) = (Value::from(0u32), Value::from(4096u32));
        Change::untyped(Target::from(knobs::RpsSockFlowEntries), old, new, "a test").unwrap()
    }

    /// The demand after windows with these workloads, and whether the last one abandoned a want. A
    /// window with `false` keeps the value.
    fn after(windows: &[(Workload, bool)]) -> (Demand, bool) {
        let change = change();
        windows.iter().fold((Demand::Content, false), |(demand, _), (workload, wanted)| {
            let planned = Planned {
                change: wanted.then_some(&change),
                same: *wanted,
                workload: *workload,
                read_there: None,
            };
            demand.planned(Duration::ZERO, &planned, 0)
        })
    }

    fn wanted(windows: &[(Workload, bool)]) -> Option<u32> {
        match after(windows).0 {
            Demand::Wanted(want) => Some(want.windows),
            Demand::Unjudged | Demand::Content => None,
        }
    }

    #[test]
    fn only_a_want_that_began_with_another_workload_is_given_up() {
        use Workload::{Changed, JustChanged, Same};
        let gave_up = |workload| after(&[(workload, true), (Same, false)]).1;
        assert_eq!([Changed, JustChanged, Same].map(gave_up), [true, false, false]);
        // it was old enough
        assert!(!after(&[(Changed, true), (JustChanged, true), (Same, false)]).1);
    }

    #[test]
    fn a_change_of_the_workload_ends_a_want_that_began_without_one() {
        use Workload::{Changed, Same};
        assert_eq!(wanted(&[(Same, true), (Same, true)]), Some(2));
        assert_eq!(wanted(&[(Same, true), (Changed, true)]), Some(1));
        assert_eq!(wanted(&[(Changed, true), (Changed, true)]), Some(2));
        assert_eq!(wanted(&[(Changed, true), (Same, false)]), None);
    }
}
