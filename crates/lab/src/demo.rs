//! `make demo`: netsilo's main task with well-known servers, from the problem to the proof, and
//! back.

mod true_speed;
mod versus;

use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{CellAlignment, Table, presets};
use netsilo_lab::{Accel, Kernel, Lab, NicModel, Spec, Threads, irqbalance};
use netsilo_trial::stats::median;

use crate::built;
use crate::counters::Counters;
use crate::demo::versus::{RULES, Versus};
use crate::knobs::Knobs;
use crate::locality::Shares;
use crate::say::say;
use crate::veths::busy_cpus;
use crate::workload::{Kind, Workload, WorkloadMeasured, while_busy};

/// CPUs of a guest that one free CPU of the host can carry.
const CARRIED: f64 = 4.0;

/// A guest and where its servers run: redis on socket 0, nginx on socket 1.
struct Size {
    cpus: u32,
    redis: &'static [u32],
    nginx: &'static [u32],
}

const SIZES: [Size; 2] =
    [Size { cpus: 8, redis: &[1, 2], nginx: &[5, 6] }, Size { cpus: 4, redis: &[1], nginx: &[3] }];

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

/// Runs the demo. Without a guest it shows the rest, and fails in the end.
pub(crate) fn run(demo: &Demo) -> Result<()> {
    say("netsilo's main task: find the problem, plan, apply, prove, undo")?;
    let guest = in_guest(demo, &Load::of_host()?);
    if demo.no_own_machine {
        return guest;
    }
    if guest.is_err() {
        say("the guest failed (the reason is at the end); what needs no guest follows")?;
    }
    chapter("at true speed, on this machine's own kernel")?;
    if let Err(why) = true_speed::compare() {
        say(&format!("not measured: {why:#}"))?;
    }
    chapter("your own machine, two seconds each, nothing is changed")?;
    on_this_machine()?;
    guest
}

fn in_guest(demo: &Demo, load: &Load) -> Result<()> {
    let Size { cpus, redis, nginx } = size_for(load)?;
    say(&format!(
        "A guest with {cpus} CPUs on 2 sockets and a virtio NIC with 4 queues. redis runs on {},\n\
         nginx's workers on {}; redis-benchmark and wrk run outside.",
        in_words(redis),
        in_words(nginx)
    ))?;
    let spec = Spec { threads: demo.threads, ..Spec::new(demo.kernel, NicModel::VirtioNet) };
    let lab = Lab::boot(&Spec { cpus: *cpus, ..spec }).with_context(|| {
        let Load { cpus, busy } = load;
        format!(
            "the guest needs about one CPU, and other programs used {busy:.1} of this machine's \
             {cpus}: run the demo when it is less busy"
        )
    })?;
    let guest = DemoGuest {
        lab: &lab,
        redis: Workload::start(Kind::Redis, &lab, redis)?,
        nginx: Workload::start(Kind::Nginx, &lab, nginx)?,
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
    say(&format!("all {} settings are restored, byte for byte", before.len()))
}

/// How busy this machine is with other work.
struct Load {
    cpus: usize,
    /// CPUs that other programs use.
    busy: f64,
}

impl Load {
    fn of_host() -> Result<Self> {
        Ok(Self { cpus: available_parallelism()?.get(), busy: busy_cpus()? })
    }
}

/// The guest that the host can carry. A busy host is said first.
fn size_for(load: &Load) -> Result<&'static Size> {
    let Load { cpus, busy } = load;
    let free = (*cpus as f64 - busy).max(0.0);
    let [large, small] = &SIZES;
    if *busy > 0.1 * *cpus as f64 {
        say(&format!(
            "This machine is busy: other programs use {busy:.1} of its {cpus} CPUs. The emulated \n\
             CPUs get less time then, and fewer rows of the table show a difference."
        ))?;
    }
    Ok(if free * CARRIED >= f64::from(large.cpus) - 1.0 { large } else { small })
}

