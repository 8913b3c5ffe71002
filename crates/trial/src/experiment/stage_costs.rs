//! The cost of each stage of receive work per received packet, and what early drops save.
//!
//! Two methods measure the same cost. Stack samples give each stage's share and time. Dropping
//! packets early saves the CPU time of all stages after the drop, without sampling.

use std::collections::BTreeMap;

use crate::stats::{Estimate, median, signed_rank};
use netsilo_model::snapshot::stage_samples::ReceiveStage;
use serde::{Deserialize, Serialize};

use crate::experiment::compared::{Cell, ERROR_RATE, UnderLoad};
use crate::experiment::measure::TrialMeasure;
use crate::experiment::plan::{Experiment, Load};
use crate::experiment::records::{Sampled, SiloMap};

/// Half-width of the 95 % interval of a count, in units of its square root.
const WITHIN: f64 = 1.96;

/// Time of receive work by stage under a setting and a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageCosts {
    /// Name of the load.
    pub load: String,
    /// Name of the setting.
    pub setting: String,
    /// Number of samples in receive work.
    pub samples: u64,
    /// Costs by stage, in the order of a packet's path. Stages without samples are left out.
    pub stages: BTreeMap<ReceiveStage, StageCost>,
    /// Nanoseconds of all stages per packet that the netdevs under test received.
    pub ns_per_packet: Option<f64>,
    /// NET_RX and NET_TX softirq time per packet, measured at entry and exit, to check the samples.
    ///
    /// Samples also include threaded NAPIs, which run in no softirq.
    pub softirq_ns_per_packet: Option<f64>,
    /// Samples whose stack was lost.
    pub lost: u64,
    /// Why there are no samples, or only `other`.
    pub refused: Option<String>,
}

/// The cost of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageCost {
    /// Number of samples.
    pub samples: u64,
    /// Share of all samples in receive work.
    pub share: f64,
    /// Nanoseconds per packet that the netdevs under test received; `None` if those were not
    /// counted.
    pub ns_per_packet: Option<f64>,
    /// Half-width of its 95 % interval, computed only from the number of samples.
    #[serde(rename = "within_ns")]
    pub half_width_ns: Option<f64>,
}

impl StageCosts {
    /// Computes the costs of a map; `None` without samples.
    pub(super) fn from_map(map: &SiloMap) -> Option<Self> {
        let Sampled { stages, received, softirq } = map.sampled.as_ref()?;
        let packets = received.filter(|received| *received > 0).map(|received| received as f64);
        let each = |samples: f64| {
            Some(samples / f64::from(stages.per_s) * 1e9 / packets?).filter(|ns| ns.is_finite())
        };
        let cost = |(stage, samples): (&ReceiveStage, &u64)| {
            let cost = StageCost {
                samples: *samples,
                share: stages.total.shares.get(stage).copied().unwrap_or(0.0),
                ns_per_packet: each(*samples as f64),
                half_width_ns: each(WITHIN * (*samples as f64).sqrt()),
            };
            (*stage, cost)
        };
        Some(Self {
            load: map.load.clone(),
            setting: map.setting.clone(),
            samples: stages.total.samples,
            stages: stages
                .total
                .stages
                .iter()
                .filter(|(_, samples)| **samples > 0)
                .map(cost)
                .collect(),
            ns_per_packet: each(stages.total.samples as f64),
            softirq_ns_per_packet: softirq
                .zip(packets)
                .map(|(time, packets)| time.as_secs_f64() * 1e9 / packets),
            lost: stages.lost,
            refused: stages.refused.clone(),
        })
    }
}

/// A load compared with the same load dropped at ingress. The difference is the cost of all later
/// stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EarlyDrop {
    /// Name of the load that is passed on.
    pub load: String,
    /// Name of the load that is dropped.
    pub dropped: String,
    /// Savings by setting, in the experiment's order.
    pub settings: Vec<Saving>,
}

/// The saving of an early drop, in nanoseconds per packet received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Saving {
    /// Name of the setting.
    pub setting: String,
    /// Saved CPU time that was not idle, of the whole machine.
    pub cpu: Option<Difference>,
    /// Saved softirq time, if eBPF measured it in the trials.
    pub softirq: Option<Difference>,
    /// Saved NET_RX and NET_TX softirq time, measured at entry and exit in the trials without a
    /// result.
    pub softirq_seen: Option<Difference>,
    /// Saved samples in receive work, in the same trials.
    pub sampled: Option<Difference>,
}

