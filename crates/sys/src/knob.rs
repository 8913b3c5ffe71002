//! From a [`Target`] to the place where it lives, its text and its [`Value`], and the kernel's refusals in plain words.
//!
//! A knob is found by what identifies it (action names, device path, start time), never by its number alone.

use std::fmt;
use std::io;
use std::time::Duration;

use netsilo_core::change::{NTUPLE_FILTER, NetdevIdentity, Target, Value, sysctl_path};
use netsilo_core::cpuset::CpuSet;
use rustix::io::Errno;

use crate::kernel::{Capability, Kernel, Place};

/// A knob that was found, and what it says now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Where it lives.
    pub place: Place,
    /// Its text, byte for byte.
    pub raw: String,
    /// What the text means.
    pub value: Value,
}

/// Why a knob cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// The interrupt, device or thread is not the one that it was.
    #[error("{target}: {why}")]
    Gone {
        /// The knob.
        target: Box<Target>,
        /// What is there instead.
        why: String,
    },
    /// The kernel refused, or the file cannot be read.
    #[error("{target}: cannot {doing}: {source}{hint}")]
    Refused {
        /// The knob.
        target: Box<Target>,
        /// What was tried.
        doing: Doing,
        /// What the kernel answered.
        source: io::Error,
        /// What that means here and what to do next, after a colon; may be empty.
        hint: Hint,
    },
    /// The text is not what this knob says.
    #[error("{target}: {raw:?} is not a value that netsilo understands: {why}")]
    Unreadable {
        /// The knob.
        target: Box<Target>,
        /// The text.
        raw: String,
        /// What is wrong with it.
        why: String,
    },
}

impl KnobError {
    /// The knob.
    pub fn target(&self) -> &Target {
        match self {
            Self::Gone { target, .. } | Self::Refused { target, .. } | Self::Unreadable { target, .. } => target,
        }
    }

    /// Whether it is the right to write that lacks.
    pub fn is_permission(&self) -> bool {
        let Self::Refused { source, .. } = self else { return false };
        matches!(Errno::from_io_error(source), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
    }

    /// Whether the knob, or what it belongs to, is not there any more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Gone { .. } => true,
            Self::Refused { source, .. } => {
                matches!(Errno::from_io_error(source), Some(Errno::NOENT | Errno::NODEV | Errno::SRCH))
            }
            Self::Unreadable { .. } => false,
        }
    }

    fn refused(target: &Target, doing: Doing, source: io::Error) -> Self {
        let hint = Hint(hint(target, &doing, &source));
        Self::Refused { target: Box::new(target.clone()), doing, source, hint }
    }

    fn gone(target: &Target, why: impl Into<String>) -> Self {
        Self::Gone { target: Box::new(target.clone()), why: why.into() }
    }
}

/// What was tried on a knob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doing {
    /// Reading it.
    Read,
    /// Writing this value.
    Write(Value),
    /// Writing back this text.
    Restore(String),
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("read"),
            Self::Write(value) => write!(f, "write {value}"),
            Self::Restore(raw) => write!(f, "restore {}", raw.trim_end()),
        }
    }
}

/// What a refusal means and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint(Option<&'static str>);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}

/// Finds a knob, makes sure that it is still the same one, and reads it.
pub fn read(kernel: &dyn Kernel, target: &Target) -> Result<Reading, KnobError> {
    let place = find(kernel, target)?;
    let raw = kernel.get(&place).map_err(|source| KnobError::refused(target, Doing::Read, source))?;
    let value = parse(target, &raw)?;
    Ok(Reading { place, raw, value })
}

/// Writes a value in the kernel's own format.
pub fn write(kernel: &dyn Kernel, target: &Target, place: &Place, value: &Value) -> Result<(), KnobError> {
    let result = kernel.set(place, &render(target, value));
    result.map_err(|source| KnobError::refused(target, Doing::Write(value.clone()), source))
}

