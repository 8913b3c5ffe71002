//! Processes that hold taps, with their threads and vhost workers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use netsilo_model::parse::pid_stat::{PidStat, pid_stat};
use netsilo_model::parse::virtual_machine::{
    maker_of_vhost, of_arguments, of_cgroup, role, tun_of_descriptor,
};
use netsilo_model::parse::{pid_status, scalar, schedstat};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::tap_holders::{TapHolder, TapThread, TapThreadRole};

use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::process::Process;

/// Maximum number of threads that are read, of all processes together.
const MOST_THREADS: usize = 1024;

/// The processes that hold taps, by thread group.
pub(crate) type Holders = BTreeMap<u32, TapHolder>;

/// Reads them. Searches `/proc` if there may be any: this network namespace has a tap, or the
/// kernel has vhost-net, whose taps may be in others. `known`: read the times of these only.
pub(crate) fn read(
    root: &Root,
    netdevs: &[Netdev],
    processes: &[Process],
    known: Option<&Holders>,
) -> Result<Holders, ReadError> {
    let mut holders = match known {
        Some(known) => known.clone(),
        None if may_have_taps(root, netdevs) => search(root, netdevs)?,
        None => Holders::new(),
    };
    let worker = |it: &Process| Some((maker_of_vhost(&it.comm)?, it.pid));
    let workers: Vec<(u32, u32)> = processes.iter().filter_map(worker).collect();
    let mut room = MOST_THREADS;
    for (tgid, holder) in &mut holders {
        holder.threads = threads(root, *tgid, &workers, &mut room);
    }
    holders.retain(|tgid, _| root.exists(&format!("/proc/{tgid}")));
    Ok(holders)
}

fn may_have_taps(root: &Root, netdevs: &[Netdev]) -> bool {
    let has = |folder| root.list(folder).is_ok_and(|it| !it.is_empty());
    netdevs.iter().any(|it| it.driver.as_deref() == Some("tun"))
        || ["/sys/class/macvtap", "/sys/class/ipvtap"].into_iter().any(has)
        || root.exists("/sys/module/vhost_net")
}

fn search(root: &Root, netdevs: &[Netdev]) -> Result<Holders, ReadError> {
    let mut holders = Holders::new();
    let proc = root.path("/proc").map_err(|e| ReadError::from_io("/proc", e))?;
    for tgid in root.list("/proc")?.iter().filter_map(|name| name.parse::<u32>().ok()) {
        let dir = proc.join(tgid.to_string());
        let fds = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        let name = |fd: fs::DirEntry| {
            let name = tap(&fd.path(), &dir.join("fdinfo").join(fd.file_name()))?;
            let ifindex = name.strip_prefix("/dev/tap").and_then(|it| it.parse().ok());
            let netdev = netdevs.iter().find(|it| Some(it.ifindex) == ifindex);
            Some(netdev.map_or(name, |it| it.name.clone()))
        };
        let taps: BTreeSet<String> = fds.filter_map(name).collect();
        if taps.is_empty() {
            continue;
        }
        let Ok(comm) = root.parse(&format!("/proc/{tgid}/comm"), scalar::word) else { continue };
        let guest = guest(root, tgid);
        holders.insert(tgid, TapHolder { comm, guest, netdevs: taps, threads: BTreeMap::new() });
    }
    Ok(holders)
}

/// The tap of a descriptor: a netdev's name, or the device of a macvtap, called after its interface
/// index.
fn tap(fd: &Path, information: &Path) -> Option<String> {
    let link = fs::read_link(fd).ok()?;
    match link.to_str()? {
        "/dev/net/tun" => {
            let text = fs::read_to_string(information).ok()?;
            tun_of_descriptor(&text).map(str::to_owned)
        }
        device => device.starts_with("/dev/tap").then(|| device.to_owned()),
    }
}

