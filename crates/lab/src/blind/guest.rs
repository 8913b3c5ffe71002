//! Random settings of a guest, and what they do to counts: predicted first, then measured.
//!
//! The guest may be emulated: its CPUs have no speed of their own, but its kernel steers packets
//! and sends interrupts as any other does.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use netsilo_lab::{Kernel, Lab, NicModel, Spec, Threads};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_predict::live::counts::Counts;
use netsilo_predict::live::work::Work;
use netsilo_predict::parameters::Table;
use serde::{Deserialize, Serialize};

use crate::blind::args::Blind;
use crate::blind::row::write_json;
use crate::built;
use crate::peers::SERVER_CPUS;
use crate::peers::guest::PeersGuest;
use crate::say::{markdown, progress, say};
use crate::wire::cpus_of;
use crate::workload::{Kind, Workload, while_busy};

/// Settings of each load, beside the present one.
const SETTINGS: usize = 5;
const QUEUES: usize = 4;
const CPUS: u32 = 8;
const NETDEV: &str = "eth0";

/// Entries of the flow table, and of each queue's.
const FLOWS: u32 = 32_768;

/// Loads in turn; each server has a port of its own.
const LOADS: [Kind; 2] = [Kind::TcpRr, Kind::UdpRr];

/// Settings of the guest's NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestSetting {
    /// The CPU of each queue's interrupts.
    irqs: [u32; QUEUES],
    /// `rps_cpus` as a mask; 0 is off.
    rps: u32,
    /// Whether RFS is on.
    rfs: bool,
}

/// A load with its settings; the first is the present one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestRow {
    load: String,
    settings: Vec<GuestSetting>,
    /// What was counted under the first setting.
    seen: Counts,
    /// Of the other settings.
    predicted: Vec<Counts>,
    /// Of the other settings, by round; empty until all of it was measured.
    measured: Vec<Vec<Counts>>,
}

/// Predicts and measures what the folder lacks, and prints the table.
pub(super) fn run(args: &Blind) -> Result<()> {
    let loads = usize::from(args.pairs) / SETTINGS;
    let file = |number: usize| args.keep.join(format!("guest-{}-{number:03}.json", args.seed));
    let is_missing = |number: &usize| {
        let row = GuestRow::read(&file(*number));
        !row.is_ok_and(|row| !row.measured.is_empty())
    };
    let missing: Vec<usize> = (0..loads).filter(is_missing).collect();
    if !args.report && !missing.is_empty() {
        let threads = Threads::Multi;
        let spec = Spec { threads, ..Spec::new(Kernel::V6_1, NicModel::VirtioNet) };
        let lab = Lab::boot(&spec)?;
        let guest = PeersGuest::new(&lab, &spec)?;
        let begun = std::time::Instant::now();
        for number in missing {
            if args.is_over(begun) {
                break;
            }
            predict_and_measure(args, &guest, number, &file(number))?;
            progress(&format!("guest: load {} of {loads} measured", number + 1));
        }
    }
    let read = (0..loads).filter_map(|number| GuestRow::read(&file(number)).ok());
    let rows: Vec<GuestRow> = read.filter(|row| !row.measured.is_empty()).collect();
    say(&render(&rows, loads))
}

