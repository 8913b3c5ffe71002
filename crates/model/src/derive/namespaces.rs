//! The network namespaces of an observation: their names, and what each counted in the interval.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use crate::derive::analysis::Analysis;
use crate::derive::rates::growth;
use crate::machine::reading::Reading;
use crate::machine::words::plural;
use crate::parse::container::Container;
use crate::snapshot::namespaces::{Namespace, NamespaceCounters, Namespaces};
use crate::snapshot::netdev::Netdev;
use crate::snapshot::netdevs::Netdevs;
use crate::snapshot::netfilter::{Conntrack, Netfilter, NfQueue};
use crate::snapshot::observation::Observation;
use crate::snapshot::sockets::LosingSocket;
use crate::snapshot::subject::Subject;

/// The file of the answer in a bundle, which also names its gap.
pub const NAMESPACES: &str = "namespaces.json";

/// Where `ip netns` keeps namespaces under names that people choose. Container runtimes use it.
const GIVEN: [&str; 2] = ["/run/netns/", "/var/run/netns/"];

/// With this, network plugins begin the names that they generate.
const GENERATED: &str = "cni-";

/// What is known of a namespace before it is created.
static NOTHING: LazyLock<NamespaceCounters> = LazyLock::new(NamespaceCounters::default);

/// A network namespace whose counters were read, with those at the start of the interval.
#[derive(Debug, Clone)]
pub struct CountedNamespace<'a> {
    /// The namespace and its name; `None`: netsilo's own.
    pub other: Option<(&'a Namespace, String)>,
    /// Its netdevs.
    pub netdevs: &'a Netdevs,
    /// Its protocol counters.
    pub protocols: &'a BTreeMap<String, u64>,
    /// Its sockets that have dropped something; `None` if not read.
    pub losing_sockets: Option<&'a [LosingSocket]>,
    /// Connection tracking and NFQUEUEs; `None` if not read.
    pub netfilter: Option<&'a Netfilter>,
    sysctls: &'a BTreeMap<String, String>,
    before: Option<Before<'a>>,
    elapsed: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Before<'a> {
    netdevs: &'a Netdevs,
    protocols: &'a BTreeMap<String, u64>,
    losing_sockets: Option<&'a [LosingSocket]>,
    netfilter: Option<&'a Netfilter>,
    /// Whether the namespace was created in the interval: all counters began at 0.
    is_new: bool,
}

impl<'a> Before<'a> {
    fn other(counters: &'a NamespaceCounters, is_new: bool) -> Self {
        let NamespaceCounters { netdevs, protocols, losing_sockets, netfilter, .. } = counters;
        let (losing_sockets, netfilter) = (Some(losing_sockets.as_slice()), Some(netfilter));
        Self { netdevs, protocols, losing_sockets, netfilter, is_new }
    }
}

impl<'a> CountedNamespace<'a> {
    /// netsilo's own namespace.
    pub fn own(analysis: &Analysis<'a>) -> Self {
        let Observation { before, after, .. } = analysis.observation;
        let same = before.machine.netns == after.machine.netns;
        let at_start = Before {
            netdevs: &before.netdevs,
            protocols: &before.protocols,
            losing_sockets: before.losing_sockets.as_deref(),
            netfilter: before.netfilter.as_ref(),
            is_new: false,
        };
        Self {
            other: None,
            netdevs: &after.netdevs,
            protocols: &after.protocols,
            losing_sockets: after.losing_sockets.as_deref(),
            netfilter: after.netfilter.as_ref(),
            sysctls: &after.net.sysctls,
            before: same.then_some(at_start),
            elapsed: analysis.rates.elapsed,
        }
    }

    fn other(observation: &'a Observation, namespace: &'a Namespace, name: String) -> Option<Self> {
        let after = namespace.counters.value()?;
        let before = start(observation, namespace);
        let elapsed = before.as_ref().map_or(Duration::ZERO, |it| after.at.saturating_sub(it.0));
        Some(Self {
            other: Some((namespace, name)),
            netdevs: &after.netdevs,
            protocols: &after.protocols,
            losing_sockets: Some(&after.losing_sockets),
            netfilter: Some(&after.netfilter),
            sysctls: &after.sysctls,
            before: before.ok().map(|(_, before)| before),
            elapsed,
        })
    }

