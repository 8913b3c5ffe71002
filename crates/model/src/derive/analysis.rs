//! [`Analysis`]: an observation with everything that is derived from it, computed once.
//!
//! Reports, plans, findings, verdicts and explanations take an `Analysis` and nothing else, so that
//! all of them use the same rates and silos.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::machine::cpuset::CpuId;

use crate::change::{Change, Knob, Target};
use crate::cost::weights::Costs;
use crate::derive::net_threads::{NetThreadWork, net_threads};
use crate::derive::rates::{Rates, rates};
use crate::derive::silo::{Silo, Silos};
use crate::derive::silos::silos;
use crate::derive::tap_readers::{TapReader, tap_readers};
use crate::machine::reading::Reading;
use crate::snapshot::audit::{Audit, Connection, NetdevAudit, Qdisc};
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::Netdev;
use crate::snapshot::observation::Observation;
use crate::snapshot::stage_samples::ReceiveStage;

/// A netdev with less than this share of a CPU's softirq time is not what keeps it busy.
const PART_OF_CPU: f64 = 0.25;

/// Bytes of an Ethernet frame on the wire that the netdev does not count: preamble, checksum, gap.
const FRAME_BYTES: f64 = 24.0;

/// An observation with its rates and silos, and the weights of the cost model.
#[derive(Debug, Clone)]
pub struct Analysis<'a> {
    /// What was read and counted.
    pub observation: &'a Observation,
    /// Its rates.
    pub rates: Rates,
    /// Its silos.
    pub silos: Silos,
    /// The readers of taps, those that took most first.
    pub tap_readers: Vec<TapReader>,
    /// Kernel threads that receive or send, those that ran most first.
    pub net_threads: Vec<NetThreadWork>,
    /// The weights of the cost model.
    pub costs: &'a Costs,
    /// The silos of each netdev, by their places in `silos`.
    of_netdev: HashMap<String, Vec<usize>>,
}

/// A CPU that polls a netdev's queues.
#[derive(Debug, Clone, PartialEq)]
pub struct Poller {
    /// The CPU.
    pub cpu: CpuId,
    /// Share of its time in softirqs.
    pub softirq: f64,
    /// What the share and the polling are read from.
    pub source: String,
}

impl<'a> Analysis<'a> {
    /// Derives rates and silos of an observation.
    pub fn new(observation: &'a Observation, costs: &'a Costs) -> Self {
        Self::with_rates(observation, rates(&observation.before, &observation.after), costs)
    }

