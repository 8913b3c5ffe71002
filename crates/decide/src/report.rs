//! The one value that every view (table, JSON, TUI, HTML) renders. Views compute nothing.
//!
//! Units end the names: `_per_s` per second, `_s` seconds, `_mbps` Mbit/s; shares are 0..=1. CPU
//! sets are kernel lists (`"0-3,8"`). Unknown is `null`, never 0. The schema number is increased
//! when a field is removed or changes its meaning; new fields may appear at any time.
//!
//! **What lives here**: the report of `show` and the daemon, that of `rss` ([`rss`]), and the
//! choice of CPUs that a long list may summarize ([`quiet`]). They may use the model crate.
//! Findings, verdicts and plans do not belong here: a report says what is measured and set, and
//! recommends nothing.

pub mod difference;
pub mod quiet;
pub mod rss;
pub mod totals;

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::backlog::BacklogWork;
use netsilo_model::derive::coverage::{StageCoverage, coverage};
use netsilo_model::derive::net_threads::NetThreadWork;
use netsilo_model::derive::rates::{CpuRates, Rates, Shares};
use netsilo_model::derive::silo::{Silo, Silos};
use netsilo_model::derive::stages::Stages;
use netsilo_model::derive::tap_readers::TapReader;
use netsilo_model::derive::transmit::{Transmit, transmit};
use netsilo_model::drivers::software::{SoftwareNetdev, SoftwareReceive};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::{NodeId, Topology};
use netsilo_model::snapshot::attribution::{
    Attribution, AttributionSource, CountingCost, Hook, Sampling,
};
use netsilo_model::snapshot::host::{Gap, KnobOwner, Snapshot};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::sockets::Holder;
use serde::{Deserialize, Serialize};

use crate::report::totals::{HostTotals, totals};

/// The schema number that this version writes.
pub const SCHEMA: u32 = 1;

/// The state and rates of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// Schema number of this structure.
    pub schema: u32,
    /// The machine.
    pub machine: MachineLine,
    /// Time between the two snapshots.
    pub elapsed_s: f64,
    /// How polls and consumers were counted.
    pub attribution: AttributionLine,
    /// Network devices with their rx queues.
    pub netdevs: Vec<NetdevLine>,
    /// Online CPUs.
    pub cpus: Vec<CpuLine>,
    /// Programs and virtual machines that take packets from taps, those that took most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tap_readers: Vec<TapReader>,
    /// Kernel threads that receive or send, those that ran most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub net_threads: Vec<NetThreadWork>,
    /// The host as a whole.
    pub totals: HostTotals,
    /// Where receive work spends its time; `None` if not requested.
    #[serde(default)]
    pub stages: Option<Stages>,
    /// Settings of the network stack as a whole.
    pub settings: SettingsLine,
    /// Where `check` counts losses in this observation, and where it does not.
    pub loss_coverage: Vec<StageCoverage>,
    /// Other programs that write the same knobs.
    pub knob_owners: Vec<KnobOwner>,
    /// Reads that failed, with the reason.
    pub gaps: Vec<Gap>,
    /// Notes for the user, as sentences.
    pub notes: Vec<String>,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineLine {
    /// Host name.
    pub hostname: String,
    /// Kernel release.
    pub release: String,
    /// Online CPUs.
    pub online: CpuSet,
    /// Present CPUs that are offline.
    pub offline: CpuSet,
    /// CPUs isolated at boot or by a cpuset partition.
    pub isolated: CpuSet,
    /// CPUs without a periodic tick.
    pub nohz_full: CpuSet,
    /// Number of cores with an online CPU.
    pub cores: usize,
    /// Online CPUs of each last-level cache.
    pub llcs: Vec<CpuSet>,
    /// Number of NUMA nodes with CPUs.
    pub nodes: usize,
}

/// How polls and consumers were counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AttributionLine {
    /// The method of counting.
    pub source: AttributionSource,
    /// Length of the window, in seconds.
    pub elapsed_s: f64,
    /// Attached only for this window. Then bytes are a lower bound.
    pub windowed: bool,
    /// Number of events lost: a table was full, or they interrupted the program that counts them.
    pub lost_events: u64,
    /// How many events of each kind were examined. The others are estimated.
    pub sampling: Sampling,
    /// CPU time of the eBPF programs; `None` if not known.
    pub cost: Option<CountingCost>,
    /// Each hook: attached, or the reason why it is not.
    pub hooks: Vec<Hook>,
}

