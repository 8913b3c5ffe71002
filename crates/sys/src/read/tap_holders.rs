//! Processes that hold taps, with their threads and vhost workers.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use netsilo_model::parse::pid_stat::{PidStat, pid_stat};
use netsilo_model::parse::schedstat::link_inode;
use netsilo_model::parse::virtual_machine::{
    maker_of_vhost, of_arguments, of_cgroup, role, tun_of_descriptor,
};
use netsilo_model::parse::{pid_status, scalar, schedstat};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::tap_holders::{TapHolder, TapThread, TapThreadRole};

use crate::bpf::tracer::are_taps_here;
use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::pidfd;
use crate::read::process::Process;

/// Maximum number of threads that are read, of all processes together.
const MOST_THREADS: usize = 1024;

/// The processes that hold taps, by thread group.
pub(crate) type Holders = BTreeMap<u32, TapHolder>;

/// Reads them. Searches `/proc` if there may be any: this network namespace has a tap, or the
/// kernel has vhost-net, whose taps may be in others. `known`: read the threads of these only.
pub(crate) fn read(
    root: &Root,
    netdevs: &[Netdev],
    processes: &[Process],
    known: Option<&Holders>,
) -> Result<Holders, ReadError> {
    let mut holders = match known {
        Some(known) => known.clone(),
        None if are_taps_here(root) || root.exists("/sys/module/vhost_net") => {
            search(root, netdevs)?
        }
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

fn search(root: &Root, netdevs: &[Netdev]) -> Result<Holders, ReadError> {
    let mut holders = Holders::new();
    let proc = root.path("/proc").map_err(|e| ReadError::from_io("/proc", e))?;
    let here = root.link("/proc/thread-self/ns/net").ok().and_then(|it| link_inode(&it, "net"));
    for tgid in root.list("/proc")?.iter().filter_map(|name| name.parse::<u32>().ok()) {
        let dir = proc.join(tgid.to_string());
        let fds = match fs::read_dir(dir.join("fd")) {
            // Without root, nothing would be seen, although there may be many.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                return Err(ReadError::from_io("/proc/PID/fd", e));
            }
            fds => fds.into_iter().flatten().flatten(),
        };
        let mut holder = TapHolder::default();
        for fd in fds {
            let Some(name) = tap(&fd.path(), &dir.join("fdinfo").join(fd.file_name())) else {
                continue;
            };
            let of_class = name.strip_prefix("/dev/").and_then(|it| macvtap(root, netdevs, it));
            let number = || fd.file_name().to_str()?.parse().ok();
            let is_here = || here.is_some() && number().and_then(|fd| netns(tgid, fd)) == here;
            if of_class.is_some() || is_here() {
                holder.here.insert(of_class.clone().unwrap_or_else(|| name.clone()));
            }
            holder.netdevs.insert(of_class.unwrap_or(name));
        }
        if holder.netdevs.is_empty() {
            continue;
        }
        let Ok(comm) = root.parse(&format!("/proc/{tgid}/comm"), scalar::word) else { continue };
        (holder.comm, holder.guest) = (comm, guest(root, tgid));
        holders.insert(tgid, holder);
    }
    Ok(holders)
}

/// The network namespace of the tun or tap of a descriptor.
fn netns(tgid: u32, fd: i32) -> Option<u32> {
    pidfd::Process::open(tgid).ok()?.netns_of_tun(fd).ok()
}

/// The macvtap or ipvtap of this network namespace whose device this is: the number is its
/// interface index, which another one in another namespace may have, too.
fn macvtap(root: &Root, netdevs: &[Netdev], device: &str) -> Option<String> {
    let classes = ["macvtap", "ipvtap"];
    let mut classes = classes.into_iter().map(|it| format!("/sys/class/{it}/{device}"));
    let ifindex: u32 = device.strip_prefix("tap")?.parse().ok()?;
    let netdev = netdevs.iter().find(|it| it.ifindex == ifindex)?;
    classes.any(|path| root.exists(&path)).then(|| netdev.name.clone())
}

/// The tap of a descriptor: a netdev's name, or the device of a macvtap.
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
    if named.len() > *room {
        return BTreeMap::new();
    }
    *room -= named.len();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A process without names of threads, one with, and a kernel thread that works for it.
    #[test]
    fn cpus_of_a_virtual_machine_are_known_by_names_or_by_kvm() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let thread = |place: &str, comm: &str, flags: u32| {
            let fields = format!("S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 345 0 0");
            let rest = "0 ".repeat(14);
            write(&format!("{place}/stat"), &format!("7 ({comm}) {fields} {rest}3 0 0\n"));
            write(&format!("{place}/comm"), &format!("{comm}\n"));
            write(&format!("{place}/schedstat"), "50 20 4\n");
            write(&format!("{place}/status"), "Cpus_allowed_list:\t2-3\n");
        };
        thread("proc/40/task/40", "vmm", 0);
        thread("proc/40/task/41", "vmm", 0);
        write("sys/kernel/debug/kvm/40-12/vcpu3/pid", "41\n");
        write("sys/kernel/debug/kvm/4-12/vcpu0/pid", "40\n");
        thread("proc/50/task/50", "qemu", 0);
        thread("proc/50/task/51", "CPU 0/KVM", 0);
        thread("proc/60", "vhost-50", 0x20_0000);
        thread("proc/61", "vhost-50", 0);
        let root = Root::at(dir.path()).unwrap();
        let roles = |tgid| -> Vec<(u32, TapThreadRole, bool)> {
            let all = threads(&root, tgid, &[(50, 60), (50, 61), (7, 62)], &mut 4);
            all.iter().map(|(tid, it)| (*tid, it.role, it.kthread)).collect()
        };
        use TapThreadRole::{Other, Vcpu, Vhost};
        assert_eq!(roles(40), [(40, Other, false), (41, Vcpu(3), false)]);
        assert_eq!(roles(50), [(51, Vcpu(0), false), (60, Vhost, true)]);
        let read = &threads(&root, 40, &[], &mut 4)[&41];
        assert_eq!((read.cpu.0, read.cpus.to_string().as_str(), read.start_time), (3, "2-3", 345));
        assert!(threads(&root, 40, &[], &mut 1).is_empty(), "too many");
    }
}
