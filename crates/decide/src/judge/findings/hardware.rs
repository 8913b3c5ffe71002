//! Findings on the hardware: PCIe links, NUMA nodes, MTU, CPU frequency, idle states, memory.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::{Analysis, Poller};
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::NodeId;
use netsilo_model::snapshot::audit::{IdleState, NetdevAudit, PcieLink};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::stage_samples::ReceiveStage;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::builders::{no_problem, setting, softirq_time, sum};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;

/// A PCIe link counts as full from this share of its rate, because PCIe packet headers take the
/// rest.
const LINK_FULL: f64 = 0.7;
/// From this share of a CPU's time in softirqs, receive work limits the CPU.
const SOFTIRQ_BOUND: f64 = 0.5;
/// From this many packets per second, a larger MTU is proposed.
const MANY_PACKETS: f64 = 50_000.0;
/// From this many bytes in the interval, a connection is used to judge its path.
const ENOUGH_BYTES: u64 = 1_000_000;
/// From this exit latency in microseconds, an idle state delays packets noticeably.
const DEEP_USECS: u64 = 20;

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut found: Vec<Finding> = Vec::new();
    for netdev in analysis.running() {
        found.extend(pcie_link(analysis, netdev));
        found.extend(node(analysis, netdev));
        found.extend(small_mtu(analysis, netdev));
        found.extend(unused_mtu(analysis, netdev));
    }
    found.extend(frequency(analysis));
    found.extend(deep_idle(analysis));
    if found.is_empty() {
        found.extend(no_problem(
            FindingId::HardwareFits,
            "PCIe links, cpu frequency and idle states limit nothing",
            links(analysis),
        ));
    }
    found.extend(memory(analysis));
    found
}

/// The slowest PCIe link between the device and the CPUs, and its rate in Mbit/s.
fn bottleneck(audit: &NetdevAudit) -> Option<(&PcieLink, u64)> {
    audit.pcie.iter().filter_map(|link| Some((link, link.mbps()?))).min_by_key(|(_, mbps)| *mbps)
}

/// The slot that a device's functions share: its address without the function.
fn slot(audit: &NetdevAudit) -> Option<&str> {
    Some(audit.pcie.first()?.address.rsplit_once('.')?.0)
}

