//! Finds running programs that write the same knobs as netsilo.

use netsilo_model::snapshot::host::{KnobOwner, OwnedKnob};

use crate::read::gaps::Notes;
use crate::read::process::Process;

/// How to recognise a program, and the knobs that it writes.
struct Known {
    name: &'static str,
    /// The name of its file.
    file: &'static str,
    /// An option of its command line. Without it, the program does not write these knobs.
    option: Option<&'static str>,
    writes: &'static [OwnedKnob],
}

const KNOWN: &[Known] = &[
    known("irqbalance", "irqbalance", &[OwnedKnob::IrqAffinity]),
    known("tuned", "tuned", &[OwnedKnob::IrqAffinity]),
    known("bpftune", "bpftune", &[OwnedKnob::Sysctls]),
    // default_smp_affinity and irqbalance's ban list, for pods with `irq-load-balancing.crio.io`
    known("cri-o", "crio", &[OwnedKnob::LaterDevices]),
    // runs google_set_multiqueue at boot
    known("google guest agent", "google_guest_agent", &[OwnedKnob::LaterDevices]),
    known(
        "google_set_multiqueue",
        "google_set_multiqueue",
        &[OwnedKnob::IrqAffinity, OwnedKnob::Xps],
    ),
    known("perftune.py", "perftune.py", &[OwnedKnob::IrqAffinity, OwnedKnob::Rps, OwnedKnob::Xps]),
    known("set_irq_affinity", "set_irq_affinity", &[OwnedKnob::IrqAffinity, OwnedKnob::Xps]),
    Known {
        option: Some("--netdev-irq-balance"),
        ..known("scx_layered", "scx_layered", &[OwnedKnob::IrqAffinity])
    },
];

const fn known(name: &'static str, file: &'static str, writes: &'static [OwnedKnob]) -> Known {
    Known { name, file, option: None, writes }
}

/// Settings of systemd `.link` files that make udev write knobs when a device appears.
pub(crate) const LINK_KEYS: &[&str] = &["IRQAffinityPolicy=", "ReceivePacketSteeringCPUMask="];

/// The folders where systemd reads `.link` files.
const LINK_DIRS: &[&str] =
    &["/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network"];

/// All programs that write these knobs. Includes udev if its `.link` files write knobs.
pub(crate) fn knob_owners(notes: &Notes<'_>, processes: &[Process]) -> Vec<KnobOwner> {
    let mut owners: Vec<KnobOwner> =
        processes.iter().filter_map(|process| owner(notes, process)).collect();
    if let Some(udev) =
        processes.iter().find(|p| p.comm == "systemd-udevd" || p.comm == "(udev-worker)")
    {
        owners.extend(link_files(notes, udev));
    }
    owners.sort_unstable();
    owners
}

fn owner(notes: &Notes<'_>, process: &Process) -> Option<KnobOwner> {
    let interpreted = interpreter(&process.comm);
    let by_comm = KNOWN.iter().find(|known| is_comm(known.file, &process.comm));
    if !interpreted && by_comm.is_none() {
        return None;
    }
    let cmdline = format!("/proc/{}/cmdline", process.pid);
    let words = notes.root.unrecorded().read(&cmdline).unwrap_or_default();
    let words: Vec<&str> = words.split('\0').collect();
    // interpreter options may precede the script
    let mut scripts = words.iter().skip(1).take(3).filter_map(|word| word.rsplit('/').next());
    let known = by_comm
        .or_else(|| scripts.find_map(|script| KNOWN.iter().find(|known| known.file == script)))?;
    if known.option.is_some_and(|option| !words.contains(&option)) {
        return None;
    }
    for path in [format!("/proc/{}/comm", process.pid), cmdline] {
        notes.get(&path, |_| Ok(()));
    }
    Some(KnobOwner { name: known.name.to_owned(), pid: process.pid, writes: known.writes.to_vec() })
}

/// Whether `comm` is the name of this file. The kernel keeps 15 bytes of the name, also for a
/// script with `#!`.
fn is_comm(file: &str, comm: &str) -> bool {
    file == comm || comm.len() == 15 && file.starts_with(comm)
}

/// Whether this is an interpreter (`python3.11`, `bash`). Then the script is in the command line.
fn interpreter(comm: &str) -> bool {
    let version = |rest: &str| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    ["python", "perl", "bash", "sh"].iter().any(|name| comm.strip_prefix(name).is_some_and(version))
}

fn link_files(notes: &Notes<'_>, udev: &Process) -> Vec<KnobOwner> {
    let root = notes.root.unrecorded();
    let mut owners = Vec::new();
    for dir in LINK_DIRS {
        let names = root.list(dir).unwrap_or_default();
        for name in names.iter().filter(|name| name.ends_with(".link")) {
            let path = format!("{dir}/{name}");
            let text = root.read(&path).unwrap_or_default();
            if text
                .lines()
                .any(|line| LINK_KEYS.iter().any(|key| line.trim_start().starts_with(key)))
            {
                notes.get(&path, |_| Ok(()));
                notes.get(&format!("/proc/{}/comm", udev.pid), |_| Ok(()));
                owners.push(KnobOwner {
                    name: format!("systemd-udevd ({path})"),
                    pid: udev.pid,
                    writes: vec![OwnedKnob::LaterDevices],
                });
            }
        }
    }
    owners
}
