//! Takes a [`Snapshot`] of a host through a [`Root`].

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use netsilo_model::change::SYSCTLS;
use netsilo_model::derive::namespaces::NAMESPACES;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::reading::Reading;
use netsilo_model::machine::topology::Topology;
use netsilo_model::parse::schedstat::link_inode;
use netsilo_model::parse::softirqs::softirqs;
use netsilo_model::parse::softnet_stat::softnet_stat;
use netsilo_model::parse::stat::stat;
use netsilo_model::parse::{cpu_lists, scalar};
use netsilo_model::snapshot::audit::Audit;
use netsilo_model::snapshot::host::{
    CpuCounters, Gap, HostIdentity, IrqState, KnobOwner, NetSettings, Snapshot,
};
use netsilo_model::snapshot::namespaces::Namespaces;
use netsilo_model::snapshot::netdev::Xdp;
use netsilo_model::snapshot::netdev_genl::NetdevGenl;
use netsilo_model::snapshot::netdevs::Netdevs;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::files::writes;
use crate::read::gaps::Notes;
use crate::read::machine::virtual_machine;
use crate::read::namespaces::{self, PROTOCOLS, Parse, Share};
use crate::read::netdev::{Known, irqs_of, netdevs};
use crate::read::process::{Process, napi_threads, net_threads, processes};
use crate::read::sock_owners::Holders;
use crate::read::socket_readers::Sockets;
use crate::read::tap_holders;
use crate::read::{audit, irq, knob_owners, topology};

/// Reads everything.
///
/// Values that a machine may lack are `None`; expected values that could not be read are in `gaps`.
/// An error means that the CPU topology or its counters are inconsistent, or that the tree cannot
/// be saved.
pub fn snapshot(root: &Root) -> Result<Snapshot, ReadError> {
    Ok(whole(root, None, Elsewhere::All)?.snapshot)
}

/// The same as [`snapshot`], without the other network namespaces. A thousand of them take longer
/// than all else.
pub fn snapshot_here(root: &Root) -> Result<Snapshot, ReadError> {
    Ok(whole(root, None, Elsewhere::Nothing)?.snapshot)
}

/// How much a snapshot reads of the other network namespaces.
#[derive(Clone, Copy)]
enum Elsewhere<'a> {
    Nothing,
    All,
    /// Only a share is read again.
    After(&'a Namespaces),
}

impl<'a> Elsewhere<'a> {
    fn after(last: Option<&'a Namespaces>) -> Self {
        last.map_or(Self::All, Self::After)
    }
}

fn whole(root: &Root, kept: Option<&Kept>, elsewhere: Elsewhere<'_>) -> Result<Look, ReadError> {
    look(root, Depth::All, kept, elsewhere)
}

/// The same as [`snapshot`], without interrupt counts, drop counters and the audit.
pub fn uncounted(root: &Root) -> Result<Snapshot, ReadError> {
    Ok(look(root, Depth::Uncounted, None, Elsewhere::Nothing)?.snapshot)
}

/// The same as [`uncounted`], with only the interrupts that are a netdev's, by files or by
/// observation (`observed`). Also returns the number of rows of `/proc/interrupts`.
pub(crate) fn of_netdevs(
    root: &Root,
    observed: &BTreeSet<Irq>,
) -> Result<(Snapshot, usize), ReadError> {
    let look = look(root, Depth::OfNetdevs { observed }, None, Elsewhere::Nothing)?;
    Ok((look.snapshot, look.rows))
}

/// A snapshot, and what it was made from.
struct Look {
    snapshot: Snapshot,
    processes: Vec<Process>,
    holders: Holders,
    /// The number of rows of `/proc/interrupts`.
    rows: usize,
}

/// How much a snapshot has.
#[derive(Clone, Copy)]
enum Depth<'a> {
    All,
    /// No interrupt counts, drop counters and audit.
    Uncounted,
    /// The same, with only the interrupts of netdevs and the `observed` ones.
    OfNetdevs {
        observed: &'a BTreeSet<Irq>,
    },
}

