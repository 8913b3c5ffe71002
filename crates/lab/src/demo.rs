//! `make demo`: netsilo's main task with well-known servers, from the problem to the proof, and
//! back.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{CellAlignment, Table, presets};
use netsilo_lab::{Accel, Kernel, Lab, NicModel, Spec, Threads, irqbalance};
use netsilo_trial::stats::median;

use crate::built;
use crate::counters::Counters;
use crate::knobs::Knobs;
use crate::locality::Shares;
use crate::say::say;
use crate::workload::{Kind, Workload, WorkloadMeasured, while_busy};

/// Number of rounds of the measurement. Each round measures every placement in turn.
const ROUNDS: usize = 5;

/// The CPUs of the two redis servers, on two cores of socket 0.
const REDIS_CPUS: [u32; 2] = [1, 2];

/// The CPUs of the two nginx workers, on two cores of socket 1.
const NGINX_CPUS: [u32; 2] = [5, 6];

/// Arguments of the demo.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Demo {
    /// Kernel to boot
    #[arg(long, value_enum, default_value_t = Kernel::V6_1)]
    kernel: Kernel,
    /// How the emulator runs the CPUs. If they run one at a time, a queue away from its reader is
    /// polled late, and in batches that no real machine has
    #[arg(long, value_enum, default_value_t = Threads::Multi)]
    threads: Threads,
    /// Leave out the last part, which observes this machine without changing it
    #[arg(long)]
    no_own_machine: bool,
}

/// One placement of the interrupts.
struct Placement {
    name: &'static str,
    /// The CPU of each interrupt of the NIC's queues.
    cpus: Vec<(u32, u32)>,
    /// Shares of the bytes, by the distance to their readers.
    bytes: Shares,
    rounds: Vec<Round>,
}

/// A measurement of redis, then of nginx.
struct Round {
    redis: WorkloadMeasured,
    nginx: WorkloadMeasured,
}

impl Round {
    /// Events of both measurements per request.
    fn per_request(&self, count: fn(&Counters) -> u64) -> f64 {
        let both = [&self.redis, &self.nginx];
        let events: u64 = both.iter().map(|measured| count(&measured.spent)).sum();
        let requests: f64 = both.iter().map(|measured| measured.clients.transactions).sum();
        events as f64 / requests
    }
}

struct DemoGuest<'a> {
    lab: &'a Lab,
    redis: Workload<'a>,
    nginx: Workload<'a>,
    netsilo: String,
}

/// Runs the demo.
pub(crate) fn run(demo: &Demo) -> Result<()> {
    say("netsilo's main task: find the problem, plan, apply, prove, undo")?;
    say("A guest with 8 CPUs on 2 sockets and a virtio NIC with 4 queues. redis runs on CPUs 1")?;
    say("and 2, nginx's workers on CPUs 5 and 6; redis-benchmark and wrk run outside.")?;
    let spec = Spec { threads: demo.threads, ..Spec::new(demo.kernel, NicModel::VirtioNet) };
    let lab = Lab::boot(&spec)?;
    let guest = DemoGuest {
        lab: &lab,
        redis: Workload::start(Kind::Redis, &lab, &REDIS_CPUS)?,
        nginx: Workload::start(Kind::Nginx, &lab, &NGINX_CPUS)?,
        netsilo: built::netsilo()?.display().to_string(),
    };

    let booted = guest.placement("as booted")?;

    chapter("Debian's irqbalance places them")?;
    guest.irqbalance()?;
    let before = Knobs::read(&lab)?;
    let balanced = guest.placement("irqbalance")?;

    chapter("netsilo")?;
    guest.while_busy(|| {
        guest.check()?;
        guest.netsilo("plan --interval 2s")?;
        guest.netsilo("apply --yes --confirm-within 60s --interval 2s")?;
        guest.netsilo("confirm")
    })?;
    let applied = Knobs::read(&lab)?;
    let placed = guest.placement("netsilo")?;

    chapter("results")?;
    let placements = guest.measure_in_turn([booted, balanced, placed])?;
    applied.write(&lab)?;
    say(&comparison(&placements))?;
    say(caveat(&lab))?;

    chapter("undo")?;
    guest.netsilo("undo")?;
    let after = Knobs::read(&lab)?;
    ensure!(after == before, "not all settings are restored:\n{}", before.lines(&after));
    say(&format!("all {} settings are restored, byte for byte", before.len()))?;
    if demo.no_own_machine {
        return Ok(());
    }
    drop(guest);
    drop(lab);
    chapter("your own machine, two seconds each, nothing is changed")?;
    on_this_machine()
}

