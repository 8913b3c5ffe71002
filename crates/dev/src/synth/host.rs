//! One synthetic host: a machine, a netdev with a queue per CPU or fewer, readers, and a fault.

use std::time::Duration;

use fastrand::Rng;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::{KnobOwner, OwnedKnob};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};
use serde::{Deserialize, Serialize};

use crate::synth::machines::Machine;

/// Drivers of the fleet, each with its share in percent.
const DRIVERS: [(&str, u32); 8] = [
    ("mlx5_core", 25),
    ("ice", 20),
    ("ixgbe", 15),
    ("virtio_net", 15),
    ("ena", 10),
    ("bnxt_en", 5),
    ("i40e", 5),
    ("iavf", 5),
];
/// Kernels of the fleet, each with its share in percent.
const KERNELS: [(&str, u32); 4] =
    [("6.1.0-28-amd64", 45), ("6.12.9", 30), ("5.14.0-503.el9", 15), ("7.2.1", 10)];
/// What is wrong with hosts, each with its share in percent.
const FAULTS: [(Fault, u32); 5] = [
    (Fault::None, 60),
    (Fault::OneCpu, 15),
    (Fault::Far, 10),
    (Fault::RpsToItself, 10),
    (Fault::Owned, 5),
];
/// First interrupt of a netdev's queues.
const FIRST_IRQ: u32 = 64;

/// What is wrong with a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Each queue is polled on the CPU of its reader.
    None,
    /// All queues are polled on CPU 0.
    OneCpu,
    /// Queues are polled as far from their readers as the machine allows.
    Far,
    /// RPS of each queue names the CPU that polls it.
    RpsToItself,
    /// All queues are polled on CPU 0, and irqbalance runs.
    Owned,
}

/// How a host was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truth {
    /// Its name: `host-` and its number.
    pub host: String,
    /// Its kernel.
    pub kernel: String,
    /// The driver of its netdev.
    pub driver: String,
    /// The name of its machine.
    pub machine: String,
    /// Number of online CPUs.
    pub cpus: u32,
    /// Number of rx queues.
    pub queues: u32,
    /// What is wrong with it.
    pub fault: Fault,
}

/// A host of a fleet.
#[derive(Debug, Clone)]
pub struct Host {
    /// How it was made.
    pub truth: Truth,
    scene: Scene,
    /// How long it has been up.
    uptime: Duration,
}

impl Host {
    /// Host `number` of the fleet with this seed, on one of `machines`. If `uniform`, it has 8
    /// queues and 8 CPUs.
    pub fn new(seed: u64, number: u64, machines: &[Machine], uniform: bool) -> Self {
        // Consecutive seeds of this generator give unrelated numbers.
        let mut rng = Rng::with_seed(seed.rotate_left(32) ^ number);
        let machine = match machines {
            [] => Machine::eight_cpus(),
            _ if uniform => Machine::eight_cpus(),
            _ => machines[rng.usize(..machines.len())].clone(),
        };
        let cpus = machine.topology.online.len() as u32;
        let queues = if uniform { 8 } else { cpus.min(8 << rng.u32(..3)) };
        let truth = Truth {
            host: format!("host-{number:06}"),
            kernel: (*by_share(&KERNELS, &mut rng)).to_owned(),
            driver: (*by_share(&DRIVERS, &mut rng)).to_owned(),
            machine: machine.name,
            cpus,
            queues,
            fault: *by_share(&FAULTS, &mut rng),
        };
        let scene = Scene {
            netdevs: vec![netdev(&truth, &machine.topology, &mut rng)],
            topology: Some(machine.topology),
            knob_owners: irqbalance(truth.fault),
            ..Scene::default()
        };
        Self { truth, scene, uptime: Duration::from_secs(rng.u64(600..10_000_000)) }
    }

    /// What netsilo would observe on it.
    pub fn observation(&self) -> Observation {
        let mut observation = self.scene.observation();
        for snapshot in [&mut observation.before, &mut observation.after] {
            snapshot.machine.hostname.clone_from(&self.truth.host);
            snapshot.machine.release.clone_from(&self.truth.kernel);
            snapshot.at += self.uptime;
        }
        observation
    }
}

