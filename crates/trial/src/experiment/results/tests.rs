//! Tests with synthetic records whose results are known.

use std::time::Duration;

use super::*;
use crate::experiment::latency::tests::latency;
use crate::experiment::{Machine, Map, Setting};
use crate::traffic::{Latency, Run, Served, Side, Test, Totals};
use netsilo_model::derive::rates::{CpuRates, Rates, SoftnetRates};
use netsilo_model::derive::silo::Silos;
use netsilo_stats::simulate::{normal, share};

fn experiment(rounds: u32, emulated: bool) -> Experiment {
    let setting = |name: &str| Setting {
        name: name.into(),
        what: String::new(),
        changes: vec![],
        command: None,
    };
    let load = |name: &str, test| Load {
        name: name.into(),
        spec: Spec::usual(test, Duration::from_secs(1)),
        senders: 1,
        early_drop: false,
    };
    Experiment {
        schema: 1,
        kind: Kind::Matrix,
        netsilo: "0".into(),
        command: vec![],
        started_s: 0,
        settings: ["none", "rps"].map(setting).into(),
        loads: [load("a", Test::TcpRr), load("b", Test::UdpStream)].into(),
        rounds,
        pause: Duration::ZERO,
        seed: 7,
        machine: Machine {
            times_mean_nothing: emulated.then(|| "CPUs are emulated".into()),
            ..Machine::default()
        },
    }
}

/// The parameters of a synthetic trial of ten seconds.
#[derive(Clone, Copy)]
struct TrialParameters {
    per_s: f64,
    /// NET_RX of two CPUs, per second.
    net_rx: [f64; 2],
    cal: f64,
    rps: f64,
    latency_ns: u64,
}

const PLAIN: TrialParameters = TrialParameters {
    per_s: 1000.0,
    net_rx: [900.0, 100.0],
    cal: 50.0,
    rps: 0.0,
    latency_ns: 1000,
};

fn side(made: TrialParameters) -> Side {
    let shares = Some(Shares { usr: 0.1, softirq: 0.15, idle: 0.75, ..Shares::default() });
    let cpu = |net_rx: f64| CpuRates {
        shares,
        net_rx_per_s: Some(net_rx),
        cal_per_s: Some(made.cal),
        softnet: Some(SoftnetRates {
            received_rps_per_s: Some(made.rps),
            ..SoftnetRates::default()
        }),
        ..CpuRates::default()
    };
    let cpus = [(CpuId(0), cpu(made.net_rx[0])), (CpuId(1), cpu(made.net_rx[1]))].into();
    Side {
        boot_id: "under test".into(),
        rates: Rates { cpus, ..Rates::default() },
        interrupts_per_s: Some(2000.0),
        ..Side::default()
    }
}

fn trial(round: u32, load: &str, setting: &str, made: TrialParameters) -> Trial {
    let test = if load == "a" { Test::TcpRr } else { Test::UdpStream };
    let done = (made.per_s * 10.0) as u64;
    let run = Run {
        schema: 1,
        spec: Spec::usual(test, Duration::from_secs(10)),
        address: String::new(),
        seconds: 10.0,
        totals: Totals {
            requests: done,
            responses: done,
            datagrams_sent: done,
            ..Totals::default()
        },
        counted: Totals { responses: done, ..Totals::default() },
        per_second: vec![],
        latency: (test == Test::TcpRr).then(|| latency(vec![made.latency_ns; 100])),
        client: Side { boot_id: "client".into(), ..Side::default() },
        server: Served {
            totals: Totals { datagrams_received: done, ..Totals::default() },
            counted: Totals { datagrams_received: done, ..Totals::default() },
            side: side(made),
            ..Served::default()
        },
    };
    let step = Step { round, load: load.into(), setting: setting.into() };
    Trial { step, started_ms: u64::from(round), runs: vec![run], between: None }
}

fn record(round: u32, load: &str, setting: &str, made: TrialParameters) -> Record {
    Record::Trial(Box::new(trial(round, load, setting, made)))
}

