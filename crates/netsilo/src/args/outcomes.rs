//! The stored outcomes of `netsilo tune`, and which of them apply to this machine and workload.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use netsilo_decide::plan::find_outcome::{FoundOutcome, KeptOutcome};
use netsilo_decide::plan::measured_outcome::{MeasuredOutcome, SCHEMA};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_sys::consumer::pinned;
use netsilo_sys::files::document;
use netsilo_sys::files::root::Root;
use netsilo_sys::outcomes::{self, OUTCOMES_DIR};
use netsilo_sys::read::machine::machine_identity;

use crate::args::objective::Objective;
use crate::tell::out;

/// Folder in which outcomes are stored.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OutcomesDir {
    /// Folder where netsilo tune keeps what it measured
    #[arg(long, value_name = "DIR", default_value = OUTCOMES_DIR, hide = true)]
    outcomes_dir: PathBuf,
}

/// The outcomes that plans of one machine may follow, newest first.
#[derive(Debug)]
pub(crate) struct KnownOutcomes {
    root: Root,
    kept: Vec<KeptOutcome>,
}

impl OutcomesDir {
    /// Returns the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.outcomes_dir
    }

    /// Reads all outcomes, newest first, with a note for each that cannot be used.
    pub(crate) fn load(&self) -> (Vec<KeptOutcome>, Vec<String>) {
        let loaded = outcomes::load(&self.outcomes_dir);
        let (mut kept, mut notes) = (Vec::new(), loaded.notes);
        for stored in loaded.outcomes {
            match parse(&stored.text) {
                Ok(outcome) => kept.push(KeptOutcome { id: stored.id, outcome }),
                Err(why) => {
                    let (id, dir) = (&stored.id, self.outcomes_dir.display());
                    notes.push(format!(
                        "outcome {id} in {dir} is not used: {why}; remove it with: netsilo \
                         tune --forget {id}"
                    ));
                }
            }
        }
        (kept, notes)
    }

    /// Reads the outcomes that plans of this machine may follow, with notes like [`Self::load`].
    pub(crate) fn known(&self, root: Root) -> Result<(KnownOutcomes, Vec<String>)> {
        let (mut kept, notes) = self.load();
        kept.retain(|it| guides_plans(&it.outcome.objective));
        if !kept.is_empty() {
            let machine = machine_identity(&root).context("cannot identify this machine")?;
            kept.retain(|it| it.outcome.differs_in_machine(&machine).is_none());
        }
        Ok((KnownOutcomes { root, kept }, notes))
    }

    /// Stores an outcome. Returns its id.
    pub(crate) fn keep(&self, outcome: &MeasuredOutcome) -> Result<String> {
        let text = out::indented(outcome)?;
        let at = UNIX_EPOCH + Duration::from_secs(outcome.ended_s);
        let when = humantime::format_rfc3339_seconds(at).to_string().replace([':', '-'], "");
        Ok(outcomes::store(&self.outcomes_dir, &when, text.as_bytes())?)
    }
}

impl KnownOutcomes {
    /// The newest outcome that was measured on the workload of an observation.
    pub(crate) fn find(&self, analysis: &Analysis<'_>) -> FoundOutcome<'_> {
        if self.kept.is_empty() {
            return FoundOutcome::Nothing;
        }
        let now = signature(analysis, &self.root);
        FoundOutcome::newest(&self.kept, now.as_ref(), since_1970())
    }
}

/// The signature of what is observed, or `None` if no packet was counted.
pub(crate) fn signature(analysis: &Analysis<'_>, root: &Root) -> Option<Signature> {
    let silos = &analysis.silos.queues;
    let readers = silos.iter().flat_map(|silo| &silo.consumers).map(|consumer| consumer.tgid);
    let online = &analysis.after().topology.online;
    Signature::new(analysis, &pinned(root, readers, online))
}

/// The time now.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether plans follow an outcome with this objective. A plan improves time and throughput.
pub(crate) fn guides_plans(objective: &str) -> bool {
    let known = Objective::ALL.into_iter().find(|it| it.as_str() == objective);
    known.is_some_and(Objective::guides_plans)
}

/// Parses and checks the contents of a file.
fn parse(text: &[u8]) -> Result<MeasuredOutcome, String> {
    let outcome: MeasuredOutcome = document::parse(text, SCHEMA).map_err(|why| why.to_string())?;
    outcome.check()?;
    Ok(outcome)
}
