//! Random settings of a guest and their effect on counts, predicted first and then measured.
//!
//! The guest may be emulated. The speed of its CPUs means nothing, but its kernel steers packets
//! and sends interrupts like any other.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use netsilo_lab::{Kernel, NicModel, Spec, Threads};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_predict::live::counts::Counts;
use netsilo_predict::live::work::Work;
use netsilo_predict::parameters::Table;
use serde::{Deserialize, Serialize};

use crate::experiment::record::{LoadRecord, RoundResult, SettingRecord};
use crate::experiment::study::{Scene, Study};
use crate::guests::{Guest, Guests, SERVER_CPUS};
use crate::predictions::draw::name;
use crate::say::markdown;
use crate::wire::cpus_of;
use crate::workload::{Kind, Workload};

/// Settings of each load, apart from the current one.
const SETTINGS: usize = 5;
const QUEUES: usize = 4;
const CPUS: u32 = 8;
const NETDEV: &str = "eth0";

/// Number of entries of the flow table, and of each queue's table.
const FLOWS: u32 = 32_768;

/// Figures for each CPU: the share of the packets that it polls, and the share that it processes.
const POLLED: &str = "polled by ";
const PROCESSED: &str = "processed by ";

/// Loads in turn. Each server has its own port.
const LOADS: [Kind; 2] = [Kind::TcpRr, Kind::UdpRr];

/// Settings of the guest's NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestSetting {
    /// The CPU of each queue's interrupts.
    irqs: [u32; QUEUES],
    /// `rps_cpus` as a mask. 0 is off.
    rps: u32,
    /// Whether RFS is on.
    rfs: bool,
}

/// What is known about a setting before it is measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Details {
    setting: GuestSetting,
    /// The counts that are predicted. For the current setting, those that the prediction observed.
    expected: Counts,
}

/// A load with its settings and the counts under each, over all rounds. The first setting is the
/// current one.
#[derive(Debug)]
pub(super) struct GuestRow {
    load: String,
    settings: Vec<(Details, Counts)>,
}

/// Random settings in a guest.
pub(super) struct Drawn {
    seed: u64,
    loads: usize,
    guests: Guests,
}

/// A load in the guest, with its servers running.
struct GuestScene<'a> {
    seed: u64,
    number: usize,
    guest: Guest<'a>,
    workload: Workload<'a>,
}

impl Drawn {
    pub(super) fn new(seed: u64, loads: usize) -> Self {
        let spec = Spec { threads: Threads::Multi, ..Spec::new(Kernel::V6_1, NicModel::VirtioNet) };
        Self { seed, loads, guests: Guests::new(spec) }
    }
}

fn kind(number: usize) -> Kind {
    LOADS[number % LOADS.len()]
}

impl Study for Drawn {
    fn folder(&self) -> &'static str {
        "guest"
    }

    fn loads(&self) -> Vec<String> {
        (0..self.loads).map(|number| name(self.seed, number, kind(number).name())).collect()
    }

    fn machine(&mut self) -> Result<String> {
        Ok(self.guests.lab()?.title().to_owned())
    }

    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>> {
        let number = self.loads().iter().position(|name| name == load).context("unknown load")?;
        let seed = self.seed;
        let (guest, workload) = self.guests.start(kind(number), &SERVER_CPUS)?;
        Ok(Box::new(GuestScene { seed, number, guest, workload }))
    }

    fn restart(&mut self, _why: &str) -> bool {
        self.guests.end();
        true
    }
}

impl Scene for GuestScene<'_> {
    /// What netsilo observes of the load under the first setting, and the predictions for the
    /// others.
    fn plan(&mut self, _folder: &Path) -> Result<LoadRecord> {
        let drawn = draw(self.seed, self.number);
        drawn[0].apply(&self.guest)?;
        let observation = observe(&self.guest, &self.workload)?;
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let work = Work::without_costs(&analysis).context("cannot predict")?;
        let values = Table::built_in().map_err(anyhow::Error::msg)?.values();
        let mut settings = Vec::new();
        for (at, setting) in drawn.into_iter().enumerate() {
            let expected = match at {
                0 => Counts::seen(&work),
                _ => Counts::forecast(&work, &setting.put(&observation.after), &values),
            };
            let name = setting.name();
            settings.push(SettingRecord::with(&name, &Details { setting, expected })?);
        }
        Ok(LoadRecord {
            name: name(self.seed, self.number, kind(self.number).name()),
            unit: "packet".to_owned(),
            settings,
            ..LoadRecord::default()
        })
    }

    fn apply(&mut self, setting: &SettingRecord) -> Result<()> {
        setting.details::<Details>()?.setting.apply(&self.guest)
    }

    /// Observes for three seconds, however long a measurement is.
    fn measure(&mut self, _seconds: f64) -> Result<RoundResult> {
        let observation = observe(&self.guest, &self.workload)?;
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let work = Work::without_costs(&analysis)?;
        let Counts { polled, processed, ipis, interrupts } = Counts::seen(&work);
        let mut figures = vec![("ipis".to_owned(), ipis), ("interrupts".to_owned(), interrupts)];
        for cpu in (0..CPUS).map(CpuId) {
            let share = |shares: &BTreeMap<CpuId, f64>| shares.get(&cpu).copied().unwrap_or(0.0);
            figures.push((format!("{POLLED}{cpu}"), share(&polled)));
            figures.push((format!("{PROCESSED}{cpu}"), share(&processed)));
        }
        Ok(RoundResult { rate: work.packets_per_s(), figures })
    }

    fn finish(&mut self) -> Result<()> {
        self.guest.restore()
    }
}