/// Rounds in which RPS handles 10 % more transactions than the level of the round.
fn rounds(n: u32) -> Vec<Record> {
    let level = |round: u32| 1000.0 + 50.0 * f64::from(round);
    let wave = |round: u32| 1.0 + 0.001 * f64::from(round % 3);
    (0..n)
        .flat_map(|round| {
            let rps = TrialParameters {
                per_s: level(round) * 1.1 * wave(round),
                rps: 300.0,
                net_rx: [500.0, 500.0],
                ..PLAIN
            };
            [
                record(round, "a", "none", TrialParameters { per_s: level(round), ..PLAIN }),
                record(round, "a", "rps", rps),
            ]
        })
        .collect()
}

fn of<'a>(results: &'a Results, load: &str, setting: &str, measure: Measure) -> &'a Measured {
    let load = results.loads.iter().find(|it| it.load == load).unwrap();
    load.of(setting).unwrap().measured(measure).unwrap()
}

#[test]
fn a_change_is_by_round_so_that_drift_cancels() {
    let results = Results::of(&experiment(8, false), &rounds(8));
    let rate = of(&results, "a", "rps", Measure::Rate);
    let against = rate.against.as_ref().unwrap();
    assert_eq!(
        (against.verdict, against.rounds, against.scale),
        (Verdict::Better, 8, Scale::Ratio)
    );
    let interval = against.interval.unwrap();
    assert!(
        (against.change - 0.101).abs() < 0.001 && interval.low > 0.099 && interval.high < 0.103,
        "{against:?}"
    );
    assert!(against.bootstrap.unwrap().holds(against.change));
    // the levels differ by a third from first to last round
    let own = rate.interval.unwrap();
    assert!(own.high / own.low > 1.1 && own.holds(rate.median), "{own:?}");
    assert_eq!(of(&results, "a", "none", Measure::Rate).against, None);
    assert!(results.loads[0].settings[0].steadiness.drift.unwrap() > 0.25);
}

#[test]
fn counts_are_per_transaction() {
    let results = Results::of(&experiment(8, false), &rounds(8));
    let first = |measure| of(&results, "a", "none", measure).rounds[&0];
    assert_eq!(
        [
            Measure::NetRx,
            Measure::Ipis,
            Measure::Interrupts,
            Measure::HandedOver,
            Measure::BusiestCpu
        ]
        .map(first),
        [1.0, 0.1, 2.0, 0.0, 0.9]
    );
    assert_eq!([Measure::CpuTime, Measure::MedianLatency].map(first), [0.5 / 1000.0 * 1e9, 1000.0]);
    let handed = of(&results, "a", "rps", Measure::HandedOver).against.as_ref().unwrap();
    assert_eq!(
        (handed.verdict, handed.scale),
        (Verdict::Higher, Scale::Difference),
        "zero has no ratio"
    );
    assert_eq!(
        of(&results, "a", "rps", Measure::BusiestCpu).against.as_ref().unwrap().verdict,
        Verdict::Lower
    );
    assert!(
        results.loads[0].of("none").unwrap().measured(Measure::Lost).is_none(),
        "TCP loses nothing"
    );
}

#[test]
fn fewer_than_six_rounds_give_a_change_but_no_verdict() {
    let results = Results::of(&experiment(5, false), &rounds(5));
    let against = of(&results, "a", "rps", Measure::Rate).against.as_ref().unwrap();
    assert_eq!((against.verdict, against.interval), (Verdict::TooFewRounds, None));
    assert!((against.change - 0.101).abs() < 0.001);
    assert_eq!(results.rates, Chance::default());
    let six = Results::of(&experiment(6, false), &rounds(6));
    assert_eq!(
        of(&six, "a", "rps", Measure::Rate).against.as_ref().unwrap().verdict,
        Verdict::Better
    );
    assert_eq!(six.rates, Chance { made: 1, differ: 1, by_chance: 0.05 });
}

#[test]
fn without_valid_times_only_counts_have_verdicts() {
    let results = Results::of(&experiment(8, true), &rounds(8));
    for measured in &results.loads[0].of("rps").unwrap().measures {
        let verdict = measured.against.as_ref().unwrap().verdict;
        assert_eq!(measured.means_nothing, measured.measure.is_time());
        assert_eq!(
            verdict == Verdict::TimesMeanNothing,
            measured.measure.is_time(),
            "{:?}",
            measured.measure
        );
    }
    assert_eq!(results.rates.made, 0);
    assert!(results.others.made > 0);
}

