//! Unknown is never idle: no text and no value says idle, none or zero of a netdev, queue, CPU or
//! thread whose own counter moved. Held for all cases, a part of the bundles, and machines of many
//! shapes with traffic; each also with less known of it than was read.

use std::collections::BTreeSet;

use netsilo_decide::judge::findings::check;
use netsilo_decide::judge::why::why;
use netsilo_decide::report::Report;
use netsilo_decide::report::rss::netdev_rss;
use netsilo_model::derive::counted::FEW_PACKETS;
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::host::{CpuStat, Snapshot};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::subject::Subject;
use netsilo_predict::live::work::Work;

use super::*;
use crate::tell::presentation::Presentation;

/// Every how many bundles one is examined: each takes the time of a `check`.
const ONE_OF: usize = 15;

/// The most netdevs and CPUs that are explained one by one.
const EXPLAINED: usize = 3;

/// Words for "received nothing".
const NOTHING: [&str; 8] = [
    " idle",
    "no traffic",
    "without traffic",
    "no packets",
    "received nothing",
    "receives nothing",
    "no rx queue received",
    "no netdev received",
];

fn ticks(stat: &CpuStat) -> u64 {
    let CpuStat { user, nice, system, idle, iowait, irq, softirq, steal, .. } = *stat;
    [user, nice, system, idle, iowait, irq, softirq, steal].into_iter().fold(0, u64::saturating_add)
}

/// Packets that a netdev received between the two snapshots.
fn received(observation: &Observation, netdev: &Netdev) -> f64 {
    let packets = |netdev: &Netdev| netdev.statistics.get("rx_packets").copied();
    let before = observation.before.netdevs.same(netdev).and_then(packets);
    let grown = before.zip(packets(netdev)).and_then(|(before, after)| after.checked_sub(before));
    grown.unwrap_or(0) as f64
}

/// What is wrong in what is said of an observation.
fn wrong(observation: &Observation) -> Vec<String> {
    let (costs, mut wrong) = (Costs::default(), Vec::new());
    let analysis = Analysis::new(observation, &costs);
    if analysis.rates.elapsed.is_zero() {
        return wrong;
    }
    let report = Report::of(&analysis);
    let on = Presentation::default();
    let explained = |subject: Subject| {
        let answer = why(&analysis, &subject).ok()?;
        Some(views::why::render(&answer, on).to_string())
    };
    let plan = views::plan::render(&planned(observation, &Goal::default())).to_string();
    let mut texts = vec![
        views::show::render(&report, None, on).to_string(),
        views::check::render(&check(&analysis), true).to_string(),
        plan,
        Work::new(&analysis).err().map(|why| why.to_string()).unwrap_or_default(),
    ];
    let moved: Vec<&Netdev> =
        analysis.running().filter(|netdev| received(observation, netdev) > FEW_PACKETS).collect();
    for netdev in &moved {
        let line = report.netdevs.iter().find(|line| line.name == netdev.name).unwrap();
        let rates = || line.queues.iter().map(|silo| silo.received_per_s());
        let is_explained = |silo: &netsilo_model::derive::silo::Silo| {
            silo.received_per_s().is_some()
                || silo.not_counted.is_some()
                || line.processed.is_some()
        };
        if rates().count() > 0 && rates().all(|rate| rate == Some(0.0)) {
            wrong.push(format!("{}: all queues have 0 packets in JSON", netdev.name));
        }
        if !line.queues.iter().all(is_explained) {
            wrong.push(format!("{}: packets are absent without a reason", netdev.name));
        }
        let title = views::show::netdev_title(line);
        if rates().all(|rate| rate.unwrap_or(0.0) == 0.0) && !title.contains("/s received") {
            wrong.push(format!("{title}: does not show what it received"));
        }
        let rss = netdev_rss(observation, netdev);
        if rss.entries > 0 && rss.flows.is_empty() {
            let text = views::rss::shown(std::slice::from_ref(&rss), false);
            let zero = rss.queues.values().any(|queue| queue.packets == Some(0));
            wrong.extend((zero || text.contains("no packet was steered")).then_some(text));
        }
    }
    for netdev in moved.iter().take(EXPLAINED) {
        let Some(text) = explained(Subject::Netdev(netdev.name.clone())) else { continue };
        let titles =
            || text.lines().filter(|line| line.contains(": share ") || line.contains(": about "));
        if titles().count() > 0 && titles().all(|line| line.contains(" idle:")) {
            wrong.push(format!("explain {}: {text}", netdev.name));
        }
        texts.push(text);
    }
    let names: BTreeSet<&str> = moved.iter().map(|netdev| netdev.name.as_str()).collect();
    let alone: Vec<String> = moved
        .iter()
        .filter(|netdev| netdev.rx_queues.len() == 1)
        .flat_map(|it| [format!("{} rx-{}", it.name, it.rx_queues[0].index), it.name.clone()])
        .collect();
    for line in texts.iter().flat_map(|text| text.lines()) {
        let is_about = |subject: &String| {
            let rest = line.trim().strip_prefix(subject.as_str());
            rest.is_some_and(|rest| rest.starts_with([':', ' ']))
        };
        // "almost" has a figure
        let says = NOTHING.iter().any(|words| line.contains(words)) && !line.contains("almost");
        // "cpus 1-3 are idle" is about CPUs
        let of_cpus = line.contains("cpu");
        let of_all = line.contains("no rx queue received") || line.contains("no netdev received");
        if (says && !of_cpus && alone.iter().any(is_about)) || (of_all && !names.is_empty()) {
            wrong.push(line.to_owned());
        }
    }
    wrong.extend(of_cpus(observation, &texts, &explained));
    wrong
}