/// `CPU 1`, or `CPUs 1 and 2`.
fn in_words(cpus: &[u32]) -> String {
    let all: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    format!("CPU{} {}", if all.len() == 1 { "" } else { "s" }, all.join(" and "))
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
    /// with time; until more rounds would change no word of the table.
    fn measure_in_turn<const N: usize>(
        &self,
        mut placements: [Placement; N],
    ) -> Result<[Placement; N]> {
        for round in 0..RULES.max_pairs {
            for turn in 0..N {
                let placement = &mut placements[(round + turn) % N];
                self.set(placement)?;
                placement
                    .rounds
                    .push(Round { redis: self.redis.measure(1)?, nginx: self.nginx.measure(1)? });
            }
            say(&format!("round {}: {N} placements measured in turn", round + 1))?;
            if MEASURED.iter().all(|row| row.versus(&placements).is_settled()) {
                break;
            }
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

/// A figure that each round measures.
struct Measured {
    what: &'static str,
    unit: &'static str,
    more_is_better: bool,
    of: fn(&Round) -> f64,
}

impl Measured {
    const fn more(what: &'static str, unit: &'static str, of: fn(&Round) -> f64) -> Self {
        Self { what, unit, more_is_better: true, of }
    }

    const fn less(what: &'static str, unit: &'static str, of: fn(&Round) -> f64) -> Self {
        Self { what, unit, more_is_better: false, of }
    }
}

const MEASURED: [Measured; 6] = [
    Measured::more("redis requests/s", "/s", |it| it.redis.clients.per_second),
    Measured::less("redis p99", " ms", |it| p99_ms(&it.redis)),
    Measured::more("nginx requests/s", "/s", |it| it.nginx.clients.per_second),
    Measured::less("nginx p99", " ms", |it| p99_ms(&it.nginx)),
    Measured::less("IPIs per request", "", |it| it.per_request(|spent| spent.calls)),
    Measured::less("NET_RX softirqs per request", "", |it| it.per_request(|spent| spent.net_rx)),
];

impl Measured {
    fn rounds(&self, placement: &Placement) -> Vec<f64> {
        placement.rounds.iter().map(self.of).collect()
    }

    /// Compares the last placement with the best of the others.
    fn versus(&self, placements: &[Placement]) -> Versus {
        let all: Vec<Vec<f64>> = placements.iter().map(|it| self.rounds(it)).collect();
        let [others @ .., ours] = all.as_slice() else { return Versus::of(&[], &[], true) };
        Versus::of(best(others, self.more_is_better), ours, self.more_is_better)
    }

    fn row(&self, placements: &[Placement]) -> Vec<String> {
        let digits: usize = if self.unit.is_empty() { 3 } else { 0 };
        let cell = |it| {
            let median = median(&self.rounds(it)).unwrap_or(f64::NAN);
            format!("{median:.digits$}{}", self.unit)
        };
        let cells = placements.iter().map(cell);
        let versus = self.versus(placements).to_string();
        [self.what.to_owned()].into_iter().chain(cells).chain([versus]).collect()
    }
}

/// The rounds with the best median.
fn best(all: &[Vec<f64>], more_is_better: bool) -> &[f64] {
    let rank = |rounds: &&Vec<f64>| {
        let median = median(rounds).unwrap_or(f64::NAN);
        if more_is_better { median } else { -median }
    };
    all.iter().max_by(|a, b| rank(a).total_cmp(&rank(b))).map_or(&[], Vec::as_slice)
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
    table.add_rows(MEASURED.iter().map(|row| row.row(placements)));
    let mut share = |what: &str, of: fn(&Placement) -> f64| {
        let cells = placements.iter().map(|it| format!("{:.0}%", of(it) * 100.0));
        table.add_row(std::iter::once(what.to_owned()).chain(cells));
    };
    share("bytes read on their own CPU", |it| it.bytes.same_cpu);
    share("bytes read on other socket", |it| it.bytes.remote);
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn caveat(lab: &Lab) -> &'static str {
    match lab.accel() {
        Accel::Kvm => "The guest's CPUs are real (KVM); its NIC is virtio.",
        _ => {
            "Emulated CPUs: shares of bytes do not depend on their speed. Compare all else only \
             within this table: a busy host also changes how many packets a poll finds."
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
    fn the_best_of_the_others_is_compared() {
        let all = [vec![100.0, 100.0, 300.0], vec![90.0, 120.0, 110.0]];
        assert_eq!((best(&all, true), best(&all, false)), (&all[1][..], &all[0][..]));
    }

    #[test]
    fn a_busy_host_gets_a_small_guest_with_two_sockets() {
        let cpus = |cpus, busy| size_for(&Load { cpus, busy }).unwrap().cpus;
        assert_eq!((cpus(2, 0.1), cpus(2, 1.5), cpus(1, 0.0), cpus(16, 3.0)), (8, 4, 4, 8));
        assert_eq!((in_words(&[1]), in_words(&[1, 2])), ("CPU 1".into(), "CPUs 1 and 2".into()));
    }
}