fn guest(root: &Root, tgid: u32) -> Option<String> {
    let read = |file: &str| root.read(&format!("/proc/{tgid}/{file}")).ok();
    let cgroup = read("cgroup");
    let of_cgroup = cgroup.as_deref().and_then(schedstat::cgroup_path).and_then(of_cgroup);
    of_cgroup.or_else(|| of_arguments(&read("cmdline")?))
}

/// The threads of a process and its vhost workers. Of a virtual machine, those that run its CPUs
/// and take its packets. `workers`: each kernel thread that may be a worker (before 6.4), behind
/// the thread that has made it.
fn threads(
    root: &Root,
    tgid: u32,
    workers: &[(u32, u32)],
    room: &mut usize,
) -> BTreeMap<u32, TapThread> {
    let tids = root.list(&format!("/proc/{tgid}/task")).unwrap_or_default();
    let tids: Vec<u32> = tids.iter().filter_map(|it| it.parse().ok()).collect();
    let workers = workers.iter().filter(|(maker, _)| tids.contains(maker)).map(|it| it.1);
    let workers: Vec<u32> = workers.collect();
    if tids.len() + workers.len() > *room {
        return BTreeMap::new();
    }
    *room -= tids.len() + workers.len();
    let dirs = tids.iter().map(|tid| (*tid, format!("/proc/{tgid}/task/{tid}"), false));
    let workers = workers.iter().map(|tid| (*tid, format!("/proc/{tid}"), true));
    let mut named: Vec<_> = dirs
        .chain(workers)
        .filter_map(|(tid, dir, kthread)| {
            let comm = root.parse(&format!("{dir}/comm"), scalar::word).ok()?;
            Some((tid, dir, kthread, role(&comm), comm))
        })
        .collect();
    let is_vcpu = |role: TapThreadRole| matches!(role, TapThreadRole::Vcpu(_));
    if !named.iter().any(|it| is_vcpu(it.3)) {
        let vcpus = vcpus(root, tgid);
        let numbers = named.iter_mut().filter_map(|it| Some((&mut it.3, *vcpus.get(&it.0)?)));
        numbers.for_each(|(role, number)| *role = TapThreadRole::Vcpu(number));
    }
    if named.iter().any(|it| it.3 == TapThreadRole::Vhost) {
        named.retain(|it| it.3 != TapThreadRole::Other);
    }
    let thread = |(tid, dir, kthread, role, comm): (u32, String, bool, TapThreadRole, String)| {
        let stat = root.read(&format!("{dir}/stat")).ok()?;
        let PidStat { kthread: is_kthread, start_time, .. } = pid_stat(&stat).ok()?;
        // Anybody may call a process like a vhost worker.
        if kthread && !is_kthread {
            return None;
        }
        let thread = TapThread {
            comm,
            role,
            kthread,
            start_time,
            time: schedstat::thread_time(&root.read(&format!("{dir}/schedstat")).ok()?)?,
            cpu: schedstat::processor(&stat)?,
            cpus: root.parse(&format!("{dir}/status"), pid_status::cpus_allowed).ok()?,
        };
        Some((tid, thread))
    };
    named.into_iter().filter_map(thread).collect()
}

/// The CPUs of a virtual machine by the thread that runs each, as KVM's debugfs shows them since
/// 5.17.
fn vcpus(root: &Root, tgid: u32) -> BTreeMap<u32, u32> {
    const KVM: &str = "/sys/kernel/debug/kvm";
    let machines = root.list(KVM).unwrap_or_default();
    let own = machines.iter().filter(|it| it.split('-').next() == Some(&tgid.to_string()));
    let mut vcpus = BTreeMap::new();
    for machine in own {
        for name in root.list(&format!("{KVM}/{machine}")).unwrap_or_default() {
            let Some(number) = name.strip_prefix("vcpu").and_then(|it| it.parse::<u32>().ok())
            else {
                continue;
            };
            let tid = root.read(&format!("{KVM}/{machine}/{name}/pid"));
            vcpus.extend(
                tid.ok().and_then(|it| it.trim().parse::<u32>().ok()).map(|it| (it, number)),
            );
        }
    }
    vcpus
}