/// What is wrong in what is said of CPUs.
fn of_cpus(
    observation: &Observation,
    texts: &[String],
    explained: &dyn Fn(Subject) -> Option<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let cpus = observation.after.cpus.iter();
    let pairs = cpus.filter_map(|(cpu, new)| Some((*cpu, observation.before.cpus.get(cpu)?, new)));
    let (mut still, mut busy) = (Vec::new(), Vec::new());
    for (cpu, old, new) in pairs {
        let idle = |stat: &CpuStat| stat.idle.saturating_add(stat.iowait);
        if ticks(&new.stat) <= ticks(&old.stat) {
            still.push(cpu);
        } else if ticks(&new.stat) - ticks(&old.stat)
            > idle(&new.stat).saturating_sub(idle(&old.stat))
        {
            busy.push(cpu);
        }
    }
    for cpu in still.iter().take(EXPLAINED) {
        let text = explained(Subject::Cpu(*cpu)).unwrap_or_default();
        wrong.extend(text.contains("\n  idle  ").then_some(text));
    }
    for line in texts.iter().flat_map(|text| text.lines()) {
        let about = |cpu: &CpuId, words: &str| line.contains(&format!("cpu {cpu} {words}"));
        // "otherwise" is without the queue's own work
        let is_zero = |cpu: &CpuId| about(cpu, "is 0% busy including");
        let is_still = |cpu: &CpuId| about(cpu, "is 0% busy");
        let is_calm = |cpu: &CpuId| about(cpu, "does the most, 0% of its time");
        if busy.iter().any(is_zero) || still.iter().any(is_still) || still.iter().any(is_calm) {
            wrong.push(line.to_owned());
        }
    }
    wrong
}

/// The same observation with less known of it, and the words for that.
fn with_less(observation: &Observation) -> Vec<(&'static str, Observation)> {
    let changed = |change: &dyn Fn(&mut Observation)| {
        let mut less = Observation::clone(observation);
        change(&mut less);
        less
    };
    let both = |less: &mut Observation, change: &dyn Fn(&mut Snapshot)| {
        change(&mut less.before);
        change(&mut less.after);
    };
    let without_queues = |snapshot: &mut Snapshot| {
        for netdev in snapshot.netdevs.iter_mut() {
            netdev.napis.clear();
            netdev.rx_queues.iter_mut().for_each(|rx| (rx.irq, rx.napi) = (None, None));
        }
    };
    let blind = |less: &mut Observation| less.attribution = Attribution::default();
    vec![
        ("counters only", changed(&|less| blind(less))),
        (
            "no interrupt known",
            changed(&|less| {
                blind(less);
                both(less, &without_queues);
            }),
        ),
        ("no poll seen", changed(&|less| less.attribution.polls.clear())),
        (
            "no effective affinity",
            changed(&|less| {
                both(less, &|it| it.irqs.values_mut().for_each(|irq| irq.effective = None));
            }),
        ),
        (
            "clocks stand still",
            changed(&|less| {
                blind(less);
                for (cpu, counters) in &mut less.after.cpus {
                    if let Some(before) = less.before.cpus.get(cpu) {
                        counters.stat = before.stat;
                    }
                }
            }),
        ),
    ]
}

