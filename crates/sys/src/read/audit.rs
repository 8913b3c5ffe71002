//! Reads the audit: PCIe links, limits, queueing disciplines, connections, power.

use std::collections::BTreeMap;
use std::io::Read as _;

use netsilo_model::drivers::name::has_driver;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::NapiId;
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::{pcie, scalar};
use netsilo_model::snapshot::audit::{
    Audit, Connections, CpuPower, IdleState, MachineAudit, NapiSettings, NetdevAudit, PcieLink,
    Qdisc, TxLimits,
};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::netdev_genl::NetdevGenl;

use crate::read::gaps::Notes;
use crate::read::netdev::NET;
use crate::read::netlink::{connections, qdiscs};
use crate::read::topology::numbered;

const CPU: &str = "/sys/devices/system/cpu";

/// Path in a captured tree of the recorded `sock_diag` answer.
pub(crate) const CONNECTIONS: &str = "sock_diag/connections.json";

pub(crate) fn audit(
    notes: &Notes<'_>,
    netdevs: &[Netdev],
    genl: Option<&NetdevGenl>,
    online: &CpuSet,
) -> Audit {
    let napis = genl.iter().flat_map(|genl| &genl.napis).map(|napi| {
        let settings = NapiSettings {
            defer_hard_irqs: napi.defer_hard_irqs,
            gro_flush_timeout_nsecs: napi.gro_flush_timeout_nsecs,
            irq_suspend_timeout_nsecs: napi.irq_suspend_timeout_nsecs,
        };
        (NapiId(napi.id), settings)
    });
    let is_set = |(_, settings): &(NapiId, NapiSettings)| *settings != NapiSettings::default();
    Audit {
        netdevs: netdevs
            .iter()
            .map(|netdev| (netdev.name.clone(), crate::read::audit::netdev(notes, netdev)))
            .collect(),
        napis: napis.filter(is_set).collect(),
        qdiscs: answer::<Vec<Qdisc>>(notes, "rtnetlink/qdiscs.json", || {
            Reading::from(qdiscs::read())
        }),
        connections: answer::<Connections>(notes, CONNECTIONS, || {
            Reading::from(connections::read(netdevs))
        }),
        cpus: online.iter().filter_map(|cpu| Some((cpu, cpu_power(notes, cpu)?))).collect(),
        machine: machine(notes),
    }
}

/// Asks the kernel. For a bundle captured before this question existed, the value is absent,
/// without a gap.
fn answer<T>(notes: &Notes<'_>, name: &str, ask: impl FnOnce() -> Reading<T>) -> Reading<T>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let answer = notes.note(notes.root.answer(name, ask)).flatten();
    answer.unwrap_or_else(|| {
        Reading::Absent("not captured: the bundle is from an older netsilo".to_owned())
    })
}

fn netdev(notes: &Notes<'_>, netdev: &Netdev) -> NetdevAudit {
    let name = &netdev.name;
    let Some(dir) = notes.note(notes.root.resolve(&format!("{NET}/{name}"))) else {
        return NetdevAudit::default();
    };
    let file = |file: &str| format!("{dir}/{file}");
    let forwarding = |ip: &str| {
        let value =
            notes.get(&format!("/proc/sys/net/{ip}/conf/{name}/forwarding"), scalar::number::<u32>);
        value.map(|value| value != 0)
    };
    let (pcie, virtual_function) = pcie(notes, netdev);
    NetdevAudit {
        pcie,
        virtual_function,
        tx_queues: netdev
            .tx_queues
            .iter()
            .map(|tx| (tx.index, tx_limits(notes, &dir, tx.index)))
            .collect(),
        tx_queue_len: notes.get(&file("tx_queue_len"), scalar::number),
        bridge_port: notes.get(&file("brport/state"), scalar::number::<u32>).is_some(),
        ipv4_forwarding: forwarding("ipv4"),
        ipv6_forwarding: forwarding("ipv6"),
        virtio_features: virtio_features(notes, netdev),
    }
}

/// The virtio feature bits; only virtio devices print them.
///
/// Other devices lack the file, or use it for something else.
fn virtio_features(notes: &Notes<'_>, netdev: &Netdev) -> Option<Vec<u32>> {
    let path = netdev.device_path.as_ref().filter(|_| has_driver(netdev, &["virtio_net"]))?;
    notes.get(&format!("/sys{path}/features"), pcie::virtio_features)
}

fn tx_limits(notes: &Notes<'_>, dir: &str, queue: u32) -> TxLimits {
    let number = |file: &str| notes.get(&format!("{dir}/queues/tx-{queue}/{file}"), scalar::number);
    TxLimits {
        limit_bytes: number("byte_queue_limits/limit"),
        limit_max_bytes: number("byte_queue_limits/limit_max"),
        inflight_bytes: number("byte_queue_limits/inflight"),
        tx_timeouts: number("tx_timeout"),
    }
}