    /// Its inode number; `None` for netsilo's own.
    pub fn inode(&self) -> Option<u32> {
        self.other.as_ref().map(|(namespace, _)| namespace.inode)
    }

    /// A part of this namespace.
    pub fn subject(&self, of: Subject) -> Subject {
        match &self.other {
            Some((_, netns)) => Subject::InNetns { netns: netns.clone(), of: Box::new(of) },
            None => of,
        }
    }

    /// By how much a protocol counter grew; `None` if it was not read twice or was reset.
    pub fn growth(&self, counter: &str) -> Option<u64> {
        let (before, new) = (self.before?, *self.protocols.get(counter)?);
        let old = match before.protocols.get(counter) {
            Some(old) => *old,
            None if before.is_new => 0,
            None => return None,
        };
        growth(old, new, self.elapsed).filter(|_| !self.elapsed.is_zero())
    }

    /// The same netdev at the start.
    pub fn netdev_before(&self, netdev: &Netdev) -> Option<&'a Netdev> {
        self.before?.netdevs.same(netdev)
    }

    /// What a socket dropped; `None` if sockets were not read twice.
    pub fn dropped(&self, socket: &LosingSocket) -> Option<u64> {
        Some(socket.dropped_since(self.before?.losing_sockets?))
    }

    /// Connection tracking at the start.
    pub fn conntrack_before(&self) -> Option<Conntrack> {
        let before = self.before?;
        before.netfilter?.conntrack.or_else(|| before.is_new.then(Conntrack::default))
    }

    /// What an NFQUEUE had lost at the start: nothing, if it did not exist.
    pub fn queue_lost_before(&self, queue: &NfQueue) -> Option<u64> {
        let same = |old: &&NfQueue| (old.number, old.port) == (queue.number, queue.port);
        let queues = &self.before?.netfilter?.queues;
        Some(queues.iter().find(same).map_or(0, NfQueue::lost))
    }

    /// A sysctl of this namespace.
    pub fn sysctl(&self, name: &str) -> Option<&'a str> {
        self.sysctls.get(name).map(String::as_str)
    }

    /// The first number in a sysctl.
    pub fn sysctl_number(&self, name: &str) -> Option<u64> {
        self.sysctl(name)?.split_ascii_whitespace().next()?.parse().ok()
    }
}

/// The counters of another namespace at the start of the interval and their time, or why there is
/// no interval.
fn start<'a>(
    observation: &'a Observation,
    namespace: &Namespace,
) -> Result<(Duration, Before<'a>), String> {
    let at_start = &observation.before;
    let after = match &namespace.counters {
        Reading::Value(counters) => counters,
        Reading::Absent(why) => return Err(why.clone()),
    };
    let Some(known) = at_start.namespaces.as_ref().filter(|_| observation.after.follows(at_start))
    else {
        return Err("read only once".into());
    };
    let created = || (at_start.at, Before::other(&NOTHING, true));
    match known.get(namespace.inode).map(|it| &it.counters) {
        Some(Reading::Value(before)) if before.cookie != after.cookie => Ok(created()),
        Some(Reading::Value(before)) if before.at >= after.at => {
            Err("not read again in the interval".into())
        }
        Some(Reading::Value(before)) => Ok((before.at, Before::other(before, false))),
        Some(Reading::Absent(why)) => Err(why.clone()),
        None if known.hidden > 0 => Err("not seen at the start".into()),
        None => Ok(created()),
    }
}

/// netsilo's own namespace, then the others that were read.
pub fn counted<'a>(analysis: &Analysis<'a>) -> Vec<CountedNamespace<'a>> {
    let after = analysis.after();
    let mut names = names(after.namespaces.as_ref());
    let others = after.namespaces.iter().flat_map(|it| &it.all).filter_map(|namespace| {
        let name = names.remove(&namespace.inode)?;
        CountedNamespace::other(analysis.observation, namespace, name)
    });
    std::iter::once(CountedNamespace::own(analysis)).chain(others).collect()
}

