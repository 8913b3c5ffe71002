//! What is remembered about a knob in every state: its changes, how its consumers reacted to them,
//! and refusals.

use std::mem::Discriminant;
use std::time::Duration;

use super::demand::WINDOWS_OF_NOISE;
use super::hold::Hold;
use super::planned::Planned;
use super::policy::Policy;
use netsilo_model::change::Value;

/// A refused knob is tried again after this time. The time doubles with each refusal.
const RETRY: Duration = Duration::from_secs(60);

/// The consumers followed a knob if the share of its data that is read on its core grew by this
/// much.
const FOLLOWED: f64 = 0.3;

/// Consumers that followed a knob are expected to do so again for this long.
const FOLLOWS_FOR: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of times that the hold-off doubles.
const HIGHEST_LEVEL: u32 = 16;

/// What is remembered in every state.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct History {
    /// Neither wanted nor changed since.
    calm_since: Duration,
    /// The last change, apart from re-applications.
    pub(super) moved_at: Option<Duration>,
    /// Changes since the last calm.
    pub(super) moves: u32,
    /// Values since the last calm.
    pub(super) had: Vec<Value>,
    /// How often the hold-off has doubled. 0 means that there is none.
    hold_off_level: u32,
    /// Number of wants that disappeared before they were old enough.
    pub(super) abandoned: u32,
    pub(super) followers: Followers,
    /// Since the last write.
    pub(super) refusal: Option<WriteRefusal>,
    /// The reason for holding it that was logged last.
    pub(super) logged: Option<Discriminant<Hold>>,
}

/// Whether the consumers move after the knob.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Followers {
    /// Share of the data that was read on the core of the knob's CPU when the knob was written.
    read_there: Option<f64>,
    /// They followed the last change.
    followed: bool,
    /// How often they followed since the last calm.
    times: u32,
}

/// The kernel refused to write it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WriteRefusal {
    times: u32,
    pub(super) until: Duration,
    pub(super) why: String,
}

impl History {
    /// The history of a knob that is seen for the first time now.
    pub(super) fn new(now: Duration) -> Self {
        Self { calm_since: now, ..Self::default() }
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_blank(&self) -> bool {
        let Self { abandoned, moves, hold_off_level, refusal, .. } = self;
        refusal.is_none() && (*abandoned, *moves, *hold_off_level) == (0, 0, 0)
    }

    /// A window was planned. `gave_up`: the knob abandoned a want that was not old enough yet.
    pub(super) fn planned(
        &mut self,
        now: Duration,
        planned: &Planned<'_>,
        gave_up: bool,
        policy: &Policy,
    ) {
        if gave_up {
            self.abandoned = self.abandoned.saturating_add(1).min(WINDOWS_OF_NOISE);
        }
        if planned.change.is_some() {
            self.calm_since = now;
            self.followers.window(planned.read_there);
        } else if now.saturating_sub(self.calm_since)
            >= policy.calm.max(self.hold_off(None, policy))
        {
            self.calm_since = now;
            self.moves = 0;
            self.had.clear();
            self.followers.times = 0;
            self.abandoned = self.abandoned.saturating_sub(1);
            self.hold_off_level = self.hold_off_level.saturating_sub(1);
        }
    }

    /// The kernel refused a write. Returns when it is tried again.
    pub(super) fn refused(&mut self, now: Duration, why: &str, policy: &Policy) -> Duration {
        let times = self.refusal.as_ref().map_or(0, |refusal| refusal.times);
        let wait = RETRY.saturating_mul(1 << times.min(16)).min(policy.hold_off_most);
        let until = now.saturating_add(wait);
        let (times, why) = (times.saturating_add(1), why.to_owned());
        self.refusal = Some(WriteRefusal { times, until, why });
        until
    }

    /// A write is in effect.
    pub(super) fn written(&mut self, now: Duration) {
        (self.calm_since, self.refusal, self.logged) = (now, None, None);
    }

    /// The write was a change. The first change after a calm is free; from the second on, each one
    /// doubles the hold-off.
    pub(super) fn moved(&mut self, now: Duration, old: &Value, new: &Value) {
        self.moves = self.moves.saturating_add(1);
        self.had.retain(|had| had != new);
        self.had.push(old.clone());
        self.moved_at = Some(now);
        if self.moves > 1 {
            self.raise_hold_off();
        }
    }

    /// The write reverted a change that made things worse, so the next change has to wait.
    pub(super) fn reverted(&mut self) {
        if self.moves < 2 {
            self.moves = 2;
            self.raise_hold_off();
        }
    }

    fn raise_hold_off(&mut self) {
        self.hold_off_level = (self.hold_off_level + 1).min(HIGHEST_LEVEL);
    }

    /// How long a change with this gain must be wanted if there were two changes since the last
    /// calm.
    pub(super) fn hold_off(&self, gain: Option<i64>, policy: &Policy) -> Duration {
        policy.hold_off_at(self.hold_off_level, gain)
    }

    /// Whether its consumers are expected to follow the next change. Following once may be chance:
    /// the workload itself may have moved there.
    pub(super) fn is_followed(&self, now: Duration) -> bool {
        let Followers { followed, times, .. } = self.followers;
        let lately = |at: Duration| at.saturating_add(FOLLOWS_FOR) > now;
        followed && times > 1 && self.moved_at.is_some_and(lately)
    }
}

impl Followers {
    /// The knob was set to another CPU.
    pub(super) fn moved(&mut self, read_there: Option<f64>) {
        (self.read_there, self.followed) = (read_there, false);
    }

    /// In a window, the consumers read this share on the knob's core.
    fn window(&mut self, read_there: Option<f64>) {
        let Some((then, now)) = self.read_there.zip(read_there) else { return };
        let followed = now >= then + FOLLOWED;
        self.times += u32::from(followed && !self.followed);
        self.followed |= followed;
    }
}
