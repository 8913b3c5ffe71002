//! What limits netsilo on a machine: what works worse because something is missing, and how to fix
//! it.

use netsilo_model::snapshot::attribution::Hook;
use netsilo_model::snapshot::host::{OwnedKnob, Snapshot};
use netsilo_model::snapshot::prerequisites::{Capability, KernelFeature, Prerequisites};
use netsilo_model::snapshot::subject::Subject;
use serde::Serialize;

use crate::judge::findings::Severity;
use crate::plan::leave_alone::line_for;

/// What is judged.
#[derive(Debug)]
pub struct Machine<'a> {
    /// What the kernel offers, and what this process may do.
    pub prerequisites: &'a Prerequisites,
    /// Everything that was read. Its programs and its gaps are judged.
    pub snapshot: &'a Snapshot,
    /// Each eBPF hook, with the reason if it is not attached.
    pub hooks: &'a [Hook],
    /// The daemon, its configuration and the journal.
    pub daemon: DaemonFacts,
}

/// The daemon, its configuration and the journal, each with the reason if it cannot be used.
#[derive(Debug, Clone, Default)]
pub struct DaemonFacts {
    /// What the running daemon does, in a few words; `None` if none runs.
    pub running: Option<String>,
    /// Why the running daemon does less than it should.
    pub hindered: Option<String>,
    /// Why the configuration is refused.
    pub bad_configuration: Option<String>,
    /// Transactions whose values may still be in the kernel.
    pub open_transactions: usize,
    /// How many of them were interrupted.
    pub unfinished_transactions: usize,
    /// Why the journal cannot be read.
    pub bad_journal: Option<String>,
}

/// The result: each area with its problems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosis {
    /// Increased when a field changes its meaning or is removed.
    pub schema: u32,
    /// All areas, in a fixed order.
    pub areas: Vec<Area>,
}

/// One area.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Area {
    /// Its name.
    pub name: &'static str,
    /// The severity of the most severe problem; `ok` without a problem.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What works worse, most severe first.
    pub problems: Vec<Problem>,
}

/// One thing that limits netsilo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// How much it limits.
    pub severity: Severity,
    /// What is missing, or prevents something.
    pub what: String,
    /// What netsilo cannot do, or does worse.
    pub degraded: String,
    /// How to fix it.
    pub fix: String,
}

impl Diagnosis {
    /// The severity of the gravest problem.
    pub fn severity(&self) -> Severity {
        self.areas.iter().map(|area| area.severity).max().unwrap_or(Severity::Ok)
    }
}

/// Judges a machine.
pub fn diagnose(machine: &Machine<'_>) -> Diagnosis {
    let areas = vec![
        kernel(machine.prerequisites),
        privileges(machine.prerequisites),
        hooks(machine.hooks),
        readings(machine),
        other_programs(machine.snapshot),
        daemon(&machine.daemon),
        journal(&machine.daemon),
    ];
    Diagnosis { schema: 1, areas }
}

fn area(name: &'static str, found: String, mut problems: Vec<Problem>) -> Area {
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
    let severity = problems.first().map_or(Severity::Ok, |problem| problem.severity);
    Area { name, severity, found, problems }
}

fn problem(
    severity: Severity,
    what: impl Into<String>,
    degraded: impl Into<String>,
    fix: impl Into<String>,
) -> Problem {
    Problem { severity, what: what.into(), degraded: degraded.into(), fix: fix.into() }
}

fn kernel(machine: &Prerequisites) -> Area {
    let lacks = |feature: &KernelFeature| match feature {
        // The kernel has both or none; only the table of RFS is missing in other namespaces.
        KernelFeature::Rfs if !machine.missing.contains(&KernelFeature::Rps) => problem(
            Severity::Info,
            "RFS's table is not shown in this network namespace",
            "plan does not offer RFS",
            "run netsilo in the host's network namespace",
        ),
        feature => lacking(*feature),
    };
    let mut problems: Vec<Problem> = machine.missing.iter().map(lacks).collect();
    if machine.lockdown.as_deref() == Some("confidentiality") {
        problems.push(problem(
            Severity::Warning,
            "lockdown mode confidentiality",
            "eBPF may not read kernel memory: only TCP has readers, by sock_diag",
            "boot with lockdown=integrity, if your rules allow it",
        ));
    }
    for point in &machine.read_only {
        problems.push(problem(
            Severity::Warning,
            format!("{point} is mounted read-only"),
            "apply and run cannot write the settings below it",
            "run netsilo on the host, not in a container",
        ));
    }
    let mode = machine.lockdown.as_ref().map_or(String::new(), |mode| format!(", lockdown {mode}"));
    let release = machine.release.as_deref().unwrap_or("release unknown");
    let btf = if machine.missing.contains(&KernelFeature::Btf) { "no BTF" } else { "BTF" };
    area("kernel", format!("{release}, {btf}{mode}"), problems)
}

