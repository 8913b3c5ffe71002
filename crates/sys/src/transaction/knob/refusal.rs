//! Explains the kernel's refusals in plain words: what an errno means for a knob, and what to do
//! next.
//!
//! A meaning that applies to one knob only is in the knob's row. This file has the meanings that
//! apply to every knob, or to every ethtool setting.

use std::fmt;
use std::io;

use netsilo_model::change::{Location, Target, Value};
use netsilo_model::machine::cpuset::CpuSet;
use rustix::io::Errno;

/// The operation that failed on a knob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doing {
    /// Entering its network namespace.
    Enter,
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
            Self::Enter => f.write_str("enter its network namespace"),
            Self::Read => f.write_str("read"),
            Self::Write(value) => write!(f, "write {value}"),
            Self::Restore(raw) => write!(f, "restore {}", raw.trim_end()),
        }
    }
}

/// What a refusal means for this knob, and what to do next.
pub(super) fn hint(target: &Target, doing: &Doing, error: &io::Error) -> Option<&'static str> {
    let errno = Errno::from_io_error(error)?;
    if *doing == Doing::Read {
        return match errno {
            Errno::NOENT => {
                Some(target.facts().absent.unwrap_or("this kernel or netdev has no such setting"))
            }
            Errno::OPNOTSUPP => Some("its driver has no such setting"),
            Errno::ACCESS | Errno::PERM => Some("run as root"),
            _ => None,
        };
    }
    let known = |errno| {
        let mut refusals = target.facts().refusals.iter();
        refusals.find(|(it, _)| *it == errno).map(|(_, hint)| *hint)
    };
    let special = named(errno).and_then(known);
    special.or_else(|| match target.location() {
        Location::Ethtool { .. } => driver_hint(errno).or_else(|| any_hint(target, errno)),
        _ => any_hint(target, errno),
    })
}

/// The errors for which a row may give a reason.
fn named(errno: Errno) -> Option<netsilo_model::change::Errno> {
    match errno {
        Errno::IO => Some(netsilo_model::change::Errno::Io),
        Errno::PERM => Some(netsilo_model::change::Errno::Perm),
        Errno::INVAL => Some(netsilo_model::change::Errno::Inval),
        Errno::NOSPC => Some(netsilo_model::change::Errno::NoSpc),
        Errno::OPNOTSUPP => Some(netsilo_model::change::Errno::OpNotSupp),
        _ => None,
    }
}

/// What an errno means for any knob.
fn any_hint(target: &Target, errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::INVAL if target.check(&Value::Cpus(CpuSet::new())).is_ok() => {
            Some("none of these cpus is online; choose others")
        }
        Errno::INVAL => Some("outside of the range that the kernel accepts for it"),
        Errno::OVERFLOW | Errno::RANGE => {
            Some("it names a cpu that this machine does not have; choose others")
        }
        Errno::NOENT | Errno::NODEV | Errno::SRCH => Some("it has gone away; make a new plan"),
        Errno::ROFS => Some("mounted read-only, as in a container; run on the host itself"),
        Errno::ACCESS | Errno::PERM => Some("run as root"),
        _ => None,
    }
}

/// What a driver means by an errno. The kernel checks channels, rings and coalescing before it
/// calls the driver (`ethtool_set_channels`, `ethtool_set_ringparam`,
/// `ethtool_set_coalesce_supported`).
fn driver_hint(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::OPNOTSUPP => Some("its driver cannot set it"),
        Errno::INVAL => Some("its driver does not accept it"),
        Errno::BUSY => Some(
            "the device is in use in a way that forbids it, or is being reset; try again later",
        ),
        Errno::NOMEM => Some("not enough contiguous memory; choose a smaller number"),
        Errno::EXIST => Some("this rule exists already"),
        _ => None,
    }
}
