//! Reads the counters of the other network namespaces.
//!
//! A thread enters each of them and ends in the last one, so that no thread of netsilo is ever in
//! another network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use netsilo_model::derive::namespaces::KTHREADD;
use netsilo_model::drivers::protocol_losses::is_of_losses;
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::ParseError;
use netsilo_model::parse::container::Container;
use netsilo_model::parse::mountinfo::network_namespaces;
use netsilo_model::parse::schedstat::{cgroup_path, link_inode};
use netsilo_model::parse::{scalar, snmp};
use netsilo_model::snapshot::namespaces::{Namespace, NamespaceCounters, Namespaces};
use netsilo_model::snapshot::sockets::Holder;
use rustix::time::{ClockId, clock_gettime};

use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::containers::pods;
use crate::read::losing_sockets::{Candidate, candidates};
use crate::read::netfilter;
use crate::read::netlink::links;
use crate::read::netns::{NotEntered, cookie, enter};
use crate::read::socket_readers::Sockets;

/// The most namespaces that are read. Each costs some 5 KB.
const MOST: usize = 4096;

/// How many processes of a namespace are tried, if it has no file.
const TRIED: usize = 4;

/// The files of the network namespace of the thread that reads. `/proc/net` is that of the process.
const NET: &str = "/proc/thread-self/net";

/// A parser of the protocol counters that are wanted.
pub(crate) type Parse = fn(&str, fn(&str) -> bool) -> Result<BTreeMap<String, u64>, ParseError>;

/// Files of a network namespace with protocol counters.
pub(crate) const PROTOCOLS: [(&str, Parse); 5] = [
    ("snmp", snmp::snmp),
    ("netstat", snmp::snmp),
    ("snmp6", snmp::snmp6),
    ("sctp/snmp", snmp::snmp6),
    ("xfrm_stat", snmp::snmp6),
];

/// Sysctls that limit the sockets of a namespace.
const LIMITS: [&str; 6] = [
    "net.core.somaxconn",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_max_syn_backlog",
];

/// How much may be read at once. What is left out keeps its last reading; the oldest come first.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// CPU time.
    pub cpu_time: Duration,
    /// Namespaces that are read even if they take more.
    pub at_least: usize,
}

/// A namespace, and the files by which it is entered.
pub(crate) struct Found {
    pub(crate) namespace: Namespace,
    pub(crate) files: Vec<PathBuf>,
}

/// Finds and reads the namespaces, without their losing sockets. With the last reading, only a
/// share is read again.
pub fn read(root: &Root, last: Option<(&Namespaces, Share)>) -> Reading<Namespaces> {
    look(root, last).0
}

/// Finds and reads the namespaces, without their losing sockets. Returns all their sockets, too.
///
/// With the last reading, only a share is read again.
pub(crate) fn look(
    root: &Root,
    last: Option<(&Namespaces, Share)>,
) -> (Reading<Namespaces>, Vec<Candidate>) {
    let (found, hidden) = match find(root) {
        Ok(found) => found,
        Err(error) => return (Reading::Absent(error.to_string()), Vec::new()),
    };
    let read = || read_all(root, found, last);
    let joined = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netsilo-netns".into());
        thread.spawn_scoped(scope, read).map(std::thread::ScopedJoinHandle::join)
    });
    match joined {
        Ok(Ok((all, sockets))) => (Reading::Value(Namespaces { all, hidden }), sockets),
        Ok(Err(_)) => (Reading::Absent("the thread that reads panicked".into()), Vec::new()),
        Err(error) => (Reading::Absent(format!("cannot start a thread: {error}")), Vec::new()),
    }
}

/// The namespaces with their losing sockets, whose holders are known now.
pub(crate) fn with_sockets(
    (sockets, namespaces): &(Reading<Sockets>, Reading<Namespaces>),
) -> Reading<Namespaces> {
    let sockets = match sockets {
        Reading::Value(sockets) => sockets,
        Reading::Absent(why) => return Reading::Absent(why.clone()),
    };
    namespaces.clone().map(|mut namespaces| {
        for namespace in &mut namespaces.all {
            let losing = sockets.elsewhere.get(&namespace.inode);
            if let (Reading::Value(counters), Some(losing)) = (&mut namespace.counters, losing) {
                counters.losing_sockets.clone_from(losing);
            }
        }
        namespaces
    })
}