/// The summed rate in Mbit/s of all running ports behind one slot, and the number of ports.
fn needed(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<(u64, usize)> {
    let own = analysis.audit_of(netdev)?;
    let speed = u64::from(netdev.speed_mbps?);
    if own.virtual_function {
        return Some((speed, 1));
    }
    let at = slot(own)?;
    let speeds = analysis.running().filter_map(|other| {
        let audit = analysis.audit_of(other).filter(|audit| !audit.virtual_function)?;
        (slot(audit)? == at).then_some(u64::from(other.speed_mbps?))
    });
    let speeds: Vec<u64> = speeds.collect();
    Some((speeds.iter().sum(), speeds.len()))
}

fn pcie_link(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let audit = analysis.audit_of(netdev)?;
    let (link, mbps) = bottleneck(audit)?;
    let (needed, ports) = needed(analysis, netdev)?;
    if mbps >= needed {
        return None;
    }
    let missed = analysis.rate(netdev, "rx_missed_errors").unwrap_or(0.0);
    let bytes = analysis
        .rate(netdev, "rx_bytes")
        .unwrap_or(0.0)
        .max(analysis.rate(netdev, "tx_bytes").unwrap_or(0.0));
    let full = bytes * 8.0 >= LINK_FULL * mbps as f64 * 1e6;
    // The best rate that both ends of every link support.
    let ends = audit.pcie.iter().filter_map(PcieLink::max_mbps).min();
    let better = ends.filter(|ends| *ends > mbps);
    let what = match better {
        Some(_) => {
            "reseat the card and check the slot's lanes (riser, bifurcation, firmware): both ends \
             support a higher rate"
        }
        None => "move the card to a slot with more or faster lanes",
    };
    let sure = needed.min(better.unwrap_or(needed)) - mbps;
    let remedy = Remedy::new(
        what,
        Gain::AtMost {
            measure: Measure::BytesPerSecond(sure as f64 * 125_000.0),
            of: "each direction".into(),
            basis: "the ports' rate minus the link's rate".into(),
        },
    )
    .costs("the machine must be powered off meanwhile")
    .not_when("the traffic stays far below the link's rate");
    let mut evidence = vec![
        setting(
            format!("link of {}", link.address),
            lanes(link.current_width, link.current_mtps),
            "current_link_speed",
        ),
        setting("maximum of the link", lanes(link.max_width, link.max_mtps), "max_link_speed"),
        Evidence::new(
            "rate of the link",
            Measure::BytesPerSecond(mbps as f64 * 125_000.0),
            "lanes x rate, minus line code",
        ),
        Evidence::new(
            if ports > 1 {
                format!("rate of its {ports} ports")
            } else {
                "rate of its port".to_owned()
            },
            Measure::BytesPerSecond(needed as f64 * 125_000.0),
            "/sys/class/net/*/speed",
        ),
        Evidence::new(
            "current traffic",
            Measure::BytesPerSecond(bytes),
            "statistics/rx_bytes, tx_bytes",
        ),
    ];
    if missed > 0.0 {
        evidence.push(Evidence::new(
            "packets missed",
            Measure::PerSecond(missed),
            "statistics/rx_missed_errors",
        ));
    }
    Some(Finding {
        id: FindingId::PcieLinkNarrow,
        severity: if full { Severity::Warning } else { Severity::Info },
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("its PCIe link carries {mbps} Mbit/s, its ports can receive {needed}"),
        evidence,
        remedies: vec![remedy],
    })
}

fn lanes(width: Option<u32>, mtps: Option<u32>) -> String {
    let width = width.map_or_else(|| "x?".to_owned(), |width| format!("x{width}"));
    let speed =
        mtps.map_or_else(|| "?".to_owned(), |mtps| format!("{:.1} GT/s", f64::from(mtps) / 1000.0));
    format!("{width} at {speed}")
}

/// Data of a device is mostly read on nodes other than the device's node.
fn node(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let topology = &analysis.after().topology;
    let home = netdev.node?;
    let mut read: BTreeMap<NodeId, f64> = BTreeMap::new();
    let silos: Vec<&Silo> = analysis.silos_of(&netdev.name).collect();
    for (cpu, bytes) in silos.iter().flat_map(|silo| silo.read_on()) {
        *read.entry(topology.cpus.get(&cpu)?.node?).or_default() += bytes;
    }
    let all: f64 = read.values().sum();
    let away = all - read.get(&home).copied().unwrap_or(0.0);
    let packets: f64 = silos.iter().filter_map(|silo| silo.packets_per_s).sum();
    if topology.nodes_with_cpus().count() < 2 || all < 1e6 || away < 0.5 * all {
        return None;
    }
    let costs = analysis.costs;
    let further = (costs.line_ns.remote - costs.line_ns.llc).max(0.0);
    let gain = packets * (away / all) * costs.device_lines_per_packet * further / 1e9;
    let basis = format!(
        "{} cache lines per packet, each {further:.0} ns slower",
        costs.device_lines_per_packet
    );
    let at_most = Gain::AtMost { measure: Measure::Share(gain), of: "a cpu".into(), basis };
    Some(Finding {
        id: FindingId::ReadersOnAnotherNode,
        severity: if gain >= 0.01 { Severity::Warning } else { Severity::Info },
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("most of its data is read on other NUMA nodes than its own, node {home}"),
        evidence: vec![
            Evidence::new("bytes read on other nodes", Measure::Share(away / all), "eBPF"),
            Evidence::new("bytes read", Measure::BytesPerSecond(all), "eBPF"),
            Evidence::new("packets", Measure::PerSecond(packets), "eBPF"),
        ],
        remedies: vec![
            Remedy::new(
                format!(
                    "run its readers on node {home} (netsilo pin, or CPUAffinity= in \
                     their systemd unit)"
                ),
                at_most,
            )
            .not_when("the readers' other data is in the memory of the other node"),
        ],
    })
}

fn small_mtu(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    let packets = analysis.rate(netdev, "rx_packets").filter(|rate| *rate >= MANY_PACKETS)?;
    let size = analysis.rate(netdev, "rx_bytes")? / packets;
    let poller = analysis.busiest_poller(netdev)?;
    let Poller { cpu, softirq, .. } = poller;
    if netdev.mtu > 1500
        || netdev.device_path.is_none()
        || size < 0.8 * f64::from(netdev.mtu)
        || softirq < SOFTIRQ_BOUND
    {
        return None;
    }
    let fewer = 1.0 - f64::from(netdev.mtu) / 9000.0;
    let per_packet = [ReceiveStage::DriverGro, ReceiveStage::DmaMapping];
    let gain = match analysis.stage_share(&per_packet) {
        Some(driver) => Gain::AtMost {
            measure: Measure::Share(softirq * driver * fewer),
            of: format!("cpu{cpu}'s time"),
            basis: format!(
                "the time of driver and GRO, if there were {:.0}% fewer packets",
                fewer * 100.0
            ),
        },
        None => Gain::Unknown("the softirq time per packet was not sampled".into()),
    };
    Some(Finding {
        id: FindingId::MtuSmall,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("full packets of {} bytes keep cpu{cpu} busy", netdev.mtu),
        evidence: vec![
            Evidence::new("packets", Measure::PerSecond(packets), "statistics/rx_packets"),
            Evidence::new("bytes per packet", Measure::Bytes(size as u64), "statistics/rx_bytes"),
            softirq_time(poller),
        ],
        remedies: vec![
            Remedy::new(
                "raise the MTU of this device, its peers and all switches between them to 9000",
                gain,
            )
            .costs("a path with a smaller MTU drops the packets, unless path MTU discovery works")
            .not_when("peers are reached over the internet or a cloud network with a smaller MTU"),
        ],
    })
}

/// Peers that send segments for an MTU of 1500 to a netdev with a larger MTU.
fn unused_mtu(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    if netdev.mtu <= 2000 {
        return None;
    }
    let (mut all, mut small, mut count, mut largest) = (0, 0, 0, 0);
    for (old, new) in
        analysis.connections().iter().filter(|(_, new)| new.netdev.as_deref() == Some(&netdev.name))
    {
        let bytes = new.bytes_received.saturating_sub(old.bytes_received);
        if bytes < ENOUGH_BYTES {
            continue;
        }
        all = sum([all, bytes]);
        if new.rcv_mss <= 1460 || new.pmtu <= 1500 {
            (small, count, largest) = (sum([small, bytes]), count + 1, largest.max(new.rcv_mss));
        }
    }
    if all == 0 || (small as f64) < 0.9 * all as f64 {
        return None;
    }
    Some(Finding {
        id: FindingId::MtuUnused,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!("its MTU is {}, but its peers send as if it were 1500", netdev.mtu),
        evidence: vec![
            Evidence::new(
                "bytes received in small segments",
                Measure::Share(small as f64 / all as f64),
                "tcp_info",
            ),
            Evidence::new("connections with small segments", Measure::Count(count), "sock_diag"),
            Evidence::new(
                "largest segment of these connections",
                Measure::Bytes(largest.into()),
                "tcpi_rcv_mss",
            ),
        ],
        remedies: vec![
            Remedy::new(
                "raise the MTU at the peers and on the path too, or lower it here",
                Gain::Unknown("the peers were not examined".into()),
            )
            .not_when("peers that sent nothing in this interval use the large MTU"),
        ],
    })
}

/// CPUs that are busy with softirqs and below their maximum frequency in both snapshots.
fn frequency(analysis: &Analysis<'_>) -> Vec<Finding> {
    let Some((before, after)) = analysis.audits() else { return Vec::new() };
    let slow = |cpu: CpuId| {
        let (old, new) = (before.cpus.get(&cpu)?, after.cpus.get(&cpu)?);
        let current = old.current_khz?.max(new.current_khz?);
        let (max, softirq) = (new.max_khz.filter(|max| *max > 0)?, analysis.softirq(cpu)?.0);
        let busy = analysis.rates.cpus.get(&cpu)?.shares?.busy();
        let missing = 1.0 - current as f64 / max as f64;
        if softirq < SOFTIRQ_BOUND || busy < 0.8 || missing < 0.1 {
            return None;
        }
        let limited = new.allowed_khz.is_some_and(|allowed| allowed < max);
        let what = if limited {
            "raise its frequency limit (scaling_max_freq)"
        } else {
            "set the governor or energy_performance_preference to performance on the cpus that \
             receive"
        };
        let khz = |khz: u64| format!("{:.2} GHz", khz as f64 / 1e6);
        let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".into());
        Some(Finding {
            id: FindingId::FrequencyLow,
            severity: Severity::Warning,
            subject: Subject::Cpu(cpu),
            title: "busy with softirqs, and below its maximum frequency".into(),
            evidence: vec![
                Evidence::new("softirq", Measure::Share(softirq), analysis.softirq(cpu)?.1),
                setting("frequency", khz(current), "scaling_cur_freq"),
                setting("maximum frequency", khz(max), "cpuinfo_max_freq"),
                setting("governor", word(&new.governor), "scaling_governor"),
                setting(
                    "preference",
                    word(&new.energy_performance_preference),
                    "energy_performance_preference",
                ),
            ],
            remedies: vec![
                Remedy::new(
                    what,
                    Gain::AtMost {
                        measure: Measure::Share(missing * softirq),
                        of: format!("cpu{cpu}'s time"),
                        basis: "softirq time multiplied by the missing share of the frequency"
                            .into(),
                    },
                )
                .costs("power and heat")
                .not_when("all cores are busy: only a few cores can run at the maximum frequency"),
            ],
        })
    };
    after.cpus.keys().filter_map(|cpu| slow(*cpu)).collect()
}

/// The CPU that NIC interrupts wake most often from a deep idle state.
fn deep_idle(analysis: &Analysis<'_>) -> Option<Finding> {
    let (before, after) = analysis.audits()?;
    let mut worst: Option<(CpuId, &IdleState, f64, f64)> = None;
    for silo in analysis.silos.queues.iter().filter(|silo| silo.has_traffic()) {
        for (cpu, interrupts) in silo.interrupts_per_s.iter().flatten() {
            let Some((old, new)) = before.cpus.get(cpu).zip(after.cpus.get(cpu)) else { continue };
            for (was, is) in old.idle_states.iter().zip(&new.idle_states) {
                let left = analysis.per_s(is.usage.saturating_sub(was.usage));
                let deep = is.name == was.name && is.latency_usecs >= DEEP_USECS && !is.disabled;
                // An upper bound: each interrupt may have woken the CPU, but no more often than the
                // CPU left the state.
                let woken = left.min(*interrupts);
                if deep && woken >= 100.0 && worst.is_none_or(|(.., most)| woken > most) {
                    worst = Some((*cpu, is, left, woken));
                }
            }
        }
    }
    let (cpu, state, left, woken) = worst?;
    let requested = match after.machine.cpu_dma_latency_usecs {
        // PM_QOS_CPU_LATENCY_DEFAULT_VALUE
        Some(2_000_000_000) => "none".to_owned(),
        Some(usecs) => format!("{usecs} us"),
        None => "not known".to_owned(),
    };
    Some(Finding {
        id: FindingId::DeepIdle,
        severity: Severity::Info,
        subject: Subject::Cpu(cpu),
        title: format!(
            "when its interrupts arrive it may be in idle state {}, which takes {} us to leave",
            state.name, state.latency_usecs
        ),
        evidence: vec![
            Evidence::new(
                format!("exits from {}", state.name),
                Measure::PerSecond(left),
                "cpuidle/state*/usage",
            ),
            Evidence::new(
                "maximum share of these caused by queue interrupts",
                Measure::PerSecond(woken),
                "/proc/interrupts",
            ),
            Evidence::new(
                "exit latency",
                Measure::Nanoseconds(state.latency_usecs as f64 * 1e3),
                "cpuidle/state*/latency",
            ),
            setting("requested latency limit", requested, "/dev/cpu_dma_latency"),
        ],
        remedies: vec![
            Remedy::new(
                "disable deep idle states on the cpus that receive (cpupower idle-set, or \
                 pm_qos_resume_latency_us)",
                Gain::AtMost {
                    measure: Measure::Nanoseconds(state.latency_usecs as f64 * 1e3),
                    of: "the latency of a packet that wakes the cpu".into(),
                    basis: "the exit latency of the state".into(),
                },
            )
            .costs("more power, and less turbo frequency for the other cores")
            .not_when("only throughput matters: a busy cpu does not enter deep states"),
        ],
    })
}

/// Evidence for "all well": PCIe links and frequency governors.
fn links(analysis: &Analysis<'_>) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    for netdev in analysis.running() {
        let link = analysis.audit_of(netdev).and_then(bottleneck);
        if let Some((link, mbps)) = link.filter(|_| netdev.speed_mbps.is_some()) {
            let text = format!("{mbps} Mbit/s ({})", lanes(link.current_width, link.current_mtps));
            evidence.push(setting(
                format!("PCIe link of {}", netdev.name),
                text,
                "current_link_speed",
            ));
        }
    }
    let cpus = analysis.after().audit.iter().flat_map(|audit| audit.cpus.values());
    let mut governors: Vec<&str> = cpus.filter_map(|cpu| cpu.governor.as_deref()).collect();
    governors.sort_unstable();
    governors.dedup();
    if !governors.is_empty() {
        evidence.push(setting("governor", governors.join(", "), "scaling_governor"));
    }
    evidence
}

