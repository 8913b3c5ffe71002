//! Guests whose settings are compared: where each queue is processed, RPS, RFS, sysctls.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use netsilo_lab::{Lab, Spec};
use netsilo_model::snapshot::observation::Observation;

use crate::built;
use crate::knobs::Knobs;
use crate::locality::Shares;
use crate::workload::{Kind, Workload, while_busy};

/// Prints `eth0 virtio3` for each NIC, then `/sys/kernel/irq/32/actions:virtio3-input.0` for each
/// interrupt of a queue.
const VECTORS: &str = "for it in /sys/class/net/eth*; do \
                       echo ${it##*/} $(basename $(readlink $it/device)); done; \
                       grep -HE '^virtio[0-9]+-(in|out)put[.]' /sys/kernel/irq/*/actions";

/// The CPUs of the servers: one thread of each core, two cores on each socket. They are not the
/// first threads of all cores, because most rules put the first interrupts there.
pub(crate) const SERVER_CPUS: [u32; 4] = [1, 2, 5, 6];

/// Entries of the flow table of RFS in all queues together. The kernel's
/// `Documentation/networking/scaling.rst` suggests this size for a moderately loaded server, and
/// perftune.py writes it.
const FLOWS: u32 = 32768;

/// The guest of an experiment. It is booted with its first load, and again after a failure.
pub(crate) struct Guests {
    pub(crate) spec: Spec,
    lab: Option<Lab>,
}

/// A booted guest in its first state.
pub(crate) struct Guest<'a> {
    lab: &'a Lab,
    netsilo: String,
    queues: Queues,
    booted: Knobs,
}

/// The queues of a guest's NICs. All NICs have the same number.
#[derive(Debug, Clone)]
pub(crate) struct Queues {
    /// The interrupts of rx and tx queues in the order of their numbers. Each has the position of
    /// its queue among those of all NICs.
    pub(crate) vectors: Vec<(u32, u32)>,
    /// Number of rx queues of a NIC. Each has a tx queue.
    pub(crate) queues: u32,
    /// Number of CPUs.
    pub(crate) cpus: u32,
}

impl Guests {
    pub(crate) fn new(spec: Spec) -> Self {
        Self { spec, lab: None }
    }

    /// Boots the guest, if none is running.
    pub(crate) fn lab(&mut self) -> Result<&Lab> {
        let lab = match self.lab.take() {
            Some(lab) => lab,
            None => Lab::boot(&self.spec)?,
        };
        Ok(self.lab.insert(lab))
    }

    /// Starts servers on these CPUs. The guest must be in its booted state.
    pub(crate) fn start(
        &mut self,
        kind: Kind,
        servers: &[u32],
    ) -> Result<(Guest<'_>, Workload<'_>)> {
        let spec = self.spec.clone();
        let lab = self.lab()?;
        let guest = Guest::new(lab, &spec).context("cannot take the guest as it has booted")?;
        Ok((guest, Workload::start(kind, lab, servers)?))
    }

    /// Ends the guest.
    pub(crate) fn end(&mut self) {
        self.lab = None;
    }
}

