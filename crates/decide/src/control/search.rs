//! When the daemon may search for a better setting by measuring (`netsilo tune`).
//!
//! A search disturbs the machine, so it begins only where the model cannot know better: no outcome
//! was measured on the workload, nothing is left to write or to verify, and the load is steady.
//! What the model is sure of needs no search: it is in force by then, and `judge::candidates`
//! leaves out what is expected to hurt.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use netsilo_model::derive::signature::Signature;
use serde::{Deserialize, Serialize};

use super::decision::ControllerState;

/// The time over which searches may take their share.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The time over which their trials are counted.
const HOUR: Duration = Duration::from_secs(3600);

/// The shortest trial: 0.3 s to settle and a window of 2 s, as in `netsilo tune`.
const SHORTEST_TRIAL: Duration = Duration::from_millis(2300);

/// When the operator allows searches.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchPolicy {
    /// Searches take at most this share of any 24 hours.
    pub share: f64,
    /// The hours of the day (UTC) in which a search may begin.
    pub hours: BTreeSet<u8>,
    /// The longest time of one search.
    pub length: Duration,
    /// How long the load must have been steady before a search.
    pub steady: Duration,
    /// The least time between the end of a search and the next one.
    pub pause: Duration,
    /// How much worse than the present state a candidate may be before it is taken back.
    pub never_worse_than: f64,
    /// The most trials in any hour. A trial is one window of a search: one candidate is put in
    /// force and measured, the present state included.
    pub trials_per_hour: u32,
}

impl Default for SearchPolicy {
    fn default() -> Self {
        Self {
            share: 0.0,
            hours: (0..24).collect(),
            length: Duration::from_secs(600),
            steady: Duration::from_secs(600),
            pause: Duration::from_secs(3600),
            never_worse_than: 0.05,
            trials_per_hour: 300,
        }
    }
}

impl SearchPolicy {
    /// Whether searches are allowed at all.
    pub fn is_on(&self) -> bool {
        self.share > 0.0
    }

    /// The time that searches may take in any 24 hours.
    pub fn allowance(&self) -> Duration {
        DAY.mul_f64(self.share)
    }

    /// The least time of a trial, its settling included. Trials are longer where the operator
    /// allows few of them, so that one search never makes more than an hour may have.
    pub fn trial(&self) -> Duration {
        let millis = self.length.as_millis().div_ceil(self.trials_per_hour.max(1).into());
        SHORTEST_TRIAL.max(Duration::from_millis(millis.try_into().unwrap_or(u64::MAX)))
    }

    /// The most trials of one search.
    pub fn trials(&self) -> u32 {
        (self.length.as_millis() / self.trial().as_millis()).try_into().unwrap_or(u32::MAX)
    }
}

/// Why no search begins now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// It is not one of the hours in which one may begin.
    Hour,
    /// The last search ended too short a time ago; the next may begin at this time since boot.
    Pause {
        /// When.
        until: Duration,
    },
    /// Searches have taken their share of the last 24 hours; when the next may begin.
    Share {
        /// When.
        until: Duration,
    },
    /// Searches have made the trials that an hour may have; when the next may begin.
    Trials {
        /// When.
        until: Duration,
    },
    /// Changes are wanted, or their effect is being measured.
    Placing,
    /// Another program has written knobs that are left to it.
    Conflicts,
    /// No packet was counted by queue.
    NoTraffic,
    /// An outcome of this workload is known.
    Known {
        /// Its id.
        outcome: String,
    },
    /// The load has not been steady for long enough; since when it is.
    Moving {
        /// Since when.
        since: Duration,
    },
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hour => f.write_str("this hour of the day is not in tune.hours"),
            Self::Pause { .. } => f.write_str("the last search has ended a short time ago"),
            Self::Share { .. } => f.write_str("searches have taken their share of the day"),
            Self::Trials { .. } => f.write_str("one more search could exceed tune.trials-per-hour"),
            Self::Placing => f.write_str("changes are wanted, or being verified"),
            Self::Conflicts => f.write_str("another program has written knobs"),
            Self::NoTraffic => f.write_str("no packet was counted by queue"),
            Self::Known { outcome } => write!(f, "outcome {outcome} was measured on this workload"),
            Self::Moving { .. } => f.write_str("the load is not steady for long enough yet"),
        }
    }
}

/// What the schedule has to know of a window that costs nothing to find out.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Time since boot.
    pub now: Duration,
    /// Hour of the day (UTC).
    pub hour: u8,
    /// What the controller is doing.
    pub state: ControllerState,
    /// Whether knobs are left to other programs.
    pub has_conflicts: bool,
}

/// Past searches, and since when the load is steady.
#[derive(Debug, Clone, Default)]
pub struct SearchSchedule {
    /// The searches of the last 24 hours, oldest first.
    past: VecDeque<PastSearch>,
    /// Since when the load is like this.
    steady: Option<(Duration, Signature)>,
}

