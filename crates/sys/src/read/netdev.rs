//! Reads network devices: `/sys/class/net`, ethtool and netdev netlink.

use std::collections::BTreeMap;

use netsilo_model::drivers::irq_names::{self, Device, Edges, Vector};
use netsilo_model::drivers::name::DriverName;
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::interrupts::msi_vector;
use netsilo_model::parse::uevent::uevent;
use netsilo_model::parse::{cpu_lists, netdev as parse, scalar};
use netsilo_model::snapshot::ethtool::Ethtool;
use netsilo_model::snapshot::host::IrqState;
use netsilo_model::snapshot::netdev::{
    Association, AssociationSource, Confidence, Napi, NapiThread, Netdev, RxQueue, TxQueue,
};
use netsilo_model::snapshot::netdev_genl::{Direction, NetdevGenl, Queue, QueueHolder};

use crate::files::root::Root;
use crate::read::device::{Hardware, edge_from_ancestor, hardware, irqs_of_device, last};
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
    irq_names::edges_from_driver_names(&mut netdevs, &vectors(known.irqs, None));
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
    // ethtool names the netdev that it is based on
    let is_tap = |kind: &&str| notes.root.list(&file(kind)).is_ok_and(|it| !it.is_empty());
    let tap = || ["macvtap", "ipvtap"].into_iter().find(is_tap).map(str::to_owned);
    let driver = match driver.as_deref() {
        Some("macvlan" | "ipvlan") => tap().or(driver),
        _ => driver,
    };
    let driver = driver.or_else(|| {
        notes.get(&file("uevent"), |text| Ok(uevent(text).remove("DEVTYPE"))).flatten()
    });
    let is_tun = driver.as_deref() == Some("tun");
    let tun_flags = || notes.get(&file("tun_flags"), scalar::hexadecimal);
    let mut netdev = Netdev {
        name: name.to_owned(),
        ifindex,
        driver,
        tun_flags: is_tun.then(tun_flags).flatten(),
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
    netdev.napis = napis(&netdev, known);
    edges_from_netlink(&mut netdev, known.genl);
    if let Some(hardware) = hardware {
        for (queue, cpu) in &hardware.channels {
            netdev
                .rx_queues
                .iter_mut()
                .filter(|rx| rx.index == *queue)
                .for_each(|rx| rx.vmbus_cpu = Some(*cpu));
        }
        netdev.node = hardware.node;
        netdev.iommu_domain.clone_from(&hardware.iommu_domain);
        netdev.irqs.clone_from(&hardware.irqs);
        netdev.bus = Some(hardware.bus.clone());
        netdev.device_path = Some(hardware.path.clone());
        edges_from_names(notes, &mut netdev, &hardware, known.irqs, names);
    }
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

/// All interrupts of a netdev: those of its queues, and the others.
pub(crate) fn irqs_of(netdev: &Netdev) -> impl Iterator<Item = Irq> + '_ {
    let rx = netdev.rx_queues.iter().filter_map(|queue| Some(queue.irq.as_ref()?.to));
    let tx = netdev.tx_queues.iter().filter_map(|queue| Some(queue.irq.as_ref()?.to));
    let napis = netdev.napis.iter().filter_map(|napi| napi.irq);
    rx.chain(tx).chain(napis).chain(netdev.irqs.iter().copied())
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

/// Adds the interrupts of queues that netlink did not report, by names and order of interrupts.
/// Where netlink reports another interrupt than a driver's name does, both are kept.
fn edges_from_names(
    notes: &Notes<'_>,
    netdev: &mut Netdev,
    hardware: &Hardware,
    irqs: &BTreeMap<Irq, IrqState>,
    others: &[String],
) {
    let device = last(&hardware.path);
    if netdev.irqs.is_empty() {
        netdev.irqs = irqs_of_device(irqs, &hardware.bus, device);
    }
    // the names of a platform device's interrupts do not tell that they are all its interrupts
    let owned = !hardware.irqs.is_empty() || hardware.bus.contains(':') && !netdev.irqs.is_empty();
    let vectors = vectors(irqs, owned.then_some(&netdev.irqs));
    let release = notes.get("/proc/sys/kernel/osrelease", scalar::word).unwrap_or_default();
    let count = |index: Option<u32>| index.map_or(0, |last| last + 1);
    let name = netdev.name.clone();
    let device = Device {
        name: &name,
        driver: DriverName::of(netdev),
        device,
        virtio: hardware.virtio.as_deref(),
        shares_device: hardware.is_shared,
        up: netdev.up,
        rx_queues: count(netdev.rx_queues.last().map(|queue| queue.index)),
        tx_queues: count(netdev.tx_queues.last().map(|queue| queue.index)),
        others,
        release: &release,
    };
    let mut edges = irq_names::edges(&device, &vectors, owned);
    if edges == Edges::default() && !owned {
        edges = edge_from_ancestor(notes, &device, &hardware.path, irqs).unwrap_or_default();
    }
    for rx in &mut netdev.rx_queues {
        let edge = edges.rx.remove(&rx.index);
        match &rx.irq {
            None => rx.irq = edge,
            Some(known) => rx.irq_conflicts.extend(
                edge.filter(|edge| edge.to != known.to && edge.confidence > Confidence::Guess),
            ),
        }
    }
    for tx in netdev.tx_queues.iter_mut().filter(|queue| queue.irq.is_none()) {
        tx.irq = edges.tx.remove(&tx.index);
    }
}

/// The interrupts in the order of the device's vectors: all, or only these.
fn vectors<'a>(irqs: &'a BTreeMap<Irq, IrqState>, wanted: Option<&Vec<Irq>>) -> Vec<Vector<'a>> {
    let wanted = irqs.iter().filter(|(irq, _)| wanted.is_none_or(|wanted| wanted.contains(irq)));
    let vector = |(irq, state): (&Irq, &'a IrqState)| {
        let arrived = state.counts.values().any(|count| *count > 0);
        let index = msi_vector(&state.chip).map(|vector| vector.index);
        (index, Vector { irq: *irq, actions: &state.actions, arrived })
    };
    let mut vectors: Vec<_> = wanted.map(vector).collect();
    if vectors.iter().all(|(index, _)| index.is_some()) {
        vectors.sort_by_key(|(index, _)| *index);
    }
    vectors.into_iter().map(|(_, vector)| vector).collect()
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
