//! Which processes hold rx queues past the kernel's stack, or may hold them.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::parse::queue_access::{generic_netlink, maps_zero_copy_ring, poller_cpu};
use netsilo_model::parse::{scalar, schedstat};
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev_genl::{DEVICE_MEMORY, IO_URING};
use netsilo_model::snapshot::packet_sockets::CaptureKind;
use netsilo_model::snapshot::queue_users::{QueueAccess, QueueUser};
use netsilo_model::snapshot::sockets::Holder;

use crate::files::root::Root;

/// Maximum number of threads of a process that are read.
const MOST_THREADS: usize = 64;

/// Reads them. Searches `/proc` only if io_uring or device memory holds a queue of this namespace.
pub(crate) fn read(root: &Root, after: &Snapshot, attribution: &Attribution) -> Vec<QueueUser> {
    let mut queues = after.netdevs.iter().flat_map(|netdev| &netdev.rx_queues);
    let is_held = |by: &str| by.starts_with(IO_URING) || by.starts_with(DEVICE_MEMORY);
    let mut users = Vec::new();
    if queues.any(|queue| queue.leased.as_deref().is_some_and(is_held)) {
        let sockets = root.parse("/proc/net/netlink", generic_netlink).unwrap_or_default();
        let tgids = root.list("/proc").unwrap_or_default();
        let tgids = tgids.iter().filter_map(|name| name.parse().ok());
        users.extend(tgids.flat_map(|tgid| of_process(root, tgid, after, &sockets)));
    }
    let own = |netns: u32| after.machine.is_own_netns(netns);
    let sockets = attribution.packet_sockets.iter();
    let sockets = sockets.filter(|it| it.kind == CaptureKind::Xdp && own(it.netns));
    let holders: BTreeMap<u32, &Holder> =
        sockets.map(|socket| (socket.holder.tgid, &socket.holder)).collect();
    users.extend(holders.into_iter().map(|(tgid, holder)| {
        let (holder, ran_on) = (holder.clone(), threads_ran_on(root, tgid));
        QueueUser { holder, has: QueueAccess::Xdp, ran_on }
    }));
    users
}

fn of_process(root: &Root, tgid: u32, after: &Snapshot, sockets: &BTreeSet<u32>) -> Vec<QueueUser> {
    let (mut ring, mut poller, mut dmabuf, mut netlink) = (false, None, false, false);
    for fd in root.list(&format!("/proc/{tgid}/fd")).unwrap_or_default() {
        let Ok(link) = root.link(&format!("/proc/{tgid}/fd/{fd}")) else { continue };
        if link == "anon_inode:[io_uring]" {
            ring = true;
            let fdinfo = root.read(&format!("/proc/{tgid}/fdinfo/{fd}"));
            poller = poller.or(fdinfo.ok().as_deref().and_then(poller_cpu));
        }
        dmabuf |= link.starts_with("/dmabuf:");
        netlink |= schedstat::link_inode(&link, "socket").is_some_and(|it| sockets.contains(&it));
    }
    let access = [
        ring.then_some(QueueAccess::Ring),
        (dmabuf && netlink).then_some(QueueAccess::DeviceMemory),
    ];
    let netns = root.link(&format!("/proc/{tgid}/ns/net")).ok();
    let netns = netns.and_then(|it| schedstat::link_inode(&it, "net"));
    let comm = root.parse(&format!("/proc/{tgid}/comm"), scalar::word);
    let (Ok(comm), true) = (comm, netns.is_none_or(|it| after.machine.is_own_netns(it))) else {
        return Vec::new();
    };
    let user = |has| {
        let maps = || root.read(&format!("/proc/{tgid}/maps")).unwrap_or_default();
        let zero_copy = has == QueueAccess::Ring && maps_zero_copy_ring(&maps());
        let poller = poller.filter(|_| has == QueueAccess::Ring).map(CpuSet::from_cpu);
        QueueUser {
            holder: Holder { tgid, comm: comm.clone() },
            has: if zero_copy { QueueAccess::ZeroCopyRing } else { has },
            ran_on: poller.unwrap_or_else(|| threads_ran_on(root, tgid)),
        }
    };
    access.into_iter().flatten().map(user).collect()
}