/// Memory traffic, if the machine counts it. Its limit is not known, so the finding reports without
/// judging.
fn memory(analysis: &Analysis<'_>) -> Option<Finding> {
    let (before, after) = analysis.audits()?;
    let mut evidence = Vec::new();
    for (domain, new) in &after.machine.memory_bytes {
        let grown = before.machine.memory_bytes.get(domain).and_then(|old| new.checked_sub(*old));
        evidence.extend(grown.map(|bytes| {
            Evidence::new(
                domain.clone(),
                Measure::BytesPerSecond(analysis.per_s(bytes)),
                "resctrl, mbm_total_bytes",
            )
        }));
    }
    let title = if !evidence.is_empty() {
        "memory bandwidth is measured; the maximum of this machine is not known"
    } else if after.machine.uncore_counters {
        evidence.push(setting(
            "memory controllers",
            "readable with perf stat -a -e uncore_imc/.../",
            "event_source/devices",
        ));
        "memory bandwidth is not measured: mount resctrl, or use perf"
    } else {
        let why = "neither resctrl nor memory controller counters exist";
        evidence.push(setting("memory bandwidth", why, "/sys/fs/resctrl, event_source/devices"));
        "memory bandwidth cannot be measured on this machine"
    };
    no_problem(FindingId::MemoryBandwidth, title, evidence)
}
