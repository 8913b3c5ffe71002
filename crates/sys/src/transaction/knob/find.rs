//! Finds where a knob is now by its identity. Its number or name may have changed.

use std::io;

use netsilo_model::change::{Location, Target};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::transaction::kernel::{Kernel, KnobAddress};
use crate::transaction::knob::error::KnobError;
use crate::transaction::knob::refusal::Doing;
use crate::transaction::queues::{Finder, NapiIndex};

/// Where a knob is now, if it still belongs to the same device, interrupt or thread. Also returns
/// the creation of its netdev, if the netdev is virtual.
///
/// `kthread` is the NAPI that the knob's kthread polled. Another kthread may poll it now.
pub(super) fn find(
    kernel: &dyn Kernel,
    target: &Target,
    kthread: Option<&NapiOf>,
) -> Result<(KnobAddress, Option<u64>), KnobError> {
    let place = match target.location() {
        Location::Irq { irq, action, netdev } => {
            let renumbered = || renumbered_irq(kernel, netdev?, action);
            find_irq(kernel, target, irq.0, action).or_else(|e| renumbered().ok_or(e))?
        }
        Location::File(path) => KnobAddress::File(path),
        Location::Netdev { netdev, file } => {
            let name = find_netdev(kernel, target, netdev)?;
            let place = KnobAddress::File(format!("{}/{file}", netdev_dir(&name)));
            return Ok((place, creation(kernel, netdev, &name)));
        }
        Location::Ethtool { netdev, setting } => {
            let name = find_netdev(kernel, target, netdev)?;
            let created = creation(kernel, netdev, &name);
            return Ok((KnobAddress::Ethtool(name, setting), created));
        }
        Location::Thread { id, comm, start_time } => {
            let replaced = || replaced_kthread(kernel, kthread?);
            find_thread(kernel, target, id, comm, start_time)
                .or_else(|e| if e.is_gone() { replaced().ok_or(e) } else { Err(e) })?
        }
        Location::Cgroup(path) => KnobAddress::File(format!("{CGROUPS}{path}/cpuset.cpus")),
        Location::Irqbalance { irqs, .. } if irqs.is_empty() => {
            return Err(KnobError::gone(target, "it names no interrupt"));
        }
        Location::Irqbalance { pid, start_time, irqs } => {
            find_thread(kernel, target, pid, Some("irqbalance"), start_time)?;
            KnobAddress::Irqbalance(pid, irqs.clone())
        }
        Location::Refused(why) => return Err(KnobError::gone(target, why)),
    };
    Ok((place, None))
}

/// The inode number of a virtual netdev's folder. It distinguishes the netdev from a later one with
/// the same name and index. `None` for a device with a path, because the path identifies it.
///
/// The kernel numbers the folders of sysfs upwards (`fs/kernfs/dir.c:__kernfs_new_node`, 4.14).
/// Since 5.5 numbers have 64 bits and are never reused. A renamed netdev keeps its folder.
fn creation(kernel: &dyn Kernel, netdev: &NetdevIdentity, name: &str) -> Option<u64> {
    if netdev.device_path.is_some() {
        return None;
    }
    kernel.inode(&netdev_dir(name)).ok()
}

fn find_irq(
    kernel: &dyn Kernel,
    target: &Target,
    irq: u32,
    action: &str,
) -> Result<KnobAddress, KnobError> {
    let now = irq_actions(kernel, irq).map_err(|e| KnobError::refused(target, Doing::Read, e))?;
    match now {
        Some(now) if now == action => {
            Ok(KnobAddress::File(format!("/proc/irq/{irq}/smp_affinity")))
        }
        Some(now) if now.is_empty() => Err(KnobError::gone(target, "its driver has released it")),
        Some(now) => Err(KnobError::gone(target, format!("this number now belongs to {now}"))),
        None => Err(KnobError::gone(target, "no such interrupt any more")),
    }
}

