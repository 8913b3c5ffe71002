//! Reads network devices: `/sys/class/net`, ethtool and netdev netlink.

use std::collections::BTreeMap;

use netsilo_model::drivers::irq_names::{self, Device};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::machine::reading::Reading;
use netsilo_model::machine::topology::NodeId;
use netsilo_model::parse::uevent::uevent;
use netsilo_model::parse::{cpu_lists, netdev as parse, scalar};
use netsilo_model::snapshot::ethtool::Ethtool;
use netsilo_model::snapshot::host::IrqState;
use netsilo_model::snapshot::netdev::{
    Association, AssociationSource, Confidence, Napi, NapiThread, Netdev, RxQueue, TxQueue,
};
use netsilo_model::snapshot::netdev_genl::{Direction, NetdevGenl, Queue, QueueHolder};

use crate::files::root::Root;
use crate::read::gaps::Notes;
use crate::read::process::napi_id;
use crate::read::topology::numbered;

pub(crate) const NET: &str = "/sys/class/net";

/// Data of the whole machine that is combined with each netdev.
pub(crate) struct Known<'a> {
    pub(crate) irqs: &'a BTreeMap<Irq, IrqState>,
    pub(crate) threads: &'a [NapiThread],
    pub(crate) genl: Option<&'a NetdevGenl>,
    /// The netdevs of a moment ago. For these, only what changes by itself is read again.
    pub(crate) kept: &'a [Netdev],
}

/// All netdevs that `/sys` shows, in the order of their indexes.
pub(crate) fn netdevs(notes: &Notes<'_>, known: &Known<'_>) -> Vec<Netdev> {
    let names = notes.wanted(notes.root.list(NET)).unwrap_or_default();
    let mut netdevs: Vec<Netdev> =
        names.iter().filter_map(|name| netdev(notes, known, name, &names)).collect();
    netdevs.sort_unstable_by_key(|netdev| netdev.ifindex);
    other_namespace(notes, &netdevs);
    netdevs
}

/// Notes a gap if sysfs and `/proc/net` show different network namespaces.
///
/// sysfs shows the namespace of the process that mounted it, `/proc/net` the reader's.
fn other_namespace(notes: &Notes<'_>, netdevs: &[Netdev]) {
    let Some(text) = notes.get("/proc/net/dev", |text| Ok(text.to_owned())) else {
        return;
    };
    let mut own = text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    if let Some(missing) = own.find(|name| !netdevs.iter().any(|netdev| netdev.name == *name)) {
        let why = format!(
            "shows another network namespace (no {missing}): \
             mount sysfs here, as `ip netns exec` does"
        );
        notes.gap(NET, why);
    }
}

/// Reads a netdev; `None` if it was removed meanwhile.
fn netdev(notes: &Notes<'_>, known: &Known<'_>, name: &str, names: &[String]) -> Option<Netdev> {
    let dir = notes.note(notes.root.resolve(&format!("{NET}/{name}")))?;
    let file = |file: &str| format!("{dir}/{file}");
    let ifindex = notes.get(&file("ifindex"), scalar::number)?;
    let flags = notes.get(&file("flags"), scalar::hexadecimal);
    let up = flags.is_some_and(|flags| flags & parse::IFF_UP != 0);
    let threaded = notes.get(&file("threaded"), scalar::number);
    let is_same = |netdev: &&Netdev| {
        (netdev.ifindex, netdev.up, netdev.threaded) == (ifindex, up, threaded)
            && netdev.name == name
    };
    if let Some(kept) = known.kept.iter().find(is_same) {
        return Some(again(notes, known, &dir, kept.clone()));
    }
    let ethtool = ethtool(notes, name);
    let hardware = hardware(notes, &dir);
    let driver = hardware.as_ref().and_then(|hardware| hardware.driver.clone());
    let driver = driver.or_else(|| Some(ethtool.as_ref()?.driver.value()?.driver.clone()));
    let driver = driver.or_else(|| {
        notes.get(&file("uevent"), |text| Ok(uevent(text).remove("DEVTYPE"))).flatten()
    });
    let mut netdev = Netdev {
        name: name.to_owned(),
        ifindex,
        driver,
        mac: notes.get(&file("address"), parse::address).flatten(),
        speed_mbps: notes.get(&file("speed"), parse::speed).flatten(),
        up,
        carrier: notes.get(&file("carrier"), scalar::number::<u32>).map(|carrier| carrier != 0),
        mtu: notes.get(&file("mtu"), scalar::number).unwrap_or(0),
        master: notes.note(notes.root.link(&file("master"))).map(|target| last(&target).to_owned()),
        threaded,
        napi_defer_hard_irqs: notes.get(&file("napi_defer_hard_irqs"), scalar::number),
        gro_flush_timeout: notes.get(&file("gro_flush_timeout"), scalar::number),
        statistics: statistics(notes, &file("statistics")),
        ethtool,
        ..Netdev::default()
    };
    queues(notes, &dir, &mut netdev);
    let virtio = hardware.as_ref().and_then(|hardware| hardware.virtio.clone());
    if let Some(hardware) = hardware {
        for (queue, cpu) in &hardware.channels {
            netdev
                .rx_queues
                .iter_mut()
                .filter(|rx| rx.index == *queue)
                .for_each(|rx| rx.vmbus_cpu = Some(*cpu));
        }
        netdev.node = hardware.node;
        netdev.irqs = hardware.irqs;
        netdev.bus = Some(hardware.bus);
        netdev.device_path = Some(hardware.path);
    }
    netdev.napis = napis(&netdev, known);
    edges_from_netlink(&mut netdev, known.genl);
    edges_from_names(&mut netdev, virtio.as_deref(), known.irqs, names);
    Some(netdev)
}