/// Writes back a text that the kernel printed, byte for byte; or, where the kernel refuses that, what is as good.
///
/// A cgroup with processes in it cannot lose its set (`validate_change`, ENOSPC): all CPUs of its parent then.
pub fn write_back(kernel: &dyn Kernel, target: &Target, place: &Place, raw: &str) -> Result<(), KnobError> {
    let result = match kernel.set(place, raw) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NOSPC) && raw.trim().is_empty() => {
            open_cpus(kernel, target).map_or(Err(e), |open| kernel.set(place, &open))
        }
        other => other,
    };
    result.map_err(|source| KnobError::refused(target, Doing::Restore(raw.to_owned()), source))
}

/// Whether a value comes to the same as another one: a cgroup without a set of its own has the CPUs of its parent.
pub fn is_as_good(kernel: &dyn Kernel, target: &Target, value: &Value, wanted: &Value) -> bool {
    let open = || open_cpus(kernel, target).and_then(|open| parse(target, &open).ok());
    matches!(wanted, Value::Cpus(cpus) if cpus.is_empty()) && open().as_ref() == Some(value)
}

/// The CPUs that a cgroup's parent has, as the kernel prints them; none for other knobs.
fn open_cpus(kernel: &dyn Kernel, target: &Target) -> Option<String> {
    let Target::CgroupCpuset { path } = target else { return None };
    let parent = path.rsplit_once('/')?.0;
    kernel.read(&format!("{CGROUPS}{parent}/cpuset.cpus.effective")).ok()
}

/// Whether this process has the right to write a knob; changes nothing.
pub fn may_write(kernel: &dyn Kernel, target: &Target, place: &Place, value: &Value) -> Result<(), KnobError> {
    let result = kernel.may_set(place, needs(target));
    result.map_err(|source| KnobError::refused(target, Doing::Write(value.clone()), source))
}

/// What the text of a knob means.
pub fn parse(target: &Target, raw: &str) -> Result<Value, KnobError> {
    let unreadable = |why: String| KnobError::Unreadable { target: Box::new(target.clone()), raw: raw.to_owned(), why };
    match target {
        Target::RpsFlowCnt { .. }
        | Target::RpsSockFlowEntries
        | Target::NapiDeferHardIrqs { .. }
        | Target::GroFlushTimeout { .. }
        | Target::Threaded { .. } => raw.trim().parse().map(Value::Count).map_err(|e| unreadable(e.to_string())),
        Target::Offload { .. } => Ok(Value::Switch(raw.trim() == "1")),
        Target::Sysctl { .. } => Ok(Value::words(raw)),
        // Empty where the cgroup has the CPUs of its parent.
        Target::CgroupCpuset { .. } => {
            CpuSet::parse_list(raw.trim()).map(Value::Cpus).map_err(|e| unreadable(e.to_string()))
        }
        _ => CpuSet::parse_mask(raw).map(Value::Cpus).map_err(|e| unreadable(e.to_string())),
    }
}

/// A value as the kernel takes it: masks, which every knob takes but a cpuset, and not lists, which only some do.
pub fn render(target: &Target, value: &Value) -> String {
    match (target, value) {
        (Target::CgroupCpuset { .. }, Value::Cpus(cpus)) => format!("{cpus}\n"),
        (_, Value::Cpus(cpus)) => cpus.to_mask(1),
        (_, Value::Switch(on)) => u8::from(*on).to_string(),
        (_, value) => value.to_string(),
    }
}

/// How often, a millisecond apart, a knob is read before an unexpected value is believed.
const LOOKS: u32 = 10;

/// Reads a knob that should say `expected`; another value is believed only when it stays.
///
/// While an interrupt is being moved (`irq_move_masked_irq`), `smp_affinity` shows its former value for a moment:
/// the pending flag is cleared before the mask is copied, and `show_irq_affinity` takes no lock.
pub fn read_settled(kernel: &dyn Kernel, target: &Target, expected: &Value) -> Result<Reading, KnobError> {
    let mut reading = read(kernel, target)?;
    for _ in 1..LOOKS {
        if reading.value == *expected {
            break;
        }
        kernel.pause(Duration::from_millis(1));
        reading = read(kernel, target)?;
    }
    Ok(reading)
}