/// The PCIe links from the device up to the root.
///
/// A virtual function has no link and shares that of its physical function.
fn pcie(notes: &Notes<'_>, netdev: &Netdev) -> (Vec<PcieLink>, bool) {
    let Some(path) = netdev.device_path.as_ref().map(|path| format!("/sys{path}")) else {
        return (Vec::new(), false);
    };
    let physical = notes.note(notes.root.link(&format!("{path}/physfn")));
    let virtual_function = physical.is_some();
    let start = physical.map_or_else(
        || path.clone(),
        |to| crate::files::root::join(&format!("{path}/physfn"), &to),
    );
    let (mut links, mut dir) = (Vec::new(), start.as_str());
    while let Some((parent, name)) = dir.rsplit_once('/') {
        if is_pci_address(name) {
            links.extend(link(notes, dir, name));
        } else if name.starts_with("pci") {
            break;
        }
        dir = parent;
    }
    (links, virtual_function)
}

/// Whether the name has the form `0000:01:00.0`: domain, bus, device and function.
fn is_pci_address(name: &str) -> bool {
    let parts: Vec<&str> = name.split([':', '.']).collect();
    parts.len() == 4
        && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns `None` for a device that is not on PCI Express.
fn link(notes: &Notes<'_>, dir: &str, address: &str) -> Option<PcieLink> {
    let speed = |file: &str| notes.get(&format!("{dir}/{file}"), pcie::link_speed).flatten();
    let width = |file: &str| notes.get(&format!("{dir}/{file}"), pcie::link_width).flatten();
    let link = PcieLink {
        address: address.to_owned(),
        current_mtps: speed("current_link_speed"),
        current_width: width("current_link_width"),
        max_mtps: speed("max_link_speed"),
        max_width: width("max_link_width"),
    };
    (link.mbps().is_some() || link.max_mbps().is_some()).then_some(link)
}

/// Returns `None` if the kernel controls neither frequency nor idle states.
fn cpu_power(notes: &Notes<'_>, cpu: CpuId) -> Option<CpuPower> {
    let file = |file: &str| format!("{CPU}/cpu{cpu}/{file}");
    let word = |name: &str| notes.get(&file(&format!("cpufreq/{name}")), scalar::word);
    let khz = |name: &str| notes.get(&file(&format!("cpufreq/{name}")), scalar::number);
    let governor = word("scaling_governor");
    let frequency = governor.is_some();
    let power = CpuPower {
        driver: frequency.then(|| word("scaling_driver")).flatten(),
        energy_performance_preference: frequency
            .then(|| word("energy_performance_preference"))
            .flatten(),
        current_khz: frequency.then(|| khz("scaling_cur_freq")).flatten(),
        allowed_khz: frequency.then(|| khz("scaling_max_freq")).flatten(),
        max_khz: frequency.then(|| khz("cpuinfo_max_freq")).flatten(),
        governor,
        resume_latency: notes.get(&file("power/pm_qos_resume_latency_us"), scalar::word),
        idle_states: idle_states(notes, &file("cpuidle")),
    };
    (power.governor.is_some() || !power.idle_states.is_empty()).then_some(power)
}

fn idle_states(notes: &Notes<'_>, dir: &str) -> Vec<IdleState> {
    let names = notes.note(notes.root.list(dir)).unwrap_or_default();
    let state = |index: u32| {
        let file = |file: &str| format!("{dir}/state{index}/{file}");
        Some(IdleState {
            name: notes.get(&file("name"), scalar::word)?,
            latency_usecs: notes.get(&file("latency"), scalar::number)?,
            // above 0: the driver or a user disabled it
            disabled: notes
                .get(&file("disable"), scalar::number::<u64>)
                .is_some_and(|disable| disable != 0),
            usage: notes.get(&file("usage"), scalar::number)?,
            time_usecs: notes.get(&file("time"), scalar::number)?,
        })
    };
    numbered(&names, "state").into_iter().filter_map(state).collect()
}

fn machine(notes: &Notes<'_>) -> MachineAudit {
    let events = notes.note(notes.root.list("/sys/bus/event_source/devices")).unwrap_or_default();
    MachineAudit {
        smt_control: notes.get(&format!("{CPU}/smt/control"), scalar::word),
        cpu_dma_latency_usecs: notes
            .note(notes.root.answer("cpu_dma_latency.json", cpu_dma_latency))
            .flatten()
            .flatten(),
        memory_bytes: memory_bytes(notes),
        uncore_counters: events.iter().any(|name| name.starts_with("uncore_imc")),
    }
}

/// The current limit. Opening the file without writing requests nothing
/// (`kernel/power/qos.c:cpu_latency_qos_open`).
fn cpu_dma_latency() -> Option<i32> {
    let mut bytes = [0; 4];
    std::fs::File::open("/dev/cpu_dma_latency").ok()?.read_exact(&mut bytes).ok()?;
    Some(i32::from_ne_bytes(bytes))
}

/// Bytes moved by tasks of the default group; tasks of other groups are not included
/// (`Documentation/filesystems/resctrl.rst`).
fn memory_bytes(notes: &Notes<'_>) -> BTreeMap<String, u64> {
    let dir = "/sys/fs/resctrl/mon_data";
    let domains = notes.note(notes.root.list(dir)).unwrap_or_default();
    let domain = |name: String| {
        Some((name.clone(), notes.get(&format!("{dir}/{name}/mbm_total_bytes"), scalar::number)?))
    };
    domains.into_iter().filter(|name| name.starts_with("mon_L3")).filter_map(domain).collect()
}
