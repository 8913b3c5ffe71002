//! Runs a race: applies each candidate, measures it, records the result, and reverts it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_trial::race::{Race, RacePlan, RaceRecord, Turn, TurnEnd};

use crate::runs::refused;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::temporary_changes::{Restored, TemporaryChanges};
use crate::tune::folder::Folder;
use crate::tune::kthreads::present_kthreads;
use crate::tune::meter::{Meter, WindowResult};
use crate::views::tune::{newly_out, outlook, so_far};

/// A search ends after this many consecutive windows without a value.
const MOST_LOST: usize = 5;

/// A search prints the smallest gain that it can show after this time, or after half of its own
/// time if that is less.
const OUTLOOK_AFTER: Duration = Duration::from_secs(50);

/// A running search.
pub(super) struct Search<'a> {
    pub(super) plan: &'a RacePlan,
    pub(super) race: Race,
    pub(super) meter: Meter<'a>,
    pub(super) folder: Option<Folder>,
    /// The end of the budget.
    pub(super) until: Instant,
    pub(super) stop: &'a AtomicBool,
}

impl Search<'_> {
    /// Measures until the race is over, the time is up or `stop` is set. Nothing stays in effect.
    pub(super) fn run(mut self, temporary: &mut TemporaryChanges<'_>) -> Result<Race> {
        let bar = progress(self.plan, &self.race);
        let ended = self.windows(temporary, &bar);
        bar.finish_and_clear();
        ended.map(|()| self.race)
    }

    fn windows(&mut self, temporary: &mut TemporaryChanges<'_>, bar: &ProgressBar) -> Result<()> {
        let (begun, mut lost, mut told) = (Instant::now(), 0, false);
        let outlook_at = begun + OUTLOOK_AFTER.min(self.until.duration_since(begun) / 2);
        while (Instant::now() < self.until || self.race.owes_control())
            && let Some(turn) = self.race.next_turn()
        {
            let before = self.race.standings();
            let Some(record) = self.window(turn, temporary)? else { break };
            lost = self.count_lost(&record, lost)?;
            self.race.end(record.end.clone(), record.counts.clone());
            if let Some(folder) = &mut self.folder {
                folder.append(&record)?;
            }
            for line in newly_out(self.plan, &before, &self.race.standings()) {
                bar.suspend(|| out::note(&line));
            }
            if !told && Instant::now() >= outlook_at {
                let left = self.until.saturating_duration_since(Instant::now());
                let line = outlook(self.plan, &self.race, left);
                bar.suspend(|| out::note(&line));
                told = true;
            }
            bar.set_position(self.race.turns() as u64);
            bar.set_message(so_far(self.plan, &self.race));
        }
        self.race.out_of_time();
        Ok(())
    }

    /// Measures one window and reverts the candidate. Returns `None` if it was interrupted.
    fn window(
        &mut self,
        turn: Turn,
        temporary: &mut TemporaryChanges<'_>,
    ) -> Result<Option<RaceRecord>> {
        let started_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        let candidate = turn.candidate;
        let record = |WindowResult { peeks, end, counts }| RaceRecord {
            candidate,
            started_ms,
            peeks,
            end,
            counts,
        };
        let changes = present_kthreads(&self.plan.candidates[candidate].changes)?;
        if let Err(error) = temporary.replace(&changes) {
            let end = TurnEnd::Failed(refused(error)?);
            return Ok(Some(record(WindowResult::ended(Vec::new(), end))));
        }
        let race = &mut self.race;
        let measured = self.meter.measure(&mut |peek| race.peek(peek))?;
        let was_in_effect = temporary.restore()? == Restored::Now || changes.is_empty();
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let as_measured = |window: WindowResult| {
            if was_in_effect {
                window
            } else {
                let why = "its guard restored the current state before the window ended";
                WindowResult::ended(window.peeks, TurnEnd::Lost(why.into()))
            }
        };
        Ok(measured.map(as_measured).map(record))
    }

    /// Counts consecutive windows without a value. Fails after too many, and when the current state
    /// cannot be measured.
    fn count_lost(&self, record: &RaceRecord, lost: usize) -> Result<usize> {
        match &record.end {
            TurnEnd::Failed(why) if record.candidate == 0 => bail!("{why}"),
            TurnEnd::Value(value) if record.candidate == 0 && !self.plan.rules.accepts(*value) => {
                bail!(
                    "{value} cannot be compared by a ratio: the command must print numbers above 0"
                )
            }
            TurnEnd::Lost(why) if lost + 1 == MOST_LOST => {
                let message = format!("{MOST_LOST} consecutive windows without a value: {why}");
                Err(ExitError(Exit::Refused, message).into())
            }
            TurnEnd::Lost(_) => Ok(lost + 1),
            _ => Ok(0),
        }
    }
}

/// Bar on stderr: windows measured, maximum time left, remaining candidates.
fn progress(plan: &RacePlan, race: &Race) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "window {pos} of at most {len} {wide_bar} at most {eta} left  {msg}",
    );
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(plan.rules.turns as u64).with_style(style);
    bar.set_position(race.turns() as u64);
    bar.reset_eta();
    bar
}
