//! The guest whose knobs are compared.

use anyhow::{Context, Result, ensure};
use netsilo_lab::{Lab, Spec};

use crate::built;
use crate::knobs::Knobs;
use crate::locality::Shares;
use crate::peers::observed;
use crate::peers::rules::{self, Queues};
use crate::peers::setting::PeerSetting;
use crate::workload::{Workload, while_busy};

/// Lists the interrupts of all virtio-net queues as `/sys/kernel/irq/32/actions:virtio3-input.0`.
const VECTORS: &str = "grep -HE '^virtio[0-9]+-(in|out)put[.]' /sys/kernel/irq/*/actions";

/// A booted guest in its first state.
pub(crate) struct PeersGuest<'a> {
    lab: &'a Lab,
    netsilo: String,
    queues: Queues,
    booted: Knobs,
}

impl<'a> PeersGuest<'a> {
    /// Takes a guest as it has booted.
    pub(crate) fn new(lab: &'a Lab, spec: &Spec) -> Result<Self> {
        let vectors = vectors(&lab.sh(VECTORS)?)?;
        let queues = spec.nics.first().context("a guest without a NIC")?.queues;
        let expected = 2 * queues as usize * spec.nics.len();
        ensure!(vectors.len() == expected, "not {expected} interrupts of queues: {vectors:?}");
        let mut guest = Self {
            lab,
            netsilo: built::netsilo()?.display().to_string(),
            queues: Queues { vectors, queues, cpus: spec.cpus },
            booted: Knobs::default(),
        };
        guest.booted = guest.pinned()?;
        Ok(guest)
    }

    pub(crate) fn lab(&self) -> &'a Lab {
        self.lab
    }

    /// The state that the kernel and the driver chose.
    pub(crate) fn booted(&self) -> &Knobs {
        &self.booted
    }

    /// Lets netsilo observe where the data is read.
    pub(crate) fn shares(&self) -> Result<Option<Shares>> {
        Shares::read(self.lab, &self.netsilo)
    }

    /// Returns the state that a setting leads to under a workload, and what a program that placed
    /// it printed; the guest is as booted afterwards.
    pub(crate) fn place(
        &self,
        setting: PeerSetting,
        workload: &Workload<'_>,
        search_all: bool,
    ) -> Result<(Knobs, Option<String>)> {
        let mut knobs = self.booted.clone();
        if rules::apply(setting, &self.queues, &mut knobs) {
            return Ok((knobs, None));
        }
        let printed = while_busy(&[workload], || {
            observed::place(setting, self.lab, &self.netsilo, search_all)
        })?;
        let placed = self.pinned()?;
        observed::forget(self.lab, &self.netsilo)?;
        self.booted.write(self.lab)?;
        Ok((placed, Some(printed)))
    }

    /// The booted state with the interrupts of each queue on a CPU.
    pub(crate) fn placed(&self, cpus: &[u32]) -> Knobs {
        let mut knobs = self.booted.clone();
        rules::place(&self.queues, &mut knobs, |_, queue| cpus[queue as usize]);
        knobs
    }

    /// Reads the knobs after each of the NIC's interrupts with several CPUs was pinned to one: the
    /// kernel would choose another one each time such a mask is written. It is the one where the
    /// interrupt arrives, unless it has not fired since the mask was written: then it still arrives
    /// outside of it.
    fn pinned(&self) -> Result<Knobs> {
        let irqs: String = self.queues.vectors.iter().map(|(irq, _)| format!(" {irq}")).collect();
        self.lab.sh(&format!(
            "for irq in{irqs}; do cd /proc/irq/$irq; mask=$((0x$(cat smp_affinity))); \
             [ $((mask & (mask - 1))) = 0 ] && continue; \
             cpu=$((0x$(cat effective_affinity) & mask)); \
             printf %x $((cpu ? cpu : mask & -mask)) >smp_affinity; done"
        ))?;
        Knobs::read(self.lab)
    }
}

/// Interrupt and queue of each line, in the order of the interrupts.
fn vectors(text: &str) -> Result<Vec<(u32, u32)>> {
    let vector = |line: &str| -> Option<(u32, u32)> {
        let (file, name) = line.split_once(':')?;
        let irq = file.strip_prefix("/sys/kernel/irq/")?.strip_suffix("/actions")?;
        Some((irq.parse().ok()?, name.split_once('.')?.1.parse().ok()?))
    };
    let found = text.lines().map(|line| vector(line).context(line.to_owned()));
    let mut found = found.collect::<Result<Vec<_>>>()?;
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_in_the_order_of_their_numbers() {
        let text = "/sys/kernel/irq/100/actions:virtio3-output.1\n\
                    /sys/kernel/irq/99/actions:virtio3-input.1\n";
        assert_eq!(vectors(text).unwrap(), [(99, 1), (100, 1)]);
        assert!(vectors("nonsense").is_err());
    }
}