/// Reads what changes by itself: carrier, counters, CPUs of kthreads. Reads nothing of a netdev
/// that is down.
fn again(notes: &Notes<'_>, known: &Known<'_>, dir: &str, mut netdev: Netdev) -> Netdev {
    if !netdev.up {
        return netdev;
    }
    let file = |file: &str| format!("{dir}/{file}");
    netdev.carrier = notes.get(&file("carrier"), scalar::number::<u32>).map(|carrier| carrier != 0);
    netdev.statistics = statistics(notes, &file("statistics"));
    if let Some(ethtool) = netdev.ethtool.as_mut().filter(|_| notes.root.is_live())
        && let Ok(counters) = crate::ethtool::get::counters(&netdev.name)
    {
        ethtool.stats = counters;
    }
    for thread in netdev.napis.iter_mut().filter_map(|napi| napi.thread.as_mut()) {
        let now = known.threads.iter().find(|known| known.pid == thread.pid);
        now.into_iter().for_each(|now| thread.clone_from(now));
    }
    netdev
}

fn ethtool(notes: &Notes<'_>, name: &str) -> Option<Ethtool> {
    let answer = notes
        .root
        .answer(&format!("ethtool/{name}.json"), || Reading::from(crate::ethtool::get::read(name)));
    match notes.note(answer).flatten()? {
        Reading::Value(ethtool) => Some(ethtool),
        Reading::Absent(why) => {
            notes.gap(format!("ethtool of {name}"), why);
            None
        }
    }
}

/// The device behind a netdev.
struct Hardware {
    path: String,
    bus: String,
    driver: Option<String>,
    virtio: Option<String>,
    node: Option<NodeId>,
    irqs: Vec<Irq>,
    /// The CPU of each VMBus channel, by the queue that it serves.
    channels: BTreeMap<u32, CpuId>,
}

fn hardware(notes: &Notes<'_>, dir: &str) -> Option<Hardware> {
    let root = notes.root;
    let path = match root.link(&format!("{dir}/device")) {
        Ok(target) => crate::files::root::join(&format!("{dir}/device"), &target),
        Err(e) => return notes.note(Err(e)),
    };
    let link = |of: &str, name: &str| {
        let target = notes.note(root.link(&format!("{of}/{name}")));
        target.map(|target| last(&target).to_owned())
    };
    let virtio =
        (link(&path, "subsystem").as_deref() == Some("virtio")).then(|| last(&path).to_owned());
    // a virtio device has the vectors, address and node of its parent
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let device = if virtio.is_some() { parent } else { path.as_str() };
    Some(Hardware {
        bus: last(device).to_owned(),
        driver: link(&path, "driver"),
        node: node(notes, device),
        irqs: irqs(notes, device),
        channels: channels(notes, device),
        path: path.strip_prefix("/sys").unwrap_or(&path).to_owned(),
        virtio,
    })
}

/// The NUMA node of a device.
///
/// `numa_node`; for a device on a bus without nodes (USB, auxiliary), that of the nearest ancestor.
fn node(notes: &Notes<'_>, device: &str) -> Option<NodeId> {
    let mut dir = device;
    while dir.starts_with("/sys/devices/") {
        if let Some(node) = notes.get(&format!("{dir}/numa_node"), scalar::number_or_none) {
            return node.map(NodeId);
        }
        dir = dir.rsplit_once('/')?.0;
    }
    None
}

