//! Reads and writes knobs.

use std::io;
use std::time::Duration;

use netsilo_model::change::{Change, Kind as _, Location, Table, Target, Value};
use rustix::io::Errno;

use crate::ethtool::set::DEFAULT;
use crate::transaction::kernel::{EthtoolSetting, Kernel, KnobAddress};
use crate::transaction::knob::error::KnobError;
use crate::transaction::knob::find::{CGROUPS, NapiOf, find};
use crate::transaction::knob::napis;
use crate::transaction::knob::refusal::Doing;
use crate::transaction::knob::text::parse;

/// A knob that was found, with its current value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Where it is.
    pub place: KnobAddress,
    /// Its text, byte for byte.
    pub raw: String,
    /// The value that the text means.
    pub value: Value,
    /// Which creation of its netdev this is. `None` if the netdev is identified otherwise, or if
    /// there is no netdev.
    pub created: Option<u64>,
}

impl Reading {
    /// Refuses a netdev that has replaced the one of an earlier reading. `None` is not compared.
    pub fn refuse_replaced(&self, target: &Target, then: Option<u64>) -> Result<(), KnobError> {
        match (then, self.created) {
            (Some(then), Some(now)) if then != now => {
                let why = "this netdev is a newer one with the same name and index";
                Err(KnobError::gone(target, why))
            }
            _ => Ok(()),
        }
    }
}

/// Finds a knob, checks that it is still the same, and reads it.
pub fn read(kernel: &dyn Kernel, target: &Target) -> Result<Reading, KnobError> {
    read_now(kernel, target, None)
}

/// The same for a knob of a kthread that polls this NAPI, or polled it before.
pub(crate) fn read_now(
    kernel: &dyn Kernel,
    target: &Target,
    kthread: Option<&NapiOf>,
) -> Result<Reading, KnobError> {
    let (place, created) = find(kernel, target, kthread)?;
    let raw =
        kernel.get(&place).map_err(|source| KnobError::refused(target, Doing::Read, source))?;
    let value = parse(target, &raw)?;
    Ok(Reading { place, raw, value, created })
}

/// Refuses a write if it might never return from the kernel now.
pub(crate) fn refuse_waiting(
    kernel: &dyn Kernel,
    target: &Target,
    place: &KnobAddress,
) -> Result<(), KnobError> {
    match place.netdev().filter(|_| target.facts().waits_for_napis) {
        Some(netdev) => napis::enabled(kernel, netdev)
            .map_err(|source| KnobError::Waiting { target: Box::new(target.clone()), source }),
        None => Ok(()),
    }
}

/// Writes the new value of a change in the kernel's own format.
pub fn write(kernel: &dyn Kernel, change: &Change, place: &KnobAddress) -> Result<(), KnobError> {
    refuse_waiting(kernel, &change.target, place)?;
    let result = kernel.set(place, &change.text());
    result.map_err(|source| {
        let doing = Doing::Write(change.new.clone());
        KnobError::refused_at(kernel, place, &change.target, doing, source)
    })
}

/// Writes back a text that the kernel printed, byte for byte.
///
/// If an RSS table looks like the driver's default, the driver is asked to restore it. If the table
/// were written instead, the driver would keep it when its channels change again
/// (`netif_is_rxfh_configured`).
pub(crate) fn put_back(kernel: &dyn Kernel, place: &KnobAddress, raw: &str) -> io::Result<()> {
    let own = matches!(place, KnobAddress::Ethtool(_, EthtoolSetting::RssTable(0)))
        && Table::parse(raw).is_ok_and(|table| table.looks_like_default());
    if own && kernel.set(place, DEFAULT).is_ok() && kernel.get(place).is_ok_and(|now| now == raw) {
        return Ok(());
    }
    kernel.set(place, raw)
}

/// The same for a knob. If the kernel refuses the text, writes an equivalent: a cgroup with
/// processes cannot lose its set (`validate_change`, ENOSPC), so it gets all CPUs of its parent.
pub fn write_back(
    kernel: &dyn Kernel,
    target: &Target,
    place: &KnobAddress,
    raw: &str,
) -> Result<(), KnobError> {
    refuse_waiting(kernel, target, place)?;
    let result = match put_back(kernel, place, raw) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NOSPC) && raw.trim().is_empty() => {
            open_cpus(kernel, target).map_or(Err(e), |open| kernel.set(place, &open))
        }
        other => other,
    };
    result.map_err(|source| {
        KnobError::refused_at(kernel, place, target, Doing::Restore(raw.to_owned()), source)
    })
}