/// What does not work without a feature of the kernel (`docs/kernel.md` has the releases).
fn lacking(feature: KernelFeature) -> Problem {
    let newer = |what: &str, since: &str, degraded: &str| {
        problem(Severity::Info, what, degraded, format!("use a kernel of {since} or later"))
    };
    let built = |what: &str, option: &str, degraded: &str| {
        problem(Severity::Info, what, degraded, format!("use a kernel with {option}"))
    };
    match feature {
        KernelFeature::Btf => problem(
            Severity::Warning,
            "no BTF (/sys/kernel/btf/vmlinux)",
            "no eBPF: only TCP has readers, by sock_diag; no softirq time",
            "use a kernel of 5.12 or later with CONFIG_DEBUG_INFO_BTF",
        ),
        KernelFeature::CountsByInterrupt => newer(
            "no counts in /sys/kernel/irq",
            "4.9",
            "/proc/interrupts is read instead, which costs more with many CPUs",
        ),
        KernelFeature::EffectiveAffinity => newer(
            "no effective_affinity of interrupts",
            "4.13",
            "the CPU of an interrupt is known by its counts only",
        ),
        KernelFeature::Rps => built("no RPS", "CONFIG_RPS", "plan does not offer RPS"),
        KernelFeature::Rfs => built("no RFS", "CONFIG_RPS", "plan does not offer RFS"),
        KernelFeature::Xps => built("no XPS", "CONFIG_XPS", "plan does not offer XPS"),
        KernelFeature::ThreadedNapi => {
            newer("no threaded NAPI", "5.12", "netsilo plan cannot offer threaded NAPI")
        }
        KernelFeature::RpsDefaultMask => newer(
            "no net.core.rps_default_mask",
            "6.3",
            "netdevs that appear later start without RPS",
        ),
    }
}

fn privileges(machine: &Prerequisites) -> Area {
    let lacks = |capability| machine.has(capability) == Some(false);
    let mut problems = Vec::new();
    if lacks(Capability::SysAdmin) && (lacks(Capability::Bpf) || lacks(Capability::Perfmon)) {
        problems.push(problem(
            Severity::Warning,
            "neither CAP_SYS_ADMIN nor CAP_BPF and CAP_PERFMON",
            "no eBPF: only TCP of your own processes has readers; no softirq time",
            "run netsilo as root",
        ));
    }
    if machine.euid.is_some_and(|uid| uid != 0) || lacks(Capability::NetAdmin) {
        problems.push(problem(
            Severity::Info,
            "not root with CAP_NET_ADMIN",
            "apply, pin, tune and run cannot write; undo cannot restore",
            "run these as root",
        ));
    } else if lacks(Capability::SysNice) {
        problems.push(problem(
            Severity::Info,
            "no CAP_SYS_NICE",
            "NAPI kthreads and consumers cannot be moved",
            "add CAP_SYS_NICE",
        ));
    }
    let show = |name: &str, value: Option<i64>| value.map(|value| format!("{name} {value}"));
    let found = [
        machine.euid.map(|uid| if uid == 0 { "root".into() } else { format!("user {uid}") }),
        show("unprivileged_bpf_disabled", machine.unprivileged_bpf_disabled),
        show("perf_event_paranoid", machine.perf_event_paranoid),
    ];
    area("privileges", found.into_iter().flatten().collect::<Vec<_>>().join(", "), problems)
}

/// Groups refused hooks by reason. If there are several ways to count the same, one is enough.
fn hooks(hooks: &[Hook]) -> Area {
    let attached = |quantity: &str| {
        hooks.iter().any(|hook| hook.quantity == quantity && hook.refused.is_none())
    };
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    let replaced = |hook: &Hook| {
        ["udp bytes", "wakeups"].contains(&hook.quantity.as_str()) && attached(&hook.quantity)
    };
    for hook in hooks.iter().filter(|hook| !replaced(hook)) {
        let Some(reason) = hook.refused.as_deref() else { continue };
        let at = by_reason.iter().position(|(known, _)| *known == reason);
        let at = at.unwrap_or_else(|| {
            by_reason.push((reason, Vec::new()));
            by_reason.len() - 1
        });
        if !by_reason[at].1.contains(&hook.quantity.as_str()) {
            by_reason[at].1.push(&hook.quantity);
        }
    }
    let mut problems: Vec<Problem> = by_reason
        .into_iter()
        .map(|(reason, quantities)| {
            problem(
                Severity::Warning,
                reason,
                format!("not counted: {}", quantities.join(", ")),
                "see the areas kernel and privileges; docs/kernel.md has each hook",
            )
        })
        .collect();
    let runs = |name| hooks.iter().any(|it| it.refused.is_none() && it.hook.contains(name));
    if runs("sock_recv_length") && !runs("cgroup_skb") {
        problems.push(problem(
            Severity::Info,
            "fentry, kprobes and programs of cgroups are refused for UDP",
            "a socket that reads from several queues is shown on one of them, as approximate",
            "mount cgroup v2, or allow fentry or kprobes (CONFIG_KPROBES, CONFIG_FUNCTION_TRACER)",
        ));
    }
    let wakeups = hooks.iter().find(|hook| hook.quantity == "wakeups" && replaced(hook));
    problems.extend(wakeups.and_then(|hook| hook.refused.as_deref()).map(|reason| {
        problem(
            Severity::Info,
            reason,
            "wakeups are counted, but not how many find their cpu idle",
            "use a kernel with CONFIG_KALLSYMS_ALL",
        )
    }));
    let running = hooks.iter().filter(|hook| hook.refused.is_none()).count();
    area("eBPF hooks", format!("{running} of {} attached", hooks.len()), problems)
}