/// The namespaces that processes are in or files hold, by inode number, and the number of those
/// that only hidden processes are in.
pub(crate) fn find(root: &Root) -> Result<(BTreeMap<u32, Found>, u32), ReadError> {
    let own = link_inode(&root.link("/proc/self/ns/net")?, "net");
    let mut all: BTreeMap<u32, Found> = BTreeMap::new();
    let mounts = root.read("/proc/self/mountinfo").unwrap_or_default();
    for (inode, path) in network_namespaces(&mounts) {
        let found = all.entry(inode).or_insert_with(|| Found::new(inode));
        found.files.push(PathBuf::from(&path));
        let named = |path: &str| path.starts_with("/run/netns/");
        if found.namespace.mount.as_deref().is_none_or(|known| !named(known) && named(&path)) {
            found.namespace.mount = Some(path);
        }
    }
    let mut pids: Vec<u32> = root.list("/proc")?.iter().filter_map(|it| it.parse().ok()).collect();
    pids.sort_unstable();
    let mut hidden = Vec::new();
    for pid in pids {
        match root.link(&format!("/proc/{pid}/ns/net")) {
            Ok(link) => {
                let Some(inode) = link_inode(&link, "net").filter(|it| Some(*it) != own) else {
                    continue;
                };
                all.entry(inode).or_insert_with(|| Found::new(inode)).add(root, pid);
            }
            Err(ReadError::Denied { .. }) => hidden.push(pid.to_string()),
            // it has ended
            Err(_) => {}
        }
    }
    all.retain(|inode, _| Some(*inode) != own);
    name_pods(root, &mut all);
    let seen = all.values().filter_map(|it| Some(it.namespace.process.as_ref()?.tgid.to_string()));
    let seen = seen.filter(|_| !hidden.is_empty()).chain(["self".to_owned()]);
    let seen: BTreeSet<u64> = seen.filter_map(|pid| net_files(root, &pid)).collect();
    let hidden: BTreeSet<u64> = hidden.iter().filter_map(|pid| net_files(root, pid)).collect();
    Ok((all, u32::try_from(hidden.difference(&seen).count()).unwrap_or(u32::MAX)))
}

/// The inode number of `/proc/PID/net/dev`: a file that each network namespace has once, and that
/// also the processes of others show.
fn net_files(root: &Root, pid: &str) -> Option<u64> {
    let path = root.path(&format!("/proc/{pid}/net/dev")).ok()?;
    Some(path.metadata().ok()?.ino())
}

impl Found {
    fn new(inode: u32) -> Self {
        Self { namespace: Namespace::unread(inode), files: Vec::new() }
    }

    /// Adds a process of the namespace.
    fn add(&mut self, root: &Root, pid: u32) {
        let Self { namespace, files } = self;
        namespace.processes += 1;
        if files.len() < TRIED {
            files.extend(root.path(&format!("/proc/{pid}/ns/net")));
        }
        if namespace.process.is_none() || pid == KTHREADD {
            let comm = root.parse(&format!("/proc/{pid}/comm"), scalar::word).ok();
            // Only of the machine's own namespace, the second process tells more than the first.
            if namespace.process.is_some() && comm.as_deref() != Some("kthreadd") {
                return;
            }
            namespace.process = comm.map(|comm| Holder { tgid: pid, comm });
            let cgroups = root.read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
            namespace.cgroup = cgroup_path(&cgroups).map(str::to_owned);
        }
    }
}

fn name_pods(root: &Root, all: &mut BTreeMap<u32, Found>) {
    let uid = |found: &Found| Container::from_path(found.namespace.cgroup.as_deref()?)?.pod_uid;
    if all.values().any(|found| uid(found).is_some()) {
        let pods = pods(root);
        for found in all.values_mut() {
            found.namespace.pod = uid(found).and_then(|uid| pods.get(&uid).cloned());
        }
    }
}