impl GuestRow {
    pub(super) fn new(load: &LoadRecord) -> Result<Self> {
        let settings = load.settings.iter().map(|it| Ok((it.details()?, counted(it))));
        Ok(Self { load: load.name.clone(), settings: settings.collect::<Result<_>>()? })
    }
}

/// The mean of the counts over all rounds.
fn counted(setting: &SettingRecord) -> Counts {
    let figure = |name: &str| {
        setting
            .figures
            .get(name)
            .and_then(|rounds| netsilo_trial::stats::mean(rounds))
            .unwrap_or(0.0)
    };
    let shares = |what: &str| {
        (0..CPUS).map(CpuId).map(|cpu| (cpu, figure(&format!("{what}{cpu}")))).collect()
    };
    Counts {
        polled: shares(POLLED),
        processed: shares(PROCESSED),
        ipis: figure("ipis"),
        interrupts: figure("interrupts"),
    }
}

/// The current setting, and those to be predicted.
fn draw(seed: u64, number: usize) -> Vec<GuestSetting> {
    let mut rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
    let mut settings = Vec::new();
    while settings.len() <= SETTINGS {
        let irqs = std::array::from_fn(|_| rng.u32(..CPUS));
        // Each way of steering is equally likely: none, RPS, RFS, both.
        let rps = if rng.bool() { rng.u32(1..1 << CPUS) } else { 0 };
        let setting = GuestSetting { irqs, rps, rfs: rng.bool() };
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    settings
}

/// What netsilo observes in the guest under a load.
fn observe(guest: &Guest<'_>, workload: &Workload<'_>) -> Result<Observation> {
    let folder = tempfile::tempdir()?;
    guest.capture(workload, 3, &folder.path().join("seen.tar.zst"))
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

    fn apply(&self, guest: &Guest<'_>) -> Result<()> {
        let mut knobs = guest.placed(&self.irqs);
        guest.queues().rps(&mut knobs, self.rps);
        if self.rfs {
            guest.queues().rfs(&mut knobs);
        }
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

/// A row for each pair, and the summary.
pub(super) fn render(rows: &[GuestRow]) -> String {
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
        let seen = row.settings.first().map_or(f64::NAN, |(present, _)| present.expected.ipis);
        for (Details { setting, expected: predicted }, measured) in row.settings.iter().skip(1) {
            polled.push(100.0 * Counts::misplaced(&predicted.polled, &measured.polled));
            processed.push(100.0 * Counts::misplaced(&predicted.processed, &measured.processed));
            ipis.push((predicted.ipis - measured.ipis).abs());
            interrupts.push((predicted.interrupts - measured.interrupts).abs());
            let change = measured.ipis - seen;
            // A smaller change may be noise.
            if change.abs() > 0.1 {
                moved += 1;
                right += usize::from((predicted.ipis - seen) * change > 0.0);
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
        "{table}\n\n{} loads, {} pairs. Packets on another CPU than predicted: polled \
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
        let drawn = draw(1, 0).into_iter();
        let of = [
            (counts(1, 0.2), counts(1, 0.2)),
            (counts(1, 0.5), counts(1, 0.7)),
            (counts(1, 0.1), counts(2, 1.2)),
        ];
        let settings = drawn
            .zip(of)
            .map(|(setting, (expected, measured))| (Details { setting, expected }, measured));
        let row = GuestRow { load: "tcp-rr".into(), settings: settings.collect() };
        let summary = render(&[row]);
        let expected = "1 loads, 2 pairs. Packets on another CPU than predicted: polled mean \
                        50.0%, worst 100.0%; processed mean 25.0%, worst 50.0%. IPIs per packet: \
                        mean error 0.65, worst 1.10; 1 of 2 changes by more than 0.1 have the \
                        right sign. Interrupts per packet: mean error 0.00, worst 0.00.";
        assert!(summary.ends_with(expected), "{summary}");
    }

    #[test]
    fn counts_are_the_means_of_the_rounds() {
        let mut setting = SettingRecord::default();
        for polled in [1.0, 0.5] {
            let figures = vec![("polled by 3", polled), ("ipis", 2.0 * polled)];
            setting.push(&RoundResult::new(100.0, figures));
        }
        let counts = counted(&setting);
        assert_eq!((counts.polled[&CpuId(3)], counts.polled[&CpuId(2)]), (0.75, 0.0));
        assert_eq!((counts.ipis, counts.interrupts), (1.5, 0.0));
    }
}
