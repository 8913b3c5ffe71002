//! Finds running programs that write the same knobs as netsilo.

use std::io;
use std::time::Duration;

use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::pid_stat::pid_stat;
use netsilo_model::snapshot::host::{IrqBans, KnobOwner, OwnedKnob};

use crate::irqbalance::{FOLDER, Irqbalance, longest_message};
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
    // moves interrupts when a pod with claims or masks of interrupts starts or ends
    known("nri-plugins", "nri-resource-policy", &[OwnedKnob::LaterDevices]),
    known("packet-steering.uc", "packet-steering.uc", &[OwnedKnob::Rps]),
    known(
        "ecs_mq_rps_rfs",
        "ecs_mq_rps_rfs",
        &[OwnedKnob::IrqAffinity, OwnedKnob::Rps, OwnedKnob::Xps],
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

/// Files by which a running program writes knobs when a device or connection appears.
struct SettingFiles {
    /// The names of its process.
    comms: &'static [&'static str],
    /// The end of the files' names.
    suffix: &'static str,
    dirs: &'static [&'static str],
    /// How a line with such a setting begins (`IRQAffinity`: every key of this family).
    starts: &'static [&'static str],
    /// What a line with such a setting contains, after what may be a comment's `#`.
    contains: &'static [&'static str],
}

const FILES: &[SettingFiles] = &[
    SettingFiles {
        comms: &["systemd-udevd", "(udev-worker)"],
        suffix: ".link",
        dirs: &["/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network"],
        starts: &[
            "IRQAffinity",
            "ReceivePacketSteeringCPUMask=",
            "RxChannels=",
            "CombinedChannels=",
            "RxBufferSize=",
            "RxCoalesceSec=",
            "UseAdaptiveRxCoalesce=",
            "NTupleFilter=",
        ],
        contains: &[],
    },
    // azure-vm-utils: `ethtool -C %k rx-cqe-frames`; Alibaba's `ecs_mq_rps_rfs`
    SettingFiles {
        comms: &["systemd-udevd", "(udev-worker)"],
        suffix: ".rules",
        dirs: &["/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d"],
        starts: &[],
        contains: &[
            "ethtool -C",
            "ethtool -G",
            "ethtool -K",
            "ethtool -L",
            "ethtool -N",
            "ethtool -X",
            "rps_",
            "xps_cpus",
            "smp_affinity",
        ],
    },
    // section [ethtool] (`libnm-base/nm-ethtool-base.c`)
    SettingFiles {
        comms: &["NetworkManager"],
        suffix: ".nmconnection",
        dirs: &[
            "/etc/NetworkManager/system-connections",
            "/run/NetworkManager/system-connections",
            "/usr/lib/NetworkManager/system-connections",
        ],
        starts: &["channels-", "coalesce-", "feature-", "ring-"],
        contains: &[],
    },
    // OpenWrt: at each event of an interface
    SettingFiles {
        comms: &["netifd"],
        suffix: "packet-steering.uc",
        dirs: &["/usr/libexec/network"],
        starts: &[],
        contains: &["rps_cpus"],
    },
    SettingFiles {
        comms: &["netifd"],
        suffix: "packet-steering",
        dirs: &["/etc/hotplug.d/net"],
        starts: &[],
        contains: &["rps_cpus", "xps_cpus"],
    },
];

impl SettingFiles {
    /// The lines with such settings, of a rule only what tells them (it may name addresses);
    /// `None` without any.
    fn settings(&self, text: &str) -> Option<String> {
        let keep = |line: &str| {
            let line = line.trim_start();
            if self.starts.iter().any(|it| line.starts_with(it)) {
                return Some(format!("{line}\n"));
            }
            let told = self.contains.iter().find(|it| line.contains(*it));
            told.filter(|_| !line.starts_with('#')).map(|it| format!("{it}\n"))
        };
        let kept: String = text.lines().filter_map(keep).collect();
        (!kept.is_empty()).then_some(kept)
    }
}

/// All programs that write these knobs, also by their files of settings.
pub(crate) fn knob_owners(notes: &Notes<'_>, processes: &[Process]) -> Vec<KnobOwner> {
    let mut owners: Vec<KnobOwner> =
        processes.iter().filter_map(|process| owner(notes, process)).collect();
    for files in FILES {
        let by_comm = |process: &&Process| files.comms.contains(&process.comm.as_str());
        if let Some(process) = processes.iter().find(by_comm) {
            owners.extend(by_files(notes, files, process));
        }
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
    let bans = if known.name == "irqbalance" { bans(notes, process.pid) } else { None };
    let (name, writes) = (known.name.to_owned(), known.writes.to_vec());
    Some(KnobOwner { name, pid: process.pid, writes, bans })
}

/// How long irqbalance may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What an irqbalance leaves alone; `None` if it does not answer.
fn bans(notes: &Notes<'_>, pid: u32) -> Option<IrqBans> {
    let ask = || -> io::Result<IrqBans> {
        let stat = notes.root.unrecorded().parse(&format!("/proc/{pid}/stat"), pid_stat);
        let start_time = stat.map_err(io::Error::other)?.start_time;
        let irqs = Irqbalance::new(FOLDER, pid, PATIENCE).banned()?;
        Ok(IrqBans { start_time, irqs, most_bytes: longest_message(pid) })
    };
    let ask = || ask().map_or_else(|e| Reading::Absent(e.to_string()), Reading::Value);
    let answer = notes.root.answer(&format!("irqbalance/{pid}.json"), ask);
    let answer: Option<Reading<IrqBans>> = notes.note(answer).flatten();
    match answer? {
        Reading::Value(bans) => Some(bans),
        Reading::Absent(_) => None,
    }
}

/// Whether `comm` is the name of this file. The kernel keeps 15 bytes of the name, also for a
/// script with `#!`.
fn is_comm(file: &str, comm: &str) -> bool {
    file == comm || comm.len() == 15 && file.starts_with(comm)
}

/// Whether this is an interpreter (`python3.11`, `bash`). Then the script is in the command line.
fn interpreter(comm: &str) -> bool {
    let version = |rest: &str| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    ["python", "perl", "bash", "sh", "ucode"]
        .iter()
        .any(|name| comm.strip_prefix(name).is_some_and(version))
}

fn by_files(notes: &Notes<'_>, files: &SettingFiles, process: &Process) -> Vec<KnobOwner> {
    let mut owners = Vec::new();
    for dir in files.dirs {
        let names = notes.root.unrecorded().list(dir).unwrap_or_default();
        for name in names.iter().filter(|name| name.ends_with(files.suffix)) {
            let path = format!("{dir}/{name}");
            let kept = notes.root.kept(&path, |text| files.settings(text));
            if kept.is_ok_and(|kept| kept.is_some()) {
                notes.get(&format!("/proc/{}/comm", process.pid), |_| Ok(()));
                owners.push(KnobOwner {
                    name: format!("{} ({path})", files.comms[0]),
                    pid: process.pid,
                    writes: vec![OwnedKnob::LaterDevices],
                    bans: None,
                });
            }
        }
    }
    owners
}