/// Takes snapshots at short intervals. Some data is read again only after [`SELDOM`], when a CPU
/// comes or goes, and when this process has written a setting: the topology, the list of processes,
/// the programs that write the same knobs, sysctls, the settings of netdevs, the audit, and the
/// hints and nodes of interrupts. If a netdev goes up or down, or if its kthreads are switched on
/// or off, its settings are read at once.
#[derive(Debug, Default)]
pub(crate) struct Series(Option<Kept>);

/// The data that is read seldom, and when it was read.
#[derive(Debug)]
struct Kept {
    at: Duration,
    /// [`writes::count`] before it was read.
    writes: u64,
    topology: Arc<Topology>,
    machine: HostIdentity,
    processes: Vec<Process>,
    knob_owners: Vec<KnobOwner>,
    netdevs: Netdevs,
    irqs: BTreeMap<Irq, IrqState>,
    net: NetSettings,
    audit: Option<Audit>,
    holders: Holders,
    tap_holders: Option<tap_holders::Holders>,
    namespaces: Option<Namespaces>,
    gaps: Vec<Gap>,
}

/// How much CPU time a snapshot of a series may take to read other network namespaces. The others
/// follow in the next snapshots.
const OF_SERIES: Share = Share { cpu_time: Duration::from_millis(30), at_least: 0 };

/// How long they are used.
const SELDOM: Duration = Duration::from_secs(5);

impl Series {
    /// The next snapshot. If the tree is being saved, everything is read.
    pub(crate) fn next(&mut self, root: &Root) -> Result<Snapshot, ReadError> {
        self.next_after(writes::count(), root)
    }

    /// The next snapshot, given the number of settings that this process has written.
    fn next_after(&mut self, writes: u64, root: &Root) -> Result<Snapshot, ReadError> {
        if root.is_recorded() {
            return snapshot(root);
        }
        let (now, online) = (root.now()?, topology::online(root)?);
        let is_valid = |kept: &Kept| {
            now < kept.at + SELDOM
                && kept.writes == writes
                && online.as_ref().is_none_or(|online| *online == kept.topology.online)
        };
        let (kept, last) = match self.0.take() {
            Some(kept) if is_valid(&kept) => (Some(kept), None),
            old => (None, old.and_then(|kept| kept.namespaces)),
        };
        if let Some(kept) = kept {
            let elsewhere = Elsewhere::after(kept.namespaces.as_ref());
            let Look { snapshot, processes, holders, .. } = whole(root, Some(&kept), elsewhere)?;
            let netdevs = snapshot.netdevs.clone();
            let namespaces = snapshot.namespaces.clone();
            self.0 = Some(Kept { processes, netdevs, holders, namespaces, ..kept });
            return Ok(snapshot);
        }
        let Look { snapshot, processes, holders, .. } =
            whole(root, None, Elsewhere::after(last.as_ref()))?;
        self.0 = Some(Kept {
            at: snapshot.at,
            writes,
            topology: Arc::clone(&snapshot.topology),
            machine: snapshot.machine.clone(),
            processes,
            knob_owners: snapshot.knob_owners.clone(),
            netdevs: snapshot.netdevs.clone(),
            irqs: snapshot.irqs.clone(),
            net: snapshot.net.clone(),
            audit: snapshot.audit.clone(),
            holders,
            tap_holders: snapshot.tap_holders.clone(),
            namespaces: snapshot.namespaces.clone(),
            gaps: snapshot.gaps.clone(),
        });
        Ok(snapshot)
    }
}