/// A network device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetdevLine {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub ifindex: u32,
    /// Driver.
    pub driver: Option<String>,
    /// Bus address.
    pub bus: Option<String>,
    /// NUMA node.
    pub node: Option<NodeId>,
    /// Link speed in Mbit/s.
    pub speed_mbps: Option<u32>,
    /// Administratively up.
    pub up: bool,
    /// Carrier.
    pub carrier: Option<bool>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The bond, bridge or team of which it is a port.
    pub master: Option<String>,
    /// Threaded NAPI: 0 off, 1 on, 2 busy polling.
    pub threaded: Option<u32>,
    /// `rx_packets` of its statistics.
    pub rx_packets_per_s: Option<f64>,
    /// `rx_bytes` of its statistics.
    pub rx_bytes_per_s: Option<f64>,
    /// `tx_packets` of its statistics.
    pub tx_packets_per_s: Option<f64>,
    /// `rx_dropped` of its statistics.
    pub rx_dropped_per_s: Option<f64>,
    /// `rx_missed_errors` of its statistics: the NIC had no free buffer.
    pub rx_missed_errors_per_s: Option<f64>,
    /// Interrupts of the device that belong to no queue (configuration, link).
    pub other_irqs: Vec<Irq>,
    /// Transmit queues that have their own interrupt.
    pub tx_irqs: Vec<TxIrqLine>,
    /// Programs that capture what it receives, those that take most packets first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captured_by: Vec<CaptureLine>,
    /// Where the packets of a netdev without hardware are processed, if no poll of it was counted.
    #[serde(default)]
    pub processed: Option<String>,
    /// What its tx queues send; `None` if that was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmit: Option<Transmit>,
    /// One silo per rx queue. Of a netdev on backlogs, the first one has all its work.
    pub queues: Vec<Silo>,
}

/// A program with packet sockets, which take copies of what others receive, or AF_XDP sockets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CaptureLine {
    /// The program.
    pub holder: Holder,
    /// Packets that it took.
    pub packets_per_s: f64,
    /// Packets that found its ring or buffer full.
    pub lost_per_s: f64,
    /// Whether both are those of all netdevs: its sockets are bound to none.
    #[serde(default)]
    pub of_all_netdevs: bool,
}

/// The completion interrupt of a tx queue that shares it with no rx queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TxIrqLine {
    /// The tx queue.
    pub queue: u32,
    /// Its interrupt.
    pub irq: Irq,
    /// Requested CPUs.
    pub requested: Option<CpuSet>,
    /// Effective CPUs.
    pub effective: Option<CpuSet>,
    /// Interrupts per second on all CPUs.
    pub interrupts_per_s: Option<f64>,
}

/// A CPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuLine {
    /// CPU number.
    pub cpu: CpuId,
    /// SMT siblings, including this CPU.
    pub core: CpuSet,
    /// NUMA node.
    pub node: Option<NodeId>,
    /// Shares of time, sampled at clock ticks.
    pub shares: Option<Shares>,
    /// Measured share of device interrupts; `None` if not measured.
    pub hardirq_share: Option<f64>,
    /// Measured share of softirqs.
    pub softirq_share: Option<f64>,
    /// Measured share of call-function IPIs.
    pub ipi_share: Option<f64>,
    /// Measured share of reschedule IPIs.
    #[serde(default)]
    pub reschedule_share: Option<f64>,
    /// NET_RX softirqs raised per second.
    pub net_rx_per_s: Option<f64>,
    /// Call-function IPIs received per second; `None` if not counted separately.
    pub ipis_per_s: Option<f64>,
    /// Reschedule IPIs received per second; `None` if not counted.
    #[serde(default)]
    pub reschedules_per_s: Option<f64>,
    /// `CAL` of `/proc/interrupts` per second: these IPIs and scheduler wakeups, except on CPUs
    /// that poll in idle.
    pub cal_per_s: Option<f64>,
    /// Packets processed per second.
    pub processed_per_s: Option<f64>,
    /// Packets dropped per second because the backlog was full.
    pub dropped_per_s: Option<f64>,
    /// How often per second polling stopped with work left. This is not a drop.
    pub time_squeeze_per_s: Option<f64>,
    /// How often per second another CPU steered packets here (RPS).
    pub received_rps_per_s: Option<f64>,
    /// Queues that this CPU polls (`eth0 rx-3`), in the order of the silos.
    pub polls: Vec<String>,
    /// Names of the consumers that read on this CPU, most bytes first.
    pub consumers: Vec<String>,
}