/// What could not be read. Names at most three gaps.
fn readings(machine: &Machine<'_>) -> Area {
    const NAMED: usize = 3;
    let gap = |gap: &netsilo_model::snapshot::host::Gap| {
        problem(
            Severity::Info,
            format!("{}: {}", gap.what, gap.why),
            "reports lack the data that depends on it",
            "run netsilo on the host as root; netsilo show --json lists all gaps",
        )
    };
    let gaps = &machine.snapshot.gaps;
    let found = match gaps.len() {
        0 if machine.prerequisites.euid != Some(0) => {
            "what this user may read was read: not the sockets of other users' processes".to_owned()
        }
        0 => "everything expected was read".to_owned(),
        1 => "1 value could not be read".to_owned(),
        more => format!("{more} values could not be read"),
    };
    area("readings", found, gaps.iter().take(NAMED).map(gap).collect())
}

fn other_programs(snapshot: &Snapshot) -> Area {
    let problems = snapshot.knob_owners.iter().map(|program| {
        let now = |knob: &&OwnedKnob| !matches!(knob, OwnedKnob::LaterDevices | OwnedKnob::Sysctls);
        let contended = program.writes.iter().any(|knob| now(&knob));
        let severity =
            if contended && program.bans.is_none() { Severity::Warning } else { Severity::Info };
        let knobs: Vec<String> =
            program.writes.iter().map(|knob| Subject::Settings(*knob).to_string()).collect();
        let answers = program.bans.is_some();
        let degraded = if answers {
            "plan and run tell it to leave their interrupts alone; it keeps all others".to_owned()
        } else if contended {
            "plan and run do not change these settings".to_owned()
        } else {
            "it may write them again when devices or containers appear".to_owned()
        };
        let what = format!("{} (pid {}) writes {}", program.name, program.pid, knobs.join(", "));
        let fix = if answers {
            "nothing to do".to_owned()
        } else {
            format!("stop it, or {}", line_for(&program.name))
        };
        problem(severity, what, degraded, fix)
    });
    let problems: Vec<Problem> = problems.collect();
    let found = match problems.len() {
        0 => "no other program writes these settings".to_owned(),
        count => format!("{count} found"),
    };
    area("other programs", found, problems)
}

fn daemon(daemon: &DaemonFacts) -> Area {
    let mut problems = Vec::new();
    if let Some(why) = &daemon.bad_configuration {
        problems.push(problem(
            Severity::Critical,
            why,
            "the daemon does not start, or keeps its previous configuration",
            "correct it, then netsilo run --check-config",
        ));
    }
    if let Some(why) = &daemon.hindered {
        let fix = "netsilo status has the details; journalctl -u netsilo has the log";
        problems.push(problem(Severity::Warning, why, "the daemon does less than it should", fix));
    }
    let found = daemon.running.clone().unwrap_or_else(|| "not running".to_owned());
    area("daemon", found, problems)
}

fn journal(daemon: &DaemonFacts) -> Area {
    let mut problems = Vec::new();
    if let Some(why) = &daemon.bad_journal {
        let degraded = "undo cannot restore; apply and run refuse to write";
        problems.push(problem(Severity::Critical, why, degraded, "see the message"));
    }
    if daemon.unfinished_transactions > 0 {
        problems.push(problem(
            Severity::Warning,
            "a transaction was interrupted",
            "its settings may be half written; apply refuses",
            "netsilo undo",
        ));
    }
    let found = match daemon.open_transactions {
        0 => "nothing to undo".to_owned(),
        1 => "1 transaction can be undone".to_owned(),
        more => format!("{more} transactions can be undone"),
    };
    area("journal", found, problems)
}

#[cfg(test)]
mod tests;
