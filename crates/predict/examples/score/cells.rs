//! The published cells, and what the model says of each.

use netsilo_predict::file::{self, Described};
use netsilo_predict::interval::{Draws, Expected};
use netsilo_predict::parameters::Values;
use netsilo_predict::predict;
use netsilo_predict::prediction::Prediction;
use netsilo_predict::scenario::{Scenario, Setting};
use netsilo_trial::stats::Estimate;

/// What a cell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Relative change of a rate against `none` (1 is +100 %).
    Gain,
    /// A rate (per second).
    Rate,
    /// Share of one CPU's time that the kernel books as softirq.
    Softirq(usize),
    /// Share of one CPU's time in user mode and system calls.
    Tasks(usize),
    /// All CPUs' user mode and system calls, in CPUs.
    AllTasks,
    /// Softirq time of all CPUs over the same without the setting.
    SoftirqRatio,
}

/// A published figure.
pub(crate) struct Cell {
    /// The group that is left out together.
    pub(crate) group: &'static str,
    /// In words, for the table.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: Kind,
    /// What was published.
    pub(crate) published: f64,
    /// The scenario.
    pub(crate) scenario: Scenario,
    /// The setting.
    pub(crate) setting: Setting,
    /// What it is compared with.
    pub(crate) none: Setting,
}

impl Cell {
    fn of(&self, out: &Prediction, none: &Prediction) -> f64 {
        match self.kind {
            Kind::Rate => out.rate,
            Kind::Gain => out.rate / none.rate - 1.0,
            Kind::Softirq(cpu) => out.cpus[cpu].booked_softirq,
            Kind::Tasks(cpu) => out.cpus[cpu].usr + out.cpus[cpu].sys,
            Kind::AllTasks => out.cpus.iter().map(|cpu| cpu.usr + cpu.sys).sum(),
            Kind::SoftirqRatio => softirq(out) / softirq(none),
        }
    }

    fn needs_none(&self) -> bool {
        matches!(self.kind, Kind::Gain | Kind::SoftirqRatio)
    }

    fn interval_of(&self, expected: &Expected) -> Option<Estimate> {
        match self.kind {
            Kind::Rate => Some(expected.rate),
            Kind::Gain => Some(expected.gain),
            Kind::Softirq(cpu) => Some(expected.booked_softirq[cpu]),
            Kind::Tasks(_) | Kind::AllTasks | Kind::SoftirqRatio => None,
        }
    }

    fn is_of_the_same(&self, other: &Self) -> bool {
        self.setting == other.setting && self.scenario == other.scenario
    }
}

/// What the model says of each cell. Cells that follow each other share a prediction if they may.
pub(crate) fn predicted<'a>(
    cells: impl IntoIterator<Item = &'a Cell>,
    values: &Values,
) -> Vec<f64> {
    let mut last: Option<(&Cell, Prediction)> = None;
    let one = |cell: &'a Cell| {
        let out = match last.take() {
            Some((other, out)) if cell.is_of_the_same(other) => out,
            _ => predict(&cell.scenario, &cell.setting, values),
        };
        let value = if cell.needs_none() {
            cell.of(&out, &predict(&cell.scenario, &cell.none, values))
        } else {
            cell.of(&out, &out)
        };
        last = Some((cell, out));
        value
    };
    cells.into_iter().map(one).collect()
}

/// The interval of what the model says of each cell; `None` for figures that have none.
pub(crate) fn intervals<'a>(
    cells: impl IntoIterator<Item = &'a Cell>,
    draws: &Draws,
) -> Vec<Option<Estimate>> {
    let mut last: Option<(&Cell, Expected)> = None;
    let one = |cell: &'a Cell| {
        let expected = match last.take() {
            Some((other, expected)) if cell.is_of_the_same(other) && cell.none == other.none => {
                expected
            }
            _ => draws.expect(&cell.scenario, &cell.setting, &cell.none),
        };
        let interval = cell.interval_of(&expected);
        last = Some((cell, expected));
        interval
    };
    cells.into_iter().map(one).collect()
}

fn softirq(out: &Prediction) -> f64 {
    out.cpus.iter().map(|cpu| cpu.softirq).sum()
}

macro_rules! case {
    ($name:literal) => {
        include_str!(concat!("../../../../cases/predict/", $name))
    };
}

macro_rules! published {
    ($name:literal) => {
        include_str!(concat!("../../../../fixtures/published/", $name))
    };
}

pub(crate) const RR: &str = case!("request-response.toml");
pub(crate) const GUEST: &str = case!("service-in-a-guest.toml");
pub(crate) const FORWARD: &str = case!("forward.toml");

/// All cells.
pub(crate) fn all() -> Result<Vec<Cell>, Box<dyn std::error::Error>> {
    let mut cells = Vec::new();
    gains(&mut cells)?;
    rr_cpus(&mut cells)?;
    guest(&mut cells)?;
    forward(&mut cells)?;
    send(&mut cells)?;
    Ok(cells)
}

type Added = Result<(), Box<dyn std::error::Error>>;

fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().skip(1).map(|line| line.split(',').collect())
}

/// Reads a scenario, with changes.
pub(crate) fn described(
    text: &str,
    changes: &[(&str, String)],
) -> Result<Described, Box<dyn std::error::Error>> {
    let changes: Vec<_> = changes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    Ok(file::parse(text, &changes, &[])?)
}