/// The message-signalled interrupts; else those of an auxiliary device (since 6.11); else the
/// legacy interrupt.
fn irqs(notes: &Notes<'_>, device: &str) -> Vec<Irq> {
    for name in ["msi_irqs", "irqs"] {
        let listed = notes.note(notes.root.list(&format!("{device}/{name}"))).unwrap_or_default();
        if !listed.is_empty() {
            return numbered(&listed, "").into_iter().map(Irq).collect();
        }
    }
    let pin = notes.get(&format!("{device}/irq"), scalar::number::<u32>);
    pin.filter(|&irq| irq != 0).map(Irq).into_iter().collect()
}

/// The CPU of each channel, from `/sys/bus/vmbus/devices/*/channels/<relid>`.
///
/// The sub-channel number equals the queue number (`netvsc_open`).
fn channels(notes: &Notes<'_>, device: &str) -> BTreeMap<u32, CpuId> {
    let names = notes.note(notes.root.list(&format!("{device}/channels"))).unwrap_or_default();
    let channel = |relid: u32| {
        let file = |name: &str| format!("{device}/channels/{relid}/{name}");
        let queue = notes.get(&file("subchannel_id"), scalar::number)?;
        Some((queue, CpuId(notes.get(&file("cpu"), scalar::number)?)))
    };
    numbered(&names, "").into_iter().filter_map(channel).collect()
}

fn statistics(notes: &Notes<'_>, dir: &str) -> BTreeMap<String, u64> {
    let names = notes.note(notes.root.list(dir)).unwrap_or_default();
    let value =
        |name: String| Some((name.clone(), notes.get(&format!("{dir}/{name}"), scalar::number)?));
    names.into_iter().filter_map(value).collect()
}

/// Reads the queues and their settings, but not their interrupts and NAPIs.
pub(crate) fn queues(notes: &Notes<'_>, dir: &str, netdev: &mut Netdev) {
    let names = notes.note(notes.root.list(&format!("{dir}/queues"))).unwrap_or_default();
    for index in numbered(&names, "rx-") {
        let file = |name: &str| format!("{dir}/queues/rx-{index}/{name}");
        netdev.rx_queues.push(RxQueue {
            index,
            rps_cpus: notes.get(&file("rps_cpus"), cpu_lists::mask),
            rps_flow_cnt: notes.get(&file("rps_flow_cnt"), scalar::number),
            ..RxQueue::default()
        });
    }
    for index in numbered(&names, "tx-") {
        let file = |name: &str| format!("{dir}/queues/tx-{index}/{name}");
        netdev.tx_queues.push(TxQueue {
            index,
            // ENOENT on a device with one queue
            xps_cpus: notes.get(&file("xps_cpus"), cpu_lists::mask),
            xps_rxqs: notes.get(&file("xps_rxqs"), cpu_lists::mask),
            ..TxQueue::default()
        });
    }
}

/// The NAPIs that netlink lists, then those known only from their kthreads.
fn napis(netdev: &Netdev, known: &Known<'_>) -> Vec<Napi> {
    let mut threads: Vec<&NapiThread> = known.threads.iter().collect();
    let mut take = |wanted: &dyn Fn(&NapiThread) -> bool| {
        let at = threads.iter().position(|thread| wanted(thread))?;
        Some(threads.remove(at).clone())
    };
    let mut napis = Vec::new();
    for napi in
        known.genl.iter().flat_map(|genl| &genl.napis).filter(|napi| napi.ifindex == netdev.ifindex)
    {
        let thread = take(&|thread| Some(thread.pid) == napi.pid);
        let thread =
            thread.or_else(|| take(&|thread| thread_of(thread, netdev) == Some(NapiId(napi.id))));
        napis.push(Napi { id: NapiId(napi.id), irq: napi.irq.map(Irq), thread });
    }
    let elsewhere = |pid: u32| {
        known.genl.is_some_and(|genl| genl.napis.iter().any(|napi| napi.pid == Some(pid)))
    };
    let unlisted = threads.into_iter().filter(|thread| !elsewhere(thread.pid));
    napis.extend(unlisted.filter_map(|thread| {
        Some(Napi { id: thread_of(thread, netdev)?, irq: None, thread: Some(thread.clone()) })
    }));
    napis
}

/// The NAPI of a kthread, if it belongs to this netdev. 0 means unknown.
fn thread_of(thread: &NapiThread, netdev: &Netdev) -> Option<NapiId> {
    napi_id(&thread.comm, &netdev.name).map(NapiId)
}