/// What the kernel will make of a value: flow counts are rounded up, RPS sets lose the CPUs set apart at boot.
///
/// Needed when netsilo dies between a write and its record: undo then tells by this whether the value is its own.
pub fn settles_as(kernel: &dyn Kernel, target: &Target, value: &Value) -> Value {
    match (target, value) {
        // `store_rps_dev_flow_table_cnt`, `rps_sock_flow_sysctl`: up to the next power of two; 0 stays 0.
        (Target::RpsFlowCnt { .. } | Target::RpsSockFlowEntries, Value::Count(count)) => {
            Value::Count(if *count == 0 { 0 } else { count.checked_next_power_of_two().unwrap_or(*count) })
        }
        // `netdev_rx_queue_set_rps_mask` ANDs with HK_TYPE_DOMAIN (isolcpus) and HK_TYPE_WQ (nohz_full).
        (Target::RpsCpus { .. } | Target::RpsDefaultMask, Value::Cpus(cpus)) => {
            let list = |name: &str| {
                let text = kernel.read(&format!("/sys/devices/system/cpu/{name}")).unwrap_or_default();
                CpuSet::parse_list(&text).unwrap_or_default()
            };
            Value::Cpus(cpus.minus(&list("isolated")).minus(&list("nohz_full")))
        }
        (_, value) => value.clone(),
    }
}

/// The capability that writing needs besides the file's mode.
fn needs(target: &Target) -> Capability {
    match target {
        Target::IrqAffinity { .. }
        | Target::DefaultSmpAffinity
        | Target::RpsSockFlowEntries
        | Target::RpsDefaultMask
        | Target::Sysctl { .. }
        | Target::CgroupCpuset { .. } => Capability::None,
        Target::NapiThread { .. } | Target::ThreadAffinity { .. } => Capability::SysNice,
        _ => Capability::NetAdmin,
    }
}