fn look(
    root: &Root,
    depth: Depth<'_>,
    kept: Option<&Kept>,
    elsewhere: Elsewhere<'_>,
) -> Result<Look, ReadError> {
    let notes = Notes::new(root);
    let whole = matches!(depth, Depth::All);
    let topology = match kept {
        Some(kept) => Arc::clone(&kept.topology),
        None => Arc::new(topology::noted(&notes)?),
    };
    // counters first and together: rates are computed from `at`
    let at = root.now()?;
    let table = if whole { irq::interrupts(root, None) } else { irq::uncounted(root) };
    let table = wanted(&notes, table)?.unwrap_or_default();
    let rows = table.irqs.len() + table.arch.len();
    let cpus = cpu_counters(&notes, &topology.online)?;
    let protocols = if whole { protocols(&notes) } else { BTreeMap::new() };
    let none = BTreeMap::new();
    let mut irqs = match depth {
        Depth::OfNetdevs { .. } => {
            let arriving = |(irq, row)| (irq, irq::arriving(&notes, irq, row));
            table.irqs.into_iter().map(arriving).collect()
        }
        _ => irq::irqs(&notes, table.irqs, kept.map_or(&none, |kept| &kept.irqs)),
    };
    let processes = kept.map_or_else(|| processes(&notes), |kept| kept.processes.clone());
    let net_threads = net_threads(&notes, &processes, whole);
    let threads = napi_threads(&net_threads);
    let genl = netdev_genl(&notes);
    let of_before = kept.map_or(&[][..], |kept| &kept.netdevs);
    let known = Known { irqs: &irqs, threads: &threads, genl: genl.as_ref(), kept: of_before };
    let mut netdevs = netdevs(&notes, &known);
    let xdp = match of_before {
        [] => xdp(&notes),
        kept => kept.iter().filter_map(|netdev| Some((netdev.ifindex, netdev.xdp?))).collect(),
    };
    netdevs.iter_mut().for_each(|netdev| netdev.xdp = xdp.get(&netdev.ifindex).copied());
    let mut other_vectors = BTreeMap::new();
    if let Depth::OfNetdevs { observed } = depth {
        let wanted: BTreeSet<Irq> =
            netdevs.iter().flat_map(irqs_of).chain(observed.iter().copied()).collect();
        let debugfs = irq::has_debugfs(&notes);
        for (irq, arriving) in std::mem::take(&mut irqs) {
            if wanted.contains(&irq) {
                irqs.insert(irq, irq::settings(&notes, irq, arriving, debugfs, None));
            } else if let Some(cpu) = arriving.effective.and_then(|cpus| cpus.single()) {
                *other_vectors.entry(cpu).or_default() += 1;
            }
        }
    }
    let audit = match kept {
        Some(kept) => kept.audit.clone(),
        None => whole.then(|| audit::audit(&notes, &netdevs, genl.as_ref(), &topology.online)),
    };
    let tap_holders = if whole {
        let known = kept.and_then(|it| it.tap_holders.as_ref());
        let root = notes.root.unrecorded();
        let ask = || Reading::from(tap_holders::read(&root, &netdevs, &processes, known));
        answer(&notes, TAP_HOLDERS, ask)
    } else {
        None
    };
    let asked = OnceCell::new();
    let ask = || {
        let ask = || {
            let root = root.unrecorded();
            let (namespaces, candidates) = match elsewhere {
                Elsewhere::Nothing => (Reading::Absent("not read".into()), Vec::new()),
                Elsewhere::All => namespaces::look(&root, None),
                Elsewhere::After(last) => namespaces::look(&root, Some((last, OF_SERIES))),
            };
            let sockets = Sockets::read(&root, kept.map(|kept| &kept.holders), candidates);
            (Reading::from(sockets), namespaces)
        };
        asked.get_or_init(ask)
    };
    let sockets = || &ask().0;
    let mut snapshot = Snapshot {
        machine: kept.map_or_else(|| machine(&notes), |kept| kept.machine.clone()),
        at,
        topology,
        irqs,
        other_vectors,
        free_vectors: irq::free_vectors(&notes),
        arch_interrupts: table.arch,
        arch_names: table.arch_names,
        default_smp_affinity: notes.get("/proc/irq/default_smp_affinity", cpu_lists::mask),
        cpus,
        netdevs: netdevs.into(),
        net: kept.map_or_else(|| net_settings(&notes), |kept| kept.net.clone()),
        knob_owners: kept.map_or_else(
            || knob_owners::knob_owners(&notes, &processes),
            |kept| kept.knob_owners.clone(),
        ),
        audit,
        protocols,
        netfilter: if whole {
            let ask = || {
                let root = notes.root.unrecorded();
                Reading::from(crate::read::netfilter::read(&root, "/proc/net"))
            };
            answer(&notes, NETFILTER, ask)
        } else {
            None
        },
        losing_sockets: if whole {
            answer(&notes, LOSING_SOCKETS, || part(sockets(), |it| &it.losing))
        } else {
            None
        },
        socket_readers: if whole {
            answer(&notes, SOCKET_READERS, || part(sockets(), |it| &it.readers))
        } else {
            None
        },
        tap_holders,
        namespaces: if whole && !matches!(elsewhere, Elsewhere::Nothing) {
            answer(&notes, NAMESPACES, || namespaces::with_sockets(ask()))
        } else {
            None
        },
        net_threads,
        gaps: notes.finish()?,
    };
    if let Some(kept) = kept {
        snapshot.gaps.clone_from(&kept.gaps);
    }
    snapshot.escape_names();
    let holders = asked.into_inner().and_then(|(sockets, _)| match sockets {
        Reading::Value(sockets) => Some(sockets.holders),
        Reading::Absent(_) => None,
    });
    Ok(Look { snapshot, processes, holders: holders.unwrap_or_default(), rows })
}