/// Enters and reads the namespaces. Leaves the calling thread in one of them.
fn read_all(
    root: &Root,
    mut found: BTreeMap<u32, Found>,
    last: Option<(&Namespaces, Share)>,
) -> (Vec<Namespace>, Vec<Candidate>) {
    let before = |inode: u32| last?.0.get(inode)?.counters.value();
    let mut order: Vec<u32> = found.keys().copied().collect();
    order.sort_by_key(|inode| before(*inode).map(|counters| counters.at));
    let mut sockets = Vec::new();
    for (read, inode) in order.into_iter().enumerate() {
        let is_spent = |share: Share| read >= share.at_least && thread_time() > share.cpu_time;
        let Some(of) = found.get_mut(&inode) else { continue };
        if last.is_some_and(|(_, share)| is_spent(share)) {
            if let Some(counters) = before(inode) {
                of.namespace.counters = Reading::Value(counters.clone());
            }
        } else if read >= MOST {
            of.namespace.counters = Reading::Absent(format!("only {MOST} are read"));
        } else {
            match enter(inode, &of.files).and_then(|()| Ok(counters(root, inode)?)) {
                Ok((counters, of_namespace)) => {
                    sockets.extend(of_namespace);
                    of.namespace.counters = Reading::Value(counters);
                }
                Err(NotEntered::Why(why)) => of.namespace.counters = Reading::Absent(why),
                Err(NotEntered::Gone) => _ = found.remove(&inode),
            }
        }
    }
    (found.into_values().map(|found| found.namespace).collect(), sockets)
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Reads the namespace that this thread is in.
fn counters(root: &Root, inode: u32) -> Result<(NamespaceCounters, Vec<Candidate>), ReadError> {
    let at = root.now()?;
    let mut protocols = BTreeMap::new();
    for (file, parse) in PROTOCOLS {
        let parse = |text: &str| parse(text, is_of_losses);
        protocols.extend(root.optional(&format!("{NET}/{file}"), parse)?.unwrap_or_default());
    }
    let sockets = candidates(root, NET, Some(inode))?;
    let loses = sockets.iter().any(|it| it.socket.drops > 0);
    let sysctl = |name: &&str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        Some(((*name).to_owned(), root.parse(&path, scalar::word).ok()?))
    };
    let counters = NamespaceCounters {
        at,
        cookie: cookie(),
        netdevs: links::read(root).map_err(|e| ReadError::from_io("RTM_GETLINK", e))?.into(),
        protocols,
        losing_sockets: Vec::new(),
        netfilter: netfilter::read(root, NET)?,
        sysctls: if loses { LIMITS.iter().filter_map(sysctl).collect() } else { BTreeMap::new() },
    };
    Ok((counters, sockets))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::process::Command;

    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    use super::*;

    /// A network namespace with a name, which ends with this value.
    struct Named(String);

    impl Named {
        fn new(name: &str) -> Self {
            let name = format!("{name}-{}", std::process::id());
            ip(&["netns", "add", &name]);
            Self(name)
        }

        fn inode(&self) -> u32 {
            let file = std::fs::metadata(format!("/run/netns/{}", self.0)).unwrap();
            u32::try_from(file.ino()).unwrap()
        }
    }

    impl Drop for Named {
        fn drop(&mut self) {
            ip(&["netns", "del", &self.0]);
        }
    }

    fn ip(words: &[&str]) {
        assert!(Command::new("ip").args(words).status().unwrap().success(), "ip {words:?}");
    }

    fn looked() -> Namespaces {
        look(&Root::live(), None).0.value().unwrap().clone()
    }

    #[test]
    fn a_namespace_without_a_process_is_read_and_this_process_stays_where_it_is() {
        if netsilo_lab::skip().unwrap() {
            return;
        }
        let namespace = Named::new("netsilo-empty");
        let own = || std::fs::read_link("/proc/self/ns/net").unwrap();
        let before = own();
        let looked = looked();
        let found = looked.get(namespace.inode()).unwrap();
        assert_eq!((found.processes, &found.process), (0, &None));
        assert_eq!(found.mount, Some(format!("/run/netns/{}", namespace.0)));
        let counters = found.counters.value().unwrap();
        let netdevs: Vec<_> = counters.netdevs.iter().map(|it| it.name.as_str()).collect();
        assert!(netdevs.contains(&"lo"), "{netdevs:?}");
        assert_eq!(counters.protocols["UdpRcvbufErrors"], 0);
        assert!(counters.cookie.is_some_and(|cookie| cookie > 1), "{:?}", counters.cookie);
        let cookies = looked.all.iter().filter_map(|it| it.counters.value()?.cookie);
        let cookies: Vec<u64> = cookies.collect();
        assert_eq!(cookies.iter().collect::<HashSet<_>>().len(), cookies.len(), "{cookies:?}");
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let of_threads = threads.map(|it| std::fs::read_link(it.unwrap().path().join("ns/net")));
        let foreign = of_threads.flatten().filter(|of| *of != before).count();
        assert_eq!((own(), foreign), (before, 0), "no thread stays in another namespace");
    }

    #[test]
    fn a_namespace_that_ends_while_it_is_read_is_left_out() {
        if netsilo_lab::skip().unwrap() {
            return;
        }
        let (kept, gone) = (Named::new("netsilo-kept"), Named::new("netsilo-gone"));
        let (found, _) = find(&Root::live()).unwrap();
        let inodes = [kept.inode(), gone.inode()];
        assert!(inodes.iter().all(|inode| found.contains_key(inode)));
        drop(gone);
        let read = std::thread::spawn(|| read_all(&Root::live(), found, None)).join().unwrap().0;
        let is_read =
            |inode| read.iter().any(|it| it.inode == inode && it.counters.value().is_some());
        assert_eq!(inodes.map(is_read), [true, false]);
        assert!(read.iter().all(|it| it.inode != inodes[1]));
    }

    #[test]
    fn without_the_right_to_enter_each_namespace_has_the_reason() {
        if netsilo_lab::skip().unwrap() {
            return;
        }
        let namespace = Named::new("netsilo-refused");
        let without = || {
            let all = capabilities(None).unwrap();
            let effective = all.effective - CapabilitySet::SYS_ADMIN;
            set_capabilities(None, CapabilitySets { effective, ..all }).unwrap();
            looked()
        };
        let looked = std::thread::spawn(without).join().unwrap();
        let found = looked.get(namespace.inode()).unwrap();
        let why = found.counters.reason().unwrap();
        assert!(why.starts_with("EPERM: ") && why.contains("CAP_SYS_ADMIN"), "{why}");
        assert!(looked.all.iter().all(|it| it.counters.value().is_none()));
    }

    #[test]
    fn what_a_share_leaves_out_keeps_its_reading_and_comes_first_next_time() {
        if netsilo_lab::skip().unwrap() {
            return;
        }
        let of = [Named::new("netsilo-one"), Named::new("netsilo-two")];
        let inodes = of.each_ref().map(Named::inode);
        let only = || {
            let (mut found, _) = find(&Root::live()).unwrap();
            found.retain(|inode, _| inodes.contains(inode));
            found
        };
        let one = Share { cpu_time: Duration::ZERO, at_least: 1 };
        let read = |last: Option<&Namespaces>| {
            let read = || read_all(&Root::live(), only(), last.map(|last| (last, one))).0;
            let all = std::thread::scope(|scope| scope.spawn(read).join().unwrap());
            Namespaces { all, hidden: 0 }
        };
        let at = |of: &Namespaces| inodes.map(|inode| Some(of.get(inode)?.counters.value()?.at));
        let first = at(&read(None));
        assert!(first.iter().all(Option::is_some), "{first:?}");
        let nothing = Namespaces::default();
        let mut last = read(Some(&nothing));
        assert_eq!(at(&last).iter().flatten().count(), 1, "one of two in the first share");
        last = read(Some(&last));
        let both = at(&last);
        assert!(both.iter().all(Option::is_some), "{both:?}");
        let next = at(&read(Some(&last)));
        let renewed = (0..2).filter(|of| next[*of] != both[*of]).collect::<Vec<_>>();
        let oldest = if both[0] < both[1] { 0 } else { 1 };
        assert_eq!(renewed, [oldest], "the oldest is read again");
    }

    #[test]
    fn the_processes_of_a_tree_name_its_namespaces() {
        let dir = tempfile::tempdir().unwrap();
        let (uid, id) = ("0b8cf3a1-52d7-4c0e-9f6e-8a1d2c3b4e5f", "a".repeat(64));
        let process = |pid: &str, inode: u32, cgroup: &str| {
            let folder = dir.path().join("proc").join(pid);
            std::fs::create_dir_all(folder.join("ns")).unwrap();
            std::os::unix::fs::symlink(format!("net:[{inode}]"), folder.join("ns/net")).unwrap();
            std::fs::write(folder.join("comm"), "pause\n").unwrap();
            std::fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        };
        let pod = format!("/kubepods/burstable/pod{uid}/{id}");
        process("self", 1, "/");
        process("1", 1, "/init.scope");
        process("7", 2, &pod);
        process("9", 2, "/other");
        let mounts = "31 24 0:4 net:[2] /run/netns/cni-5 rw - nsfs nsfs rw\n";
        std::fs::write(dir.path().join("proc/self/mountinfo"), mounts).unwrap();
        let logs = dir.path().join("var/log/pods").join(format!("shop_web-1_{uid}"));
        std::fs::create_dir_all(logs).unwrap();
        let (found, hidden) = find(&Root::at(dir.path()).unwrap()).unwrap();
        assert_eq!((found.len(), hidden), (1, 0), "its own is none of the others");
        let expected = Namespace {
            inode: 2,
            mount: Some("/run/netns/cni-5".into()),
            processes: 2,
            process: Some(Holder { tgid: 7, comm: "pause".into() }),
            cgroup: Some(pod),
            pod: Some("shop/web-1".into()),
            counters: Reading::Absent("not read yet".into()),
        };
        assert_eq!(found[&2].namespace, expected);
    }
}
