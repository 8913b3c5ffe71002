//! `make demo`: netsilo's main task with servers that readers know, from the problem to the proof,
//! and back.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{CellAlignment, Table, presets};
use netsilo_lab::{Accel, Kernel, Lab, NicModel, Spec, Threads, irqbalance};

use crate::servers::{Measured, Servers};

/// Longest time that the servers are busy while netsilo or irqbalance observes them.
const WATCHED_SECONDS: u32 = 90;

/// Arguments of the demo.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Demo {
    /// Kernel to boot
    #[arg(long, value_enum, default_value_t = Kernel::V6_1)]
    kernel: Kernel,
    /// How the emulator runs the CPUs: one at a time, a queue away from its reader is polled late
    /// and in batches that no real machine has
    #[arg(long, value_enum, default_value_t = Threads::Multi)]
    threads: Threads,
    /// Leave out the last part, which looks at this machine without changing it
    #[arg(long)]
    no_own_machine: bool,
}

/// The measurements of one placement.
struct Placement {
    name: &'static str,
    measured: Measured,
    /// Share of the bytes read on the CPU that processed them, and on another socket.
    same_cpu: f64,
    remote: f64,
}

struct DemoGuest<'a> {
    lab: &'a Lab,
    servers: Servers<'a>,
    netsilo: String,
}

/// Runs the demo.
pub(crate) fn run(demo: &Demo) -> Result<()> {
    say("netsilo's main task: find the problem, plan, apply, prove, undo")?;
    say("A guest with 8 CPUs on 2 sockets and a virtio NIC with 4 queues. redis runs on CPUs 1")?;
    say("and 2, nginx's workers on CPUs 5 and 6; redis-benchmark and wrk run outside.")?;
    let spec = Spec { threads: demo.threads, ..Spec::new(demo.kernel, NicModel::VirtioNet) };
    let lab = Lab::boot(&spec)?;
    let netsilo = built_beside("netsilo")?.display().to_string();
    let guest = DemoGuest { lab: &lab, servers: Servers::start(&lab)?, netsilo };

    chapter("interrupts as booted")?;
    let booted = guest.placement("as booted")?;
    chapter("as Debian's irqbalance places them")?;
    guest.irqbalance()?;
    let before = guest.settings()?;
    let balanced = guest.placement("irqbalance")?;

    chapter("netsilo")?;
    let busy = guest.servers.keep_busy(WATCHED_SECONDS)?;
    guest.check()?;
    guest.netsilo("plan --interval 2s")?;
    guest.netsilo("apply --yes --confirm-within 60s --interval 2s")?;
    guest.netsilo("confirm")?;
    for job in busy {
        job.stop()?;
    }
    let placed = guest.placement("netsilo")?;

    chapter("results")?;
    say(&comparison(&[booted, balanced, placed]))?;
    say(caveat(&lab))?;

    chapter("undo")?;
    guest.netsilo("undo")?;
    let after = guest.settings()?;
    ensure!(after == before, "not all settings are restored:\n{}", differences(&before, &after));
    say(&format!("all {} settings are restored, byte for byte", before.lines().count()))?;
    if demo.no_own_machine {
        return Ok(());
    }
    drop(guest);
    drop(lab);
    chapter("your own machine, two seconds each, nothing is changed")?;
    on_this_machine()
}

impl DemoGuest<'_> {
    /// Measures without netsilo, then lets it look at where the data is read.
    fn placement(&self, name: &'static str) -> Result<Placement> {
        let measured = self.servers.measure()?;
        let busy = self.servers.keep_busy(WATCHED_SECONDS)?;
        let report: serde_json::Value =
            serde_json::from_str(&self.lab.sh(&format!("{} show -i 2s -j", self.netsilo))?)?;
        for job in busy {
            job.stop()?;
        }
        let shares = &report["totals"]["locality"]["shares"];
        ensure!(shares.is_object(), "a report without locality: {report}");
        let share = |distance: &str| shares[distance].as_f64().unwrap_or(0.0);
        say(&format!(
            "measured: redis {:.0}/s, nginx {:.0}/s",
            measured.redis.0, measured.nginx.0
        ))?;
        Ok(Placement { name, measured, same_cpu: share("same_cpu"), remote: share("remote") })
    }

    /// Lets irqbalance place the interrupts once, under load.
    fn irqbalance(&self) -> Result<()> {
        let busy = self.servers.keep_busy(WATCHED_SECONDS)?;
        let program = irqbalance()?.display().to_string();
        say("# irqbalance --oneshot")?;
        self.lab.run(&format!("{program} --foreground --oneshot --interval=2"))?.ok()?;
        for job in busy {
            job.stop()?;
        }
        Ok(())
    }

    /// Prints what `check` says of the placement, and the first lines of its other findings.
    fn check(&self) -> Result<()> {
        say("# netsilo check --interval 2s     (shortened)")?;
        let output = self.lab.run(&format!("{} check --interval 2s 2>&1", self.netsilo))?;
        // 10 and 11: there are findings.
        ensure!([0, 10, 11].contains(&output.status), "check failed: {}", output.text());
        let text = output.text();
        let findings = text.split("\n\n").filter(|it| !it.starts_with("ok:"));
        for finding in findings.take_while(|it| !it.contains("packets lost  ")) {
            let whole = finding.contains("[far-from-consumers]");
            let lines = finding.lines().take(if whole { usize::MAX } else { 1 });
            say(&lines.collect::<Vec<_>>().join("\n"))?;
        }
        Ok(())
    }

    /// Runs netsilo in the guest and prints command and output.
    fn netsilo(&self, arguments: &str) -> Result<()> {
        say(&format!("# netsilo {arguments}"))?;
        let output = self.lab.run(&format!("{} {arguments} 2>&1", self.netsilo))?;
        say(&output.text())?;
        if output.status != 0 {
            bail!("netsilo {arguments} ended with {}", output.status);
        }
        Ok(())
    }

    /// Reads every setting that netsilo may write, as the kernel prints it.
    fn settings(&self) -> Result<String> {
        self.lab.sh("cd /; grep -H . \
             proc/irq/*/smp_affinity proc/irq/default_smp_affinity proc/sys/net/core/rps_* \
             sys/class/net/eth0/queues/*/rps_* sys/class/net/eth0/queues/*/xps_* \
             sys/class/net/eth0/threaded")
    }
}

