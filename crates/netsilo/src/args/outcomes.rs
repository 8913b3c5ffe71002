//! The kept outcomes of `netsilo tune`: which of them says something of this machine and workload.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use netsilo_decide::plan::learned::Learned;
use netsilo_decide::plan::outcomes::{KeptOutcome, Recall};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_sys::consumer::pinned;
use netsilo_sys::files::root::Root;
use netsilo_sys::outcomes::{self, OUTCOMES_DIR};
use netsilo_sys::read::machine::machine_identity;

use crate::args::objective::Objective;

/// Where outcomes are kept.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OutcomesDir {
    /// Folder where netsilo tune keeps what it measured
    #[arg(long, value_name = "DIR", default_value = OUTCOMES_DIR, hide = true)]
    outcomes_dir: PathBuf,
}

/// The outcomes that plans of one machine may follow, the newest first.
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

    /// Reads all outcomes, the newest first, with a note for each that cannot be used.
    pub(crate) fn load(&self) -> (Vec<KeptOutcome>, Vec<String>) {
        let loaded = outcomes::load(&self.outcomes_dir);
        let (mut kept, mut notes) = (Vec::new(), loaded.notes);
        for stored in loaded.outcomes {
            match parse(&stored.text) {
                Ok(learned) => kept.push(KeptOutcome { id: stored.id, learned }),
                Err(why) => {
                    let (id, dir) = (&stored.id, self.outcomes_dir.display());
                    notes.push(format!(
                        "outcome {id} in {dir} is not used: {why}; remove it with: netsilo \
                         outcomes --forget {id}"
                    ));
                }
            }
        }
        (kept, notes)
    }

    /// Reads the outcomes that plans of this machine may follow, with notes like [`Self::load`].
    pub(crate) fn known(&self, root: Root) -> Result<(KnownOutcomes, Vec<String>)> {
        let (mut kept, notes) = self.load();
        kept.retain(|it| guides_plans(&it.learned.objective));
        if !kept.is_empty() {
            let machine = machine_identity(&root).context("cannot identify this machine")?;
            kept.retain(|it| it.learned.differs_in_machine(&machine).is_none());
        }
        Ok((KnownOutcomes { root, kept }, notes))
    }

    /// Keeps an outcome; returns its id.
    pub(crate) fn keep(&self, learned: &Learned) -> Result<String> {
        let mut text = serde_json::to_vec_pretty(learned).context("cannot serialize JSON")?;
        text.push(b'\n');
        let at = UNIX_EPOCH + Duration::from_secs(learned.ended_s);
        let when = humantime::format_rfc3339_seconds(at).to_string().replace([':', '-'], "");
        Ok(outcomes::store(&self.outcomes_dir, &when, &text)?)
    }
}

impl KnownOutcomes {
    /// The newest outcome that was measured on the workload of an observation.
    pub(crate) fn recall(&self, analysis: &Analysis<'_>) -> Recall<'_> {
        if self.kept.is_empty() {
            return Recall::Nothing;
        }
        let now = signature(analysis, &self.root);
        Recall::newest(&self.kept, now.as_ref(), since_1970())
    }
}

/// What is observed, as a signature; `None` if no packet was counted.
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
