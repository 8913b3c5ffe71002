//! Where a knob lives now: found by what identifies it, whatever number or name that has by now.

use std::io;

use netsilo_model::change::{Target, sysctl_path};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use rustix::io::Errno;

use crate::ethtool::set::Setting;
use crate::transaction::kernel::{Kernel, Place};
use crate::transaction::knob::{Doing, KnobError};

/// Where a knob lives now, if it is still the one that was meant.
pub(super) fn find(kernel: &dyn Kernel, target: &Target) -> Result<Place, KnobError> {
    let queue = |netdev: &NetdevIdentity, queue: String, file: &str| {
        let name = find_netdev(kernel, target, netdev)?;
        Ok(Place::File(format!("{}/queues/{queue}/{file}", netdev_dir(&name))))
    };
    let file = |netdev: &NetdevIdentity, file: &str| {
        let name = find_netdev(kernel, target, netdev)?;
        Ok(Place::File(format!("{}/{file}", netdev_dir(&name))))
    };
    let setting = |netdev: &NetdevIdentity, setting: Setting| {
        Ok(Place::Ethtool(find_netdev(kernel, target, netdev)?, setting))
    };
    match target {
        Target::IrqAffinity { irq, action, .. } => {
            let now = irq_actions(kernel, irq.0)
                .map_err(|e| KnobError::refused(target, Doing::Read, e))?;
            match now {
                Some(now) if now == *action => {
                    Ok(Place::File(format!("/proc/irq/{irq}/smp_affinity")))
                }
                Some(now) if now.is_empty() => {
                    Err(KnobError::gone(target, "its driver has released it"))
                }
                Some(now) => {
                    Err(KnobError::gone(target, format!("this number now belongs to {now}")))
                }
                None => Err(KnobError::gone(target, "no such interrupt any more")),
            }
        }
        Target::DefaultSmpAffinity => Ok(Place::File("/proc/irq/default_smp_affinity".into())),
        Target::RpsSockFlowEntries => {
            Ok(Place::File("/proc/sys/net/core/rps_sock_flow_entries".into()))
        }
        Target::RpsDefaultMask => Ok(Place::File("/proc/sys/net/core/rps_default_mask".into())),
        Target::RpsCpus { netdev, queue: n } => queue(netdev, format!("rx-{n}"), "rps_cpus"),
        Target::RpsFlowCnt { netdev, queue: n } => queue(netdev, format!("rx-{n}"), "rps_flow_cnt"),
        Target::XpsCpus { netdev, queue: n } => queue(netdev, format!("tx-{n}"), "xps_cpus"),
        Target::Channels { netdev } => setting(netdev, Setting::Channels),
        Target::Rings { netdev } => setting(netdev, Setting::Rings),
        Target::Coalesce { netdev } => setting(netdev, Setting::Coalesce),
        Target::Offload { netdev, feature } => setting(netdev, Setting::Offload(feature.clone())),
        Target::FlowHash { netdev, flow_type } => setting(netdev, Setting::FlowHash(*flow_type)),
        Target::RssTable { netdev, context } => setting(netdev, Setting::RssTable(*context)),
        Target::RssKey { netdev } => setting(netdev, Setting::RssKey),
        Target::RssHash { netdev } => setting(netdev, Setting::RssHash),
        Target::RssContext { netdev, queues } => {
            setting(netdev, Setting::RssContext(queues.clone()))
        }
        Target::NtupleRule { netdev, rule } => setting(netdev, Setting::Rule(rule.clone())),
        Target::Mtu { netdev } => file(netdev, "mtu"),
        Target::NapiDeferHardIrqs { netdev } => file(netdev, "napi_defer_hard_irqs"),
        Target::GroFlushTimeout { netdev } => file(netdev, "gro_flush_timeout"),
        Target::Threaded { netdev } => file(netdev, "threaded"),
        Target::Sysctl { name } => {
            let path = sysctl_path(name).map(Place::File);
            path.ok_or_else(|| KnobError::gone(target, "netsilo does not write this sysctl"))
        }
        Target::NapiThread { pid, comm, start_time } => {
            find_thread(kernel, target, *pid, Some(comm), *start_time)
        }
        Target::ThreadAffinity { tid, start_time, .. } => {
            find_thread(kernel, target, *tid, None, *start_time)
        }
        Target::CgroupCpuset { path } => {
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(KnobError::gone(target, "no cgroup can have this name"));
            }
            Ok(Place::File(format!("{CGROUPS}{path}/cpuset.cpus")))
        }
    }
}

/// Where cgroup v2 is mounted.
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";

/// A thread, if it started then; and has this name, if that counts: threads of programs may rename
/// themselves.
fn find_thread(
    kernel: &dyn Kernel,
    target: &Target,
    tid: u32,
    comm: Option<&str>,
    start_time: u64,
) -> Result<Place, KnobError> {
    match thread_identity(kernel, tid) {
        Ok((now, started)) if started == start_time && comm.is_none_or(|comm| now == comm) => {
            Ok(Place::Thread(tid))
        }
        Ok((now, _)) => {
            Err(KnobError::gone(target, format!("this pid now belongs to {now}, another thread")))
        }
        Err(e) if is_absent(&e) => Err(KnobError::gone(target, "this thread has ended")),
        Err(e) => Err(KnobError::refused(target, Doing::Read, e)),
    }
}

/// The action names of an interrupt, joined by commas; `None` where there is no such interrupt.
fn irq_actions(kernel: &dyn Kernel, irq: u32) -> io::Result<Option<String>> {
    match kernel.read(&format!("/sys/kernel/irq/{irq}/actions")) {
        Ok(names) => Ok(Some(names.trim_end().to_owned())),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The name under which a netdev goes now: devices on a bus keep their path when they are renamed.
fn find_netdev(
    kernel: &dyn Kernel,
    target: &Target,
    netdev: &NetdevIdentity,
) -> Result<String, KnobError> {
    if netdev.name.is_empty() || netdev.name.contains('/') || netdev.name.starts_with('.') {
        return Err(KnobError::gone(target, "no netdev can have this name"));
    }
    let now = device_path(kernel, &netdev.name);
    if now.as_ref().is_ok_and(|path| *path == netdev.device_path) {
        return Ok(netdev.name.clone());
    }
    if let Some(path) = netdev.device_path.as_deref() {
        let names = kernel.names("/sys/class/net").unwrap_or_default();
        let mut same = names
            .into_iter()
            .filter(|n| device_path(kernel, n).is_ok_and(|p| p.as_deref() == Some(path)));
        if let (Some(only), None) = (same.next(), same.next()) {
            return Ok(only);
        }
    }
    Err(match now {
        Ok(now) => {
            let now = now.unwrap_or_else(|| "a virtual one".into());
            let was = netdev.device_path.as_deref().unwrap_or("a virtual one");
            KnobError::gone(
                target,
                format!("{} is another device now ({now}, not {was})", netdev.name),
            )
        }
        Err(e) if is_absent(&e) => {
            KnobError::gone(target, format!("no netdev {} here", netdev.name))
        }
        Err(e) => KnobError::refused(target, Doing::Read, e),
    })
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
        // A folder and not a link (very old kernels, captured trees): nothing is known of its path.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A thread's name, and when it started: field 22 of `stat`, whose second one may hold any
/// character but is the only one in parentheses. The name is that of `comm`, which is not cut to 15
/// bytes.
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