/// Which of the other namespaces were counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others {
    /// Number of namespaces that are known to have existed in the interval.
    pub all: usize,
    /// Those that were counted.
    pub counted: usize,
    /// Why the others were not.
    pub why_not: Option<String>,
}

impl Others {
    /// Counts them; `None` if they were not recorded.
    pub fn of(observation: &Observation) -> Option<Self> {
        let now = observation.after.namespaces.as_ref()?;
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for namespace in &now.all {
            if let Err(why) = start(observation, namespace) {
                *reasons.entry(why).or_default() += 1;
            }
        }
        let read_once = reasons.values().sum::<usize>();
        let unread = [
            ("the kernel hides its processes: run as root", now.hidden as usize),
            ("ended in the interval", ended(observation.before.namespaces.as_ref(), now).count()),
            ("no process and no file of it was found", only_in_events(observation, now)),
        ];
        reasons.extend(unread.map(|(why, count)| (why.to_owned(), count)));
        reasons.retain(|_, count| *count > 0);
        let uncounted: usize = reasons.values().sum();
        let one = reasons.len() == 1;
        let words = |(why, count)| if one { why } else { format!("{count}: {why}") };
        let why_not: Vec<String> = reasons.into_iter().map(words).collect();
        Some(Self {
            all: now.all.len() + uncounted - read_once,
            counted: now.all.len() - read_once,
            why_not: (!why_not.is_empty()).then(|| why_not.join("; ")),
        })
    }

    /// In words: `12 other network namespaces`, `3 of 12 other network namespaces` if these three
    /// were not counted.
    pub fn in_words(&self) -> String {
        let all = plural(self.all, "other network namespace");
        match self.all - self.counted {
            0 => all,
            uncounted if uncounted == self.all => all,
            uncounted => format!("{uncounted} of {all}"),
        }
    }
}

/// Number of namespaces that eBPF saw packets in and that were not found.
fn only_in_events(observation: &Observation, now: &Namespaces) -> usize {
    let attribution = &observation.attribution;
    let seen = attribution.drops.iter().map(|it| it.netns);
    let seen = seen.chain(attribution.ip_packets.iter().map(|it| it.netns));
    let seen = seen.chain(attribution.polls.iter().map(|it| it.netns));
    let mut seen: Vec<u32> = seen
        .filter(|netns| !observation.after.machine.is_own_netns(*netns))
        .filter(|netns| now.get(*netns).is_none())
        .filter(|netns| !observation.before.namespaces.iter().any(|it| it.get(*netns).is_some()))
        .collect();
    seen.sort_unstable();
    seen.dedup();
    seen.len()
}

/// Namespaces that were there only at the start.
fn ended<'a>(
    before: Option<&'a Namespaces>,
    now: &'a Namespaces,
) -> impl Iterator<Item = &'a Namespace> {
    let before = before.into_iter().flat_map(|it| &it.all);
    before.filter(|it| now.get(it.inode).is_none())
}

/// Why a namespace was not counted; `None` if it was.
pub fn not_counted(observation: &Observation, namespace: &Namespace) -> Option<String> {
    start(observation, namespace).err()
}

/// The process `kthreadd`: the parent of all kernel threads.
pub const KTHREADD: u32 = 2;

/// The names of the other namespaces, by inode number. No two are equal.
pub fn names(namespaces: Option<&Namespaces>) -> BTreeMap<u32, String> {
    let all = || namespaces.into_iter().flat_map(|it| &it.all);
    let mut same: BTreeMap<String, usize> = BTreeMap::new();
    all().for_each(|it| *same.entry(name(it)).or_default() += 1);
    let unique = |it: &Namespace| match name(it) {
        name if same.get(&name).is_some_and(|count| *count > 1) => format!("{name} {}", it.inode),
        name => name,
    };
    all().map(|it| (it.inode, unique(it))).collect()
}

