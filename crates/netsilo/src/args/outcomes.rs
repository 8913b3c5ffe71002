//! The kept outcomes of `netsilo tune`: which of them says something of this machine and workload.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use netsilo_decide::plan::learned::Learned;
use netsilo_model::cost::calibration::MachineIdentity;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_sys::consumer::pinned;
use netsilo_sys::files::root::Root;
use netsilo_sys::outcomes::{self, OUTCOMES_DIR};
use netsilo_sys::read::machine::machine_identity;

use crate::args::objective::Objective;
use crate::tell::out;

/// Where outcomes are kept.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OutcomesDir {
    /// Folder where netsilo tune keeps what it measured
    #[arg(long, value_name = "DIR", default_value = OUTCOMES_DIR, hide = true)]
    outcomes_dir: PathBuf,
}

/// An outcome and its id.
#[derive(Debug, Clone)]
pub(crate) struct KeptOutcome {
    pub(crate) id: String,
    pub(crate) learned: Learned,
}

/// What the kept outcomes say of a machine and workload.
#[derive(Debug)]
pub(crate) enum Recall {
    /// This one was measured on them.
    Matches(KeptOutcome),
    /// The newest outcome of this machine was measured on another workload, for this reason.
    Differs(KeptOutcome, String),
    /// Nothing was measured on this machine.
    Nothing,
}

impl OutcomesDir {
    /// Returns the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.outcomes_dir
    }

    /// Reads all outcomes, the newest first; prints a note for each that cannot be used.
    pub(crate) fn load(&self) -> Vec<KeptOutcome> {
        let loaded = outcomes::load(&self.outcomes_dir);
        loaded.notes.iter().for_each(|note| out::note(note));
        let mut kept = Vec::new();
        for stored in loaded.outcomes {
            match parse(&stored.text) {
                Ok(learned) => kept.push(KeptOutcome { id: stored.id, learned }),
                Err(why) => {
                    let (id, dir) = (&stored.id, self.outcomes_dir.display());
                    out::note(&format!(
                        "outcome {id} in {dir} is not used: {why}; remove it with: netsilo \
                         outcomes --forget {id}"
                    ));
                }
            }
        }
        kept
    }

    /// Keeps an outcome; returns its id.
    pub(crate) fn keep(&self, learned: &Learned) -> Result<String> {
        let text = out::indented(learned)?;
        let at = UNIX_EPOCH + Duration::from_secs(learned.ended_s);
        let when = humantime::format_rfc3339_seconds(at).to_string().replace([':', '-'], "");
        Ok(outcomes::store(&self.outcomes_dir, &when, text.as_bytes())?)
    }

    /// The newest outcome that was measured on this machine and workload.
    pub(crate) fn recall(&self, analysis: &Analysis<'_>) -> Result<Recall> {
        let mut kept = self.load();
        kept.retain(|it| guides_plans(&it.learned.objective));
        if kept.is_empty() {
            return Ok(Recall::Nothing);
        }
        let machine = machine_identity(&Root::live()).context("cannot identify this machine")?;
        Ok(newest(kept, &machine, signature(analysis).as_ref()))
    }
}

/// The newest outcome that matches; else the newest one of this machine.
fn newest(kept: Vec<KeptOutcome>, machine: &MachineIdentity, now: Option<&Signature>) -> Recall {
    let mut other = None;
    for outcome in kept {
        if outcome.learned.differs_in_machine(machine).is_some() {
            continue;
        }
        let differs = match now {
            Some(now) => outcome.learned.differs_from(machine, now),
            None => Some("no packet was counted, so the workload is not known".into()),
        };
        match differs {
            None => return Recall::Matches(outcome),
            Some(why) if other.is_none() => other = Some((outcome, why)),
            Some(_) => {}
        }
    }
    other.map_or(Recall::Nothing, |(outcome, why)| Recall::Differs(outcome, why))
}

/// What is observed, as a signature; `None` if no packet was counted.
pub(crate) fn signature(analysis: &Analysis<'_>) -> Option<Signature> {
    let silos = &analysis.silos.queues;
    let readers = silos.iter().flat_map(|silo| &silo.consumers).map(|consumer| consumer.tgid);
    let online = &analysis.after().topology.online;
    Signature::new(analysis, &pinned(&Root::live(), readers, online))
}

/// Time since an outcome was measured.
pub(crate) fn age(learned: &Learned) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(learned.ended_s))
}

/// Whether plans follow an outcome with this objective; a plan improves time and throughput.
pub(crate) fn guides_plans(objective: &str) -> bool {
    let known = Objective::ALL.into_iter().find(|it| it.as_str() == objective);
    known.is_some_and(Objective::guides_plans)
}

/// Parses and checks the contents of a file.
fn parse(text: &[u8]) -> Result<Learned, String> {
    // the schema first: the other fields of another schema may have any form
    #[derive(serde::Deserialize)]
    struct Versioned {
        schema: u32,
    }
    let Versioned { schema } = serde_json::from_slice(text).map_err(|why| why.to_string())?;
    if schema != netsilo_decide::plan::learned::SCHEMA {
        return Err(format!("it has schema {schema}, which this netsilo does not read"));
    }
    let learned: Learned = serde_json::from_slice(text).map_err(|why| why.to_string())?;
    learned.check()?;
    Ok(learned)
}