impl DemoGuest<'_> {
    /// Keeps all servers busy while `work` runs.
    fn while_busy<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        while_busy(&[&self.redis, &self.nginx], work)
    }

    /// Reads where the interrupts are, and lets netsilo observe where the data is read.
    fn placement(&self, name: &'static str) -> Result<Placement> {
        let bytes = self.while_busy(|| Shares::read(self.lab, &self.netsilo))?;
        let bytes = bytes.context("netsilo saw nobody read")?;
        let cpus = self
            .lab
            .sh("for irq in $(sed -nE 's/^ *([0-9]+):.* virtio[0-9]+-(in|out)put.*/\\1/p' \
             /proc/interrupts); do echo $irq $(cat /proc/irq/$irq/effective_affinity_list); done")?;
        ensure!(!cpus.is_empty(), "no interrupts of virtio-net's queues");
        let numbers = |line: &str| -> Option<(u32, u32)> {
            let (irq, cpu) = line.split_once(' ')?;
            Some((irq.parse().ok()?, cpu.parse().ok()?))
        };
        let cpus = cpus.lines().map(|line| numbers(line).context(line.to_owned()));
        Ok(Placement { name, cpus: cpus.collect::<Result<_>>()?, bytes, rounds: vec![] })
    }

    /// Moves the interrupts to the CPUs of this placement.
    fn set(&self, placement: &Placement) -> Result<()> {
        let write =
            |(irq, cpu): &(u32, u32)| format!("echo {cpu} >/proc/irq/{irq}/smp_affinity_list");
        let writes: Vec<String> = placement.cpus.iter().map(write).collect();
        self.lab.sh(&writes.join("; ")).map(drop)
    }

    /// Measures each placement in every round, in varying order, because a guest's speed changes
    /// with time.
    fn measure_in_turn<const N: usize>(
        &self,
        mut placements: [Placement; N],
    ) -> Result<[Placement; N]> {
        for round in 0..ROUNDS {
            for turn in 0..N {
                let placement = &mut placements[(round + turn) % N];
                self.set(placement)?;
                placement
                    .rounds
                    .push(Round { redis: self.redis.measure(1)?, nginx: self.nginx.measure(1)? });
            }
            say(&format!("round {} of {ROUNDS}: {N} placements measured in turn", round + 1))?;
        }
        Ok(placements)
    }

    /// Lets irqbalance place the interrupts once, under load.
    fn irqbalance(&self) -> Result<()> {
        let program = irqbalance()?.display().to_string();
        say("# irqbalance --oneshot --interval=2")?;
        let command = format!("{program} --foreground --oneshot --interval=2");
        self.while_busy(|| self.lab.run(&command)?.ok().map(drop))
    }

    /// Prints what `check` reports about the placement, and the first lines of its other findings.
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

    /// Runs netsilo in the guest and prints the command and its output.
    fn netsilo(&self, arguments: &str) -> Result<()> {
        say(&format!("# netsilo {arguments}"))?;
        let output = self.lab.run(&format!("{} {arguments} 2>&1", self.netsilo))?;
        say(&output.text())?;
        if output.status != 0 {
            bail!("netsilo {arguments} ended with {}", output.status);
        }
        Ok(())
    }
}

/// Shows and checks this machine.
fn on_this_machine() -> Result<()> {
    for verb in ["show", "check"] {
        say(&format!("# netsilo {verb} --interval 2s"))?;
        let output = Command::new(built::netsilo()?)
            .args([verb, "--interval", "2s"])
            .output()
            .with_context(|| format!("cannot run netsilo {verb}"))?;
        say(&String::from_utf8_lossy(&output.stdout))?;
        say(&String::from_utf8_lossy(&output.stderr))?;
    }
    Ok(())
}

fn p99_ms(measured: &WorkloadMeasured) -> f64 {
    measured.clients.p99_ms.unwrap_or(f64::NAN)
}