/// The same observation with what its netdevs received in their own counters, if it lacks them.
fn with_counters(mut observation: Observation) -> Observation {
    for at in 0..observation.after.netdevs.len() {
        let netdev = observation.after.netdevs[at].clone();
        let of_it = |poll: &&netsilo_model::snapshot::attribution::Poll| poll.netdev == netdev.name;
        let polled: u64 =
            observation.attribution.polls.iter().filter(of_it).map(|it| it.packets).sum();
        if netdev.statistics.contains_key("rx_packets") || polled == 0 {
            continue;
        }
        let count = |netdev: &mut Netdev, packets| {
            netdev.statistics.insert("rx_packets".into(), packets);
        };
        count(&mut observation.after.netdevs[at], polled);
        observation
            .before
            .netdevs
            .iter_mut()
            .filter(|it| it.name == netdev.name)
            .for_each(|it| count(it, 0));
    }
    observation
}

/// The bundles of the fixtures, in their order.
fn bundles(folder: &Path, found: &mut Vec<PathBuf>) {
    for name in names(folder) {
        let path = folder.join(&name);
        if path.is_dir() {
            bundles(&path, found);
        } else if name.ends_with(".tar.zst") {
            found.push(path);
        }
    }
}

/// Machines of several shapes, each with traffic on netdevs of several kinds.
fn machines() -> impl Iterator<Item = (String, Observation)> {
    let grids = [
        r#"{ "l2s": 1 }"#,
        r#"{ "l2s": 4, "threads": 2 }"#,
        r#"{ "nodes": 2, "llcs": 2, "l2s": 4 }"#,
    ];
    let kinds = [
        r#"{ "arrives_on": 0, "packets_per_s": 70000, "load": 0.9 }"#,
        r#"{ "irq": 30, "cpus": "0", "packets_per_s": 70000, "load": 0.9 }"#,
        r#"{ "irq": 30, "cpus": "0", "packets_per_s": 70000, "load": 0.9 }, { "irq": 31, "cpus": "0" }"#,
        r#"{ "arrives_on": 0, "packets_per_s": 70000, "load": 0.9 }, {}, {}, {}"#,
    ];
    grids.into_iter().flat_map(move |grid| {
        kinds.into_iter().enumerate().map(move |(kind, queues)| {
            let scene = format!(
                r#"{{ "grid": {grid}, "netdevs": [{{ "name": "eth0", "driver": "any",
                    "per_s": {{ "rx_packets": 70000 }}, "queues": [{queues}] }}] }}"#
            );
            let scene: Scene = serde_json::from_str(&scene).unwrap();
            (format!("machine {grid}, kind {kind}"), scene.observation())
        })
    })
}

#[test]
fn unknown_is_never_idle() {
    let mut found = Vec::new();
    for folder in ["outcomes", "steady", "verdicts"] {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        bundles(&fixtures.join(folder), &mut found);
    }
    let fixtures = found.into_iter().step_by(ONE_OF);
    let fixtures = fixtures.map(|path| (path.display().to_string(), bundle::open(&path).unwrap()));
    let plans = plans().into_iter();
    let plans = plans.map(|case| (case.display().to_string(), Before::read(&case).observation()));
    let finding = |id: &FindingId| (id.to_string(), FindingCase::of(*id).observe(&Values::new()));
    let all = fixtures.chain(plans).chain(FindingId::ALL.iter().map(finding)).chain(machines());
    let mut wrong_of = BTreeMap::new();
    for (name, observation) in all {
        let observation = with_counters(observation);
        let less = with_less(&observation);
        for (what, observation) in
            less.iter().map(|it| (it.0, &it.1)).chain([("all", &observation)])
        {
            for line in wrong(observation) {
                wrong_of.entry(line).or_insert_with(|| format!("{name}, {what}"));
            }
        }
    }
    let text: Vec<String> = wrong_of.iter().map(|(line, of)| format!("{of}:\n  {line}")).collect();
    assert!(text.is_empty(), "{}", text.join("\n"));
}
