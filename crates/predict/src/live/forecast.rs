//! Settings beside each other, for a machine that was observed.

use std::collections::BTreeMap;
use std::fmt;

use netsilo_model::cost::weights::CostSource;
use netsilo_model::derive::seen_costs::seen_ipis;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::host::Snapshot;
use serde::{Serialize, Serializer};

use crate::interval::{Draws, Estimate};
use crate::live::loads::{self, Loads};
use crate::live::placement::Placement;
use crate::live::prices::Prices;
use crate::live::work::Work;
use crate::parameters::Values;
use crate::prediction::CpuTime;

/// What settings would do to the load that was observed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Forecast {
    /// Packets per second of all queues, at the load that is asked for.
    pub packets_per_s: f64,
    /// The load, as a multiple of the observed one.
    pub load: f64,
    /// What was not measured, in words.
    pub assumed: Vec<String>,
    /// The machine as it is, then each setting.
    pub settings: Vec<Expected>,
}

/// What one setting would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Expected {
    /// Its name.
    pub name: String,
    /// How many times this load fits before the limit is full.
    pub fits: Estimate,
    /// Relative change of `fits` against the machine as it is; absent for that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<Estimate>,
    /// Whether the change is clear: its interval does not hold zero.
    pub is_clear: bool,
    /// CPU time of everything, in CPUs.
    pub cpu_time: Estimate,
    /// Inter-processor interrupts per second of RPS and of wakeups.
    pub ipis_per_s: f64,
    /// What is full first.
    pub limit: Limit,
    /// How each CPU spends its time. Above 1 in sum: the load does not fit.
    pub cpus: BTreeMap<CpuId, CpuTime>,
}

/// What is full first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum Limit {
    /// The interrupts, softirqs and NAPI kthreads of one CPU.
    Cpu(CpuId),
    /// All CPUs together.
    Cpus,
    /// The link of a netdev.
    Link(String),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(cpu) => write!(f, "softirq of cpu {cpu}"),
            Self::Cpus => f.write_str("the CPUs"),
            Self::Link(netdev) => write!(f, "the link of {netdev}"),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The name of the machine as it is.
pub const AS_IT_IS: &str = "as it is";

/// Foretells what each setting, a snapshot with its name, would do to the observed work, at `load`
/// times the observed load.
pub fn forecast(
    work: &Work<'_>,
    load: f64,
    settings: &[(String, Snapshot)],
    draws: &Draws,
) -> Forecast {
    let work = work.clone().times(load);
    let present = Placed::new(&work, work.analysis.after());
    let mut all = vec![expected(&work, AS_IT_IS, &present, &present, draws)];
    for (name, settings) in settings {
        let placed = Placed::new(&work, settings);
        all.push(expected(&work, name, &present, &placed, draws));
    }
    Forecast { packets_per_s: work.packets_per_s(), load, assumed: assumed(&work), settings: all }
}

/// Where each queue's packets run under a setting.
struct Placed(Vec<Placement>);

impl Placed {
    fn new(work: &Work<'_>, settings: &Snapshot) -> Self {
        Self(work.queues.iter().map(|queue| Placement::new(work, queue, settings)).collect())
    }
}

/// The loads under one draw of the parameters.
struct State {
    cpus: BTreeMap<CpuId, CpuTime>,
    ipis: f64,
    fits: f64,
    limit: Limit,
    cpu_time: f64,
}

fn state(work: &Work<'_>, present: &Placed, placed: &Placed, values: &Values) -> State {
    let prices = Prices::new(work.analysis, values);
    let loads = |to: &Placed| {
        let mut loads = Loads::default();
        for ((queue, now), placed) in work.queues.iter().zip(&present.0).zip(&to.0) {
            loads::add(&mut loads, work, queue, (now, placed), &prices);
        }
        loads
    };
    let (before, after) = (loads(present), loads(placed));
    let mut cpus = work.cpus.clone();
    for (cpu, time) in &mut cpus {
        let old = before.cpus.get(cpu).copied().unwrap_or_default();
        let new = after.cpus.get(cpu).copied().unwrap_or_default();
        time.softirq = (time.softirq + new.softirq - old.softirq).max(0.0);
        time.sys = (time.sys + new.task - old.task).max(0.0);
    }
    let (fits, limit) = limit(work, &cpus);
    let cpu_time = cpus.values().map(|cpu| cpu.usr + cpu.sys + cpu.softirq).sum();
    State { cpus, ipis: after.ipis, fits, limit, cpu_time }
}

/// How many times the load fits, and what is full then: the busiest resource (Denning and Buzen
/// 1978).
fn limit(work: &Work<'_>, cpus: &BTreeMap<CpuId, CpuTime>) -> (f64, Limit) {
    let room = |cpu: &CpuId| work.room.get(cpu).copied().unwrap_or(1.0);
    let all: f64 = cpus.values().map(|cpu| cpu.usr + cpu.sys + cpu.softirq).sum();
    let mut fullest = (all / cpus.keys().map(room).sum::<f64>().max(0.05), Limit::Cpus);
    for (cpu, time) in cpus {
        let share = time.softirq / room(cpu);
        if share > fullest.0 {
            fullest = (share, Limit::Cpu(*cpu));
        }
    }
    let analysis = work.analysis;
    // A virtual device has no link of its own.
    for netdev in analysis.running().filter(|netdev| netdev.device_path.is_some()) {
        let share = analysis.link_use(netdev).unwrap_or(0.0);
        if share > fullest.0 {
            fullest = (share, Limit::Link(netdev.name.clone()));
        }
    }
    (1.0 / fullest.0.max(1e-6), fullest.1)
}

fn expected(
    work: &Work<'_>,
    name: &str,
    present: &Placed,
    placed: &Placed,
    draws: &Draws,
) -> Expected {
    let is_present = std::ptr::eq(present, placed);
    let fitted = state(work, present, placed, draws.fitted());
    let base = state(work, present, present, draws.fitted());
    let (mut fits, mut gains, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for (values, error) in draws.each() {
        let drawn = state(work, present, placed, values);
        let gain = if is_present { 0.0 } else { drawn.fits / base.fits * error - 1.0 };
        fits.push(drawn.fits);
        gains.push(gain);
        times.push(drawn.cpu_time);
    }
    let same = fitted.cpus == base.cpus;
    let gain = Estimate::new(fitted.fits / base.fits - 1.0, gains);
    Expected {
        name: name.to_owned(),
        fits: Estimate::new(fitted.fits, fits),
        is_clear: !is_present && !same && !gain.is_unclear(),
        gain: (!is_present).then_some(if same { Estimate::new(0.0, Vec::new()) } else { gain }),
        cpu_time: Estimate::new(fitted.cpu_time, times),
        ipis_per_s: fitted.ipis,
        limit: fitted.limit,
        cpus: fitted.cpus,
    }
}

/// What was not measured.
fn assumed(work: &Work<'_>) -> Vec<String> {
    let mut assumed = Vec::new();
    if work.protocol_share.is_none() {
        assumed.push(
            "the division of softirq time into poll and protocol (netsilo show --stages samples \
             it)"
            .to_owned(),
        );
    }
    if work.analysis.costs.source == CostSource::Default {
        let what = match seen_ipis(work.analysis) {
            Some(_) => "cache lines",
            None => "IPIs and cache lines",
        };
        assumed.push(format!("the cost of {what} (netsilo calibrate measures it)"));
    }
    let unknown = work.queues.iter().filter(|queue| queue.ns.is_none()).count();
    if unknown > 0 {
        assumed.push(format!("that {unknown} queues without measured time cost nothing"));
    }
    assumed
}