/// A search that has begun.
#[derive(Debug, Clone, Copy)]
struct PastSearch {
    began: Duration,
    ended: Duration,
    /// The trials that it made; the most that it may make, as long as that is not known.
    trials: u32,
}

impl PastSearch {
    fn length(&self) -> Duration {
        self.ended.saturating_sub(self.began)
    }
}

impl SearchSchedule {
    /// Whether a search may begin, as far as can be said without the workload; if not, the load
    /// counts as steady only from the next window on.
    pub fn may_follow(&mut self, policy: &SearchPolicy, moment: &Moment) -> Result<(), Waiting> {
        let waiting = self.waits(policy, moment);
        if waiting.is_err() {
            self.steady = None;
        }
        waiting
    }

    fn waits(&mut self, policy: &SearchPolicy, moment: &Moment) -> Result<(), Waiting> {
        let now = moment.now;
        self.past.retain(|search| search.ended + DAY > now);
        if !policy.hours.contains(&moment.hour) {
            return Err(Waiting::Hour);
        }
        if let Some(until) = self.past.back().map(|search| search.ended + policy.pause)
            && now < until
        {
            return Err(Waiting::Pause { until });
        }
        if let Some(until) = self.room_at(policy)
            && now < until
        {
            return Err(Waiting::Share { until });
        }
        if let Some(until) = self.trials_free_at(policy, now)
            && now < until
        {
            return Err(Waiting::Trials { until });
        }
        let is_calm = matches!(moment.state, ControllerState::Settled | ControllerState::Observing);
        match (is_calm, moment.has_conflicts) {
            (false, _) => Err(Waiting::Placing),
            (true, true) => Err(Waiting::Conflicts),
            (true, false) => Ok(()),
        }
    }

    /// When one more search fits into the share of the last 24 hours; `None`: always.
    fn room_at(&self, policy: &SearchPolicy) -> Option<Duration> {
        let room = policy.allowance().saturating_sub(policy.length);
        let mut taken: Duration = self.past.iter().map(PastSearch::length).sum();
        let mut until = None;
        for search in &self.past {
            if taken <= room {
                break;
            }
            taken = taken.saturating_sub(search.length());
            until = Some(search.ended + DAY);
        }
        until
    }

    /// When the trials of one more search fit into an hour; `None`: now.
    ///
    /// When within a search a trial was made is not known: each counts until an hour after the end
    /// of its search, so that any hour that has trials of two searches has room for all of both.
    fn trials_free_at(&self, policy: &SearchPolicy, now: Duration) -> Option<Duration> {
        let room = policy.trials_per_hour.saturating_sub(policy.trials());
        let mut made = self.trials_lately(now);
        let mut until = None;
        for search in self.past.iter().filter(|search| search.ended + HOUR > now) {
            if made <= room {
                break;
            }
            made = made.saturating_sub(search.trials);
            until = Some(search.ended + HOUR);
        }
        until
    }

    /// The trials of searches that ended within the last hour or go on: as many as were made in it,
    /// or more.
    pub fn trials_lately(&self, now: Duration) -> u32 {
        let lately = self.past.iter().filter(|search| search.ended + HOUR > now);
        lately.fold(0, |sum, search| sum.saturating_add(search.trials))
    }

    /// Whether a search may begin on this workload; `known` is the outcome that was measured on it.
    pub fn may_begin(
        &mut self,
        policy: &SearchPolicy,
        now: Duration,
        load: Option<Signature>,
        known: Option<&str>,
    ) -> Result<(), Waiting> {
        let Some(load) = load else {
            self.steady = None;
            return Err(Waiting::NoTraffic);
        };
        if let Some(outcome) = known {
            self.steady = None;
            return Err(Waiting::Known { outcome: outcome.into() });
        }
        let same = self.steady.take().filter(|(_, before)| before.matches(&load));
        let (since, load) = same.unwrap_or((now, load));
        self.steady = Some((since, load));
        if now.saturating_sub(since) < policy.steady {
            return Err(Waiting::Moving { since });
        }
        Ok(())
    }

    /// A search has begun; it makes as many trials as it may, as long as nothing else is known.
    pub fn began(&mut self, policy: &SearchPolicy, now: Duration) {
        self.past.push_back(PastSearch { began: now, ended: now, trials: policy.trials() });
    }

    /// The search that began last made this many trials.
    pub fn made(&mut self, trials: u32) {
        if let Some(search) = self.past.back_mut() {
            search.trials = trials;
        }
    }

