//! The folder of a synthetic experiment with known results.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use netsilo_model::change::{Change, knobs};
use netsilo_model::derive::rates::{CpuRates, Rates, Shares, SoftnetRates};
use netsilo_model::derive::silo::{ConsumerShare, PollRate, Silo, Silos};
use netsilo_model::derive::stages::Stages;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::netdev::{Association, AssociationSource, Confidence};
use netsilo_model::snapshot::stage_samples::{ReceiveStage, StageSamples};
use netsilo_trial::experiment::Sampled;
use netsilo_trial::experiment::{
    EXPERIMENT, Expectation, ExpectedChange, Experiment, Failed, Load, MachineSummary, RECORDS,
    Record, Setting, SiloMap, Step, Trial,
};
use netsilo_trial::stats::Estimate;
use netsilo_trial::traffic::{EndMachine, Latency, LoadResult, ServerResult, Spec, Test, Totals};

/// Names that would do harm if they were not escaped.
pub(crate) const HOSTILE: &str = "</script><script>alert(1)</script>";
pub(crate) const READER: &str = "redis<b>{b}\u{1b}[31m";

const CPUS: u32 = 8;
pub(crate) const ROUNDS: u32 = 8;
pub(crate) const SETTINGS: [&str; 4] = ["none", "irq-affinity", "rps+rfs", HOSTILE];

/// Returns request loads of 256 bytes with several numbers of instances, and streams.
pub(crate) fn loads() -> Vec<Load> {
    let spec = |test, instances| Spec {
        instances,
        request_bytes: 256,
        response_bytes: 256,
        ..Spec::default_for(test, Duration::from_secs(10))
    };
    let load = |name: String, spec| Load { name, spec, senders: 1, early_drop: false };
    let requests = [1, 50, 500].map(|n| load(format!("TCP_RR 256 B x {n}"), spec(Test::TcpRr, n)));
    let others = [
        load("UDP_RR 256 B x 500".into(), spec(Test::UdpRr, 500)),
        load("TCP_STREAM".into(), spec(Test::TcpStream, 1)),
        load("FORWARD".into(), spec(Test::Forward, 64)),
    ];
    requests.into_iter().chain(others).collect()
}

/// Returns the work done per second. A setting helps more with more instances.
pub(crate) fn per_s(load: usize, setting: usize, round: u32) -> f64 {
    let base = [9_000.0, 60_000.0, 118_000.0, 95_000.0, 1.1e9, 640_000.0][load];
    let helps = [0.0, 0.11, 0.21, 0.002][setting] * [0.1, 0.6, 1.0, 1.2, -0.3, 0.8][load];
    let wave = f64::from((round * 7 + setting as u32 * 3 + load as u32) % 5) - 2.0;
    base * (1.0 + helps) * (1.0 + 0.006 * wave) * (1.0 + 0.002 * f64::from(round))
}

fn machine(times_invalid: Option<&str>) -> MachineSummary {
    MachineSummary {
        hostname: "server1".into(),
        kernel: "6.12.48".into(),
        cpus: CPUS,
        model: Some("Made-up CPU <8 cores> & more".into()),
        netdevs: vec!["eth0: igb, 4 rx queues".into()],
        counted: Vec::new(),
        times_invalid: times_invalid.map(str::to_owned),
    }
}

pub(crate) fn experiment(times_invalid: Option<&str>) -> Experiment {
    let netdev = NetdevIdentity { name: "eth0".into(), ..NetdevIdentity::default() };
    let knob = knobs::RpsCpus { netdev, queue: 0 };
    let cpus = |list| CpuSet::parse_list(list).unwrap();
    let change = Change::new(knob, cpus("0"), cpus("0-7"), "all CPUs take part");
    let setting = |name: &str| Setting {
        name: name.into(),
        what: format!("what {name} does"),
        changes: if name.starts_with("rps") { vec![change.clone()] } else { vec![] },
        command: (name == HOSTILE).then(|| "tune --all <eth0>".into()),
    };
    Experiment {
        schema: 1,
        kind: "matrix".into(),
        netsilo: "0.1.0".into(),
        command: ["netsilo-bench", "experiment", "matrix", "192.0.2.7", "-c", "it's"]
            .map(str::to_owned)
            .into(),
        started_s: 1_795_297_200,
        settings: SETTINGS.map(setting).into(),
        loads: loads(),
        rounds: ROUNDS,
        pause: Duration::from_secs(3),
        seed: 42,
        machine: machine(times_invalid),
    }
}

