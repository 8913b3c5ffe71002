//! How the CPUs spent the windows of a setting.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::derive::rates::{Shares, rates};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::observation::Observation;
use netsilo_stats::median;
use serde::{Deserialize, Serialize};

/// Shares of a CPU's time by its ticks (`/proc/stat`), in ten-thousandths; the rest is idle, or
/// stolen by the hypervisor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "names of mpstat; usr has nice as well")]
pub struct CpuUse {
    pub usr: f64,
    pub sys: f64,
    pub irq: f64,
    pub softirq: f64,
}

/// A name, and the figure of that name.
pub type Figure = (&'static str, fn(&CpuUse) -> f64);

impl CpuUse {
    /// Names and figures, in the order of mpstat.
    pub const FIGURES: [Figure; 4] = [
        ("usr", |it| it.usr),
        ("sys", |it| it.sys),
        ("irq", |it| it.irq),
        ("softirq", |it| it.softirq),
    ];

    /// The use of each CPU while it was observed.
    pub fn from_observation(observation: &Observation) -> BTreeMap<CpuId, Self> {
        let rates = rates(&observation.before, &observation.after);
        rates.cpus.iter().filter_map(|(cpu, it)| Some((*cpu, it.shares?.into()))).collect()
    }

    /// The median use of each CPU in these windows.
    pub fn medians<'a>(
        windows: impl IntoIterator<Item = &'a BTreeMap<CpuId, Self>>,
    ) -> BTreeMap<CpuId, Self> {
        let windows: Vec<_> = windows.into_iter().collect();
        let cpus: BTreeSet<CpuId> = windows.iter().flat_map(|it| it.keys().copied()).collect();
        let median_of = |cpu: CpuId, of: fn(&Self) -> f64| {
            let values = windows.iter().filter_map(|it| Some(of(it.get(&cpu)?)));
            median(&values.collect::<Vec<f64>>()).unwrap_or(0.0)
        };
        let of_cpu = |cpu| {
            let [usr, sys, irq, softirq] = Self::FIGURES.map(|(_, of)| median_of(cpu, of));
            (cpu, Self { usr, sys, irq, softirq })
        };
        cpus.into_iter().map(of_cpu).collect()
    }

    /// The share of its time in which the CPU is in use.
    pub fn busy(&self) -> f64 {
        self.usr + self.sys + self.irq + self.softirq
    }
}

impl From<Shares> for CpuUse {
    fn from(it: Shares) -> Self {
        let rounded = |share: f64| (share * 1e4).round() / 1e4;
        Self {
            usr: rounded(it.usr + it.nice),
            sys: rounded(it.sys),
            irq: rounded(it.irq),
            softirq: rounded(it.softirq),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_has_the_medians_of_the_windows_that_saw_it() {
        let window = |softirq, second: bool| -> BTreeMap<CpuId, CpuUse> {
            let usage = CpuUse { softirq, usr: 0.1, ..CpuUse::default() };
            (0..1 + u32::from(second)).map(|cpu| (CpuId(cpu), usage)).collect()
        };
        let windows = [window(0.2, false), window(0.4, true), window(0.3, false)];
        let medians = CpuUse::medians(&windows);
        assert_eq!((medians[&CpuId(0)].softirq, medians[&CpuId(1)].softirq), (0.3, 0.4));
        assert_eq!(medians[&CpuId(1)].busy(), 0.5);
        assert!(CpuUse::medians(&[]).is_empty());
    }
}
