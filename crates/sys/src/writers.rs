//! Other programs that write the knobs that netsilo writes, running now.

use netsilo_core::host::{Writer, WriterKnob};

use crate::notes::Notes;
use crate::process::Process;
use crate::root::{ReadError, Root};

/// What gives a program away, and what it writes.
struct Known {
    name: &'static str,
    /// `/proc/<pid>/comm`, at most 15 bytes.
    comm: &'static str,
    /// A word of its command line without which it writes nothing of the kind.
    option: Option<&'static str>,
    writes: &'static [WriterKnob],
}

const KNOWN: &[Known] = &[
    known("irqbalance", "irqbalance", &[WriterKnob::IrqAffinity]),
    known("tuned", "tuned", &[WriterKnob::IrqAffinity]),
    known("bpftune", "bpftune", &[WriterKnob::Sysctls]),
    // default_smp_affinity and irqbalance's ban list, for pods with `irq-load-balancing.crio.io`
    known("cri-o", "crio", &[WriterKnob::LaterDevices]),
    // runs google_set_multiqueue at boot
    known("google guest agent", "google_guest_ag", &[WriterKnob::LaterDevices]),
    Known { option: Some("--netdev-irq-balance"), ..known("scx_layered", "scx_layered", &[WriterKnob::IrqAffinity]) },
];

/// Programs that are scripts of an interpreter, by the script's name.
const SCRIPTS: &[Known] = &[
    known("tuned", "tuned", &[WriterKnob::IrqAffinity]),
    known("perftune.py", "perftune.py", &[WriterKnob::IrqAffinity, WriterKnob::Rps, WriterKnob::Xps]),
    known("google_set_multiqueue", "google_set_multiqueue", &[WriterKnob::IrqAffinity, WriterKnob::Xps]),
    known("set_irq_affinity", "set_irq_affinity", &[WriterKnob::IrqAffinity, WriterKnob::Xps]),
];

const fn known(name: &'static str, comm: &'static str, writes: &'static [WriterKnob]) -> Known {
    Known { name, comm, option: None, writes }
}

/// Settings of systemd's `.link` files that make udev write knobs when a device appears.
pub(crate) const LINK_KEYS: &[&str] = &["IRQAffinityPolicy=", "ReceivePacketSteeringCPUMask="];

/// Where systemd looks for `.link` files.
const LINK_DIRS: &[&str] = &["/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network"];

/// All that run now.
pub fn running(root: &Root) -> Result<Vec<Writer>, ReadError> {
    let notes = Notes::new(root);
    let writers = writers(&notes, &crate::process::processes(&notes));
    notes.finish()?;
    Ok(writers)
}

/// All that are found.
pub(crate) fn writers(notes: &Notes<'_>, processes: &[Process]) -> Vec<Writer> {
    let mut writers: Vec<Writer> = processes.iter().filter_map(|process| writer(notes, process)).collect();
    if let Some(udev) = processes.iter().find(|p| p.comm == "systemd-udevd" || p.comm == "(udev-worker)") {
        writers.extend(link_files(notes, udev));
    }
    writers.sort();
    writers
}

fn writer(notes: &Notes<'_>, process: &Process) -> Option<Writer> {
    let interpreted = ["python", "perl", "bash", "sh"].iter().any(|shell| {
        process.comm.strip_prefix(shell).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    });
    let candidates = if interpreted { SCRIPTS } else { KNOWN };
    if !interpreted && !KNOWN.iter().chain(SCRIPTS).any(|k| k.comm == process.comm) {
        return None;
    }
    // a kthread has no command line, and no known writer is one
    let root = notes.root.unrecorded();
    let cmdline = root.read(&format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    let words: Vec<&str> = cmdline.split('\0').collect();
    let script = |k: &Known| words.iter().skip(1).take(3).any(|word| word.rsplit('/').next() == Some(k.comm));
    let matches = |k: &&Known| if interpreted { script(k) } else { k.comm == process.comm };
    let known = candidates.iter().find(matches).or_else(|| SCRIPTS.iter().find(|k| k.comm == process.comm))?;
    if known.option.is_some_and(|option| !words.contains(&option)) {
        return None;
    }
    notes.get(&format!("/proc/{}/comm", process.pid), |_| Ok(()));
    notes.get(&format!("/proc/{}/cmdline", process.pid), |_| Ok(()));
    Some(Writer { name: known.name.to_owned(), pid: process.pid, writes: known.writes.to_vec() })
}

fn link_files(notes: &Notes<'_>, udev: &Process) -> Vec<Writer> {
    let root = notes.root.unrecorded();
    let mut writers = Vec::new();
    for dir in LINK_DIRS {
        let names = root.list(dir).unwrap_or_default();
        for name in names.iter().filter(|name| name.ends_with(".link")) {
            let path = format!("{dir}/{name}");
            let text = root.read(&path).unwrap_or_default();
            if text.lines().any(|line| LINK_KEYS.iter().any(|key| line.trim_start().starts_with(key))) {
                notes.get(&path, |_| Ok(()));
                notes.get(&format!("/proc/{}/comm", udev.pid), |_| Ok(()));
                writers.push(Writer {
                    name: format!("systemd-udevd ({path})"),
                    pid: udev.pid,
                    writes: vec![WriterKnob::LaterDevices],
                });
            }
        }
    }
    writers
}