/// Settings of the network stack as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SettingsLine {
    /// `/proc/irq/default_smp_affinity`.
    pub default_smp_affinity: Option<CpuSet>,
    /// `net.core.rps_sock_flow_entries`.
    pub rps_sock_flow_entries: Option<u32>,
    /// `net.core.rps_default_mask`.
    pub rps_default_mask: Option<CpuSet>,
}

impl Report {
    /// Computes the report of an analysis.
    pub fn of(analysis: &Analysis<'_>) -> Self {
        let Analysis { observation, rates, silos, .. } = analysis;
        let Observation { after, attribution, .. } = observation;
        let mut work = work_by_cpu(silos);
        let mut line =
            |cpu| cpu_line(cpu, after, rates, attribution, work.remove(&cpu).unwrap_or_default());
        Self {
            schema: SCHEMA,
            machine: machine(after),
            elapsed_s: rates.elapsed.as_secs_f64(),
            attribution: AttributionLine {
                source: attribution.source,
                elapsed_s: attribution.elapsed.as_secs_f64(),
                windowed: attribution.windowed,
                lost_events: attribution.lost_events,
                sampling: attribution.sampling,
                cost: attribution.cost,
                hooks: attribution.hooks.clone(),
            },
            cpus: after.topology.online.iter().map(&mut line).collect(),
            tap_readers: analysis.tap_readers.clone(),
            net_threads: analysis.net_threads.clone(),
            totals: totals(analysis),
            stages: attribution
                .stages
                .as_ref()
                .map(|stages| Stages::from_samples(stages, attribution.elapsed.as_secs_f64())),
            settings: SettingsLine {
                default_smp_affinity: after.default_smp_affinity.clone(),
                rps_sock_flow_entries: after.net.rps_sock_flow_entries,
                rps_default_mask: after.net.rps_default_mask.clone(),
            },
            loss_coverage: coverage(analysis),
            knob_owners: after.knob_owners.clone(),
            gaps: after.gaps.clone(),
            notes: netsilo_model::derive::notes::notes(observation, rates, silos),
            netdevs: after.netdevs.iter().map(|netdev| netdev_line(netdev, analysis)).collect(),
        }
    }

    /// The same with only the netdevs of these names, and the CPUs that poll their queues.
    #[must_use]
    pub fn only(mut self, names: &[String]) -> Self {
        let about = |note: &str| note.split_once(": ").map(|(about, _)| about.to_owned());
        let others = self.netdevs.extract_if(.., |it| !names.contains(&it.name));
        let others: BTreeSet<String> = others.map(|it| it.name).collect();
        self.notes.retain(|note| about(note).is_none_or(|about| !others.contains(&about)));
        let labels: BTreeSet<String> =
            self.netdevs.iter().flat_map(|it| it.queues.iter().map(Silo::label)).collect();
        self.cpus.retain(|cpu| cpu.polls.iter().any(|queue| labels.contains(queue)));
        self
    }
}

fn machine(snapshot: &Snapshot) -> MachineLine {
    let topology = &snapshot.topology;
    let present: CpuSet = topology.cpus.keys().copied().collect();
    MachineLine {
        hostname: snapshot.machine.hostname.clone(),
        release: snapshot.machine.release.clone(),
        online: topology.online.clone(),
        offline: present.minus(&topology.online),
        isolated: topology.isolated.or(&topology.isolated_partitions),
        nohz_full: topology.nohz_full.clone(),
        cores: cores(topology),
        llcs: topology.llc_groups().into_iter().filter(|llc| !topology.is_guess(llc)).collect(),
        nodes: topology.nodes_with_cpus().count(),
    }
}

/// Cores with at least one online CPU.
pub(crate) fn cores(topology: &Topology) -> usize {
    let first = |cpu: &CpuId| topology.core_of(*cpu).and(&topology.online).lowest() == Some(*cpu);
    topology.online.iter().filter(first).count()
}