/// The interrupt of a netdev's device that has these action names now, if there is exactly one. A
/// driver that recreates its queues gets other numbers.
fn renumbered_irq(
    kernel: &dyn Kernel,
    netdev: &NetdevIdentity,
    action: &str,
) -> Option<KnobAddress> {
    let name = name_now(kernel, netdev).ok()?;
    let irqs = Finder::new(kernel).irqs(&name);
    let mut same = irqs.into_iter().filter(|(now, ..)| now == action);
    match (same.next(), same.next()) {
        (Some((.., irq)), None) => Some(KnobAddress::File(format!("/proc/irq/{irq}/smp_affinity"))),
        _ => None,
    }
}

/// A NAPI of a netdev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiOf {
    /// The netdev.
    pub netdev: NetdevIdentity,
    /// The NAPI.
    pub napi: NapiIndex,
}

/// The kthread that polls a NAPI now.
fn replaced_kthread(kernel: &dyn Kernel, NapiOf { netdev, napi }: &NapiOf) -> Option<KnobAddress> {
    let name = name_now(kernel, netdev).ok()?;
    let kthreads = Finder::new(kernel).kthreads_of(&name);
    kthreads.into_iter().find(|(now, _)| now == napi).map(|(_, tid)| KnobAddress::Thread(tid))
}

/// The NAPI that a kthread polls. `None` if that is unknown, or if the knob does not belong to a
/// kthread. One `finder` serves many kthreads, because it searches all processes only once.
pub(crate) fn napi_of(kernel: &dyn Kernel, finder: &Finder<'_>, target: &Target) -> Option<NapiOf> {
    let Location::Thread { id, comm: Some(comm), .. } = target.location() else { return None };
    let (name, _) = comm.strip_prefix("napi/")?.rsplit_once('-')?;
    let device_path = device_path(kernel, name).ok()?;
    let mut netdev = NetdevIdentity { name: name.to_owned(), device_path, ifindex: None };
    if netdev.device_path.is_none() {
        let ifindex = kernel.read(&format!("{}/ifindex", netdev_dir(name))).ok()?;
        netdev.ifindex = Some(ifindex.trim().parse().ok()?);
    }
    let kthreads = finder.kthreads_of(name);
    let (napi, _) = kthreads.into_iter().find(|(_, tid)| *tid == id)?;
    Some(NapiOf { netdev, napi })
}

/// Where cgroup v2 is mounted.
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";

/// A thread, if it started at this time. If the name is part of its identity, it must have this
/// name.
fn find_thread(
    kernel: &dyn Kernel,
    target: &Target,
    tid: u32,
    comm: Option<&str>,
    start_time: u64,
) -> Result<KnobAddress, KnobError> {
    match thread_identity(kernel, tid) {
        Ok((now, started)) if started == start_time && comm.is_none_or(|comm| now == comm) => {
            Ok(KnobAddress::Thread(tid))
        }
        Ok((now, _)) => {
            Err(KnobError::gone(target, format!("this pid now belongs to {now}, another thread")))
        }
        Err(e) if is_absent(&e) => Err(KnobError::gone(target, "this thread has ended")),
        Err(e) => Err(KnobError::refused(target, Doing::Read, e)),
    }
}