fn netdev(truth: &Truth, topology: &Topology, rng: &mut Rng) -> SceneNetdev {
    let online: Vec<CpuId> = topology.online.iter().collect();
    let first = online.first().copied().unwrap_or_default();
    let farthest = |reader: CpuId| {
        online.iter().copied().max_by_key(|cpu| topology.distance(reader, *cpu)).unwrap_or(reader)
    };
    // Readers are all over the machine.
    let reader = |number: u32| {
        online.get((number * truth.cpus / truth.queues.max(1)) as usize).copied().unwrap_or(first)
    };
    let queues = (0..truth.queues).map(|number| {
        let reader = reader(number);
        let polled = match truth.fault {
            Fault::None | Fault::RpsToItself => reader,
            Fault::OneCpu | Fault::Owned => first,
            Fault::Far => farthest(reader),
        };
        queue(truth.fault, number, polled, reader, rng)
    });
    SceneNetdev {
        name: "eth0".into(),
        driver: truth.driver.clone(),
        node: topology.nodes.keys().next().map(|node| node.0),
        queues: queues.collect(),
        speed_mbps: Some(25_000),
        ..SceneNetdev::default()
    }
}

/// A queue with its load: 20,000 to 60,000 packets a second. Each packet takes a microsecond.
fn queue(fault: Fault, number: u32, polled: CpuId, reader: CpuId, rng: &mut Rng) -> SceneQueue {
    let packets_per_s = rng.u64(20_000..60_000);
    SceneQueue {
        irq: Some(FIRST_IRQ + number),
        cpus: CpuSet::from_cpu(polled),
        rps_cpus: Some(match fault {
            Fault::RpsToItself => CpuSet::from_cpu(polled),
            _ => CpuSet::new(),
        }),
        packets_per_s,
        packets_per_poll: rng.u64(2..16),
        load: packets_per_s as f64 / 1e6,
        readers: vec![Reader {
            comm: "server".into(),
            cpu: reader,
            bytes_per_s: packets_per_s * rng.u64(200..1400),
            ..Reader::default()
        }],
        wakeups_per_s: packets_per_s / 4,
        ..SceneQueue::default()
    }
}

fn irqbalance(fault: Fault) -> Vec<KnobOwner> {
    let owner = || KnobOwner {
        name: "irqbalance".into(),
        pid: 812,
        writes: vec![OwnedKnob::IrqAffinity],
        bans: None,
    };
    (fault == Fault::Owned).then(owner).into_iter().collect()
}

/// Chooses among values with shares in percent.
fn by_share<'a, T>(values: &'a [(T, u32)], rng: &mut Rng) -> &'a T {
    let mut left = rng.u32(..100);
    let chosen = values.iter().find(|(_, share)| {
        let found = left < *share;
        left = left.saturating_sub(*share);
        found
    });
    &chosen.unwrap_or(&values[0]).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::machines::machines;

    #[test]
    fn a_host_depends_on_seed_and_number_alone() {
        let machines = machines().unwrap();
        let host = |seed, number| Host::new(seed, number, &machines, false).observation();
        assert_eq!(host(1, 7), host(1, 7));
        assert_ne!(host(1, 7), host(2, 7));
        assert_ne!(host(1, 7).after.netdevs, host(1, 8).after.netdevs);
    }

    #[test]
    fn shares_are_those_of_the_tables() {
        let hosts: Vec<_> = (0..2000).map(|number| Host::new(3, number, &[], true).truth).collect();
        for (fault, share) in FAULTS {
            let found = hosts.iter().filter(|host| host.fault == fault).count() as u32;
            // five standard deviations of a share of 2000
            assert!(found.abs_diff(share * 20) < 110, "{fault:?}: {found} of 2000");
        }
        assert!(hosts.iter().all(|host| (host.cpus, host.queues) == (8, 8)));
    }

    #[test]
    fn each_list_of_shares_adds_up() {
        let sum = |shares: &[u32]| shares.iter().sum::<u32>();
        assert_eq!(sum(&DRIVERS.map(|it| it.1)), 100);
        assert_eq!(sum(&KERNELS.map(|it| it.1)), 100);
        assert_eq!(sum(&FAULTS.map(|it| it.1)), 100);
    }
}