/// One part of what was read, or why it was not.
fn part<T: Clone>(read: &Reading<Sockets>, part: impl Fn(&Sockets) -> &T) -> Reading<T> {
    match read {
        Reading::Value(sockets) => Reading::Value(part(sockets).clone()),
        Reading::Absent(why) => Reading::Absent(why.clone()),
    }
}

/// A malformed file is an error; an unreadable one is a gap.
fn wanted<T>(notes: &Notes<'_>, read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Err(e @ ReadError::Parse { .. }) => Err(e),
        other => Ok(notes.wanted(other)),
    }
}

fn cpu_counters(
    notes: &Notes<'_>,
    online: &CpuSet,
) -> Result<BTreeMap<CpuId, CpuCounters>, ReadError> {
    let stats = wanted(notes, notes.root.parse("/proc/stat", stat))?.unwrap_or_default();
    let mut softirqs =
        wanted(notes, notes.root.parse("/proc/softirqs", softirqs))?.unwrap_or_default();
    let softnet = notes.root.parse("/proc/net/softnet_stat", |text| softnet_stat(text, online));
    let softnet = wanted(notes, softnet)?.unwrap_or_default();
    let counters = |(cpu, stat)| {
        let softirqs = softirqs.remove(&cpu).unwrap_or_default();
        (cpu, CpuCounters { stat, softirqs, softnet: softnet.get(&cpu).copied() })
    };
    Ok(stats.into_iter().map(counters).collect())
}

fn machine(notes: &Notes<'_>) -> HostIdentity {
    let word = |path: &str| notes.wanted(notes.root.parse(path, scalar::word)).unwrap_or_default();
    HostIdentity {
        hostname: word("/proc/sys/kernel/hostname"),
        release: word("/proc/sys/kernel/osrelease"),
        boot_id: word("/proc/sys/kernel/random/boot_id"),
        cmdline: word("/proc/cmdline"),
        architecture: architecture(notes),
        netns: notes
            .wanted(notes.root.link("/proc/self/ns/net"))
            .and_then(|link| link_inode(&link, "net"))
            .unwrap_or_default(),
        virtual_machine: virtual_machine(
            notes.root,
            notes.note(notes.root.read("/proc/cpuinfo")).as_deref(),
        ),
    }
}

/// `uname -m`. Kernels before 6.1 have no file for it, so bundles of these do not know it.
fn architecture(notes: &Notes<'_>) -> Option<String> {
    let file = notes.get("/proc/sys/kernel/arch", scalar::word);
    let uname = || rustix::system::uname().machine().to_str().ok().map(str::to_owned);
    file.or_else(|| notes.root.is_live().then(uname).flatten())
}

pub(crate) fn netdev_genl(notes: &Notes<'_>) -> Option<NetdevGenl> {
    let ask = || match crate::read::netlink::netdev_genl::read() {
        Ok(answer) => answer,
        Err(error) => Reading::Absent(error.to_string()),
    };
    match notes.note(notes.root.answer("netdev_genl.json", ask)).flatten()? {
        Reading::Value(genl) => Some(genl),
        Reading::Absent(why) => {
            notes.gap("netdev netlink", why);
            None
        }
    }
}

