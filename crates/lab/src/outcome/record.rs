//! Measures one part, load by load: what a folder has is not measured again.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::outcome::args::{Measure, Part};
use crate::outcome::guest::Guest;
use crate::outcome::recorded::{Load, Recorded};
use crate::outcome::shapes::Shape;
use crate::outcome::veth;
use crate::outcome::veth_loads::LOADS;
use crate::say::progress;
use crate::wire::kernel;

/// Measures the loads of a part that the folder lacks, as long as it has not run for too long.
pub(super) fn record(part: Part, args: &Measure, folder: &Path, begun: Instant) -> Result<()> {
    let run = Run { part, args, folder, begun };
    match Shape::of(part) {
        None => {
            let about = format!("Linux {}", kernel()?);
            let loads: Vec<_> = LOADS.iter().filter(|load| run.wants(load.name)).collect();
            for (number, load) in loads.iter().enumerate() {
                if run.has(load.name)? || run.is_over() {
                    continue;
                }
                run.add(load.name, &about, || {
                    progress(&format!("{} of {}: {}", number + 1, loads.len(), load.name));
                    veth::measure(load, args, folder)
                })?;
            }
            Ok(())
        }
        Some(shape) => {
            let kinds: Vec<_> =
                shape.kinds.iter().filter(|kind| run.wants(kind.name())).copied().collect();
            let mut guest = None;
            for kind in kinds {
                if run.has(kind.name())? || run.is_over() {
                    continue;
                }
                if guest.is_none() {
                    guest = Some(Guest::boot(shape.clone())?);
                }
                let Some(guest) = &guest else { continue };
                let servers = format!("{}; servers on CPUs {:?}", guest.title(), shape.servers);
                run.add(kind.name(), &servers, || guest.measure(kind, args, folder))?;
            }
            Ok(())
        }
    }
}

/// A run for one part.
struct Run<'a> {
    part: Part,
    args: &'a Measure,
    folder: &'a Path,
    begun: Instant,
}

impl Run<'_> {
    fn wants(&self, load: &str) -> bool {
        load.contains(&self.args.load)
    }

    fn is_over(&self) -> bool {
        let most = self.args.at_most.map(Duration::from_secs);
        most.is_some_and(|most| self.begun.elapsed() >= most)
    }

    fn has(&self, load: &str) -> Result<bool> {
        let recorded = Recorded::read(self.folder)?;
        Ok(recorded.is_some_and(|it| it.loads.iter().any(|known| known.name == load)))
    }

    /// Measures a load, and adds it to the folder.
    fn add(&self, name: &str, machine: &str, measure: impl FnOnce() -> Result<Load>) -> Result<()> {
        let load = measure().with_context(|| name.to_owned())?;
        let Measure { rounds, seconds, looks, .. } = self.args;
        let about = format!(
            "netsilo-lab outcome --part {} --rounds {rounds} --seconds {seconds} --looks {looks}; \
             {machine}",
            self.part.folder()
        );
        let recorded = Recorded::read(self.folder)?;
        let mut recorded = recorded.unwrap_or(Recorded { about, loads: Vec::new() });
        recorded.loads.push(load);
        recorded.write(self.folder)
    }
}