    /// Derives the silos of an observation whose rates are known from elsewhere: its later snapshot
    /// may have settings that were never in effect.
    pub fn with_rates(observation: &'a Observation, rates: Rates, costs: &'a Costs) -> Self {
        let silos = silos(observation, &rates);
        let tap_readers = tap_readers(observation, &rates);
        let net_threads = net_threads(observation, &rates);
        let mut of_netdev: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, silo) in silos.queues.iter().enumerate() {
            match of_netdev.get_mut(&silo.netdev.name) {
                Some(places) => places.push(at),
                None => _ = of_netdev.insert(silo.netdev.name.clone(), vec![at]),
            }
        }
        Self { observation, rates, silos, tap_readers, net_threads, costs, of_netdev }
    }

    /// The silos of a netdev, without a search through all of them.
    pub fn silos_of(&self, netdev: &str) -> impl Iterator<Item = &Silo> + Clone {
        let places = self.of_netdev.get(netdev).into_iter().flatten();
        places.filter_map(|at| self.silos.queues.get(*at))
    }

    /// Whether NAPI polled packets of this netdev, also by instances without an id.
    pub fn is_polled(&self, netdev: &Netdev) -> bool {
        let machine = &self.after().machine;
        self.observation.attribution.polls.iter().any(|poll| {
            let is_here = machine.is_own_netns(poll.netns) && poll.netdev == netdev.name;
            is_here && poll.ifindex == netdev.ifindex && poll.packets > 0
        })
    }

    /// The later snapshot.
    pub fn after(&self) -> &'a Snapshot {
        &self.observation.after
    }

    /// The audits of both snapshots.
    pub fn audits(&self) -> Option<(&'a Audit, &'a Audit)> {
        Some((self.observation.before.audit.as_ref()?, self.observation.after.audit.as_ref()?))
    }

    /// The audit's data on a netdev.
    pub fn audit_of(&self, netdev: &Netdev) -> Option<&'a NetdevAudit> {
        self.observation.after.audit.as_ref()?.netdevs.get(&netdev.name)
    }

    /// Netdevs that are up and do not lack a carrier.
    pub fn running(&self) -> impl Iterator<Item = &'a Netdev> {
        self.observation
            .after
            .netdevs
            .iter()
            .filter(|netdev| netdev.up && netdev.carrier != Some(false))
    }

    /// A statistic of a netdev, per second.
    pub fn rate(&self, netdev: &Netdev, statistic: &str) -> Option<f64> {
        self.rates.netdevs.get(&netdev.name)?.get(statistic).copied()
    }

    /// Utilisation of a netdev's link (0 to 1) in its busier direction; `None` without a known
    /// speed, and for a software netdev: its speed is nominal (10 Gbit/s of each veth, in
    /// `veth_get_link_ksettings`), and it carries what the CPUs can.
    pub fn link_use(&self, netdev: &Netdev) -> Option<f64> {
        netdev.device_path.as_ref()?;
        let speed = f64::from(netdev.speed_mbps.filter(|speed| *speed > 0)?) * 1e6 / 8.0;
        let used = |bytes: &str, packets: &str| {
            let framing = self.rate(netdev, packets)? * FRAME_BYTES;
            Some((self.rate(netdev, bytes)? + framing) / speed)
        };
        let both = [used("rx_bytes", "rx_packets"), used("tx_bytes", "tx_packets")];
        both.into_iter().flatten().reduce(f64::max)
    }

    /// The rate per second of a counter that grew by this in the interval; 0 for an empty interval.
    pub fn per_s(&self, growth: u64) -> f64 {
        let seconds = self.rates.elapsed.as_secs_f64();
        if seconds > 0.0 { growth as f64 / seconds } else { 0.0 }
    }

    /// The growth of the driver counters whose names fit, by name, without those that did not grow.
    pub fn driver_counter_growth(
        &self,
        netdev: &Netdev,
        fits: impl Fn(&str) -> bool,
    ) -> BTreeMap<&'a str, u64> {
        let [old, new] = [&self.observation.before, &self.observation.after]
            .map(|snapshot| snapshot.netdevs.same(netdev));
        let mut grown = BTreeMap::new();
        let Some((old, new)) = old.and_then(stats).zip(new.and_then(stats)) else { return grown };
        if old.len() != new.len() {
            return grown;
        }
        // Names may repeat. Their positions are stable while the list keeps its length.
        for ((name, before), (again, after)) in old.iter().zip(new) {
            if name == again && fits(name) && after > before {
                let sum: &mut u64 = grown.entry(again.as_str()).or_default();
                *sum = sum.saturating_add(after - before);
            }
        }
        grown
    }

    /// The queueing disciplines of a netdev that exist in both snapshots: before and after.
    pub fn qdiscs(&self, netdev: &Netdev) -> Vec<(&'a Qdisc, &'a Qdisc)> {
        let Some((Reading::Value(old), Reading::Value(new))) =
            self.audits().map(|(old, new)| (&old.qdiscs, &new.qdiscs))
        else {
            return Vec::new();
        };
        let same = |new: &Qdisc, old: &&Qdisc| {
            (old.ifindex, old.handle, old.parent) == (new.ifindex, new.handle, new.parent)
                && old.kind == new.kind
        };
        let own = new.iter().filter(|qdisc| qdisc.ifindex == netdev.ifindex);
        own.filter_map(|new| Some((old.iter().find(|old| same(new, old))?, new))).collect()
    }

    /// Those that hold the packets. A discipline above them counts their drops a second time.
    pub fn leaf_qdiscs(&self, netdev: &Netdev) -> Vec<(&'a Qdisc, &'a Qdisc)> {
        let mut leaves = self.qdiscs(netdev);
        let parents: BTreeSet<u32> = leaves.iter().map(|(_, qdisc)| qdisc.parent >> 16).collect();
        leaves.retain(|(_, qdisc)| {
            let is_parent = qdisc.handle != 0 && parents.contains(&(qdisc.handle >> 16));
            qdisc.is_egress() && !qdisc.kind.starts_with("mq") && !is_parent
        });
        leaves
    }

    /// Connections that exist in both snapshots: before and after.
    pub fn connections(&self) -> Vec<(&'a Connection, &'a Connection)> {
        let Some((Reading::Value(old), Reading::Value(new))) =
            self.audits().map(|(old, new)| (&old.connections, &new.connections))
        else {
            return Vec::new();
        };
        let old: BTreeMap<u64, &Connection> =
            old.busiest.iter().map(|old| (old.cookie, old)).collect();
        new.busiest.iter().filter_map(|new| Some((*old.get(&new.cookie)?, new))).collect()
    }

    /// The share of a CPU's time in softirqs, and its source: measured, else by clock ticks.
    pub fn softirq(&self, cpu: CpuId) -> Option<(f64, &'static str)> {
        let attribution = &self.observation.attribution;
        let elapsed = attribution.elapsed.as_secs_f64();
        if let Some(time) = attribution.cpu_time.get(&cpu).filter(|_| elapsed > 0.0) {
            return Some((
                (time.softirq_ns() as f64 / 1e9 / elapsed).min(1.0),
                "irq:softirq_entry, softirq_exit",
            ));
        }
        Some((self.rates.cpus.get(&cpu)?.shares?.softirq, "/proc/stat"))
    }

    /// The CPU with most softirq time among those that poll a netdev's queues.
    ///
    /// Without counted polls these are the CPUs that its interrupts reach, because a NAPI without
    /// kthread runs where its interrupt did.
    pub fn busiest_poller(&self, netdev: &Netdev) -> Option<Poller> {
        let silos = || self.silos_of(&netdev.name);
        let softirq = |cpu: CpuId, how: &str| {
            let (softirq, source) = self.softirq(cpu)?;
            Some(Poller { cpu, softirq, source: format!("{source}; {how}") })
        };
        let own = |cpu: CpuId| silos().filter_map(|it| it.own_share.get(&cpu)).sum::<f64>();
        let polled: BTreeSet<CpuId> = silos().flat_map(|silo| silo.polls.keys()).copied().collect();
        let polled = polled.into_iter().filter_map(|cpu| softirq(cpu, "polls by napi:napi_poll"));
        let polled = polled.filter(|it| own(it.cpu) >= PART_OF_CPU * it.softirq);
        let uncounted = silos().filter(|silo| {
            silo.polls.is_empty() && silo.packets_per_s.is_none() && !silo.only_wakes
        });
        let interrupted = uncounted.flat_map(|silo| silo.interrupts_per_s.iter().flatten());
        let interrupted = interrupted
            .filter(|(cpu, _)| self.receives_most(netdev, **cpu))
            .filter_map(|(cpu, _)| softirq(*cpu, "interrupts by /proc/interrupts"));
        polled.chain(interrupted).max_by(|a, b| a.softirq.total_cmp(&b.softirq))
    }

    /// Whether a netdev receives at least half of all packets of the netdevs that interrupt a CPU.
    ///
    /// The share does not follow from interrupt counts: a busier queue has more packets for each.
    fn receives_most(&self, netdev: &Netdev, cpu: CpuId) -> bool {
        let here = |silo: &&Silo| {
            let rates = silo.interrupts_per_s.as_ref().filter(|_| !silo.only_wakes);
            rates.is_some_and(|rates| rates.contains_key(&cpu))
        };
        let names: BTreeSet<&str> =
            self.silos.queues.iter().filter(here).map(|silo| silo.netdev.name.as_str()).collect();
        let packets = |name: &str| {
            let rates = self.rates.netdevs.get(name);
            rates.and_then(|rates| rates.get("rx_packets")).copied().unwrap_or(0.0)
        };
        let own = packets(&netdev.name);
        own > 0.0 && own >= 0.5 * names.into_iter().map(packets).sum::<f64>()
    }

    /// The share of the receive work's samples in these stages; `None` below [`ENOUGH_SAMPLES`].
    pub fn stage_share(&self, wanted: &[ReceiveStage]) -> Option<f64> {
        let samples = self
            .observation
            .attribution
            .stages
            .as_ref()
            .filter(|samples| samples.refused.is_none())?;
        let all = || samples.cpus.values().flatten();
        let total = sum(all().map(|(_, count)| *count));
        let of_wanted =
            sum(all().filter(|(stage, _)| wanted.contains(stage)).map(|(_, count)| *count));
        (total >= ENOUGH_SAMPLES).then(|| of_wanted as f64 / total as f64)
    }

    /// The change of a knob to a value; empty when the knob is missing or already has the value.
    pub fn change<K: Knob + Into<Target>>(
        &self,
        knob: K,
        new: K::Value,
        reason: &str,
    ) -> Vec<Change> {
        Change::of(self.after(), knob, new, reason).into_iter().collect()
    }
}

/// Minimum number of samples: the error of a share from fewer may exceed a tenth.
const ENOUGH_SAMPLES: u64 = 100;

/// A saturating sum: the counters of a bundle may have any value.
pub fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

fn stats(netdev: &Netdev) -> Option<&[(String, u64)]> {
    netdev.ethtool.as_ref()?.stats.value().map(Vec::as_slice)
}