fn xdp(notes: &Notes<'_>) -> BTreeMap<u32, Xdp> {
    let answer = notes
        .note(
            notes
                .root
                .answer("rtnetlink/xdp.json", || Reading::from(crate::read::netlink::xdp::read())),
        )
        .flatten();
    match answer {
        Some(Reading::Value(attached)) => attached,
        Some(Reading::Absent(why)) => {
            notes.gap("XDP programs", why);
            BTreeMap::new()
        }
        None => BTreeMap::new(), // an older bundle without this answer
    }
}

/// Protocol counters of this network namespace.
fn protocols(notes: &Notes<'_>) -> BTreeMap<String, u64> {
    let read = |(file, parse): &(&str, Parse)| {
        notes.get(&format!("/proc/net/{file}"), |text| parse(text, |_| true))
    };
    PROTOCOLS.iter().filter_map(read).flatten().collect()
}

/// An answer that was read or recorded. If it could not be read, that is a gap.
fn answer<T: Serialize + DeserializeOwned>(
    notes: &Notes<'_>,
    name: &str,
    ask: impl FnOnce() -> Reading<T>,
) -> Option<T> {
    match notes.note(notes.root.answer(name, ask)).flatten()? {
        Reading::Value(value) => Some(value),
        Reading::Absent(why) => {
            notes.gap(name, why);
            None
        }
    }
}

/// File names in a bundle.
pub(crate) const NETFILTER: &str = "netfilter.json";
pub(crate) const LOSING_SOCKETS: &str = "losing_sockets.json";
pub(crate) const SOCKET_READERS: &str = "socket_readers.json";
pub(crate) const TAP_HOLDERS: &str = "tap_holders.json";

/// Sysctls that are stored as printed, in addition to those that netsilo may write.
const READ_ONLY: &[&str] = &[
    "net.core.netdev_rss_key",
    "net.core.netdev_tstamp_prequeue",
    "net.ipv4.ip_forward",
    "net.ipv4.tcp_adv_win_scale",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.udp_mem",
    "net.ipv6.conf.all.forwarding",
];

pub(crate) fn net_settings(notes: &Notes<'_>) -> NetSettings {
    let value =
        |name: &str| notes.get(&format!("/proc/sys/{}", name.replace('.', "/")), scalar::word);
    NetSettings {
        // only in the initial network namespace
        rps_sock_flow_entries: notes
            .get("/proc/sys/net/core/rps_sock_flow_entries", scalar::number),
        rps_default_mask: notes.get("/proc/sys/net/core/rps_default_mask", cpu_lists::mask),
        sysctls: SYSCTLS
            .iter()
            .chain(READ_ONLY)
            .filter_map(|name| Some(((*name).to_owned(), value(name)?)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_netdevs_are_read_seldom_and_at_once_when_one_comes_up_or_goes_down() {
        let dir = tempfile::tempdir().unwrap();
        let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/virtio-6.1/.");
        let copied = std::process::Command::new("cp").arg("-r").arg(tree).arg(dir.path()).status();
        assert!(copied.unwrap().success());
        let root = Root::at(dir.path()).unwrap();
        let net = root.resolve(&format!("{}/eth0", crate::read::netdev::NET)).unwrap();
        let write = |file: &str, text: &str| {
            std::fs::write(dir.path().join(format!(".{net}/{file}")), text).unwrap();
        };
        let mut series = Series::default();
        let mut eth0 = |writes| {
            let snapshot = series.next_after(writes, &root).unwrap();
            let netdev = snapshot.netdevs.iter().find(|netdev| netdev.name == "eth0").unwrap();
            (netdev.up, netdev.mtu, netdev.statistics["rx_packets"])
        };
        write("statistics/rx_packets", "7\n");
        assert_eq!(eth0(0), (true, 1500, 7));
        write("mtu", "9000\n");
        write("statistics/rx_packets", "8\n");
        assert_eq!(eth0(0), (true, 1500, 8), "counters each time, settings as read before");
        write("flags", "0x1002\n");
        assert_eq!(eth0(0), (false, 9000, 8));
        write("mtu", "1400\n");
        assert_eq!(eth0(0), (false, 9000, 8));
        write("flags", "0x1003\n");
        assert_eq!(eth0(0), (true, 1400, 8));
        write("mtu", "1300\n");
        assert_eq!(eth0(0), (true, 1400, 8));
        assert_eq!(eth0(1), (true, 1300, 8), "at once after a write of this process");
    }
}
