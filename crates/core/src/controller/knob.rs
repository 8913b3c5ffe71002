//! What the controller remembers of one knob, and whether a change of it may be made now.

use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use super::events::MEMORY;
use super::policy::Policy;
use crate::change::{Change, Target, Value};

/// Windows in a row that have to want the same before it is done.
pub(super) const WINDOWS_WANTED: u32 = 2;

/// So many when the readers go elsewhere all the time, or after what was taken back: a quarter of
/// an hour.
const WINDOWS_OF_NOISE: u32 = 90;

/// A refused knob is tried again after this time, which doubles with each refusal.
const RETRY: Duration = Duration::from_secs(60);

/// The consumers came after their interrupt when this much more of the data is read on its core
/// than when it was put there.
const CAME: f64 = 0.3;

/// Consumers that come after their interrupt are believed to do so for this time.
const COMES_FOR: Duration = Duration::from_secs(24 * 3600);

/// One knob's history.
#[derive(Debug, Clone, Default)]
pub(super) struct Knob {
    /// What we wrote, as the knob said it then; `None` when it is not ours.
    pub(super) ours: Option<Value>,
    /// When it was last seen to have that value.
    pub(super) seen_ours: Duration,
    /// An event took our value away, or set the knob up anew: what is wanted for it is a
    /// re-application.
    reset_at: Option<Duration>,
    /// The value that it took.
    lost: Option<Value>,
    /// When that event was announced, and whether our value was seen again since: then the event
    /// explains no more.
    lost_to: Option<(Duration, bool)>,
    /// Someone else wrote it.
    pub(super) yielded: Option<Yielded>,
    /// What is wanted, window after window.
    pub(super) want: Option<Want>,
    /// A window of this workload, or since its last change, found it well as it is.
    content: bool,
    /// Wishes that went away before they were old enough to be followed.
    doubt: u32,
    /// Neither wanted nor moved since.
    calm_since: Duration,
    /// The last change.
    moved_at: Duration,
    /// Changes since the last calm.
    moves: u32,
    /// Values that it had since the last calm.
    had: Vec<Value>,
    level: u32,
    /// So long a wish has to be steady, once it has moved twice since the last calm.
    hold_off: Duration,
    refusals: u32,
    refused: Option<(Duration, String)>,
    /// Share of the data that was read on the core of its CPU when it was put there.
    read_there: Option<f64>,
    /// Whether its consumers came after it since its last change, and how often they did since the
    /// last calm.
    came: bool,
    times_came: u32,
    /// The write that was last asked for, and not made: nobody may be there who writes.
    asked: Option<Value>,
    /// What was last logged as the reason to hold it.
    told: Option<Discriminant<Hold>>,
}

/// What the workload does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Workload {
    /// It is another one than in the window before.
    #[default]
    Changed,
    /// It was another one then.
    JustChanged,
    /// It is the same as before.
    Same,
    /// The readers go elsewhere time and again.
    Unrest,
}

/// A wish.
#[derive(Debug, Clone)]
pub(super) struct Want {
    /// As the first window put it.
    pub(super) change: Change,
    /// Windows in a row.
    windows: u32,
    /// What the workload did when it came up.
    workload: Workload,
    /// It came up while nothing changed that could be the reason.
    noise: bool,
    /// The first of them ended then.
    pub(super) since: Duration,
}

/// Who has it, and for how long.
#[derive(Debug, Clone)]
pub(super) struct Yielded {
    pub(super) ours: Value,
    pub(super) theirs: Value,
    pub(super) writer: String,
    pub(super) since: Duration,
}

/// Why a change that is wanted is not made now.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Hold {
    Yielded(String),
    Refused(Duration, String),
    SmallGain(i64),
    Came,
    Noise,
    NotLong(u32, u32),
    Restless(Duration),
    Dwell(Duration),
    Budget(u32),
    Waits,
    Reverting,
}

impl Knob {
    pub(super) fn new(now: Duration, reset: bool) -> Self {
        Self { calm_since: now, reset_at: reset.then_some(now), content: true, ..Self::default() }
    }

    /// A window wants this of it.
    pub(super) fn notice(
        &mut self,
        now: Duration,
        wanted: Option<&Change>,
        workload: Workload,
        same: impl Fn(&Value, &Value) -> bool,
        policy: &Policy,
    ) {
        self.reset_at = self.reset_at.filter(|at| *at + MEMORY > now);
        if wanted.is_none() {
            self.asked = None;
        }
        let asked = self.windows_asked();
        // Who was content for long and is not now, window after window, only has not made up its
        // mind where to.
        let changed = workload == Workload::Changed;
        let decided =
            matches!(workload, Workload::Changed | Workload::JustChanged) && self.doubt == 0;
        let previous = self.want.take();
        self.want = match (previous, wanted) {
            (Some(want), Some(change))
                if (decided && want.is_fresh() || same(&want.change.new, &change.new))
                    && (want.is_fresh() || !changed) =>
            {
                Some(Want {
                    change: change.clone(),
                    windows: want.windows.saturating_add(1),
                    ..want
                })
            }
            (previous, wanted) => {
                if previous.is_some_and(|want| want.is_fresh() && want.windows < asked) {
                    self.doubt = (self.doubt + 1).min(WINDOWS_OF_NOISE);
                }
                let settled = matches!(workload, Workload::JustChanged | Workload::Same);
                let noise = self.content && settled;
                wanted.map(|change| Want {
                    change: change.clone(),
                    windows: 1,
                    workload,
                    noise,
                    since: now,
                })
            }
        };
        self.content = wanted.is_none() || self.content && !changed;
        match wanted {
            Some(_) => self.calm_since = now,
            None if now.saturating_sub(self.calm_since) >= policy.calm.max(self.hold_off) => {
                self.calm_down(now, policy)
            }
            None => {}
        }
    }