fn latency(base_ns: f64) -> Latency {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
    for n in 1..=20_000u32 {
        let tail = f64::from(n) / 20_000.5;
        histogram.record((base_ns * (1.0 + 0.35 * -(1.0 - tail).ln())) as u64).unwrap();
    }
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(&histogram, &mut bytes).unwrap();
    let at = |percent: &str| {
        (percent.to_owned(), histogram.value_at_percentile(percent.parse().unwrap()))
    };
    Latency {
        count: histogram.len(),
        mean_ns: histogram.mean(),
        max_ns: histogram.max(),
        percentiles_ns: ["50", "99", "99.9"].map(at).into(),
        histogram: base64::engine::general_purpose::STANDARD.encode(&bytes),
    }
}

/// With `none` one CPU does the softirqs. Affinity spreads them over four CPUs, RPS over all.
fn side(setting: usize, per_s: f64, round: u32) -> EndMachine {
    let on = [1, 4, 8, 1][setting];
    let wobble = 1.0 + 0.01 * f64::from(round % 3);
    let rate = (per_s / 1000.0).clamp(1_000.0, 200_000.0);
    let cpu = |cpu: u32| {
        let busy = if cpu < on { 0.8 / f64::from(on) * wobble } else { 0.004 };
        let (usr, sys, irq) = (0.08, 0.14, busy / 12.0);
        let idle = 1.0 - usr - sys - irq - busy;
        let shares = Shares { usr, sys, irq, softirq: busy, idle, ..Shares::default() };
        CpuRates {
            shares: Some(shares),
            net_rx_per_s: Some(if cpu < on { rate * 6.0 / f64::from(on) } else { 3.0 }),
            net_tx_per_s: Some(1.0),
            cal_per_s: Some(if setting == 2 { rate * 1.5 } else { 40.0 + f64::from(round) }),
            softnet: Some(SoftnetRates {
                processed_per_s: Some(rate * 2.0),
                received_rps_per_s: Some(if setting == 2 { rate } else { 0.0 }),
                ..SoftnetRates::default()
            }),
        }
    };
    EndMachine {
        hostname: "server1".into(),
        kernel: "6.12.48".into(),
        boot_id: "server1".into(),
        rates: Rates {
            elapsed: Duration::from_secs(10),
            cpus: (0..CPUS).map(|n| (CpuId(n), cpu(n))).collect(),
            ..Rates::default()
        },
        interrupts_per_s: Some(rate * 9.0 * wobble),
        context_switches_per_s: Some(rate * 4.0 * wobble),
        ..EndMachine::default()
    }
}

pub(crate) fn trial(load_at: usize, load: &Load, setting: usize, round: u32) -> Record {
    let per_s = per_s(load_at, setting, round);
    let count = (per_s * 10.0) as u64;
    let has_responses = load.spec.test.has_responses();
    let (transactions, pieces) = if has_responses { (count, 0) } else { (0, count) };
    let arrived =
        Totals { received_bytes: pieces, datagrams_received: pieces, ..Totals::default() };
    let run = LoadResult {
        schema: 1,
        spec: load.spec.clone(),
        address: "192.0.2.7:12870".into(),
        seconds: 10.0,
        totals: Totals {
            requests: transactions,
            responses: transactions,
            datagrams_sent: pieces,
            ..Totals::default()
        },
        counted: Totals { responses: transactions, ..Totals::default() },
        per_second: vec![],
        latency: has_responses
            .then(|| latency(5e8 / per_s * [1.0, 0.97, 0.9, 1.0][setting] * 10.0)),
        client: EndMachine { boot_id: "client1".into(), ..EndMachine::default() },
        server: ServerResult {
            totals: arrived,
            counted: arrived,
            side: side(setting, per_s, round),
            ..ServerResult::default()
        },
    };
    let step = Step { round, load: load.name.clone(), setting: SETTINGS[setting].into() };
    Record::Trial(Box::new(Trial {
        step,
        started_ms: 1_795_297_200_000 + u64::from(round) * 60_000,
        runs: vec![run],
        between: None,
    }))
}