/// Shows and checks this machine.
fn on_this_machine() -> Result<()> {
    for verb in ["show", "check"] {
        say(&format!("# netsilo {verb} --interval 2s"))?;
        let output = Command::new(built_beside("netsilo")?)
            .args([verb, "--interval", "2s"])
            .output()
            .with_context(|| format!("cannot run netsilo {verb}"))?;
        say(&String::from_utf8_lossy(&output.stdout))?;
        say(&String::from_utf8_lossy(&output.stderr))?;
    }
    Ok(())
}

/// Returns the path of a program in the same folder as this one.
fn built_beside(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is not built: run `cargo build --release`", path.display());
    Ok(path)
}

fn differences(before: &str, after: &str) -> String {
    let changed = before.lines().zip(after.lines()).filter(|(old, new)| old != new);
    changed.map(|(old, new)| format!("  {old} became {new}")).collect::<Vec<_>>().join("\n")
}

/// One column per placement and one row per figure; the last column compares the last placement
/// with the best of the others.
fn comparison(placements: &[Placement]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let names = placements.iter().map(|placement| placement.name);
    table.set_header(std::iter::once("").chain(names).chain(["beside the best other"]));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut row = |what: &str, unit: &str, more_is_better: bool, of: fn(&Placement) -> f64| {
        let figures: Vec<f64> = placements.iter().map(of).collect();
        let digits: usize = if unit.is_empty() { 3 } else { 0 };
        let shown = |figure: f64| format!("{figure:.digits$}{unit}");
        let cells: Vec<String> = figures.iter().copied().map(shown).collect();
        // What is shown alike is alike.
        let scale = 10_f64.powi(digits as i32);
        let rounded: Vec<f64> = figures.iter().map(|it| (it * scale).round() / scale).collect();
        let beside = beside_best(&rounded, more_is_better);
        table.add_row(std::iter::once(what.to_owned()).chain(cells).chain([beside]));
    };
    row("redis requests/s", "/s", true, |it| it.measured.redis.0);
    row("redis p99", " ms", false, |it| it.measured.redis.1);
    row("nginx requests/s", "/s", true, |it| it.measured.nginx.0);
    row("nginx p99", " ms", false, |it| it.measured.nginx.1);
    row("IPIs per request", "", false, |it| it.measured.ipis);
    row("NET_RX softirqs per request", "", false, |it| it.measured.softirqs);
    row("bytes read on the CPU that processed them", "%", true, |it| it.same_cpu * 100.0);
    row("bytes read on the other socket", "%", false, |it| it.remote * 100.0);
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The last figure beside the best of the others: `+21% better`.
fn beside_best(figures: &[f64], more_is_better: bool) -> String {
    let Some((last, others)) = figures.split_last() else { return String::new() };
    let better = if more_is_better { f64::max } else { f64::min };
    let Some(best) = others.iter().copied().reduce(better) else { return String::new() };
    if best == 0.0 {
        return if *last == 0.0 { "same".into() } else { "worse".into() };
    }
    let change = (last / best - 1.0) * 100.0;
    let word = match change {
        _ if change.abs() < 3.0 => "same",
        _ if (change > 0.0) == more_is_better => "better",
        _ => "worse",
    };
    format!("{change:+.0}% {word}")
}

fn caveat(lab: &Lab) -> &'static str {
    match lab.accel() {
        Accel::Kvm => "The guest's CPUs are real (KVM); its NIC is virtio.",
        _ => {
            "Emulated CPUs: counts and shares of bytes hold anywhere, times and requests/s only \
             beside each other, in this table."
        }
    }
}

fn chapter(title: &str) -> Result<()> {
    say(&format!("\n=== {title}\n"))
}

fn say(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_figure_is_compared_with_the_best_other() {
        assert_eq!(beside_best(&[100.0, 120.0, 180.0], true), "+50% better");
        assert_eq!(beside_best(&[0.2, 0.1, 0.05], false), "-50% better");
        assert_eq!(beside_best(&[0.2, 0.1, 0.2], false), "+100% worse");
        assert_eq!(beside_best(&[0.0, 70.0, 0.0], false), "same");
    }
}