/// Where a knob lives now, if it is still the one that was meant.
fn find(kernel: &dyn Kernel, target: &Target) -> Result<Place, KnobError> {
    let queue = |netdev: &NetdevIdentity, queue: String, file: &str| {
        let name = find_netdev(kernel, target, netdev)?;
        Ok(Place::File(format!("{}/queues/{queue}/{file}", netdev_dir(&name))))
    };
    let file = |netdev: &NetdevIdentity, file: &str| {
        let name = find_netdev(kernel, target, netdev)?;
        Ok(Place::File(format!("{}/{file}", netdev_dir(&name))))
    };
    match target {
        Target::IrqAffinity { irq, action, .. } => {
            let now = irq_actions(kernel, irq.0).map_err(|e| KnobError::refused(target, Doing::Read, e))?;
            match now {
                Some(now) if now == *action => Ok(Place::File(format!("/proc/irq/{irq}/smp_affinity"))),
                Some(now) if now.is_empty() => Err(KnobError::gone(target, "its driver has released it")),
                Some(now) => Err(KnobError::gone(target, format!("this number now belongs to {now}"))),
                None => Err(KnobError::gone(target, "no such interrupt any more")),
            }
        }
        Target::DefaultSmpAffinity => Ok(Place::File("/proc/irq/default_smp_affinity".into())),
        Target::RpsSockFlowEntries => Ok(Place::File("/proc/sys/net/core/rps_sock_flow_entries".into())),
        Target::RpsDefaultMask => Ok(Place::File("/proc/sys/net/core/rps_default_mask".into())),
        Target::RpsCpus { netdev, queue: n } => queue(netdev, format!("rx-{n}"), "rps_cpus"),
        Target::RpsFlowCnt { netdev, queue: n } => queue(netdev, format!("rx-{n}"), "rps_flow_cnt"),
        Target::XpsCpus { netdev, queue: n } => queue(netdev, format!("tx-{n}"), "xps_cpus"),
        Target::Offload { netdev, feature } if feature == NTUPLE_FILTER => {
            Ok(Place::Ntuple(find_netdev(kernel, target, netdev)?))
        }
        Target::NapiDeferHardIrqs { netdev } => file(netdev, "napi_defer_hard_irqs"),
        Target::GroFlushTimeout { netdev } => file(netdev, "gro_flush_timeout"),
        Target::Threaded { netdev } => file(netdev, "threaded"),
        Target::Sysctl { name } => {
            let path = sysctl_path(name).map(Place::File);
            path.ok_or_else(|| KnobError::gone(target, "netsilo does not write this sysctl"))
        }
        Target::Channels { .. }
        | Target::Rings { .. }
        | Target::Coalesce { .. }
        | Target::Offload { .. }
        | Target::FlowHash { .. }
        | Target::RssTable { .. }
        | Target::RssKey { .. }
        | Target::RssHash { .. }
        | Target::RssContext { .. }
        | Target::NtupleRule { .. } => Err(KnobError::gone(target, "this netsilo does not write it yet")),
        Target::NapiThread { pid, comm, start_time } => find_thread(kernel, target, *pid, Some(comm), *start_time),
        Target::ThreadAffinity { tid, start_time, .. } => find_thread(kernel, target, *tid, None, *start_time),
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

/// A thread, if it started then; and has this name, if that counts: threads of programs may rename themselves.
fn find_thread(
    kernel: &dyn Kernel,
    target: &Target,
    tid: u32,
    comm: Option<&str>,
    start_time: u64,
) -> Result<Place, KnobError> {
    match thread_identity(kernel, tid) {
        Ok((now, started)) if started == start_time && comm.is_none_or(|comm| now == comm) => Ok(Place::Thread(tid)),
        Ok((now, _)) => Err(KnobError::gone(target, format!("this pid now belongs to {now}, another thread"))),
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
fn find_netdev(kernel: &dyn Kernel, target: &Target, netdev: &NetdevIdentity) -> Result<String, KnobError> {
    if netdev.name.is_empty() || netdev.name.contains('/') || netdev.name.starts_with('.') {
        return Err(KnobError::gone(target, "no netdev can have this name"));
    }
    let now = device_path(kernel, &netdev.name);
    if now.as_ref().is_ok_and(|path| *path == netdev.device_path) {
        return Ok(netdev.name.clone());
    }
    if let Some(path) = netdev.device_path.as_deref() {
        let names = kernel.names("/sys/class/net").unwrap_or_default();
        let mut same = names.into_iter().filter(|n| device_path(kernel, n).is_ok_and(|p| p.as_deref() == Some(path)));
        if let (Some(only), None) = (same.next(), same.next()) {
            return Ok(only);
        }
    }
    Err(match now {
        Ok(now) => {
            let now = now.unwrap_or_else(|| "a virtual one".into());
            let was = netdev.device_path.as_deref().unwrap_or("a virtual one");
            KnobError::gone(target, format!("{} is another device now ({now}, not {was})", netdev.name))
        }
        Err(e) if is_absent(&e) => KnobError::gone(target, format!("no netdev {} here", netdev.name)),
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

/// A thread's name, and when it started: field 22 of `stat`, whose second one may hold any character but is the only one
/// in parentheses. The name is that of `comm`, which is not cut to 15 bytes.
fn thread_identity(kernel: &dyn Kernel, pid: u32) -> io::Result<(String, u64)> {
    let comm = kernel.read(&format!("/proc/{pid}/comm"))?;
    let stat = kernel.read(&format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let start_time = fields.split_whitespace().nth(19).and_then(|field| field.parse().ok());
    let start_time =
        start_time.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in its stat"))?;
    Ok((comm.trim_end().to_owned(), start_time))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV | Errno::SRCH))
}

/// What a refusal means for this knob and what to do next.
fn hint(target: &Target, doing: &Doing, error: &io::Error) -> Option<&'static str> {
    let errno = Errno::from_io_error(error)?;
    let irq = matches!(target, Target::IrqAffinity { .. });
    if *doing == Doing::Read {
        return match (errno, target) {
            (Errno::NOENT, Target::CgroupCpuset { .. }) => {
                Some("no such cgroup, or its parent does not enable the cpuset controller")
            }
            (Errno::NOENT, Target::XpsCpus { .. }) => Some("a netdev with one tx queue has no XPS"),
            (Errno::NOENT, _) => Some("this kernel or netdev has no such setting"),
            (Errno::ACCESS | Errno::PERM, _) => Some("run as root"),
            _ => None,
        };
    }
    match (errno, target) {
        // EIO up to 6.11, EPERM from 6.12 (`kernel/irq/proc.c:write_irq_affinity`).
        (Errno::IO | Errno::PERM, _) if irq => Some(
            "the kernel or its interrupt controller places this interrupt itself (a managed one, or no affinity \
             support); leave it out",
        ),
        (Errno::NOSPC, _) if irq => {
            Some("no free interrupt vector on these cpus (there are about 200 per cpu); choose other cpus")
        }
        (Errno::INVAL, Target::RpsCpus { .. } | Target::RpsDefaultMask) => {
            Some("none of these cpus may do network work (isolcpus, nohz_full); choose others")
        }
        (Errno::INVAL, Target::RpsFlowCnt { .. } | Target::RpsSockFlowEntries) => {
            Some("more than the kernel allows; choose a smaller number")
        }
        (Errno::INVAL, Target::ThreadAffinity { .. }) => {
            Some("the kernel binds this thread, or its cgroup has none of these cpus; choose others")
        }
        (Errno::INVAL, Target::NapiThread { .. }) => {
            Some("none of these cpus is online and open to this thread; choose others")
        }
        (Errno::INVAL, _) => Some("none of these cpus is online; choose others"),
        (Errno::OVERFLOW | Errno::RANGE, _) => {
            Some("it names a cpu beyond the last one of this machine; choose others")
        }
        (Errno::NOENT | Errno::NODEV | Errno::SRCH, _) => Some("it has gone away; make a new plan"),
        (Errno::ROFS, _) => Some("mounted read-only, as in a container; run on the host itself"),
        (Errno::ACCESS | Errno::PERM, _) => Some("run as root"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use netsilo_core::host::Irq;

    use super::*;
    use crate::kernel::Live;
    use crate::root::Root;

    fn irq(irq: u32, action: &str) -> Target {
        Target::IrqAffinity { irq: Irq(irq), action: action.into(), netdev: None }
    }

    fn rps(name: &str, device_path: Option<&str>) -> Target {
        let netdev = NetdevIdentity { name: name.into(), device_path: device_path.map(Into::into) };
        Target::RpsCpus { netdev, queue: 0 }
    }

    fn tree(files: &[(&str, &str)], links: &[(&str, &str)]) -> (tempfile::TempDir, Live) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        for (path, to) in links {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, path).unwrap();
        }
        let live = Live::new(Root::at(dir.path()).unwrap());
        (dir, live)
    }

    #[test]
    fn an_irq_is_its_action_names_and_not_its_number() {
        let (_dir, kernel) =
            tree(&[("sys/kernel/irq/27/actions", "virtio0-input.1\n"), ("proc/irq/27/smp_affinity", "0f\n")], &[]);
        let reading = read(&kernel, &irq(27, "virtio0-input.1")).unwrap();
        assert_eq!((reading.raw.as_str(), reading.value.to_string()), ("0f\n", "0-3".to_owned()));
        let message = |target| {
            let error = read(&kernel, &target).unwrap_err();
            assert!(error.is_gone());
            error.to_string()
        };
        assert_eq!(message(irq(27, "eth0-rx")), "irq 27 (eth0-rx): this number now belongs to virtio0-input.1");
        assert_eq!(message(irq(28, "eth0-rx")), "irq 28 (eth0-rx): no such interrupt any more");
    }

    #[test]
    fn a_renamed_netdev_is_found_by_its_device_path() {
        let device = "sys/devices/pci0000:00/0000:00:03.0/net/ens3/queues/rx-0/rps_cpus";
        let link = ("sys/class/net/ens3", "../../devices/pci0000:00/0000:00:03.0/net/ens3");
        let (_dir, kernel) = tree(&[(device, "0\n")], &[link]);
        let path = Some("/devices/pci0000:00/0000:00:03.0");
        let reading = read(&kernel, &rps("eth0", path)).unwrap();
        assert_eq!(reading.place, Place::File("/sys/class/net/ens3/queues/rx-0/rps_cpus".into()));
        let message = |target| read(&kernel, &target).unwrap_err().to_string();
        assert_eq!(
            message(rps("ens3", None)),
            "ens3 rx-0 rps_cpus: ens3 is another device now (/devices/pci0000:00/0000:00:03.0, not a virtual one)"
        );
        assert_eq!(message(rps("veth9", None)), "veth9 rx-0 rps_cpus: no netdev veth9 here");
        assert_eq!(message(rps("../x", None)), "../x rx-0 rps_cpus: no netdev can have this name");
    }

    #[test]
    fn a_thread_is_its_pid_name_and_start_time() {
        let stat = "70 (napi/a) b-0) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let (_dir, kernel) =
            tree(&[("proc/70/stat", stat), ("proc/70/comm", "napi/a) b-0\n"), ("proc/71/comm", "x\n")], &[]);
        assert_eq!(thread_identity(&kernel, 70).unwrap(), ("napi/a) b-0".to_owned(), 4242));
        assert!(thread_identity(&kernel, 71).is_err());
        let ended = Target::NapiThread { pid: 72, comm: "x".into(), start_time: 1 };
        assert_eq!(read(&kernel, &ended).unwrap_err().to_string(), "kthread x (pid 72): this thread has ended");
    }

    #[test]
    fn refusals_of_the_kernel_say_what_to_do_next() {
        let message = |target: &Target, value: Value, errno: Errno| {
            KnobError::refused(target, Doing::Write(value), errno.into()).to_string()
        };
        let cpu4 = || Value::Cpus(CpuSet::parse_list("4").unwrap());
        let managed = message(&irq(27, "x"), cpu4(), Errno::IO);
        assert!(managed.starts_with("irq 27 (x): cannot write 4: "), "{managed}");
        assert!(managed.contains("(os error 5): the kernel or its interrupt controller places"), "{managed}");
        for (errno, words) in [
            (Errno::PERM, "leave it out"),
            (Errno::NOSPC, "about 200 per cpu"),
            (Errno::INVAL, "none of these cpus is online"),
            (Errno::OVERFLOW, "beyond the last one"),
            (Errno::RANGE, "beyond the last one"),
            (Errno::ACCESS, "run as root"),
        ] {
            assert!(message(&irq(27, "x"), cpu4(), errno).contains(words), "{errno}");
        }
        assert!(message(&rps("eth0", None), cpu4(), Errno::INVAL).contains("isolcpus"));
        assert!(message(&rps("eth0", None), cpu4(), Errno::PERM).contains("run as root"));
        assert!(message(&Target::RpsSockFlowEntries, Value::Count(9), Errno::INVAL).contains("smaller"));
    }

    #[test]
    fn the_kernel_rounds_counts_and_takes_isolated_cpus_out_of_rps() {
        let (_dir, kernel) =
            tree(&[("sys/devices/system/cpu/isolated", "2\n"), ("sys/devices/system/cpu/nohz_full", "3\n")], &[]);
        let cpus = |list: &str| Value::Cpus(CpuSet::parse_list(list).unwrap());
        assert_eq!(settles_as(&kernel, &Target::RpsSockFlowEntries, &Value::Count(1000)), Value::Count(1024));
        assert_eq!(settles_as(&kernel, &Target::RpsSockFlowEntries, &Value::Count(0)), Value::Count(0));
        assert_eq!(settles_as(&kernel, &rps("eth0", None), &cpus("1-4")), cpus("1,4"));
        assert_eq!(settles_as(&kernel, &irq(1, "x"), &cpus("1-4")), cpus("1-4"));
    }
}