#[test]
fn failed_missing_and_unknown_steps_are_separate() {
    let mut records = rounds(2);
    let step = |round, setting: &str| Step { round, load: "b".into(), setting: setting.into() };
    let failed = |round, setting, why: &str| {
        Record::Failed(Failed { step: step(round, setting), why: why.into() })
    };
    records.push(failed(0, "none", "no route"));
    records.push(failed(0, "rps", "no route"));
    records.push(failed(0, "rps", "no server"));
    records.push(record(0, "b", "none", PLAIN));
    records.push(record(7, "b", "none", PLAIN));
    records.push(record(0, "b", "both", PLAIN));
    let map = |setting: &str| Map {
        load: "b".into(),
        setting: setting.into(),
        silos: Silos::default(),
        sampled: None,
    };
    records.extend([Record::Map(Box::new(map("rps"))), Record::Map(Box::new(map("both")))]);
    let results = Results::of(&experiment(2, false), &records);
    assert_eq!(results.failed, [Failed { step: step(0, "rps"), why: "no server".into() }]);
    assert_eq!((results.not_tried.len(), results.strangers, results.maps.len()), (2, 3, 1));
    let packets = of(&results, "b", "none", Measure::Rate);
    assert_eq!((packets.median, packets.unit.as_str()), (1000.0, "packets/s"));
    let json = serde_json::to_string(&results.failed).unwrap();
    assert_eq!(json, r#"[{"round":0,"load":"b","setting":"rps","why":"no server"}]"#);
    let read_back: Results =
        serde_json::from_str(&serde_json::to_string(&results).unwrap()).unwrap();
    assert_eq!(read_back.not_tried, results.not_tried);
}

#[test]
fn an_unpaired_round_is_not_compared_and_the_later_record_counts() {
    let mut records = rounds(7);
    records.remove(0);
    records.push(record(3, "a", "rps", TrialParameters { per_s: 9999.0, ..PLAIN }));
    let results = Results::of(&experiment(7, false), &records);
    let rate = of(&results, "a", "rps", Measure::Rate);
    assert_eq!((rate.rounds.len(), rate.rounds[&3]), (7, 9999.0));
    assert_eq!(rate.against.as_ref().unwrap().rounds, 6);
}

#[test]
fn latencies_of_all_rounds_are_one_histogram_and_cpus_are_means() {
    let slow = TrialParameters { latency_ns: 9000, net_rx: [100.0, 100.0], ..PLAIN };
    let results = Results::of(
        &experiment(2, false),
        &[record(0, "a", "none", PLAIN), record(1, "a", "none", slow)],
    );
    let cell = results.loads[0].of("none").unwrap();
    let merged = cell.latency.as_ref().unwrap();
    assert_eq!((merged.count, merged.unreadable), (200, 0));
    let cpu = cell.cpus[&CpuId(0)];
    assert_eq!(
        (cpu.net_rx_per_s, cpu.shares.unwrap().idle, cpu.true_irq),
        (Some(500.0), 0.75, None)
    );
    let broken = Latency { histogram: "?".into(), ..Latency::default() };
    let mut trial = trial(0, "a", "none", PLAIN);
    trial.runs[0].latency = Some(broken);
    let results = Results::of(&experiment(2, false), &[Record::Trial(Box::new(trial))]);
    assert_eq!(results.loads[0].settings[0].latency.as_ref().unwrap().unreadable, 1);
}

#[test]
fn settings_without_effect_differ_as_rarely_as_promised() {
    let draws = Draws { resamples: 20, ..Draws::default() };
    for measure in [Measure::Rate, Measure::Ipis] {
        let wrong = share(1500, |rng| {
            let mut rounds = || {
                (0..8)
                    .map(|round| (round, (0.1 * normal(rng)).exp()))
                    .collect::<BTreeMap<u32, f64>>()
            };
            let (base, same) = (rounds(), rounds());
            against(measure, false, &base, &same, draws).unwrap().verdict.differs()
        });
        assert!((0.02..=0.06).contains(&wrong), "{measure:?} {wrong}");
    }
}