    /// One wish that went away is forgiven: a window may have been half of the old workload and
    /// half of the new.
    fn windows_asked(&self) -> u32 {
        match self.want.as_ref().map(|want| want.workload).unwrap_or_default() {
            Workload::Changed => WINDOWS_WANTED.max(1 + self.doubt).min(WINDOWS_OF_NOISE),
            Workload::JustChanged | Workload::Same | Workload::Unrest => WINDOWS_OF_NOISE,
        }
    }

    fn calm_down(&mut self, now: Duration, policy: &Policy) {
        self.calm_since = now;
        self.moves = 0;
        self.had.clear();
        self.times_came = 0;
        self.doubt = self.doubt.saturating_sub(1);
        self.level = self.level.saturating_sub(1);
        self.hold_off =
            if self.level == 0 { Duration::ZERO } else { policy.hold_off_at(self.level - 1) };
    }

    /// The consumers read this share on its core now.
    pub(super) fn follow(&mut self, read_there: Option<f64>) {
        if let (Some(then), Some(now)) = (self.read_there, read_there) {
            let came = now >= then + CAME;
            self.times_came += u32::from(came && !self.came);
            self.came |= came;
        }
    }

    /// Whether what is wanted may be written now, and if not, why. `stays` tells that it would stay
    /// under its last-level cache, `gain` what the cost model says.
    pub(super) fn may(
        &self,
        now: Duration,
        stays: bool,
        gain: Option<i64>,
        policy: &Policy,
    ) -> Result<(), Hold> {
        let Some(want) = &self.want else { return Err(Hold::NotLong(0, WINDOWS_WANTED)) };
        if let Some(yielded) = &self.yielded {
            return Err(Hold::Yielded(yielded.writer.clone()));
        }
        if let Some((until, why)) = self.refused.as_ref().filter(|(until, _)| *until > now) {
            return Err(Hold::Refused(*until, why.clone()));
        }
        if self.is_reset() {
            return Ok(());
        }
        if let Some(gain) = gain.filter(|gain| (*gain as f64) < policy.min_gain * 1e9) {
            return Err(Hold::SmallGain(gain));
        }
        if want.noise {
            return Err(Hold::Noise);
        }
        // Once may be chance: the workload itself may have gone there.
        if self.came && self.times_came > 1 && stays && self.moved_at + COMES_FOR > now {
            return Err(Hold::Came);
        }
        if self.moves > 1 && want.since + self.hold_off > now {
            return Err(Hold::Restless(want.since + self.hold_off));
        }
        if want.windows < self.windows_asked() {
            return Err(Hold::NotLong(want.windows, self.windows_asked()));
        }
        match self.moved_at + policy.dwell {
            until if until > now && self.had.contains(&want.change.new) => Err(Hold::Dwell(until)),
            _ => Ok(()),
        }
    }

    /// Whether the reason to hold it is another one than was told last.
    pub(super) fn is_news(&mut self, hold: Option<&Hold>) -> bool {
        let hold =
            hold.filter(|hold| !matches!(hold, Hold::NotLong(..) | Hold::Noise)).map(discriminant);
        let news = hold.is_some() && hold != self.told;
        if hold.is_some() || self.want.is_none() {
            self.told = hold;
        }
        news
    }

    /// Whether this write was asked for in the window before too, and nobody made it.
    pub(super) fn is_asked_again(&mut self, value: &Value) -> bool {
        self.asked.replace(value.clone()).as_ref() == Some(value)
    }

    /// A change of ours is in force. The first one after a calm is free; from the second on each
    /// doubles the time for which the next wish has to be steady.
    pub(super) fn moved(
        &mut self,
        now: Duration,
        old: &Value,
        new: Value,
        read_there: Option<f64>,
        policy: &Policy,
    ) {
        let (again, lost) = (self.reset_at.take().is_some(), self.lost.take());
        if !again {
            self.moves += 1;
            self.had.retain(|had| *had != new);
            self.had.push(old.clone());
            self.moved_at = now;
            if self.moves > 1 {
                self.hold_off(policy);
            }
        }
        if !again || lost.as_ref() != Some(&new) {
            (self.read_there, self.came) = (read_there, false);
        }
        (self.ours, self.seen_ours, self.calm_since) = (Some(new), now, now);
        (self.want, self.told, self.refused, self.refusals, self.asked) =
            (None, None, None, 0, None);
        self.content = true;
    }