/// Whether a value is equivalent to the wanted one. A cgroup without a set has the CPUs of its
/// parent.
pub fn is_as_good(kernel: &dyn Kernel, target: &Target, value: &Value, wanted: &Value) -> bool {
    let open = || open_cpus(kernel, target).and_then(|open| parse(target, &open).ok());
    matches!(wanted, Value::Cpus(cpus) if cpus.is_empty()) && open().as_ref() == Some(value)
}

/// The CPUs of a cgroup's parent, as the kernel prints them. `None` for other knobs.
fn open_cpus(kernel: &dyn Kernel, target: &Target) -> Option<String> {
    let Location::Cgroup(path) = target.location() else { return None };
    let parent = path.rsplit_once('/')?.0;
    kernel.read(&format!("{CGROUPS}{parent}/cpuset.cpus.effective")).ok()
}

/// Checks whether this process may make a change. Changes nothing.
pub fn may_write(
    kernel: &dyn Kernel,
    change: &Change,
    place: &KnobAddress,
) -> Result<(), KnobError> {
    let result = kernel.may_set(place, change.target.facts().needs);
    result.map_err(|source| {
        KnobError::refused(&change.target, Doing::Write(change.new.clone()), source)
    })
}

/// How long unexpected values of knobs are waited for that were written at one time, before they
/// count.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(Duration::from_millis(10))
    }
}

/// Reads a knob that should have the value `expected`. Another value counts only if it stays.
///
/// While the kernel moves an interrupt (`irq_move_masked_irq`), `smp_affinity` shows the old value
/// for a moment: the pending flag is cleared before the mask is copied, and `show_irq_affinity`
/// takes no lock.
pub fn read_settled(
    kernel: &dyn Kernel,
    target: &Target,
    expected: &Value,
) -> Result<Reading, KnobError> {
    settle(kernel, expected, &mut Patience::default(), &|| read(kernel, target))
}

/// Reads by `read` until the value is the expected one, or until another value has stayed the same
/// for two reads and until `patience` ends.
pub(crate) fn settle(
    kernel: &dyn Kernel,
    expected: &Value,
    patience: &mut Patience,
    read: &dyn Fn() -> Result<Reading, KnobError>,
) -> Result<Reading, KnobError> {
    const STEP: Duration = Duration::from_millis(1);
    let reading = read()?;
    if reading.value == *expected {
        return Ok(reading);
    }
    while let Some(left) = patience.0.checked_sub(STEP) {
        kernel.pause(STEP);
        patience.0 = left;
        let reading = read()?;
        if reading.value == *expected {
            return Ok(reading);
        }
    }
    read()
}

#[cfg(test)]
mod tests {
    use netsilo_model::change::knobs;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::machine::ids::Irq;
    use netsilo_model::snapshot::netdev::NetdevIdentity;

    use super::*;
    use crate::files::root::Root;
    use crate::transaction::kernel::Live;
    use crate::transaction::knob::find::thread_identity;
    use crate::transaction::knob::text::settles_as;

    fn irq(irq: u32, action: &str) -> Target {
        knobs::IrqAffinity { irq: Irq(irq), action: action.into(), netdev: None }.into()
    }

    fn rps(name: &str, device_path: Option<&str>) -> Target {
        let netdev = NetdevIdentity {
            name: name.into(),
            device_path: device_path.map(Into::into),
            ifindex: None,
        };
        knobs::RpsCpus { netdev, queue: 0 }.into()
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
        let (_dir, kernel) = tree(
            &[
                ("sys/kernel/irq/27/actions", "virtio0-input.1\n"),
                ("proc/irq/27/smp_affinity", "0f\n"),
            ],
            &[],
        );
        let reading = read(&kernel, &irq(27, "virtio0-input.1")).unwrap();
        assert_eq!((reading.raw.as_str(), reading.value.to_string()), ("0f\n", "0-3".to_owned()));
        let message = |target| {
            let error = read(&kernel, &target).unwrap_err();
            assert!(error.is_gone());
            error.to_string()
        };
        assert_eq!(
            message(irq(27, "eth0-rx")),
            "irq 27 (eth0-rx): this number now belongs to virtio0-input.1"
        );
        assert_eq!(message(irq(28, "eth0-rx")), "irq 28 (eth0-rx): no such interrupt any more");
    }