fn edges_from_netlink(netdev: &mut Netdev, genl: Option<&NetdevGenl>) {
    let Some(genl) = genl else {
        return;
    };
    let queue = |direction, index| {
        let wanted =
            |q: &&Queue| q.ifindex == netdev.ifindex && q.id == index && q.direction == direction;
        genl.queues.iter().find(wanted)
    };
    let napi = |queue: &Queue| queue.napi_id.map(|id| certain(NapiId(id)));
    let irq = |queue: &Queue| {
        let id = queue.napi_id?;
        genl.napis.iter().find(|napi| napi.id == id)?.irq.map(|irq| certain(Irq(irq)))
    };
    for rx in &mut netdev.rx_queues {
        if let Some(queue) = queue(Direction::Rx, rx.index) {
            (rx.napi, rx.irq) = (napi(queue), irq(queue));
            rx.leased = queue.owners.first().map(QueueHolder::label);
        }
    }
    for tx in &mut netdev.tx_queues {
        if let Some(queue) = queue(Direction::Tx, tx.index) {
            (tx.napi, tx.irq) = (napi(queue), irq(queue));
        }
    }
}

/// Whether this namespace has a bridge.
pub fn has_bridge(root: &Root) -> bool {
    let is_bridge = |netdev: &String| {
        root.list(&format!("{NET}/{netdev}/bridge")).is_ok_and(|files| !files.is_empty())
    };
    root.list(NET).unwrap_or_default().iter().any(is_bridge)
}

/// The netdevs of this namespace.
pub fn names(root: &Root) -> Vec<String> {
    root.list(NET).unwrap_or_default()
}

/// Whether this namespace has a netdev of this name.
pub fn is_here(root: &Root, netdev: &str) -> bool {
    root.exists(&format!("{NET}/{netdev}"))
}

/// Whether a netdev belongs to a device, unlike a veth or a bridge.
pub fn has_device(root: &Root, netdev: &str) -> bool {
    root.exists(&format!("{NET}/{netdev}/device"))
}

/// Whether netlink still reports the same NAPIs and lease holders for a netdev's rx queues.
pub(crate) fn matches_netlink(genl: Option<&NetdevGenl>, netdev: &Netdev) -> bool {
    let fresh = |queue: &RxQueue| RxQueue { index: queue.index, ..RxQueue::default() };
    let mut fresh_netdev = Netdev {
        ifindex: netdev.ifindex,
        rx_queues: netdev.rx_queues.iter().map(fresh).collect(),
        ..Netdev::default()
    };
    edges_from_netlink(&mut fresh_netdev, genl);
    let same = |(now, was): (&RxQueue, &RxQueue)| now.napi == was.napi && now.leased == was.leased;
    fresh_netdev.rx_queues.iter().zip(&netdev.rx_queues).all(same)
}

fn certain<T>(to: T) -> Association<T> {
    Association { to, source: AssociationSource::NetdevGenl, confidence: Confidence::Certain }
}

/// Adds the interrupts and NAPIs of queues that netlink did not report, by the names of interrupt
/// actions.
fn edges_from_names(
    netdev: &mut Netdev,
    virtio: Option<&str>,
    irqs: &BTreeMap<Irq, IrqState>,
    others: &[String],
) {
    if netdev.device_path.is_none() {
        return;
    }
    let owned = !netdev.irqs.is_empty();
    let candidates = irqs.iter().filter(|(irq, _)| !owned || netdev.irqs.contains(irq));
    let actions = candidates.map(|(irq, state)| (*irq, state.actions.clone())).collect();
    let count = |index: Option<u32>| index.map_or(0, |last| last + 1);
    let device = Device {
        name: &netdev.name,
        driver: netdev.driver.as_deref(),
        virtio,
        rx_queues: count(netdev.rx_queues.last().map(|queue| queue.index)),
        tx_queues: count(netdev.tx_queues.last().map(|queue| queue.index)),
        others,
    };
    let edges = irq_names::edges(&device, &actions, owned);
    for rx in netdev.rx_queues.iter_mut().filter(|queue| queue.irq.is_none()) {
        rx.irq = edges.rx.get(&rx.index).cloned();
    }
    for tx in netdev.tx_queues.iter_mut().filter(|queue| queue.irq.is_none()) {
        tx.irq = edges.tx.get(&tx.index).cloned();
    }
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(comm: &str) -> NapiThread {
        NapiThread { pid: 1, comm: comm.into(), start_time: 0, cpus: Default::default() }
    }

    #[test]
    fn a_kthread_belongs_to_the_netdev_with_its_full_name() {
        let netdev = Netdev { name: "eth1".into(), ..Netdev::default() };
        assert_eq!(thread_of(&thread("napi/eth1-8193"), &netdev), Some(NapiId(8193)));
        assert_eq!(thread_of(&thread("napi/eth10-8193"), &netdev), None);
        let long = Netdev { name: "enp193s0f0np0".into(), ..Netdev::default() };
        assert_eq!(thread_of(&thread("napi/enp193s0f0"), &long), Some(NapiId(0)));
    }
}