/// The present setting, and those to be predicted.
fn draw(seed: u64, number: usize) -> Vec<GuestSetting> {
    let mut rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
    let mut settings = Vec::new();
    while settings.len() <= SETTINGS {
        let irqs = std::array::from_fn(|_| rng.u32(..CPUS));
        // Each way of steering is as likely as the others: none, RPS, RFS, both.
        let rps = if rng.bool() { rng.u32(1..1 << CPUS) } else { 0 };
        let setting = GuestSetting { irqs, rps, rfs: rng.bool() };
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    settings
}

/// One load: what netsilo sees of it, the predictions, and then the measurement.
fn predict_and_measure(
    args: &Blind,
    guest: &PeersGuest<'_>,
    number: usize,
    path: &Path,
) -> Result<()> {
    let settings = draw(args.seed, number);
    let kind = LOADS[number % LOADS.len()];
    let workload = Workload::start(kind, guest.lab(), &SERVER_CPUS)?;
    settings[0].apply(guest)?;
    let observation = observe(guest, &workload)?;
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let work = Work::without_costs(&analysis).context("cannot predict")?;
    let values = Table::built_in().map_err(anyhow::Error::msg)?.values();
    let predicted =
        |setting: &GuestSetting| Counts::forecast(&work, &setting.put(&observation.after), &values);
    let mut row = GuestRow {
        load: kind.name().to_owned(),
        seen: Counts::seen(&work),
        predicted: settings[1..].iter().map(predicted).collect(),
        settings,
        measured: Vec::new(),
    };
    // The prediction is on the disk before anything is measured.
    write_json(&row, path)?;
    let mut measured = vec![Vec::new(); SETTINGS];
    for round in 0..usize::from(args.rounds) {
        for turn in 0..SETTINGS {
            let at = (round + turn) % SETTINGS;
            row.settings[1 + at].apply(guest)?;
            let observation = observe(guest, &workload)?;
            let analysis = Analysis::new(&observation, &costs);
            measured[at].push(Counts::seen(&Work::without_costs(&analysis)?));
        }
    }
    row.measured = measured;
    write_json(&row, path)
}

/// What netsilo sees in the guest under a load.
fn observe(guest: &PeersGuest<'_>, workload: &Workload<'_>) -> Result<Observation> {
    let capture = format!(
        "{} capture --interval 3s --output /tmp/blind.tar.zst >&2 && cat /tmp/blind.tar.zst && \
         rm /tmp/blind.tar.zst",
        built::netsilo()?.display()
    );
    let output = while_busy(&[workload], || guest.lab().run(&capture)?.ok())?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("blind.tar.zst");
    fs::write(&file, output.stdout)?;
    Ok(netsilo_sys::bundle::open(file)?)
}

impl GuestSetting {
    fn name(&self) -> String {
        let irqs = self.irqs.map(|cpu| cpu.to_string()).join(" ");
        let rps = match self.rps {
            0 => String::new(),
            mask => format!(", RPS {}", cpus_of(mask)),
        };
        format!("{irqs}{rps}{}", if self.rfs { ", RFS" } else { "" })
    }

    fn apply(&self, guest: &PeersGuest<'_>) -> Result<()> {
        let mut knobs = guest.placed(&self.irqs);
        let (entries, each) = if self.rfs { (FLOWS, FLOWS / QUEUES as u32) } else { (0, 0) };
        let of_queue = |file: &str, name: &str| {
            file.starts_with(&format!("sys/class/net/{NETDEV}/queues/")) && file.ends_with(name)
        };
        knobs.set(|file| of_queue(file, "/rps_cpus"), &format!("{:02x}", self.rps));
        knobs.set(|file| of_queue(file, "/rps_flow_cnt"), &each.to_string());
        knobs.set(|file| file.ends_with("/rps_sock_flow_entries"), &entries.to_string());
        knobs.write(guest.lab())
    }

    /// The guest with this setting.
    fn put(&self, before: &Snapshot) -> Snapshot {
        let mut after = before.clone();
        after.net.rps_sock_flow_entries = Some(if self.rfs { FLOWS } else { 0 });
        for netdev in after.netdevs.iter_mut().filter(|netdev| netdev.name == NETDEV) {
            for (queue, cpu) in netdev.rx_queues.iter_mut().zip(self.irqs) {
                queue.rps_cpus = Some(cpus_of(self.rps));
                queue.rps_flow_cnt = Some(if self.rfs { FLOWS / QUEUES as u32 } else { 0 });
                let irq = queue.irq.as_ref().and_then(|irq| after.irqs.get_mut(&irq.to));
                if let Some(irq) = irq {
                    irq.requested = Some(CpuSet::from_cpu(CpuId(cpu)));
                }
            }
        }
        after
    }
}

impl GuestRow {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))?;
        serde_json::from_str(&text).with_context(|| format!("{path:?} is not as written"))
    }

    /// Each setting with what was predicted and, over all rounds, measured.
    fn pairs(&self) -> impl Iterator<Item = (&GuestSetting, &Counts, Counts)> {
        let rows = self.settings.iter().skip(1).zip(&self.predicted).zip(&self.measured);
        rows.map(|((setting, predicted), measured)| (setting, predicted, mean(measured)))
    }
}

/// The mean of several counts.
fn mean(all: &[Counts]) -> Counts {
    let part = 1.0 / all.len().max(1) as f64;
    let shares = |of: fn(&Counts) -> &BTreeMap<CpuId, f64>| {
        let mut sum: BTreeMap<CpuId, f64> = BTreeMap::new();
        for (cpu, share) in all.iter().flat_map(of) {
            *sum.entry(*cpu).or_default() += share * part;
        }
        sum
    };
    Counts {
        polled: shares(|it| &it.polled),
        processed: shares(|it| &it.processed),
        ipis: all.iter().map(|it| it.ipis * part).sum(),
        interrupts: all.iter().map(|it| it.interrupts * part).sum(),
    }
}