/// The action names of an interrupt, joined by commas. `None` if the interrupt does not exist.
fn irq_actions(kernel: &dyn Kernel, irq: u32) -> io::Result<Option<String>> {
    match kernel.read(&format!("/sys/kernel/irq/{irq}/actions")) {
        Ok(names) => Ok(Some(names.trim_end().to_owned())),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The current name of a netdev and its creation, if it is still the same device.
pub(crate) fn present_netdev(
    kernel: &dyn Kernel,
    netdev: &NetdevIdentity,
) -> Option<(String, Option<u64>)> {
    let name = name_now(kernel, netdev).ok()?;
    let created = creation(kernel, netdev, &name);
    Some((name, created))
}

/// The current name of a target's netdev, if it differs: it was renamed, or another one has its
/// interface index.
pub(crate) fn other_name(kernel: &dyn Kernel, target: &Target) -> Option<String> {
    let netdev = target.netdev()?;
    name_now(kernel, netdev).ok().filter(|now| *now != netdev.name)
}

fn find_netdev(
    kernel: &dyn Kernel,
    target: &Target,
    netdev: &NetdevIdentity,
) -> Result<String, KnobError> {
    name_now(kernel, netdev).map_err(|missing| match missing {
        Missing::Gone(why) => KnobError::gone(target, why),
        Missing::Unknown(e) => KnobError::refused(target, Doing::Read, e),
    })
}

/// Why a netdev was not found.
enum Missing {
    /// It is not here, for this reason.
    Gone(String),
    /// It could not be determined.
    Unknown(io::Error),
}

/// The current name of a netdev. A renamed device keeps its path or interface index.
fn name_now(kernel: &dyn Kernel, netdev: &NetdevIdentity) -> Result<String, Missing> {
    if netdev.name.is_empty() || netdev.name.contains('/') || netdev.name.starts_with('.') {
        return Err(Missing::Gone("no netdev can have this name".into()));
    }
    let now = device(kernel, netdev, &netdev.name);
    if now.as_ref().is_ok_and(|now| now == netdev) {
        return Ok(netdev.name.clone());
    }
    if netdev.device_path.is_some() || netdev.ifindex.is_some() {
        let names = kernel.names("/sys/class/net").unwrap_or_default();
        let is_same = |name: &String| {
            let renamed = NetdevIdentity { name: name.clone(), ..netdev.clone() };
            device(kernel, netdev, name).is_ok_and(|now| now == renamed)
        };
        let mut same = names.into_iter().filter(is_same);
        if let (Some(only), None) = (same.next(), same.next()) {
            return Ok(only);
        }
    }
    Err(match now {
        Ok(now) => {
            let (now, was) = (device_in_words(&now), device_in_words(netdev));
            Missing::Gone(format!("{} is another device now ({now}, not {was})", netdev.name))
        }
        Err(e) if is_absent(&e) => Missing::Gone(format!("no netdev {} here", netdev.name)),
        Err(e) => Missing::Unknown(e),
    })
}

/// The device that has this name now, with the same kind of identity as `known`.
fn device(kernel: &dyn Kernel, known: &NetdevIdentity, name: &str) -> io::Result<NetdevIdentity> {
    let ifindex = || {
        let text = kernel.read(&format!("{}/ifindex", netdev_dir(name)))?;
        text.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    };
    let device_path = known.path_in_its_place(device_path(kernel, name)?);
    let ifindex = known.ifindex.map(|_| ifindex()).transpose()?;
    Ok(NetdevIdentity { name: name.into(), device_path, ifindex })
}

fn device_in_words(device: &NetdevIdentity) -> String {
    match (&device.device_path, device.ifindex) {
        (Some(path), _) => path.clone(),
        (None, Some(ifindex)) => format!("a virtual one with index {ifindex}"),
        (None, None) => "a virtual one".into(),
    }
}

fn netdev_dir(name: &str) -> String {
    format!("/sys/class/net/{name}")
}

/// A netdev's device path below `/sys`; `None` for a virtual one.
fn device_path(kernel: &dyn Kernel, name: &str) -> io::Result<Option<String>> {
    match kernel.read_link(&netdev_dir(name)) {
        Ok(link) => {
            let path = link.find("/devices/").map(|at| &link[at..]);
            let path = path.and_then(|path| path.rsplit_once("/net/")).map(|(device, _)| device);
            Ok(path.filter(|path| !path.starts_with("/devices/virtual")).map(str::to_owned))
        }
        // A folder instead of a link (very old kernels, captured trees): the path is unknown.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A thread's name, and its start time (field 22 of `stat`). The second field may contain any
/// character, but it is the only one in parentheses. The name comes from `comm`, which is not cut
/// to 15 bytes.
pub(super) fn thread_identity(kernel: &dyn Kernel, pid: u32) -> io::Result<(String, u64)> {
    let comm = kernel.read(&format!("/proc/{pid}/comm"))?;
    let stat = kernel.read(&format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let start_time = fields.split_whitespace().nth(19).and_then(|field| field.parse().ok());
    let start_time = start_time
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in its stat"))?;
    Ok((comm.trim_end().to_owned(), start_time))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV | Errno::SRCH))
}