impl<'a> Guest<'a> {
    fn new(lab: &'a Lab, spec: &Spec) -> Result<Self> {
        let queues = spec.nics.first().context("a guest without a NIC")?.queues;
        let vectors = vectors(&lab.sh(VECTORS)?, spec.nics.len(), queues)?;
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

    pub(crate) fn netsilo(&self) -> &str {
        &self.netsilo
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The state that the kernel and the driver chose.
    pub(crate) fn booted(&self) -> &Knobs {
        &self.booted
    }

    /// Writes that state.
    pub(crate) fn restore(&self) -> Result<()> {
        self.booted.write(self.lab)
    }

    /// The booted state, with the interrupts of each queue on one CPU.
    pub(crate) fn placed(&self, cpus: &[u32]) -> Knobs {
        let mut knobs = self.booted.clone();
        self.queues.place(&mut knobs, |_, queue| cpus[queue as usize]);
        knobs
    }

    /// Lets netsilo observe where the data is read, under a light load.
    pub(crate) fn shares(&self, workload: &Workload<'_>) -> Result<Option<Shares>> {
        while_busy(&[workload], || Shares::read(self.lab, &self.netsilo))
    }

    /// What netsilo observes in the guest under a light load, saved in this file.
    pub(crate) fn capture(
        &self,
        workload: &Workload<'_>,
        seconds: u32,
        file: &Path,
    ) -> Result<Observation> {
        let capture = format!(
            "{} capture --interval {seconds}s --output /tmp/start.tar.zst >&2 && \
             cat /tmp/start.tar.zst && rm /tmp/start.tar.zst",
            self.netsilo
        );
        let output = while_busy(&[workload], || self.lab.run(&capture)?.ok())?;
        std::fs::write(file, output.stdout).with_context(|| format!("{file:?}"))?;
        Ok(netsilo_sys::bundle::open(file)?)
    }

    /// Reads the knobs. Before that, each of the NIC's interrupts with several CPUs is pinned to
    /// one, because the kernel chooses another CPU each time a mask of several is written. The
    /// interrupt is pinned to the CPU where it arrives. If it has not fired since its mask was
    /// written, it may still arrive outside of the mask; then it is pinned to the lowest CPU of the
    /// mask.
    pub(crate) fn pinned(&self) -> Result<Knobs> {
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

impl Queues {
    /// Puts each interrupt on the CPU for its position and its queue.
    pub(crate) fn place(&self, knobs: &mut Knobs, cpu: impl Fn(usize, u32) -> u32) {
        for (n, (irq, queue)) in self.vectors.iter().enumerate() {
            let wanted = format!("proc/irq/{irq}/smp_affinity");
            knobs.set(|file| file == wanted, &self.mask(1 << cpu(n, *queue)));
        }
    }

    /// Makes RPS of all queues steer to these CPUs.
    pub(crate) fn rps(&self, knobs: &mut Knobs, cpus: u32) {
        knobs.set(|file| file.ends_with("/rps_cpus"), &self.mask(cpus));
    }

    /// Switches RFS on for all queues.
    pub(crate) fn rfs(&self, knobs: &mut Knobs) {
        knobs.set(|file| file.ends_with("/rps_sock_flow_entries"), &FLOWS.to_string());
        knobs.set(|file| file.ends_with("/rps_flow_cnt"), &(FLOWS / self.queues).to_string());
    }

    /// A mask as the kernel prints it.
    pub(crate) fn mask(&self, cpus: u32) -> String {
        format!("{cpus:0digits$x}", digits = self.cpus.div_ceil(4) as usize)
    }

    /// All CPUs.
    pub(crate) fn all(&self) -> u32 {
        u32::MAX >> (u32::BITS - self.cpus)
    }
}

/// Interrupt and queue of each line, in the order of the interrupts.
fn vectors(text: &str, nics: usize, queues: u32) -> Result<Vec<(u32, u32)>> {
    let device = |nic: usize| -> Result<String> {
        let start = format!("eth{nic} ");
        let device = text.lines().find_map(|line| line.strip_prefix(&start));
        Ok(format!("{}-", device.with_context(|| format!("no device of eth{nic}"))?))
    };
    let devices = (0..nics).map(device).collect::<Result<Vec<_>>>()?;
    let vector = |line: &str| -> Option<(u32, u32)> {
        let (file, name) = line.strip_prefix("/sys/kernel/irq/")?.split_once(':')?;
        let nic = devices.iter().position(|device| name.starts_with(device))? as u32;
        let queue: u32 = name.split_once('.')?.1.parse().ok()?;
        Some((file.strip_suffix("/actions")?.parse().ok()?, nic * queues + queue))
    };
    let mut found: Vec<_> = text.lines().filter_map(vector).collect();
    found.sort_unstable();
    let expected = 2 * queues as usize * nics;
    ensure!(found.len() == expected, "not {expected} interrupts of queues: {found:?}");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_numbered_nic_by_nic_and_vectors_are_in_the_order_of_their_numbers() {
        let text = "eth0 virtio4\neth1 virtio3\n\
                    /sys/kernel/irq/100/actions:virtio3-input.0\n\
                    /sys/kernel/irq/101/actions:virtio3-output.0\n\
                    /sys/kernel/irq/99/actions:virtio4-output.0\n\
                    /sys/kernel/irq/98/actions:virtio4-input.0\n";
        assert_eq!(vectors(text, 2, 1).unwrap(), [(98, 0), (99, 0), (100, 1), (101, 1)]);
        assert!(vectors(text, 2, 2).is_err() && vectors(text, 3, 1).is_err());
    }

    #[test]
    fn masks_are_as_wide_as_the_guest() {
        let queues = |cpus| Queues { vectors: Vec::new(), queues: 4, cpus };
        assert_eq!((queues(8).mask(1), queues(16).mask(0x100)), ("01".into(), "0100".into()));
        assert_eq!((queues(8).all(), queues(32).all()), (0xff, u32::MAX));
    }
}