/// Costs per packet: passed on, and dropped early.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Difference {
    /// Cost when passed on. For rounds, the median.
    pub passed_on_ns: f64,
    /// Cost when dropped.
    pub dropped_ns: f64,
    /// The saving. For rounds, the Hodges-Lehmann estimate of their differences.
    pub less_ns: f64,
    /// Number of rounds with both values; 0 for a value from trials without a result.
    pub rounds: usize,
    /// Signed-rank interval of the saving; `None` with too few rounds.
    pub interval: Option<Estimate>,
}

/// All early drops of the experiment.
pub(super) fn early_drops(
    experiment: &Experiment,
    loads: &[UnderLoad],
    stages: &[StageCosts],
) -> Vec<EarlyDrop> {
    let pair = |dropped: &Load| {
        let alike =
            |it: &&Load| !it.early_drop && it.spec == dropped.spec && it.senders == dropped.senders;
        let load = experiment.loads.iter().find(alike)?;
        let figures = |of: &Load| loads.iter().find(|it| it.load == of.name);
        Some(early_drop(figures(load)?, figures(dropped)?, stages))
    };
    experiment.loads.iter().filter(|load| load.early_drop).filter_map(pair).collect()
}

fn early_drop(load: &UnderLoad, dropped: &UnderLoad, stages: &[StageCosts]) -> EarlyDrop {
    let spared = |passed_on: &Cell| {
        let setting = &passed_on.setting;
        let by_rounds =
            |measure: TrialMeasure| by_rounds(passed_on, dropped.setting(setting)?, measure);
        let seen = |of: fn(&StageCosts) -> Option<f64>| {
            let costs = |load: &str| {
                stages.iter().find(|it| it.load == load && it.setting == *setting).and_then(of)
            };
            let (passed_on_ns, dropped_ns) = (costs(&load.load)?, costs(&dropped.load)?);
            let less_ns = passed_on_ns - dropped_ns;
            Some(Difference { passed_on_ns, dropped_ns, less_ns, rounds: 0, interval: None })
        };
        Saving {
            setting: setting.clone(),
            cpu: by_rounds(TrialMeasure::CpuReceived),
            softirq: by_rounds(TrialMeasure::SoftirqReceived),
            softirq_seen: seen(|costs| costs.softirq_ns_per_packet),
            sampled: seen(|costs| costs.ns_per_packet),
        }
    };
    EarlyDrop {
        load: load.load.clone(),
        dropped: dropped.load.clone(),
        settings: load.settings.iter().map(spared).collect(),
    }
}