fn map(load: &str, setting: usize) -> Record {
    let reader = |cpus: &[u32]| ConsumerShare {
        comm: READER.into(),
        share: 0.95,
        cpus: cpus.iter().map(|cpu| (CpuId(*cpu), 1.0 / cpus.len() as f64)).collect(),
        ..ConsumerShare::default()
    };
    let queue = |queue: u32| {
        let polled = if setting == 0 { 0 } else { queue };
        let packets = 20_000.0 + 3_000.0 * f64::from(queue);
        let everywhere =
            || (0..CPUS).map(|cpu| (CpuId(cpu), 1.0 / f64::from(CPUS))).collect::<BTreeMap<_, _>>();
        Silo {
            netdev: NetdevIdentity { name: "eth0".into(), ..NetdevIdentity::default() },
            queue: Some(queue),
            irq: Some(Association {
                to: Irq(41 + queue),
                source: AssociationSource::NetdevGenl,
                confidence: Confidence::Certain,
            }),
            packets_per_s: Some(packets),
            polls: [(
                CpuId(polled),
                PollRate { polls_per_s: 900.0, packets_per_s: packets, time_share: None },
            )]
            .into(),
            protocol_cpus: if setting == 2 { everywhere() } else { [(CpuId(polled), 1.0)].into() },
            consumers: vec![if setting == 1 { reader(&[polled]) } else { reader(&[1, 3, 5]) }],
            ..Silo::default()
        }
    };
    let silos = Silos { queues: (0..4).map(queue).collect(), ..Silos::default() };
    Record::Map(Box::new(SiloMap {
        load: load.into(),
        setting: SETTINGS[setting].into(),
        silos,
        sampled: None,
    }))
}

/// The predictions under the first load. Under the second load there was too little data.
fn expectations(loads: &[Load]) -> [Record; 2] {
    let change = |value| Some(Estimate { value, low: value - 0.1, high: value + 0.1 });
    let expected = |setting: &str, change, not_modeled: &[&str]| ExpectedChange {
        setting: setting.to_owned(),
        change,
        not_modeled: not_modeled.iter().map(|it| (*it).to_owned()).collect(),
    };
    let of = |load: &Load, settings, why_not| {
        Record::Expected(Box::new(Expectation { load: load.name.clone(), settings, why_not }))
    };
    let settings = [
        expected("irq-affinity", change(0.12), &[]),
        expected("rps+rfs", change(0.5), &[]),
        expected(HOSTILE, None, &["net.ipv4.tcp_rmem"]),
    ];
    let too_little = Some("no packets were seen".to_owned());
    [of(&loads[0], settings.into(), None), of(&loads[1], Vec::new(), too_little)]
}

/// Returns all records. One trial of `FORWARD` failed.
pub(crate) fn records() -> Vec<Record> {
    let loads = loads();
    let mut records: Vec<Record> = (0..3).map(|setting| map(&loads[2].name, setting)).collect();
    records.extend(expectations(&loads));
    for round in 0..ROUNDS {
        for (at, load) in loads.iter().enumerate() {
            for (setting, name) in SETTINGS.into_iter().enumerate() {
                if at == 5 && setting == 1 && round == 4 {
                    let step = Step { round, load: load.name.clone(), setting: name.into() };
                    records.push(Record::Failed(Failed {
                        step,
                        why: "the server is gone\nok: <all is well>".into(),
                    }));
                } else {
                    records.push(trial(at, load, setting, round));
                }
            }
        }
    }
    records
}

