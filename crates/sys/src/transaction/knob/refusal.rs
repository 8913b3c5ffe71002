//! The kernel's refusals in plain words: what an errno means for a knob, and what to do next.

use std::io;

use netsilo_model::change::Target;
use rustix::io::Errno;

use crate::transaction::knob::Doing;

/// What a refusal means for this knob and what to do next.
pub(super) fn hint(target: &Target, doing: &Doing, error: &io::Error) -> Option<&'static str> {
    let errno = Errno::from_io_error(error)?;
    let irq = matches!(target, Target::IrqAffinity { .. });
    if *doing == Doing::Read {
        return match (errno, target) {
            (Errno::NOENT, Target::CgroupCpuset { .. }) => {
                Some("no such cgroup, or its parent does not enable the cpuset controller")
            }
            (Errno::NOENT, Target::XpsCpus { .. }) => Some("a netdev with one tx queue has no XPS"),
            (Errno::NOENT, _) => Some("this kernel or netdev has no such setting"),
            (Errno::OPNOTSUPP, _) => Some("its driver has no such setting"),
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
        (Errno::NOSPC, _) if irq => Some(
            "no free interrupt vector on these cpus (there are about 200 per cpu); choose other cpus",
        ),
        (Errno::INVAL, Target::RpsCpus { .. } | Target::RpsDefaultMask) => {
            Some("none of these cpus may do network work (isolcpus, nohz_full); choose others")
        }
        (Errno::INVAL, Target::RpsFlowCnt { .. } | Target::RpsSockFlowEntries) => {
            Some("more than the kernel allows; choose a smaller number")
        }
        (Errno::INVAL, Target::ThreadAffinity { .. }) => Some(
            "the kernel binds this thread, or its cgroup has none of these cpus; choose others",
        ),
        (Errno::INVAL, Target::NapiThread { .. }) => {
            Some("none of these cpus is online and open to this thread; choose others")
        }
        (
            Errno::INVAL
            | Errno::OPNOTSUPP
            | Errno::BUSY
            | Errno::NOSPC
            | Errno::NOMEM
            | Errno::EXIST,
            _,
        ) if target.is_of_ethtool() => driver_hint(target, errno),
        (Errno::INVAL, Target::Sysctl { .. }) => Some("outside of what the kernel takes for it"),
        (Errno::INVAL, Target::NapiDeferHardIrqs { .. } | Target::GroFlushTimeout { .. }) => {
            Some("outside of what the kernel takes for it")
        }
        (Errno::INVAL, Target::Mtu { .. }) => Some(
            "outside of what its driver takes (`ip -d link` shows minmtu and maxmtu), or too large for its XDP program",
        ),
        (Errno::OPNOTSUPP | Errno::INVAL, Target::Threaded { .. }) => {
            Some("its driver cannot poll in kthreads")
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

/// What a driver means by an errno. The core checks channels, rings and coalescing before it asks
/// the driver (`ethtool_set_channels`, `ethtool_set_ringparam`, `ethtool_set_coalesce_supported`).
fn driver_hint(target: &Target, errno: Errno) -> Option<&'static str> {
    Some(match (errno, target) {
        (Errno::OPNOTSUPP, Target::Coalesce { .. }) => {
            "its driver does not know one of these settings; change only those that `ethtool -c` shows"
        }
        (Errno::OPNOTSUPP, Target::Offload { .. }) => {
            "its driver does not let it be changed ([fixed] in `ethtool -k`)"
        }
        (Errno::OPNOTSUPP, Target::FlowHash { .. }) => {
            "its driver cannot choose what is hashed for these flows"
        }
        (Errno::OPNOTSUPP, _) => "its driver cannot set it",
        (Errno::INVAL, Target::Channels { .. }) => {
            "too few where its RSS table names a queue that would be gone (`ethtool -X DEV default` first), or where a queue \
             is in use (AF_XDP)"
        }
        (Errno::INVAL, Target::Rings { .. }) => {
            "more than that, or fewer than it needs, is refused"
        }
        (Errno::INVAL, Target::Coalesce { .. }) => {
            "its driver does not take these numbers, or not together"
        }
        (Errno::INVAL, Target::FlowHash { .. }) => {
            "its driver cannot hash just these fields (many know sd and sdfn only)"
        }
        (Errno::INVAL, Target::RssTable { .. }) => {
            "it names a queue beyond those in use, or has another length than the netdev's table"
        }
        (Errno::INVAL, Target::RssKey { .. }) => {
            "the key has another length than the netdev's, or its driver does not take it"
        }
        (Errno::INVAL, Target::NtupleRule { .. }) => {
            "its driver cannot tell such flows apart, or not take them there (is rx-ntuple-filter on?)"
        }
        (Errno::INVAL, _) => "its driver does not take it",
        (Errno::BUSY, _) => {
            "the device is in use in a way that forbids it, or is being reset; try again later"
        }
        (Errno::NOSPC, Target::NtupleRule { .. }) => {
            "no free place among its rules (`ethtool -n DEV` lists them)"
        }
        (Errno::NOSPC, Target::RssContext { .. }) => "no free RSS context",
        (Errno::NOMEM, _) => "not enough memory in one piece; choose a smaller number",
        (Errno::EXIST, _) => "there is such a rule already",
        _ => return None,
    })
}
