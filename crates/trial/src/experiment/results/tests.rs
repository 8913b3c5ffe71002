//! Tests with synthetic records whose results are known.

use std::time::Duration;

use super::*;
use crate::comparison::Scale;
use crate::experiment::compared::MeasureResult;
use crate::experiment::plan::{Load, MachineSummary, Setting};
use crate::experiment::records::ExpectedChange;
use crate::experiment::samples::latency;
use crate::stats::Estimate;
use crate::traffic::Spec;
use crate::traffic::{EndMachine, Latency, LoadResult, ServerResult, Test, Totals};
use netsilo_model::derive::rates::Shares;
use netsilo_model::derive::rates::{CpuRates, Rates, SoftnetRates};
use netsilo_model::derive::silo::Silos;
use netsilo_model::machine::cpuset::CpuId;

fn experiment(rounds: u32, emulated: bool) -> Experiment {
    let setting = |name: &str| Setting {
        name: name.into(),
        what: String::new(),
        changes: vec![],
        command: None,
    };
    let load = |name: &str, test| Load {
        name: name.into(),
        spec: Spec::default_for(test, Duration::from_secs(1)),
        senders: 1,
        early_drop: false,
    };
    Experiment {
        schema: 1,
        kind: "matrix".into(),
        netsilo: "0".into(),
        command: vec![],
        started_s: 0,
        settings: ["none", "rps"].map(setting).into(),
        loads: [load("a", Test::TcpRr), load("b", Test::UdpStream)].into(),
        rounds,
        pause: Duration::ZERO,
        seed: 7,
        machine: MachineSummary {
            times_invalid: emulated.then(|| "CPUs are emulated".into()),
            ..MachineSummary::default()
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

fn side(made: TrialParameters) -> EndMachine {
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
    EndMachine {
        boot_id: "under test".into(),
        rates: Rates { cpus, ..Rates::default() },
        interrupts_per_s: Some(2000.0),
        ..EndMachine::default()
    }
}

fn trial(round: u32, load: &str, setting: &str, made: TrialParameters) -> Trial {
    let test = if load == "a" { Test::TcpRr } else { Test::UdpStream };
    let done = (made.per_s * 10.0) as u64;
    let run = LoadResult {
        schema: 1,
        spec: Spec::default_for(test, Duration::from_secs(10)),
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
        client: EndMachine { boot_id: "client".into(), ..EndMachine::default() },
        server: ServerResult {
            totals: Totals { datagrams_received: done, ..Totals::default() },
            counted: Totals { datagrams_received: done, ..Totals::default() },
            side: side(made),
            ..ServerResult::default()
        },
    };
    let step = Step { round, load: load.into(), setting: setting.into() };
    Trial { step, started_ms: u64::from(round), runs: vec![run], between: None }
}

fn record(round: u32, load: &str, setting: &str, made: TrialParameters) -> Record {
    Record::Trial(Box::new(trial(round, load, setting, made)))
}

/// Rounds in which RPS handles 10 % more transactions than the other settings of the round.
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

fn of<'a>(
    results: &'a Results,
    load: &str,
    setting: &str,
    measure: TrialMeasure,
) -> &'a MeasureResult {
    let load = results.loads.iter().find(|it| it.load == load).unwrap();
    load.setting(setting).unwrap().measured(measure).unwrap()
}

#[test]
fn a_change_is_by_round_so_that_drift_cancels() {
    let results = Results::from_records(&experiment(8, false), &rounds(8));
    let rate = of(&results, "a", "rps", TrialMeasure::Rate);
    let against = rate.against.as_ref().unwrap();
    assert_eq!(
        (against.verdict, against.rounds, against.scale),
        (CellResult::Better, 8, Scale::Ratio)
    );
    let interval = against.interval.unwrap();
    assert!(
        (against.change - 0.101).abs() < 0.001 && interval.low > 0.099 && interval.high < 0.103,
        "{against:?}"
    );
    assert!(against.bootstrap.unwrap().contains(against.change));
    // the levels differ by a third from first to last round
    let own = rate.interval.unwrap();
    assert!(own.high / own.low > 1.1 && own.contains(rate.median), "{own:?}");
    assert_eq!(of(&results, "a", "none", TrialMeasure::Rate).against, None);
    assert!(results.loads[0].settings[0].steadiness.drift.unwrap() > 0.25);
}

#[test]
fn counts_are_per_transaction() {
    let results = Results::from_records(&experiment(8, false), &rounds(8));
    let first = |measure| of(&results, "a", "none", measure).rounds[&0];
    assert_eq!(
        [
            TrialMeasure::NetRx,
            TrialMeasure::Ipis,
            TrialMeasure::Interrupts,
            TrialMeasure::RpsWakeups,
            TrialMeasure::BusiestCpu
        ]
        .map(first),
        [1.0, 0.1, 2.0, 0.0, 0.9]
    );
    assert_eq!(
        [TrialMeasure::CpuTime, TrialMeasure::MedianLatency].map(first),
        [0.5 / 1000.0 * 1e9, 1000.0]
    );
    let handed = of(&results, "a", "rps", TrialMeasure::RpsWakeups).against.as_ref().unwrap();
    assert_eq!(
        (handed.verdict, handed.scale),
        (CellResult::Higher, Scale::Difference),
        "zero has no ratio"
    );
    assert_eq!(
        of(&results, "a", "rps", TrialMeasure::BusiestCpu).against.as_ref().unwrap().verdict,
        CellResult::Lower
    );
    assert!(
        results.loads[0].setting("none").unwrap().measured(TrialMeasure::Lost).is_none(),
        "TCP loses nothing"
    );
}

#[test]
fn fewer_than_six_rounds_give_a_change_but_no_verdict() {
    let results = Results::from_records(&experiment(5, false), &rounds(5));
    let against = of(&results, "a", "rps", TrialMeasure::Rate).against.as_ref().unwrap();
    assert_eq!((against.verdict, against.interval), (CellResult::TooFewRounds, None));
    assert!((against.change - 0.101).abs() < 0.001);
    assert_eq!(results.rates, VerdictCounts::default());
    let six = Results::from_records(&experiment(6, false), &rounds(6));
    assert_eq!(
        of(&six, "a", "rps", TrialMeasure::Rate).against.as_ref().unwrap().verdict,
        CellResult::Better
    );
    assert_eq!(six.rates, VerdictCounts { made: 1, differ: 1, by_chance: 0.05 });
}

#[test]
fn without_valid_times_only_counts_have_verdicts() {
    let results = Results::from_records(&experiment(8, true), &rounds(8));
    for measured in &results.loads[0].setting("rps").unwrap().measures {
        let verdict = measured.against.as_ref().unwrap().verdict;
        assert_eq!(measured.time_invalid, measured.measure.is_time());
        assert_eq!(
            verdict == CellResult::TimesInvalid,
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
    let map = |setting: &str| SiloMap {
        load: "b".into(),
        setting: setting.into(),
        silos: Silos::default(),
        sampled: None,
    };
    records.extend([Record::Map(Box::new(map("rps"))), Record::Map(Box::new(map("both")))]);
    let results = Results::from_records(&experiment(2, false), &records);
    assert_eq!(results.failed, [Failed { step: step(0, "rps"), why: "no server".into() }]);
    assert_eq!((results.not_tried.len(), results.unknown_records), (2, 3));
    let packets = of(&results, "b", "none", TrialMeasure::Rate);
    assert_eq!((packets.median, packets.unit.as_str()), (1000.0, "packets/s"));
    let json = serde_json::to_string(&results.failed).unwrap();
    assert_eq!(json, r#"[{"round":0,"load":"b","setting":"rps","why":"no server"}]"#);
    let read_back: Results =
        serde_json::from_str(&serde_json::to_string(&results).unwrap()).unwrap();
    assert_eq!(read_back.not_tried, results.not_tried);
}

#[test]
fn what_was_expected_stands_beside_what_was_measured() {
    let faster = TrialParameters { per_s: 1300.0, ..PLAIN };
    let trials = |round| [record(round, "a", "none", PLAIN), record(round, "a", "rps", faster)];
    let mut records: Vec<Record> = (0..2).flat_map(trials).collect();
    let expected = |value: f64| ExpectedChange {
        setting: "rps".into(),
        change: Some(Estimate { value, low: value - 0.1, high: value + 0.1 }),
        not_modeled: vec![],
    };
    let expectation = |load: &str, value, why_not: Option<&str>| {
        Record::Expected(Box::new(Expectation {
            load: load.into(),
            settings: vec![expected(value)],
            why_not: why_not.map(str::to_owned),
        }))
    };
    records.push(expectation("a", 0.9, None));
    // the later one counts
    records.push(expectation("a", 0.25, None));
    records.push(expectation("b", 0.1, Some("no packets")));
    records.push(expectation("unknown", 0.1, None));
    let results = Results::from_records(&experiment(2, false), &records);
    let [a, b] = &results.expected[..] else { panic!("{:#?}", results.expected) };
    let rps = a.setting("rps").unwrap();
    assert!((rps.measured.unwrap() - 0.3).abs() < 1e-9, "{rps:#?}");
    assert_eq!((rps.expected.unwrap().value, rps.holds), (0.25, Some(true)));
    assert_eq!(a.setting("none"), None);
    assert_eq!((b.setting("rps").unwrap().holds, b.why_not.as_deref()), (None, Some("no packets")));
    assert_eq!(results.unknown_records, 1);
    // the rates of an emulated machine are not compared
    let emulated = Results::from_records(&experiment(2, true), &records);
    assert_eq!(emulated.expected[0].setting("rps").unwrap().measured, None);
}

#[test]
fn an_unpaired_round_is_not_compared_and_the_later_record_counts() {
    let mut records = rounds(7);
    records.remove(0);
    records.push(record(3, "a", "rps", TrialParameters { per_s: 9999.0, ..PLAIN }));
    let results = Results::from_records(&experiment(7, false), &records);
    let rate = of(&results, "a", "rps", TrialMeasure::Rate);
    assert_eq!((rate.rounds.len(), rate.rounds[&3]), (7, 9999.0));
    assert_eq!(rate.against.as_ref().unwrap().rounds, 6);
}

#[test]
fn latencies_of_all_rounds_are_one_histogram_and_cpus_are_means() {
    let slow = TrialParameters { latency_ns: 9000, net_rx: [100.0, 100.0], ..PLAIN };
    let results = Results::from_records(
        &experiment(2, false),
        &[record(0, "a", "none", PLAIN), record(1, "a", "none", slow)],
    );
    let cell = results.loads[0].setting("none").unwrap();
    let merged = cell.latency.as_ref().unwrap();
    assert_eq!((merged.count, merged.unreadable), (200, 0));
    let cpu = cell.cpus[&CpuId(0)];
    assert_eq!(
        (cpu.net_rx_per_s, cpu.shares.unwrap().idle, cpu.hardirq_share),
        (Some(500.0), 0.75, None)
    );
    let broken = Latency { histogram: "?".into(), ..Latency::default() };
    let mut trial = trial(0, "a", "none", PLAIN);
    trial.runs[0].latency = Some(broken);
    let results = Results::from_records(&experiment(2, false), &[Record::Trial(Box::new(trial))]);
    assert_eq!(results.loads[0].settings[0].latency.as_ref().unwrap().unreadable, 1);
}