/// Returns the run of a forwarding machine: forwarded packets, the same packets dropped early, and
/// the stages in which receive work spends its time.
pub(crate) fn forward() -> (Experiment, Vec<Record>) {
    let mut experiment = experiment(None);
    experiment.kind = "forward".into();
    experiment.settings.truncate(2);
    experiment.machine.counted = vec!["eth0".into()];
    let (name, spec) =
        ("one way".to_owned(), Spec::default_for(Test::Forward, Duration::from_secs(10)));
    let dropped = Load {
        name: format!("{name}, dropped early"),
        spec: spec.clone(),
        senders: 1,
        early_drop: true,
    };
    experiment.loads = vec![Load { name, spec, senders: 1, early_drop: false }, dropped];
    let mut records = Vec::new();
    for load in &experiment.loads {
        records.extend([0, 1].map(|setting| sampled(load, setting)));
        for round in 0..ROUNDS {
            records.extend([0, 1].map(|setting| between(load, setting, round)));
        }
    }
    (experiment, records)
}

/// Returns a trial in which the machine under test forwarded. It received 700 000 packets per
/// second.
fn between(load: &Load, setting: usize, round: u32) -> Record {
    let Record::Trial(mut trial) = trial(5, load, setting, round) else {
        return map(&load.name, setting);
    };
    let mut side = trial.runs[0].server.side.clone();
    side.rates.netdevs =
        [("eth0".to_owned(), [("rx_packets".to_owned(), 700_000.0)].into())].into();
    if load.early_drop {
        let server = &mut trial.runs[0].server;
        (server.totals, server.counted) = Default::default();
        for shares in side.rates.cpus.values_mut().filter_map(|cpu| cpu.shares.as_mut()) {
            (shares.softirq, shares.idle) =
                (shares.softirq * 0.25, shares.idle + shares.softirq * 0.75);
        }
    }
    trial.between = Some(side);
    Record::Trial(trial)
}

fn sampled(load: &Load, setting: usize) -> Record {
    let all = [
        (ReceiveStage::DriverGro, 200),
        (ReceiveStage::BridgeIp, if load.early_drop { 40 } else { 400 }),
        (ReceiveStage::Netfilter, 80),
        (ReceiveStage::QdiscXmit, if load.early_drop { 0 } else { 500 }),
    ];
    let on = if setting == 0 { 1 } else { 4 };
    let part = |count: u64| count / u64::from(on);
    let cpu =
        |cpu: u32| (CpuId(cpu), all.iter().map(|(stage, count)| (*stage, part(*count))).collect());
    let samples =
        StageSamples { per_s: 499, cpus: (0..on).map(cpu).collect(), ..StageSamples::default() };
    let sampled = Sampled {
        stages: Stages::from_samples(&samples, 10.0),
        received: Some(7_000_000),
        softirq: Some(Duration::from_millis(if load.early_drop { 650 } else { 2_400 })),
    };
    let (load, setting) = (load.name.clone(), SETTINGS[setting].to_owned());
    Record::Map(Box::new(SiloMap {
        load,
        setting,
        silos: Silos::default(),
        sampled: Some(sampled),
    }))
}

/// Writes a run's folder.
pub(crate) fn write(folder: &Path, experiment: &Experiment, records: &[Record]) {
    let lines: Vec<String> =
        records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
    std::fs::write(folder.join(EXPERIMENT), serde_json::to_string_pretty(experiment).unwrap())
        .unwrap();
    std::fs::write(folder.join(RECORDS), lines.concat()).unwrap();
    std::fs::write(folder.join("commands.txt"), "# here\nnetsilo-bench experiment matrix\n")
        .unwrap();
}