fn threads_ran_on(root: &Root, tgid: u32) -> CpuSet {
    let threads = root.list(&format!("/proc/{tgid}/task")).unwrap_or_default();
    let stat = |tid: &String| root.read(&format!("/proc/{tgid}/task/{tid}/stat")).ok();
    let stats = threads.iter().take(MOST_THREADS).filter_map(stat);
    stats.filter_map(|stat| schedstat::processor(&stat)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

    use netsilo_model::snapshot::netdev::{Netdev, RxQueue};

    use super::*;

    fn held(by: &str) -> Snapshot {
        let queue = RxQueue { leased: Some(by.into()), ..RxQueue::default() };
        let netdev = Netdev { name: "eth0".into(), rx_queues: vec![queue], ..Netdev::default() };
        Snapshot { netdevs: vec![netdev].into(), ..Snapshot::default() }
    }

    /// The pid of a process, its descriptors and other files.
    type MadeUp<'a> = (u32, &'a [&'a str], &'a [(&'a str, &'a str)]);

    fn users(by: &str, processes: &[MadeUp<'_>]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: String, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/net/netlink".into(), "head\n0 16 7 0 0 0 0 2 0 77\n0 0 7 0 0 0 0 2 0 78\n");
        for (pid, links, files) in processes {
            put(format!("proc/{pid}/comm"), &format!("p{pid}\n"));
            std::fs::create_dir_all(dir.path().join(format!("proc/{pid}/fd"))).unwrap();
            for (fd, link) in links.iter().enumerate() {
                let at = dir.path().join(format!("proc/{pid}/fd/{fd}"));
                std::os::unix::fs::symlink(link, at).unwrap();
            }
            for (file, text) in *files {
                put(format!("proc/{pid}/{file}"), text);
            }
        }
        let root = Root::at(dir.path()).unwrap();
        let found = read(&root, &held(by), &Attribution::default());
        let one = |it: &QueueUser| format!("{} {:?}{}", it.holder.comm, it.has, it.ran_on());
        found.iter().map(one).collect()
    }

    #[test]
    fn a_process_that_may_hold_a_queue_is_found_by_its_descriptors() {
        let ring = "anon_inode:[io_uring]";
        let fields: Vec<String> = (4..=38).map(|field| field.to_string()).collect();
        let stat = |cpu: u32| format!("1 (a b) R {} {cpu} 0 0\n", fields.join(" "));
        let (on2, on5) = (stat(2), stat(5));
        let maps = "7f00-7f01 rw-s 30000000 00:0d 9   anon_inode:[io_uring]\n";
        let processes: [MadeUp<'_>; 5] = [
            (10, &[ring], &[("task/10/stat", &on2), ("task/11/stat", &on5)]),
            (20, &["/dev/null", ring], &[("fdinfo/1", "SqThreadCpu:\t3\n"), ("maps", maps)]),
            (30, &["/dmabuf:", "socket:[77]"], &[]),
            (40, &["/dmabuf:", "socket:[78]"], &[]),
            (50, &["socket:[77]"], &[]),
        ];
        let expected = [
            "p10 Ring, ran on cpus 2,5 when read",
            "p20 ZeroCopyRing, ran on cpu 3 when read",
            "p30 DeviceMemory",
        ];
        assert_eq!(users(IO_URING, &processes), expected);
        assert_eq!(users("device memory (dmabuf 2)", &processes), expected);
        assert_eq!(users("AF_XDP", &processes), [""; 0]);
    }

    #[test]
    #[allow(unsafe_code, reason = "no safe call makes an io_uring")]
    fn an_io_uring_of_this_process_is_found_by_the_running_kernels_files() {
        // SAFETY: `io_uring_setup` writes its parameters, which have 120 bytes.
        let (mut parameters, entries) = ([0u8; 120], 8);
        let fd =
            unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, parameters.as_mut_ptr()) };
        let Ok(fd @ 0..) = i32::try_from(fd) else {
            let error = std::io::Error::last_os_error();
            assert!(netsilo_lab::skip().unwrap(), "io_uring is refused: {error}");
            return;
        };
        // SAFETY: the descriptor is new and owned by nobody else.
        let ring = unsafe { OwnedFd::from_raw_fd(fd) };
        let found = read(&Root::live(), &held(IO_URING), &Attribution::default());
        let own = found.iter().find(|it| it.holder.tgid == std::process::id());
        let own = own.unwrap_or_else(|| panic!("{ring:?} {}: {found:?}", ring.as_raw_fd()));
        assert!(own.has == QueueAccess::Ring && !own.ran_on.is_empty(), "{own:?}");
    }
}