fn netdev_line(netdev: &Netdev, analysis: &Analysis<'_>) -> NetdevLine {
    let (snapshot, rates) = (analysis.after(), &analysis.rates);
    let silos: Vec<&Silo> = analysis.silos_of(&netdev.name).collect();
    let backlog = BacklogWork::of(analysis, netdev, &silos);
    let backlog = backlog.map(|work| work.silo(analysis, netdev));
    let queues = silos.into_iter().skip(usize::from(backlog.is_some()));
    let statistic = |name: &str| rates.netdevs.get(&netdev.name)?.get(name).copied();
    let rx_irqs: BTreeSet<Irq> =
        netdev.rx_queues.iter().filter_map(|rx| Some(rx.irq.as_ref()?.to)).collect();
    let tx_irqs = netdev.tx_queues.iter().filter_map(|tx| Some((tx.index, tx.irq.as_ref()?.to)));
    let own_tx: Vec<(u32, Irq)> = tx_irqs.filter(|(_, irq)| !rx_irqs.contains(irq)).collect();
    let tx_irqs: BTreeSet<Irq> = own_tx.iter().map(|(_, irq)| *irq).collect();
    let of_queue = |irq: &Irq| rx_irqs.contains(irq) || tx_irqs.contains(irq);
    NetdevLine {
        name: netdev.name.clone(),
        ifindex: netdev.ifindex,
        driver: netdev.driver.clone(),
        bus: netdev.bus.clone(),
        node: netdev.node,
        speed_mbps: netdev.speed_mbps,
        up: netdev.up,
        carrier: netdev.carrier,
        mtu: netdev.mtu,
        master: netdev.master.clone(),
        threaded: netdev.threaded,
        rx_packets_per_s: statistic("rx_packets"),
        rx_bytes_per_s: statistic("rx_bytes"),
        tx_packets_per_s: statistic("tx_packets"),
        rx_dropped_per_s: statistic("rx_dropped"),
        rx_missed_errors_per_s: statistic("rx_missed_errors"),
        other_irqs: netdev.irqs.iter().filter(|irq| !of_queue(irq)).copied().collect(),
        tx_irqs: own_tx.iter().map(|(queue, irq)| tx_irq(*queue, *irq, snapshot, rates)).collect(),
        captured_by: captured_by(netdev, &analysis.observation.attribution, snapshot),
        processed: processed(netdev).filter(|_| !analysis.is_polled(netdev)).map(str::to_owned),
        transmit: transmit(analysis, netdev),
        queues: backlog.into_iter().chain(queues.cloned()).collect(),
    }
}

fn processed(netdev: &Netdev) -> Option<&'static str> {
    Some(match SoftwareNetdev::from_netdev(netdev)?.receive {
        SoftwareReceive::Backlog => "on the backlogs of the cpus that send",
        SoftwareReceive::Writer => "in the programs that write",
        SoftwareReceive::Reentry => "in the pass of its ports",
        SoftwareReceive::SamePass => "in the pass of the netdevs below",
        SoftwareReceive::Tasklet => "in a tasklet",
        SoftwareReceive::GroCells => "in its GRO cells",
        SoftwareReceive::Napi => "in its NAPI",
        SoftwareReceive::Reader => "in a queue for its program",
        SoftwareReceive::Nothing => return None,
    })
}

/// The programs whose sockets captured packets of a netdev. Those that are not bound to one
/// netdev count for all of their namespace.
fn captured_by(
    netdev: &Netdev,
    attribution: &Attribution,
    snapshot: &Snapshot,
) -> Vec<CaptureLine> {
    let seconds = attribution.elapsed.as_secs_f64();
    let mut sums: BTreeMap<(&Holder, bool), (u64, u64)> = BTreeMap::new();
    for socket in &attribution.packet_sockets {
        let here = snapshot.machine.is_own_netns(socket.netns);
        let of_all = socket.netdev.is_empty();
        if here && (of_all || socket.netdev == netdev.name) {
            let (packets, lost) = sums.entry((&socket.holder, of_all)).or_default();
            *packets = packets.saturating_add(socket.packets);
            *lost = lost.saturating_add(socket.lost);
        }
    }
    sums.retain(|_, (packets, lost)| *packets > 0 || *lost > 0);
    let line = |((holder, of_all_netdevs), (packets, lost)): ((&Holder, _), _)| CaptureLine {
        holder: holder.clone(),
        packets_per_s: packets as f64 / seconds,
        lost_per_s: lost as f64 / seconds,
        of_all_netdevs,
    };
    let mut lines: Vec<_> = sums.into_iter().filter(|_| seconds > 0.0).map(line).collect();
    lines.sort_by(|a, b| b.packets_per_s.total_cmp(&a.packets_per_s));
    lines
}