/// The saving over the rounds in which both have a result.
fn by_rounds(passed_on: &Cell, dropped: &Cell, measure: TrialMeasure) -> Option<Difference> {
    let (passed_on, dropped) = (passed_on.measured(measure)?, dropped.measured(measure)?);
    let less = |(round, ns): (&u32, &f64)| Some(ns - dropped.rounds.get(round)?);
    let less: Vec<f64> = passed_on.rounds.iter().filter_map(less).collect();
    let median =
        |rounds: &BTreeMap<u32, f64>| median(&rounds.values().copied().collect::<Vec<_>>());
    Some(Difference {
        passed_on_ns: median(&passed_on.rounds)?,
        dropped_ns: median(&dropped.rounds)?,
        less_ns: signed_rank::middle(&less)?,
        rounds: less.len(),
        interval: signed_rank::interval(&less, ERROR_RATE),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiment::compared::CellResult;
    use crate::experiment::measure::WorkUnit;
    use crate::experiment::plan::{MachineSummary, Setting, Step};
    use crate::experiment::records::{Record, Trial};
    use crate::experiment::results::Results;
    use crate::traffic::{EndMachine, LoadResult, ServerResult, Spec, Test, Totals};
    use netsilo_model::derive::rates::{CpuRates, Rates, Shares};
    use netsilo_model::derive::stages::Stages;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::snapshot::attribution::CpuTime;
    use netsilo_model::snapshot::stage_samples::StageSamples;

    const ONE_WAY: &str = "one way";
    const DROPPED: &str = "one way, dropped early";

    fn experiment(rounds: u32) -> Experiment {
        let spec = Spec::default_for(Test::Forward, Duration::from_secs(10));
        let load = |(name, early_drop): (&str, bool)| Load {
            name: name.into(),
            spec: spec.clone(),
            senders: 1,
            early_drop,
        };
        let setting = |name: &str| Setting {
            name: name.into(),
            what: String::new(),
            changes: vec![],
            command: None,
        };
        Experiment {
            schema: 1,
            kind: "forward".into(),
            netsilo: "0".into(),
            command: vec![],
            started_s: 0,
            settings: ["none", "rps"].map(setting).into(),
            loads: [(ONE_WAY, false), (DROPPED, true)].map(load).into(),
            rounds,
            pause: Duration::ZERO,
            seed: 7,
            machine: MachineSummary {
                counted: vec!["eth0".into(), "eth1".into()],
                ..MachineSummary::default()
            },
        }
    }

    /// A forwarding machine that receives 100 000 packets per second and spends `ns_per_packet` of
    /// CPU time on each.
    fn trial(round: u32, load: &str, setting: &str, ns_per_packet: f64) -> Record {
        let passed_on = if load == ONE_WAY { 990_000 } else { 0 };
        let busy = ns_per_packet * 1e-4;
        let shares = Some(Shares { softirq: busy, idle: 1.0 - busy, ..Shares::default() });
        let received = |per_s: f64| [("rx_packets".to_owned(), per_s)].into();
        let side = EndMachine {
            rates: Rates {
                cpus: [(
                    CpuId(0),
                    CpuRates { shares, net_rx_per_s: Some(5_000.0), ..CpuRates::default() },
                )]
                .into(),
                netdevs: [
                    ("eth0".to_owned(), received(99_990.0)),
                    ("eth1".to_owned(), received(10.0)),
                    ("eth2".to_owned(), received(7_777.0)),
                ]
                .into(),
                ..Rates::default()
            },
            true_times: [(
                CpuId(0),
                CpuTime { net_rx_ns: (busy * 9e9) as u64, ..CpuTime::default() },
            )]
            .into(),
            true_elapsed: Duration::from_secs(10),
            ..EndMachine::default()
        };
        let arrived = Totals { datagrams_received: passed_on, ..Totals::default() };
        let run = LoadResult {
            schema: 1,
            spec: Spec::default_for(Test::Forward, Duration::from_secs(10)),
            address: String::new(),
            seconds: 10.0,
            totals: Totals { datagrams_sent: 1_000_000, ..Totals::default() },
            counted: Totals::default(),
            per_second: vec![],
            latency: None,
            client: EndMachine::default(),
            server: ServerResult { totals: arrived, counted: arrived, ..ServerResult::default() },
        };
        let step = Step { round, load: load.into(), setting: setting.into() };
        Record::Trial(Box::new(Trial { step, started_ms: 0, runs: vec![run], between: Some(side) }))
    }

    /// One CPU, sampled 1000 times per second while 10 000 packets arrived.
    fn map(load: &str, setting: &str, samples: &[(ReceiveStage, u64)]) -> Record {
        let cpus = [(CpuId(0), samples.iter().copied().collect())].into();
        let stages = Stages::from_samples(
            &StageSamples { per_s: 1000, cpus, ..StageSamples::default() },
            1.0,
        );
        let sampled =
            Sampled { stages, received: Some(10_000), softirq: Some(Duration::from_millis(19)) };
        let silos = netsilo_model::derive::silo::Silos::default();
        Record::Map(Box::new(SiloMap {
            load: load.into(),
            setting: setting.into(),
            silos,
            sampled: Some(sampled),
        }))
    }

    fn records(rounds: u32) -> Vec<Record> {
        let trials = (0..rounds).flat_map(|round| {
            let wave = f64::from(round % 3);
            [("none", 2000.0), ("rps", 3000.0)].into_iter().flat_map(move |(setting, ns)| {
                [
                    trial(round, ONE_WAY, setting, ns + wave),
                    trial(round, DROPPED, setting, 800.0 + wave),
                ]
            })
        });
        let maps = [
            map(
                ONE_WAY,
                "none",
                &[
                    (ReceiveStage::DriverGro, 7),
                    (ReceiveStage::BridgeIp, 4),
                    (ReceiveStage::QdiscXmit, 9),
                ],
            ),
            map(DROPPED, "none", &[(ReceiveStage::DriverGro, 6), (ReceiveStage::Netfilter, 2)]),
        ];
        trials.chain(maps).collect()
    }

    #[test]
    fn a_stages_cost_is_its_samples_per_received_packet() {
        let results = Results::from_records(&experiment(6), &records(6));
        let [forwarded, dropped] = &results.stages[..] else { panic!("{:?}", results.stages) };
        assert_eq!((forwarded.load.as_str(), dropped.load.as_str()), (ONE_WAY, DROPPED));
        let xmit = forwarded.stages[&ReceiveStage::QdiscXmit];
        assert_eq!((xmit.samples, xmit.share, xmit.ns_per_packet), (9, 0.45, Some(900.0)));
        assert_eq!(xmit.half_width_ns, Some(588.0));
        assert_eq!((forwarded.samples, forwarded.ns_per_packet), (20, Some(2000.0)));
        assert_eq!(
            (forwarded.softirq_ns_per_packet, dropped.ns_per_packet),
            (Some(1900.0), Some(800.0))
        );
    }

    #[test]
    fn early_drops_save_time_by_rounds_and_by_samples() {
        let results = Results::from_records(&experiment(6), &records(6));
        let [pair] = &results.early_drops[..] else { panic!("{:?}", results.early_drops) };
        assert_eq!((pair.load.as_str(), pair.dropped.as_str()), (ONE_WAY, DROPPED));
        let is_near = |a: f64, b: f64| (a - b).abs() < 1.0;
        let [none, rps] = &pair.settings[..] else { panic!("{pair:?}") };
        let cpu = none.cpu.unwrap();
        assert!(is_near(cpu.passed_on_ns, 2001.0) && is_near(cpu.dropped_ns, 801.0), "{cpu:?}");
        assert!(
            is_near(cpu.less_ns, 1200.0)
                && cpu.rounds == 6
                && cpu.interval.unwrap().contains(cpu.less_ns),
            "{cpu:?}"
        );
        assert!(is_near(none.softirq.unwrap().less_ns, 1080.0), "{none:?}");
        assert_eq!(none.sampled.map(|it| (it.less_ns, it.interval)), Some((1200.0, None)));
        assert_eq!((none.softirq_seen.map(|it| it.less_ns), rps.sampled), (Some(0.0), None));
        assert!(is_near(rps.cpu.unwrap().less_ns, 2200.0));
        let few = Results::from_records(&experiment(2), &records(2));
        assert_eq!(few.early_drops[0].settings[0].cpu.unwrap().interval, None);
    }

    #[test]
    fn dropped_packets_count_as_work_when_nothing_arrives() {
        let results = Results::from_records(&experiment(6), &records(6));
        let [passed_on, dropped] = &results.loads[..] else { panic!("{:?}", results.loads) };
        let first = |at: &UnderLoad, measure| {
            at.setting("none").unwrap().measured(measure).map(|it| it.rounds[&0])
        };
        assert_eq!((passed_on.work, dropped.work), (WorkUnit::Packet, WorkUnit::Dropped));
        assert_eq!(
            (first(passed_on, TrialMeasure::Rate), first(dropped, TrialMeasure::Rate)),
            (Some(99_000.0), Some(100_000.0))
        );
        for load in [passed_on, dropped] {
            assert_eq!(
                first(load, TrialMeasure::Received),
                Some(100_000.0),
                "eth2 is not under test"
            );
        }
        assert_eq!(
            [TrialMeasure::Lost, TrialMeasure::CpuTime].map(|it| first(dropped, it)),
            [None, None]
        );
        assert_eq!(
            (first(dropped, TrialMeasure::NetRx), first(passed_on, TrialMeasure::Lost)),
            (Some(0.05), Some(0.01))
        );
        let against = |load: &UnderLoad| {
            load.setting("rps")
                .unwrap()
                .measured(TrialMeasure::CpuReceived)
                .unwrap()
                .against
                .clone()
        };
        assert_eq!(against(passed_on).unwrap().verdict, CellResult::Worse);
        assert_eq!(against(dropped).unwrap().verdict, CellResult::NoDifferenceShown);
    }

    #[test]
    fn without_samples_or_counters_there_is_no_cost() {
        let mut experiment = experiment(6);
        experiment.machine.counted = vec!["eth9".into()];
        let results = Results::from_records(&experiment, &records(6));
        assert!(results.loads[1].setting("none").unwrap().measured(TrialMeasure::Rate).is_none());
        assert_eq!(results.early_drops[0].settings[0].cpu, None);
        let sampled = Sampled { received: Some(0), ..Sampled::default() };
        let map = |sampled| SiloMap {
            load: ONE_WAY.into(),
            setting: "none".into(),
            silos: Default::default(),
            sampled,
        };
        assert_eq!(StageCosts::from_map(&map(None)), None);
        assert_eq!(StageCosts::from_map(&map(Some(sampled))).unwrap().ns_per_packet, None);
        // a record of an older version
        let mut old = serde_json::to_value(map(None)).unwrap();
        old.as_object_mut().unwrap().remove("sampled");
        assert_eq!(serde_json::from_value::<SiloMap>(old).unwrap(), map(None));
    }
}