/// One column per placement and one row per figure. The last column compares the last placement
/// with the best of the others.
fn comparison(placements: &[Placement]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let names = placements.iter().map(|placement| placement.name);
    table.set_header(std::iter::once("").chain(names).chain(["vs. the best other"]));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut row = |what: &str, unit: &str, more_is_better: bool, figures: &[Vec<f64>]| {
        let digits: usize = if unit.is_empty() { 3 } else { 0 };
        let median = |figures: &Vec<f64>| median(figures).unwrap_or(f64::NAN);
        let cells = figures.iter().map(|it| format!("{:.digits$}{unit}", median(it)));
        // Values that look equal when printed count as equal.
        let scale = 10_f64.powi(digits as i32);
        let round = |figure: &f64| (figure * scale).round() / scale;
        let shown: Vec<Vec<f64>> =
            figures.iter().map(|rounds| rounds.iter().map(round).collect()).collect();
        let versus = versus_best(&shown, more_is_better);
        table.add_row(std::iter::once(what.to_owned()).chain(cells).chain([versus]));
    };
    let mut measured = |what: &str, unit: &str, more_is_better: bool, of: fn(&Round) -> f64| {
        let figures = |it: &Placement| it.rounds.iter().map(of).collect();
        row(what, unit, more_is_better, &placements.iter().map(figures).collect::<Vec<_>>());
    };
    measured("redis requests/s", "/s", true, |it| it.redis.clients.per_second);
    measured("redis p99", " ms", false, |it| p99_ms(&it.redis));
    measured("nginx requests/s", "/s", true, |it| it.nginx.clients.per_second);
    measured("nginx p99", " ms", false, |it| p99_ms(&it.nginx));
    measured("IPIs per request", "", false, |it| it.per_request(|spent| spent.calls));
    measured("NET_RX softirqs per request", "", false, |it| it.per_request(|spent| spent.net_rx));
    let mut share = |what: &str, more_is_better: bool, of: fn(&Placement) -> f64| {
        let figures = |it: &Placement| vec![of(it) * 100.0];
        row(what, "%", more_is_better, &placements.iter().map(figures).collect::<Vec<_>>());
    };
    share("bytes read on the CPU that processed them", true, |it| it.bytes.same_cpu);
    share("bytes read on the other socket", false, |it| it.bytes.remote);
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The median of the last placement's rounds compared with the best median of the others, and in
/// how many rounds it is better: `+21% better (4 of 5)`.
fn versus_best(figures: &[Vec<f64>], more_is_better: bool) -> String {
    let Some((last, others)) = figures.split_last() else { return String::new() };
    let is_better = |a: f64, b: f64| if more_is_better { a > b } else { a < b };
    let of = |rounds: &[f64]| median(rounds).unwrap_or(f64::NAN);
    let best = others.iter().reduce(|a, b| if is_better(of(b), of(a)) { b } else { a });
    let Some(best) = best else { return String::new() };
    let (ours, theirs) = (of(last), of(best));
    if (ours / theirs - 1.0).abs() < 0.03 || ours == theirs {
        return "same".into();
    }
    let better = is_better(ours, theirs);
    let word = if better { "better" } else { "worse" };
    let change = match theirs {
        0.0 => word.into(),
        _ => format!("{:+.0}% {word}", (ours / theirs - 1.0) * 100.0),
    };
    let rounds = last.len();
    let agree = last.iter().zip(best).filter(|(a, b)| a != b && is_better(**a, **b) == better);
    if rounds == 1 { change } else { format!("{change} ({} of {rounds})", agree.count()) }
}

fn caveat(lab: &Lab) -> &'static str {
    match lab.accel() {
        Accel::Kvm => "The guest's CPUs are real (KVM); its NIC is virtio.",
        _ => {
            "Emulated CPUs: counts and shares of bytes do not depend on their speed. Compare times \
             and requests/s only within this table."
        }
    }
}

fn chapter(title: &str) -> Result<()> {
    say(&format!("\n=== {title}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_placement_is_compared_with_the_best_other() {
        let versus = |figures: [&[f64]; 3], more_is_better| {
            versus_best(&figures.map(<[f64]>::to_vec), more_is_better)
        };
        assert_eq!(versus([&[100.0], &[120.0], &[180.0]], true), "+50% better");
        assert_eq!(versus([&[0.2], &[0.1], &[0.05]], false), "-50% better");
        assert_eq!(versus([&[0.0], &[70.0], &[0.0]], false), "same");
        assert_eq!(versus([&[0.0], &[70.0], &[1.0]], false), "worse");
        let rounds: [&[f64]; 3] = [&[100.0, 100.0, 300.0], &[1.0, 1.0, 1.0], &[120.0, 90.0, 400.0]];
        assert_eq!(versus(rounds, true), "+20% better (2 of 3)");
        assert_eq!(versus(rounds, false), "+11900% worse (3 of 3)");
    }
}