/// A row for each pair, and the summary.
fn render(rows: &[GuestRow], loads: usize) -> String {
    let names = [
        "load",
        "to",
        "elsewhere polled",
        "processed",
        "IPIs",
        "measured",
        "interrupts",
        "measured",
    ];
    let mut table = markdown(&names);
    let (mut polled, mut processed) = (Vec::new(), Vec::new());
    let (mut ipis, mut interrupts) = (Vec::new(), Vec::new());
    let mut right = 0;
    let mut moved = 0;
    for row in rows {
        for (setting, predicted, measured) in row.pairs() {
            polled.push(100.0 * Counts::misplaced(&predicted.polled, &measured.polled));
            processed.push(100.0 * Counts::misplaced(&predicted.processed, &measured.processed));
            ipis.push((predicted.ipis - measured.ipis).abs());
            interrupts.push((predicted.interrupts - measured.interrupts).abs());
            let change = measured.ipis - row.seen.ipis;
            // A smaller change may be noise.
            if change.abs() > 0.1 {
                moved += 1;
                right += usize::from((predicted.ipis - row.seen.ipis) * change > 0.0);
            }
            let two = |number: f64| format!("{number:.2}");
            table.add_row([
                row.load.clone(),
                setting.name(),
                format!("{:.0}%", polled.last().copied().unwrap_or_default()),
                format!("{:.0}%", processed.last().copied().unwrap_or_default()),
                two(predicted.ipis),
                two(measured.ipis),
                two(predicted.interrupts),
                two(measured.interrupts),
            ]);
        }
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    let worst = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    format!(
        "{table}\n\n{} of {loads} loads, {} pairs. Packets on another CPU than predicted: polled \
         mean {:.1}%, worst {:.1}%; processed mean {:.1}%, worst {:.1}%. IPIs per packet: mean \
         error {:.2}, worst {:.2}; {right} of {moved} changes by more than 0.1 have the right \
         sign. Interrupts per packet: mean error {:.2}, worst {:.2}.",
        rows.len(),
        polled.len(),
        mean(&polled),
        worst(&polled),
        mean(&processed),
        worst(&processed),
        mean(&ipis),
        worst(&ipis),
        mean(&interrupts),
        worst(&interrupts),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_settings_and_none_twice() {
        for number in 0..50 {
            let settings = draw(3, number);
            assert_eq!(settings, draw(3, number));
            assert_eq!(settings.len(), SETTINGS + 1);
            for (at, setting) in settings.iter().enumerate() {
                assert!(!settings[..at].contains(setting) && setting.rps < 1 << CPUS);
            }
        }
        let all: Vec<GuestSetting> = (0..50).flat_map(|number| draw(3, number)).collect();
        for (rps, rfs) in [(false, false), (false, true), (true, false), (true, true)] {
            assert!(all.iter().any(|it| (it.rps != 0, it.rfs) == (rps, rfs)));
        }
    }

    #[test]
    fn packets_elsewhere_and_errors_of_ipis_are_counted() {
        let counts = |on: u32, ipis: f64| Counts {
            polled: [(CpuId(on), 1.0)].into(),
            processed: [(CpuId(0), 0.5), (CpuId(on), 0.5)].into(),
            ipis,
            interrupts: 0.5,
        };
        let row = GuestRow {
            load: "tcp-rr".into(),
            settings: draw(1, 0).into_iter().take(3).collect(),
            seen: counts(1, 0.2),
            predicted: vec![counts(1, 0.5), counts(1, 0.1)],
            measured: vec![vec![counts(1, 0.6), counts(1, 0.8)], vec![counts(2, 1.2); 2]],
        };
        let summary = render(&[row], 8);
        let expected = "1 of 8 loads, 2 pairs. Packets on another CPU than predicted: polled mean \
                        50.0%, worst 100.0%; processed mean 25.0%, worst 50.0%. IPIs per packet: \
                        mean error 0.65, worst 1.10; 1 of 2 changes by more than 0.1 have the \
                        right sign. Interrupts per packet: mean error 0.00, worst 0.00.";
        assert!(summary.ends_with(expected), "{summary}");
    }
}