    #[test]
    fn a_renamed_netdev_is_found_by_its_device_path() {
        let device = "sys/devices/pci0000:00/0000:00:03.0/net/ens3/queues/rx-0/rps_cpus";
        let link = ("sys/class/net/ens3", "../../devices/pci0000:00/0000:00:03.0/net/ens3");
        let (_dir, kernel) = tree(&[(device, "0\n")], &[link]);
        let path = Some("/devices/pci0000:00/0000:00:03.0");
        let reading = read(&kernel, &rps("eth0", path)).unwrap();
        assert_eq!(
            reading.place,
            KnobAddress::File("/sys/class/net/ens3/queues/rx-0/rps_cpus".into())
        );
        let message = |target| read(&kernel, &target).unwrap_err().to_string();
        assert_eq!(
            message(rps("ens3", None)),
            "ens3 rx-0 rps_cpus: ens3 is another device now \
             (/devices/pci0000:00/0000:00:03.0, not a virtual one)"
        );
        assert_eq!(message(rps("veth9", None)), "veth9 rx-0 rps_cpus: no netdev veth9 here");
        assert_eq!(message(rps("../x", None)), "../x rx-0 rps_cpus: no netdev can have this name");
    }

    #[test]
    fn a_thread_is_its_pid_name_and_start_time() {
        let stat = "70 (napi/a) b-0) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let (_dir, kernel) = tree(
            &[("proc/70/stat", stat), ("proc/70/comm", "napi/a) b-0\n"), ("proc/71/comm", "x\n")],
            &[],
        );
        assert_eq!(thread_identity(&kernel, 70).unwrap(), ("napi/a) b-0".to_owned(), 4242));
        assert!(thread_identity(&kernel, 71).is_err());
        let ended =
            Target::NapiThread(knobs::NapiThread { pid: 72, comm: "x".into(), start_time: 1 });
        assert_eq!(
            read(&kernel, &ended).unwrap_err().to_string(),
            "kthread x (pid 72): this thread has ended"
        );
    }

    #[test]
    fn a_threads_name_need_not_be_utf8() {
        let (dir, kernel) = tree(&[], &[]);
        std::fs::create_dir_all(dir.path().join("proc/70")).unwrap();
        let stat = b"70 (gr\xc3\xb6\xc3) S 2 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        std::fs::write(dir.path().join("proc/70/stat"), stat).unwrap();
        std::fs::write(dir.path().join("proc/70/comm"), b"gr\xc3\xb6\xc3\n").unwrap();
        let name = "gr\u{f6}\u{fffd}".to_owned();
        assert_eq!(thread_identity(&kernel, 70).unwrap(), (name, 4242));
    }

    #[test]
    fn refusals_of_the_kernel_say_what_to_do_next() {
        let message = |target: &Target, value: Value, errno: Errno| {
            KnobError::refused(target, Doing::Write(value), errno.into()).to_string()
        };
        let cpu4 = || Value::Cpus(CpuSet::parse_list("4").unwrap());
        let managed = message(&irq(27, "x"), cpu4(), Errno::IO);
        assert!(managed.starts_with("irq 27 (x): cannot write 4: "), "{managed}");
        assert!(
            managed.contains("(os error 5): the kernel or its interrupt controller places"),
            "{managed}"
        );
        for (errno, words) in [
            (Errno::PERM, "leave it out"),
            (Errno::NOSPC, "about 200 per cpu"),
            (Errno::INVAL, "none of these cpus is online"),
            (Errno::OVERFLOW, "does not have"),
            (Errno::RANGE, "does not have"),
            (Errno::ACCESS, "run as root"),
        ] {
            assert!(message(&irq(27, "x"), cpu4(), errno).contains(words), "{errno}");
        }
        assert!(message(&rps("eth0", None), cpu4(), Errno::INVAL).contains("isolcpus"));
        assert!(message(&rps("eth0", None), cpu4(), Errno::PERM).contains("run as root"));
        let entries = knobs::RpsSockFlowEntries.into();
        assert!(message(&entries, Value::Count(9), Errno::INVAL).contains("smaller"));
    }

    #[test]
    fn the_kernel_rounds_counts_and_takes_isolated_cpus_out_of_rps() {
        let (_dir, kernel) = tree(
            &[
                ("sys/devices/system/cpu/isolated", "2\n"),
                ("sys/devices/system/cpu/nohz_full", "3\n"),
            ],
            &[],
        );
        let cpus = |list: &str| Value::Cpus(CpuSet::parse_list(list).unwrap());
        let settled = |target: Target, value: Value| {
            let change = Change::untyped(target, value.clone(), value, "").unwrap();
            settles_as(&kernel, &change)
        };
        for (count, kept) in [(1000, 1024), (0, 0)] {
            let entries = knobs::RpsSockFlowEntries.into();
            assert_eq!(settled(entries, Value::Count(count)), Value::Count(kept));
        }
        assert_eq!(settled(rps("eth0", None), cpus("1-4")), cpus("1,4"));
        assert_eq!(settled(irq(1, "x"), cpus("1-4")), cpus("1-4"));
    }
}