/// The names of all namespaces that were there at the start or at the end.
pub fn names_of(observation: &Observation) -> BTreeMap<u32, String> {
    let mut all = names(observation.before.namespaces.as_ref());
    all.extend(names(observation.after.namespaces.as_ref()));
    all
}

/// The name that people gave it and its pod or container, else its cgroup, process or number. The
/// machine's own one is `host`: kernel threads are in it.
fn name(of: &Namespace) -> String {
    if of.process.as_ref().is_some_and(|it| it.tgid == KTHREADD && it.comm == "kthreadd") {
        return "host".into();
    }
    let container = of.cgroup.as_deref().and_then(Container::from_path);
    let pod = of.pod.clone().or_else(|| {
        let container = container?;
        Some(container.pod_uid.as_ref().map_or_else(|| container.label(), |it| format!("pod {it}")))
    });
    let file = of.mount.as_deref().and_then(|path| Some((path, path.rsplit('/').next()?)));
    let given = file.filter(|(path, name)| {
        GIVEN.iter().any(|folder| path.starts_with(folder)) && !name.starts_with(GENERATED)
    });
    let cgroup = of.cgroup.as_deref().and_then(|path| path.rsplit('/').next());
    let cgroup = cgroup.filter(|name| !name.is_empty());
    match (given, pod) {
        (Some((_, name)), Some(pod)) => format!("{name} ({pod})"),
        (Some((_, name)), None) => name.to_owned(),
        (None, Some(pod)) => pod,
        (None, None) => file.map(|(_, name)| name).or(cgroup).map_or_else(
            || match &of.process {
                Some(process) => format!("{} (pid {})", process.comm, process.tgid),
                None => of.inode.to_string(),
            },
            str::to_owned,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::host::Snapshot;
    use crate::snapshot::ip_packets::IpPackets;
    use crate::snapshot::sockets::{Holder, SocketKind};

    fn namespace(inode: u32, counters: Reading<NamespaceCounters>) -> Namespace {
        Namespace { counters, ..Namespace::unread(inode) }
    }

    fn read(at: u64, cookie: u64, lost: u64) -> Reading<NamespaceCounters> {
        let protocols = [("UdpRcvbufErrors".to_owned(), lost)].into();
        let (at, cookie) = (Duration::from_secs(at), Some(cookie));
        Reading::Value(NamespaceCounters { at, cookie, protocols, ..NamespaceCounters::default() })
    }

    fn observed(before: Vec<Namespace>, after: Vec<Namespace>) -> Observation {
        let at = |at, all| Snapshot {
            at: Duration::from_secs(at),
            namespaces: Some(Namespaces { all, hidden: 0 }),
            ..Snapshot::default()
        };
        Observation { before: at(10, before), after: at(20, after), ..Observation::default() }
    }

    fn growth_of(observation: &Observation) -> Option<u64> {
        let namespace = &observation.after.namespaces.as_ref().unwrap().all[0];
        let counted = CountedNamespace::other(observation, namespace, "blue".into()).unwrap();
        counted.growth("UdpRcvbufErrors")
    }

    #[test]
    fn what_was_counted_is_the_growth_or_all_of_a_new_namespace() {
        let twice =
            observed(vec![namespace(7, read(10, 1, 5))], vec![namespace(7, read(20, 1, 9))]);
        assert_eq!(growth_of(&twice), Some(4));
        let new = observed(vec![], vec![namespace(7, read(20, 1, 9))]);
        assert_eq!(growth_of(&new), Some(9));
        // the kernel gives a number again when its namespace has ended
        let again =
            observed(vec![namespace(7, read(10, 1, 5))], vec![namespace(7, read(20, 2, 9))]);
        assert_eq!(growth_of(&again), Some(9));
        let old = observed(vec![namespace(7, read(10, 1, 5))], vec![namespace(7, read(10, 1, 5))]);
        assert_eq!(growth_of(&old), None, "no second reading is no growth of 0");
        let mut hidden = new;
        hidden.before.namespaces.as_mut().unwrap().hidden = 1;
        assert_eq!(growth_of(&hidden), None, "it may have been there, unseen");
    }

    #[test]
    fn a_namespace_that_was_not_counted_is_said_with_the_reason() {
        let refused = || Reading::Absent("EPERM".to_owned());
        let all = observed(
            vec![namespace(7, read(10, 1, 5)), namespace(8, refused()), namespace(9, refused())],
            vec![namespace(7, read(20, 1, 9)), namespace(8, refused())],
        );
        let others = Others::of(&all).unwrap();
        assert_eq!((others.all, others.counted), (3, 1));
        assert_eq!(others.in_words(), "2 of 3 other network namespaces");
        assert_eq!(others.why_not.unwrap(), "1: EPERM; 1: ended in the interval");
        let mut unseen = observed(vec![], vec![]);
        unseen.after.machine.netns = 1;
        unseen.after.namespaces.as_mut().unwrap().hidden = 2;
        let netns = [1, 5, 5].map(|netns| IpPackets { netns, ..IpPackets::default() });
        unseen.attribution.ip_packets = netns.to_vec();
        let others = Others::of(&unseen).unwrap();
        assert_eq!((others.all, others.counted), (3, 0), "two hidden, one in events");
        let none = Others::of(&observed(vec![], vec![])).unwrap();
        assert_eq!((none.in_words().as_str(), none.why_not), ("0 other network namespaces", None));
        assert_eq!(Others::of(&Observation::default()), None, "not recorded");
    }

    #[test]
    fn names_are_those_that_people_know_and_no_two_are_equal() {
        let uid = "0b8cf3a1-52d7-4c0e-9f6e-8a1d2c3b4e5f";
        let pod = format!("/kubepods/burstable/pod{uid}/{}", "a".repeat(64));
        let docker = format!("/system.slice/docker-{}.scope", "b".repeat(64));
        let unit = "/system.slice/dns.service".to_owned();
        let named = |mount: Option<&str>, cgroup: Option<&String>| Namespace {
            mount: mount.map(str::to_owned),
            cgroup: cgroup.cloned(),
            process: Some(Holder { tgid: 9, comm: "sleep".into() }),
            ..namespace(7, Reading::Absent(String::new()))
        };
        let of = |mount, cgroup| name(&named(mount, cgroup));
        assert_eq!(of(Some("/run/netns/blue"), None), "blue");
        assert_eq!(of(Some("/run/netns/blue"), Some(&pod)), format!("blue (pod {uid})"));
        assert_eq!(of(Some("/run/netns/cni-1"), Some(&pod)), format!("pod {uid}"));
        assert_eq!(of(Some("/run/docker/netns/b1"), Some(&docker)), "container bbbbbbbbbbbb");
        assert_eq!(of(Some("/run/netns/cni-1"), None), "cni-1");
        assert_eq!(
            (of(None, Some(&unit)), of(None, None)),
            ("dns.service".into(), "sleep (pid 9)".into())
        );
        let kthreadd = Some(Holder { tgid: 2, comm: "kthreadd".into() });
        assert_eq!(name(&Namespace { process: kthreadd, ..named(None, None) }), "host");
        let known = Namespace { pod: Some("shop/web-1".into()), ..named(None, Some(&pod)) };
        assert_eq!(name(&known), "shop/web-1");
        let twins = [7, 8].map(|inode| Namespace { inode, ..named(None, Some(&unit)) });
        let names = names(observed(vec![], twins.to_vec()).after.namespaces.as_ref());
        assert_eq!(names, [(7, "dns.service 7".into()), (8, "dns.service 8".into())].into());
    }

    #[test]
    fn a_subject_of_another_namespace_names_it() {
        let observation = observed(vec![], vec![namespace(7, read(20, 1, 9))]);
        let namespace = &observation.after.namespaces.as_ref().unwrap().all[0];
        let counted = CountedNamespace::other(&observation, namespace, "blue".into()).unwrap();
        let port = Subject::Port(SocketKind::Udp, 53);
        assert_eq!(counted.subject(port).to_string(), "udp port 53 in netns blue");
    }
}
