//! The interrupts of a guest's queues.

use anyhow::{Context, Result, ensure};
use netsilo_lab::Lab;

/// Prints `eth0 virtio3` for each NIC, then `/sys/kernel/irq/32/actions:virtio3-input.0` for each
/// interrupt of a queue.
const READ: &str = "for it in /sys/class/net/eth*; do \
                    echo ${it##*/} $(basename $(readlink $it/device)); done; \
                    grep -HE '^virtio[0-9]+-(in|out)put[.]' /sys/kernel/irq/*/actions";

/// The interrupts of all rx and tx queues.
#[derive(Debug)]
pub(super) struct Vectors {
    /// Interrupt, and the position of its queue among those of all netdevs.
    vectors: Vec<(u32, usize)>,
    cpus: u32,
}

impl Vectors {
    /// Reads those of netdevs with as many queues each.
    pub(super) fn read(lab: &Lab, netdevs: &[&str], cpus: u32) -> Result<Self> {
        Self::parse(&lab.sh(READ)?, netdevs, cpus)
    }

    fn parse(text: &str, netdevs: &[&str], cpus: u32) -> Result<Self> {
        let device = |netdev: &&str| -> Result<String> {
            let start = format!("{netdev} ");
            let device = text.lines().find_map(|line| line.strip_prefix(&start));
            Ok(format!("{}-", device.with_context(|| format!("no device of {netdev}"))?))
        };
        let devices = netdevs.iter().map(device).collect::<Result<Vec<_>>>()?;
        let vector = |line: &str| -> Option<(u32, usize, usize)> {
            let (file, name) = line.strip_prefix("/sys/kernel/irq/")?.split_once(':')?;
            let netdev = devices.iter().position(|device| name.starts_with(device))?;
            let queue = name.split_once('.')?.1.parse().ok()?;
            Some((file.strip_suffix("/actions")?.parse().ok()?, netdev, queue))
        };
        let found: Vec<_> = text.lines().filter_map(vector).collect();
        let each = found.iter().map(|(_, _, queue)| queue + 1).max().unwrap_or(0);
        let vectors = found.into_iter().map(|(irq, netdev, queue)| (irq, netdev * each + queue));
        Ok(Self { vectors: vectors.collect(), cpus })
    }

    /// The number of rx queues.
    pub(super) fn queues(&self) -> usize {
        self.vectors.iter().map(|(_, queue)| queue + 1).max().unwrap_or(0)
    }

    /// Puts the interrupts of each queue on its CPU.
    pub(super) fn place(&self, lab: &Lab, cpus: &[String]) -> Result<()> {
        let mut commands = Vec::new();
        for (irq, queue) in &self.vectors {
            let cpu: u32 = cpus[*queue].parse().with_context(|| format!("CPUs {cpus:?}"))?;
            ensure!(cpu < self.cpus, "no CPU {cpu}");
            commands.push(format!("echo {cpu} >/proc/irq/{irq}/smp_affinity_list"));
        }
        lab.sh(&commands.join(" && ")).map(drop)
    }
}

/// CPUs as a plan prints them.
pub(super) fn in_words(cpus: &[u32]) -> Vec<String> {
    cpus.iter().map(u32::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_numbered_netdev_by_netdev() {
        let text = "eth0 virtio4\neth1 virtio3\n\
                    /sys/kernel/irq/30/actions:virtio3-input.1\n\
                    /sys/kernel/irq/31/actions:virtio4-output.0\n\
                    /sys/kernel/irq/32/actions:virtio4-input.1\n";
        let vectors = Vectors::parse(text, &["eth0", "eth1"], 8).unwrap();
        assert_eq!(vectors.vectors, [(30, 3), (31, 0), (32, 1)]);
        assert_eq!(vectors.queues(), 4);
        assert!(Vectors::parse(text, &["eth2"], 8).is_err());
    }
}