fn tx_irq(queue: u32, irq: Irq, snapshot: &Snapshot, rates: &Rates) -> TxIrqLine {
    let state = snapshot.irqs.get(&irq);
    TxIrqLine {
        queue,
        irq,
        requested: state.and_then(|s| s.requested.clone()),
        effective: state.and_then(|s| s.effective.clone()),
        interrupts_per_s: rates.irqs.get(&irq).map(|rates| rates.total_per_s),
    }
}

fn cpu_line(
    cpu: CpuId,
    snapshot: &Snapshot,
    rates: &Rates,
    attribution: &Attribution,
    work: Work<'_>,
) -> CpuLine {
    let elapsed = attribution.elapsed.as_secs_f64();
    let time = attribution.cpu_time.get(&cpu).filter(|_| elapsed > 0.0);
    let share = |nanoseconds: u64| (nanoseconds as f64 / 1e9 / elapsed).min(1.0);
    let none = CpuRates::default();
    let rates = rates.cpus.get(&cpu).unwrap_or(&none);
    let softnet = rates.softnet.unwrap_or_default();
    CpuLine {
        cpu,
        core: snapshot.topology.core_of(cpu),
        node: snapshot.topology.cpus.get(&cpu).and_then(|cpu| cpu.node),
        shares: rates.shares,
        hardirq_share: time.map(|time| share(time.hardirq_ns)),
        softirq_share: time.map(|time| share(time.softirq_ns())),
        ipi_share: time.map(|time| share(time.ipi_ns)),
        reschedule_share: time.and_then(|time| time.reschedules).map(|all| share(all.ns)),
        net_rx_per_s: rates.net_rx_per_s,
        ipis_per_s: time.map(|time| time.ipis as f64 / elapsed),
        reschedules_per_s: time
            .and_then(|time| time.reschedules)
            .map(|all| all.count as f64 / elapsed),
        cal_per_s: rates.cal_per_s,
        processed_per_s: softnet.processed_per_s,
        dropped_per_s: softnet.dropped_per_s,
        time_squeeze_per_s: softnet.time_squeeze_per_s,
        received_rps_per_s: softnet.received_rps_per_s,
        polls: work.polls,
        consumers: heaviest_first(work.consumers),
    }
}

/// The receive work of a CPU.
#[derive(Default)]
struct Work<'a> {
    polls: Vec<String>,
    /// Bytes per second by name.
    consumers: BTreeMap<&'a str, f64>,
}

fn work_by_cpu(silos: &Silos) -> BTreeMap<CpuId, Work<'_>> {
    let mut work: BTreeMap<CpuId, Work<'_>> = BTreeMap::new();
    for silo in &silos.queues {
        for cpu in silo.polling_cpus().iter() {
            work.entry(cpu).or_default().polls.push(silo.label());
        }
    }
    let elsewhere =
        [&silos.local, &silos.foreign, &silos.unresolved].into_iter().flat_map(|e| &e.consumers);
    for consumer in silos.queues.iter().flat_map(|silo| &silo.consumers).chain(elsewhere) {
        for (cpu, share) in &consumer.cpus {
            *work.entry(*cpu).or_default().consumers.entry(&consumer.comm).or_default() +=
                share * consumer.bytes_per_s;
        }
    }
    work
}