    /// The search that began last goes on, or has ended now.
    pub fn lasts(&mut self, now: Duration) {
        if let Some(search) = self.past.back_mut() {
            search.ended = now;
        }
        // another search is of another time
        self.steady = None;
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::derive::signature::QueueSignature;

    use super::*;

    const MINUTE: u64 = 60;

    fn load(packets_per_s: f64) -> Option<Signature> {
        let queue = QueueSignature {
            netdev: "eth0".into(),
            of: 1,
            packets_per_s,
            ..QueueSignature::default()
        };
        Some(Signature { queues: vec![queue], ..Signature::default() })
    }

    fn policy() -> SearchPolicy {
        SearchPolicy { share: 0.015, ..SearchPolicy::default() }
    }

    fn settled(seconds: u64) -> Moment {
        let state = ControllerState::Settled;
        Moment { now: Duration::from_secs(seconds), hour: 3, state, has_conflicts: false }
    }

    /// One window; whether a search begins, which then lasts ten minutes.
    fn window(
        schedule: &mut SearchSchedule,
        policy: &SearchPolicy,
        moment: Moment,
        load: Option<Signature>,
    ) -> Result<(), Waiting> {
        schedule.may_follow(policy, &moment)?;
        schedule.may_begin(policy, moment.now, load, None)?;
        schedule.began(policy, moment.now);
        schedule.lasts(moment.now + policy.length);
        Ok(())
    }

    #[test]
    fn a_search_begins_after_the_load_was_steady_for_a_time() {
        let (mut schedule, policy) = (SearchSchedule::default(), policy());
        let mut at = |minute: u64, packets| {
            window(&mut schedule, &policy, settled(minute * MINUTE), load(packets))
        };
        let since = |minute: u64| Err(Waiting::Moving { since: Duration::from_secs(minute * 60) });
        assert_eq!(at(1, 1000.0), since(1));
        assert_eq!(at(9, 1300.0), since(1));
        // five times as many packets are another load
        assert_eq!(at(10, 5000.0), since(10));
        assert_eq!(at(19, 5000.0), since(10));
        assert_eq!(at(20, 5000.0), Ok(()));
        let until = Duration::from_secs(90 * MINUTE);
        assert_eq!(at(40, 5000.0), Err(Waiting::Pause { until }));
    }

    #[test]
    fn searches_take_their_share_of_any_24_hours_and_no_more() {
        for share in [0.007, 0.015, 0.05, 0.3] {
            let (pause, trials_per_hour) = (Duration::from_secs(60), u32::MAX);
            let policy = SearchPolicy { share, pause, trials_per_hour, ..SearchPolicy::default() };
            let (mut schedule, mut began) = (SearchSchedule::default(), Vec::new());
            let mut minute = 0;
            while minute < 5 * 24 * 60 {
                let moment = settled(minute * MINUTE);
                if window(&mut schedule, &policy, moment, load(1000.0)).is_ok() {
                    began.push(minute);
                    minute += 10;
                }
                minute += 1;
            }
            let per_day = (policy.allowance().as_secs() / 600) as usize;
            for from in &began {
                let day = began.iter().filter(|it| (*from..from + 24 * 60).contains(it)).count();
                assert!(day <= per_day, "{share}: {day} searches in the day from minute {from}");
            }
            // each also waits until the load was steady
            let least = (4 * per_day).min(5 * 24 * 60 / 25);
            assert!(began.len() >= least, "{share}: {} searches, not {least}", began.len());
        }
    }

    /// The minutes of some days at which searches began, each with the trials that it made.
    fn searches(policy: &SearchPolicy, days: u64, made: impl Fn(u64) -> u32) -> Vec<(u64, u32)> {
        let (mut schedule, mut began) = (SearchSchedule::default(), Vec::new());
        let length = policy.length.as_secs() / MINUTE;
        let mut minute = 0;
        while minute < days * 24 * 60 {
            if window(&mut schedule, policy, settled(minute * MINUTE), load(1000.0)).is_ok() {
                let trials = made(minute).min(policy.trials());
                schedule.made(trials);
                began.push((minute, trials));
                minute += length;
            }
            minute += 1;
        }
        began
    }

    /// The largest number of trials in any hour, with all trials of a search wherever they count
    /// most: at its start or at its end.
    fn most_in_an_hour(began: &[(u64, u32)], length: u64) -> u32 {
        let within = |from: u64| {
            let overlaps = |at: u64| at + length > from && at < from + 60;
            began.iter().filter(|(at, _)| overlaps(*at)).map(|(_, trials)| trials).sum()
        };
        began.iter().flat_map(|(at, _)| [within(*at), within(at + length - 1)]).max().unwrap_or(0)
    }

    #[test]
    fn no_hour_of_many_days_has_more_trials_than_allowed() {
        for trials_per_hour in [20, 50, 300, 400, 700, 5000] {
            for minutes in [3, 10, 25, 90] {
                let (length, steady) = (Duration::from_secs(60 * minutes), Duration::from_secs(60));
                let pause = Duration::from_secs(60);
                let policy = SearchPolicy {
                    share: 0.5,
                    length,
                    steady,
                    pause,
                    trials_per_hour,
                    ..SearchPolicy::default()
                };
                assert!(policy.trials() <= trials_per_hour);
                for made in [|_| u32::MAX, |minute| (minute * 7919 % 97) as u32] {
                    let began = searches(&policy, 4, made);
                    let most = most_in_an_hour(&began, minutes);
                    let case = format!("{trials_per_hour}, {minutes}m: {most}");
                    assert!(most <= trials_per_hour, "{case}");
                    assert!(!began.is_empty(), "{case}");
                }
            }
        }
    }

    #[test]
    fn trials_that_were_not_made_leave_room_for_a_further_search() {
        let (pause, share) = (Duration::from_secs(60), 0.5);
        let policy = SearchPolicy { pause, share, ..SearchPolicy::default() };
        assert_eq!((policy.trials(), policy.trial()), (260, SHORTEST_TRIAL));
        let in_a_day = |made| searches(&policy, 1, move |_| made).len();
        // 260 and 260 are more than 300: one search an hour, after the load was steady for long
        assert_eq!((in_a_day(u32::MAX), in_a_day(260)), (18, 18));
        // 13 + 13 + 260: three begin within the hour
        assert!(in_a_day(13) > 3 * in_a_day(260) - 3, "{}", in_a_day(13));
    }

    #[test]
    fn few_trials_an_hour_are_longer_ones() {
        let few = SearchPolicy { trials_per_hour: 60, ..SearchPolicy::default() };
        assert_eq!((few.trials(), few.trial()), (60, Duration::from_secs(10)));
        let odd = SearchPolicy { trials_per_hour: 7, ..SearchPolicy::default() };
        assert_eq!((odd.trials(), odd.trial()), (6, Duration::from_millis(85_715)));
    }

    #[test]
    fn a_search_waits_for_the_hour_of_the_trials_before_it() {
        let (mut schedule, pause) = (SearchSchedule::default(), Duration::from_secs(60));
        let policy = SearchPolicy { pause, ..policy() };
        schedule.began(&policy, Duration::from_secs(1000));
        schedule.lasts(Duration::from_secs(1600));
        assert_eq!(schedule.trials_lately(Duration::from_secs(1700)), 260);
        let until = Duration::from_secs(1600 + 3600);
        let waiting = schedule.may_follow(&policy, &settled(1700)).unwrap_err();
        assert_eq!(waiting, Waiting::Trials { until });
        assert_eq!(waiting.to_string(), "one more search could exceed tune.trials-per-hour");
        schedule.made(40);
        assert_eq!(schedule.may_follow(&policy, &settled(1700)), Ok(()));
        assert_eq!(schedule.trials_lately(until), 0);
    }

    #[test]
    fn whatever_is_under_way_lets_a_search_wait() {
        let policy = SearchPolicy { hours: [2, 3].into(), ..policy() };
        let why = |moment| SearchSchedule::default().may_follow(&policy, &moment).unwrap_err();
        assert_eq!(why(Moment { hour: 4, ..settled(0) }), Waiting::Hour);
        for state in
            [ControllerState::Settling, ControllerState::Verifying, ControllerState::HoldOff]
        {
            assert_eq!(why(Moment { state, ..settled(0) }), Waiting::Placing);
        }
        assert_eq!(why(Moment { has_conflicts: true, ..settled(0) }), Waiting::Conflicts);
    }

    #[test]
    fn a_load_is_steady_only_while_nothing_is_under_way() {
        let (mut schedule, policy) = (SearchSchedule::default(), policy());
        let mut at = |minute: u64, state| {
            let moment = Moment { state, ..settled(minute * MINUTE) };
            window(&mut schedule, &policy, moment, load(1000.0))
        };
        let settled = ControllerState::Settled;
        assert!(at(0, settled).is_err());
        assert_eq!(at(9, ControllerState::Verifying), Err(Waiting::Placing));
        assert!(matches!(at(10, settled), Err(Waiting::Moving { .. })));
        assert_eq!(at(20, settled), Ok(()));
    }

    #[test]
    fn what_was_measured_is_not_searched_again() {
        let (mut schedule, policy) = (SearchSchedule::default(), policy());
        let now = Duration::from_secs(3600);
        let known = schedule.may_begin(&policy, now, load(1.0), Some("20260102T030405Z"));
        let words = "outcome 20260102T030405Z was measured on this workload";
        assert_eq!(known.unwrap_err().to_string(), words);
        assert_eq!(schedule.may_begin(&policy, now, None, None), Err(Waiting::NoTraffic));
    }
}