fn cell(
    text: &str,
    changes: &[(&str, String)],
    setting: &str,
    (group, name): (&'static str, String),
    (kind, published): (Kind, f64),
) -> Result<Cell, Box<dyn std::error::Error>> {
    let described = described(text, changes)?;
    let find = |name: &str| described.settings.get(name).cloned();
    let setting = find(setting).ok_or_else(|| format!("no setting {setting}"))?;
    let none = find("none").unwrap_or_else(|| setting.clone());
    Ok(Cell { group, name, kind, published, scenario: described.scenario, setting, none })
}

fn gains(cells: &mut Vec<Cell>) -> Added {
    for row in rows(published!("rr_tps_gain.csv")) {
        let (setting, kind, bytes, instances) = (row[0], row[1], row[2], row[3]);
        let group = match (kind, bytes) {
            ("TCP_RR", "1") => "TCP 1 B",
            ("TCP_RR", _) => "TCP 256 B",
            _ => "UDP",
        };
        let changes = [
            ("load.kind", kind.to_lowercase().replace('_', "-")),
            ("load.bytes", bytes.to_owned()),
            ("load.instances", instances.to_owned()),
        ];
        let name = format!("{kind} {bytes} B x {instances}, {setting}");
        let gain: f64 = row[4].parse::<f64>()? / 100.0;
        cells.push(cell(RR, &changes, setting, (group, name.clone()), (Kind::Gain, gain))?);
        if bytes == "256" && instances == "1500" {
            // The source's only rate: 88 MB/s of payload in each direction.
            let what = (Kind::Rate, 360_448.0);
            cells.push(cell(RR, &changes, setting, (group, format!("{name}, rate")), what)?);
            if setting == "irq_affinity" {
                let what = (Kind::Rate, 360_448.0 / (1.0 + gain));
                let name = format!("{name}, rate of none");
                cells.push(cell(RR, &changes, "none", (group, name), what)?);
            }
        }
    }
    Ok(())
}

fn rr_cpus(cells: &mut Vec<Cell>) -> Added {
    for row in rows(published!("rr_cpu_1500_1B.csv")) {
        let number = |column: usize| row[column].parse::<f64>().map(|it| it / 100.0);
        let tasks = number(5)? + number(7)?;
        let name = |what: &str| format!("TCP_RR 1 B x 1500, {}, cpu {}, {what}", row[0], row[4]);
        let group = "TCP CPUs";
        if let Ok(cpu) = row[4].parse() {
            let what = (Kind::Softirq(cpu), number(10)?);
            cells.push(cell(RR, &[], row[0], (group, name("softirq")), what)?);
            let what = (Kind::Tasks(cpu), tasks);
            cells.push(cell(RR, &[], row[0], (group, name("usr+sys")), what)?);
        } else {
            let what = (Kind::AllTasks, tasks * 16.0);
            cells.push(cell(RR, &[], row[0], (group, name("usr+sys of all")), what)?);
        }
    }
    Ok(())
}

fn guest(cells: &mut Vec<Cell>) -> Added {
    for row in rows(published!("rps_guest_cpu_before.csv")).filter(|row| row[0] == "before") {
        let Ok(cpu) = row[1].parse() else { continue };
        let what = (Kind::Softirq(cpu), row[7].parse::<f64>()? / 100.0);
        cells.push(cell(
            GUEST,
            &[],
            "none",
            ("guest", format!("guest, cpu {cpu}, softirq")),
            what,
        )?);
    }
    // The text: softirq time about doubles.
    let named = ("guest", "guest, rps, softirq over before".to_owned());
    cells.push(cell(GUEST, &[], "rps", named, (Kind::SoftirqRatio, 2.0))?);
    Ok(())
}

fn forward(cells: &mut Vec<Cell>) -> Added {
    let all: Vec<_> = rows(published!("forward_idle.csv")).collect();
    for setting in ["A_all_irqs_cpu0", "B_eth1_cpu0_eth2_cpu1"] {
        for cpu in [0, 1] {
            let idle: Vec<f64> = (all.iter())
                .filter(|row| row[0] == setting && row[4] == cpu.to_string())
                .map(|row| row[8].parse::<f64>())
                .collect::<Result<_, _>>()?;
            let busy = 1.0 - idle.iter().sum::<f64>() / idle.len() as f64 / 100.0;
            let name = format!("forward, {setting}, cpu {cpu}, softirq");
            let what = (Kind::Softirq(cpu), busy);
            cells.push(cell(FORWARD, &[], setting, ("forward", name), what)?);
        }
    }
    Ok(())
}

fn send(cells: &mut Vec<Cell>) -> Added {
    let text = case!("send.toml");
    let bus = ("nic.bus_gbit", "8.5".to_owned());
    let more = [
        ("send, TCP, mtu 1500", vec![bus.clone()], 5.5e9),
        ("send, TCP, mtu 9000", vec![bus.clone(), ("nic.mtu", "9000".to_owned())], 7.0e9),
        ("send, sendfile", vec![bus, ("load.sendfile", "true".to_owned())], 8.0e9),
        (
            "send, UDP, mtu 9000, 2 senders",
            vec![
                ("nic.mtu", "9000".to_owned()),
                ("load.protocol", "udp".to_owned()),
                ("load.bytes", "8192".to_owned()),
                ("load.senders", "2".to_owned()),
            ],
            10.0e9,
        ),
    ];
    for (name, changes, rate) in more {
        let named = ("send", name.to_owned());
        cells.push(cell(text, &changes, "none", named, (Kind::Rate, rate))?);
    }
    Ok(())
}