fn heaviest_first(readers: BTreeMap<&str, f64>) -> Vec<String> {
    let mut readers: Vec<(&str, f64)> = readers.into_iter().collect();
    readers.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    readers.into_iter().map(|(comm, _)| comm.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::topology::Distance;
    use netsilo_model::snapshot::host::OwnedKnob;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{CpuLoad, Reader, Scene, SceneNetdev, SceneQueue};

    fn report(observation: &Observation) -> Report {
        Report::of(&Analysis::new(observation, &Costs::default()))
    }

    fn scene() -> Scene {
        let queue = |irq, cpu, bytes_per_s| SceneQueue {
            irq: Some(irq),
            cpus: CpuSet::from_cpu(CpuId(0)),
            packets_per_s: 1000,
            load: 0.2,
            readers: vec![Reader {
                comm: "redis".into(),
                cpu: CpuId(cpu),
                bytes_per_s,
                ..Reader::default()
            }],
            ..SceneQueue::default()
        };
        let netdev = SceneNetdev {
            name: "eth0".into(),
            driver: "igb".into(),
            config_irq: Some(29),
            queues: vec![queue(30, 0, 300), queue(31, 3, 100)],
            ..SceneNetdev::default()
        };
        let busy = vec![CpuLoad { cpus: CpuSet::from_cpu(CpuId(3)), usr: 0.5 }];
        Scene {
            grid: Grid { l2s: 2, threads: 2, ..Grid::default() },
            busy,
            netdevs: vec![netdev],
            ..Scene::default()
        }
    }

    #[test]
    fn a_report_lists_polled_queues_and_readers_of_each_cpu() {
        let report = report(&scene().observation());
        assert_eq!(report.cpus[0].polls, ["eth0 rx-0", "eth0 rx-1"]);
        assert_eq!(report.cpus[0].consumers, ["redis"]);
        assert_eq!(report.cpus[0].softirq_share, Some(0.4));
        assert_eq!(report.cpus[3].shares.unwrap().usr, 0.5);
        assert_eq!(report.netdevs[0].other_irqs, [Irq(29)]);
        assert_eq!(report.machine.cores, 2);
    }

    #[test]
    fn total_locality_weights_queues_by_bytes() {
        let totals = report(&scene().observation()).totals;
        assert_eq!(totals.bytes_per_s, Some(400.0));
        assert_eq!(
            totals.locality.shares,
            [(Distance::SameCpu, 0.75), (Distance::Llc, 0.25)].into()
        );
        assert_eq!(totals.unresolved_share, Some(0.0));
    }

    #[test]
    fn a_machine_with_one_cpu_has_nothing_to_place() {
        let scene = Scene { grid: Grid::default(), ..scene() };
        let notes = report(&scene.observation()).notes;
        assert_eq!(notes[0], "nothing to place: one cpu, 2 rx queues; all receive work runs there");
    }

    #[test]
    fn other_writers_and_missing_attribution_are_notes() {
        let owner = KnobOwner {
            name: "irqbalance".into(),
            pid: 812,
            writes: vec![OwnedKnob::IrqAffinity],
            bans: None,
        };
        let scene = Scene { knob_owners: vec![owner], without_bpf: true, ..scene() };
        let report = report(&scene.observation());
        let expected = [
            "consumers unknown: nothing was counted",
            "irqbalance (pid 812) is running and changes irq affinity",
        ];
        assert_eq!(report.notes, expected);
        assert_eq!((report.totals.bytes_per_s, report.totals.packets_per_s), (None, None));
    }

    #[test]
    fn what_sock_diag_cannot_see_is_not_zero_and_one_reason_is_one_note() {
        let mut observation = Scene { without_bpf: true, ..scene() }.observation();
        let hook = |quantity: &str, refused: &str| Hook {
            quantity: quantity.into(),
            hook: "tp_btf/a".into(),
            refused: Some(refused.into()),
        };
        observation.attribution.source = AttributionSource::SockDiag;
        observation.attribution.elapsed = std::time::Duration::from_secs(1);
        observation.attribution.hooks =
            ["polls", "wakeups"].map(|it| hook(it, "no privilege")).into();
        observation.attribution.hooks.push(hook("hardirqs", "no such hook"));
        let report = report(&observation);
        assert_eq!(report.totals.bytes_per_s, None);
        let expected = [
            "polls, wakeups not counted: no privilege",
            "hardirqs not counted: tp_btf/a is unavailable: no such hook",
        ];
        assert!(report.notes.ends_with(&expected.map(str::to_owned)), "{:?}", report.notes);
    }

    #[test]
    fn an_xdp_program_gives_a_note() {
        let mut observation = scene().observation();
        observation.after.netdevs[0].xdp = Some(netsilo_model::snapshot::netdev::Xdp::Driver);
        let notes = report(&observation).notes;
        let expected = "eth0: an XDP program is attached; packets that XDP \
                        redirects, answers or drops are not counted";
        assert_eq!(notes, [expected]);
    }

    #[test]
    fn a_report_survives_json() {
        let report = report(&scene().observation());
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