    /// What we wrote made it worse and was taken back.
    pub(super) fn reverted(&mut self, now: Duration, from: &Value, to: Value, policy: &Policy) {
        self.moved(now, from, to, None, policy);
        self.content = false;
        if self.moves < 2 {
            self.moves = 2;
            self.hold_off(policy);
        }
    }

    fn hold_off(&mut self, policy: &Policy) {
        self.hold_off = policy.hold_off_at(self.level);
        self.level = (self.level + 1).min(16);
    }

    /// The kernel refused it; says when it is tried again.
    pub(super) fn was_refused(&mut self, now: Duration, why: &str, policy: &Policy) -> Duration {
        let wait = RETRY.saturating_mul(1 << self.refusals.min(16)).min(policy.hold_off_most);
        self.refusals += 1;
        (self.refused, self.asked) = (Some((now + wait, why.to_owned())), None);
        now + wait
    }

    /// It is ours to write again.
    pub(super) fn regain(&mut self) {
        (self.yielded, self.ours, self.want, self.content) = (None, None, None, false);
    }

    /// What was wanted before of a knob that has this value: in the last window, or what an event
    /// has taken away.
    pub(super) fn wanted_before(&self, target: &Target, old: Value) -> Option<Change> {
        if let Some(lost) = self.lost.as_ref().filter(|lost| self.is_reset() && **lost != old) {
            let reason = "it was there before".to_owned();
            return Change::untyped(target.clone(), old, lost.clone(), reason).ok();
        }
        self.want.as_ref().map(|want| &want.change).filter(|change| change.old == old).cloned()
    }

    /// It has our value.
    pub(super) fn is_ours(&mut self, now: Duration) {
        self.seen_ours = now;
        self.lost_to = self.lost_to.map(|(at, _)| (at, true));
    }

    /// Whether the effect of what was announced then is over and undone.
    pub(super) fn is_past(&self, event_at: Duration) -> bool {
        self.lost_to.is_some_and(|(at, seen_ours)| seen_ours && event_at <= at)
    }

    /// An event, announced at `event_at`, took our value away.
    pub(super) fn lose(&mut self, now: Duration, event_at: Duration) {
        self.lost_to = Some((event_at, false));
        self.lost = self.ours.take().or(self.lost.take());
        (self.want, self.reset_at, self.content) = (None, Some(now), false);
    }

    /// Whether an event set it up anew since we wrote it.
    pub(super) fn is_reset(&self) -> bool {
        self.reset_at.is_some()
    }

    /// Whether there is nothing to remember of it.
    pub(super) fn is_blank(&self) -> bool {
        let history = self.doubt > 0 || self.moves > 0 || self.level > 0 || self.is_reset();
        self.ours.is_none()
            && self.want.is_none()
            && self.yielded.is_none()
            && self.refused.is_none()
            && !history
    }
}

impl Want {
    fn is_fresh(&self) -> bool {
        self.workload == Workload::Changed
    }
}

impl Hold {
    /// Whether it is only a matter of the next windows.
    pub(super) fn is_short(&self) -> bool {
        matches!(self, Self::NotLong(..) | Self::Budget(_) | Self::Waits)
    }

    /// Whether nothing but another window than this can end it.
    pub(super) fn stays(&self) -> bool {
        matches!(self, Self::Yielded(_) | Self::SmallGain(_) | Self::Came | Self::Noise)
    }

    /// Whether the change will be made when its time comes, if it is still wanted.
    pub(super) fn ends(&self) -> bool {
        matches!(self, Self::Restless(_) | Self::Dwell(_) | Self::Refused(..))
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yielded(writer) => write!(f, "left to another writer ({writer})"),
            Self::Refused(until, why) => {
                write!(f, "refused ({why}); tried again at {} s", until.as_secs())
            }
            Self::SmallGain(ns) => {
                write!(f, "gains only {:.3} ms of cpu time per second", *ns as f64 / 1e6)
            }
            Self::Came => f.write_str("its consumers came after it when it moved, and would again"),
            Self::Noise => f.write_str(
                "nothing has changed that could be the reason: within the noise of measuring",
            ),
            Self::NotLong(windows, asked) => write!(f, "wanted for {windows} of {asked} windows"),
            Self::Restless(until) => {
                write!(
                    f,
                    "it moved lately, and again: to be wanted steadily until {} s",
                    until.as_secs()
                )
            }
            Self::Dwell(until) => {
                write!(f, "it had that value just before; not before {} s", until.as_secs())
            }
            Self::Budget(most) => write!(f, "{most} changes were made within a minute"),
            Self::Reverting => f.write_str("what it has is being taken back"),
            Self::Waits => f.write_str("waits for the interrupts of its netdev"),
        }
    }
}
