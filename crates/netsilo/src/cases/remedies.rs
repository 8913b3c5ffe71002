//! If a remedy names a plan, that plan changes something. This is tested with all cases, fixtures
//! and generated machines.

use std::path::{Path, PathBuf};

use netsilo_decide::judge::evidence::{Gain, Remedy};
use netsilo_decide::judge::findings::{Check, Finding, FindingId, check};
use netsilo_decide::judge::fix::{FixRequest, fix};
use netsilo_decide::plan::{Goal, plan};
use netsilo_model::change::{Change, Target};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Writable;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{CpuLoad, Reader, Scene, SceneNetdev, SceneQueue};
use netsilo_predict::live::proposal::Proposal;
use netsilo_sys::bundle;
use netsilo_sys::files::root::Root;
use netsilo_sys::snapshot;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::forecast::forecast_of;

use super::{BUNDLE, FindingCase, Values, names, plans, read};

/// All texts of a remedy.
fn texts(remedy: &Remedy) -> String {
    let gain = match &remedy.gain {
        Gain::AtMost { of, basis, .. } => format!("{of} {basis}"),
        Gain::Forecast { limit, .. } => limit.clone(),
        Gain::Unknown(why) | Gain::Nothing(why) => why.clone(),
    };
    let more = [&remedy.cost, &remedy.not_when].into_iter().flatten().map(String::as_str);
    [remedy.what.as_str(), &gain].into_iter().chain(more).collect::<Vec<_>>().join(" ")
}

/// Why a remedy of a finding names a plan that changes nothing.
fn wrong(analysis: &Analysis<'_>, check: &Check, finding: &Finding, of: &Remedy) -> Option<String> {
    let text = texts(of);
    if text.contains("netsilo plan -") {
        return Some(format!("names a plan that is not tried here: {text}"));
    }
    if text.contains("netsilo plan") {
        let plan = plan(analysis, &Goal { even_if_owned: true, ..Goal::default() });
        if plan.changes.is_empty() || of.changes.is_empty() {
            return Some(format!("names an empty plan: {text}"));
        }
    }
    if of.changes.is_empty() {
        return None;
    }
    let request = FixRequest::of(finding);
    if request.to_string().parse::<FixRequest>().ok().as_ref() != Some(&request) {
        return Some(format!("cannot be requested: {request}"));
    }
    let plan = fix(check, &[request], analysis.after(), true);
    let idle = plan.changes.iter().find(|change| change.old == change.new);
    (plan.changes.is_empty() || idle.is_some())
        .then(|| format!("its fix changes nothing: {:?} {idle:?}", plan.unchanged))
}

/// Which plans named by the findings on a host are wrong. Also returns how many findings name a
/// plan.
fn judged(observation: &Observation) -> (usize, Vec<String>) {
    let costs = Costs::default();
    let analysis = Analysis::new(observation, &costs);
    let check = check(&analysis);
    let remedies = || {
        check
            .findings
            .iter()
            .flat_map(|finding| finding.remedies.iter().map(move |it| (finding, it)))
    };
    let wrong = remedies().filter_map(|(finding, remedy)| {
        let why = wrong(&analysis, &check, finding, remedy)?;
        Some(format!("{}: {why}", FixRequest::of(finding)))
    });
    (remedies().filter(|(_, remedy)| !remedy.changes.is_empty()).count(), wrong.collect())
}

pub(super) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// A captured or synthetic tree, as two equal samples ten seconds apart.
fn tree(path: &Path) -> Observation {
    let before = snapshot(&Root::at(path).unwrap()).unwrap();
    let after = netsilo_model::snapshot::host::Snapshot {
        at: before.at + std::time::Duration::from_secs(10),
        ..before.clone()
    };
    Observation { before, after, ..Observation::default() }
}

/// Each bundle in a folder and the folders below. Links are not followed, because a tree's links
/// lead back into it.
pub(super) fn bundles(folder: &Path) -> Vec<PathBuf> {
    let entries = names(folder).into_iter().map(|name| folder.join(name));
    let below = |path: PathBuf| match path.is_dir() && !path.is_symlink() {
        true => bundles(&path),
        false if path.extension().is_some_and(|it| it == "zst") => vec![path],
        false => Vec::new(),
    };
    entries.flat_map(below).collect()
}

/// Whether a change moves receive work.
fn moves(change: &Change) -> bool {
    matches!(
        change.target,
        Target::IrqAffinity(_)
            | Target::NapiThread(_)
            | Target::Channels(_)
            | Target::FlowHash(_)
            | Target::RssTable(_)
    )
}

/// Checks that each verdict and finding on a host that states a forecast of its changes has the
/// interval that `netsilo predict` prints for them, and that no finding states another gain of
/// moved work. Returns how many verdicts and findings that were.
fn assert_one_answer(path: &Path, observation: &Observation) -> [usize; 2] {
    let costs = Costs::default();
    let analysis = Analysis::new(observation, &costs);
    let check = check(&analysis);
    let is_same = |name: String, changes: &[Change], gain: &Gain| {
        let Gain::Forecast { load_that_fits, .. } = gain else { return false };
        let proposal = Proposal::new("same", analysis.after(), changes);
        let Ok(forecast) = forecast_of(&analysis, 1.0, &[proposal]) else { return false };
        let gain = forecast.settings[1].gain;
        assert_eq!(gain, Some(*load_that_fits), "{}: {name}", path.display());
        true
    };
    let written = check.verdicts.iter().filter(|it| !it.changes.is_empty());
    let verdicts = written.filter(|it| is_same(it.name(), &it.changes, &it.gain)).count();
    let named = |finding: &Finding| FixRequest::of(finding).to_string();
    let remedies =
        || check.findings.iter().flat_map(|it| it.remedies.iter().map(move |of| (it, of)));
    for (finding, remedy) in remedies().filter(|(_, remedy)| remedy.changes.iter().any(moves)) {
        let is_forecast = matches!(remedy.gain, Gain::Forecast { .. } | Gain::Unknown(_));
        assert!(is_forecast, "{}: {}: {:?}", path.display(), named(finding), remedy.gain);
    }
    let moving = remedies().filter(|(_, remedy)| remedy.changes.iter().any(moves));
    let same = moving.filter(|(finding, it)| is_same(named(finding), &it.changes, &it.gain));
    [verdicts, same.count()]
}

#[test]
fn a_verdict_or_finding_and_a_forecast_of_the_same_changes_are_the_same() {
    let bundles = bundles(&fixtures()).into_iter().map(|path| {
        let observation = bundle::open(&path).unwrap();
        (path, observation)
    });
    let counts = case_hosts().chain(bundles).map(|(path, it)| assert_one_answer(&path, &it));
    let [verdicts, findings] =
        counts.fold([0, 0], |[a, b], [verdicts, findings]| [a + verdicts, b + findings]);
    assert!(verdicts >= 8, "only {verdicts} verdicts were compared");
    assert!(findings >= 8, "only {findings} findings were compared");
}

/// The hosts of all cases, with values that almost fire too.
fn case_hosts() -> impl Iterator<Item = (PathBuf, Observation)> {
    let findings = FindingId::ALL.iter().flat_map(|id| {
        let case = FindingCase::of(*id);
        let hosts = [vec![Values::new()], case.almost.clone()].concat();
        hosts.into_iter().map(move |values| (id.as_str().into(), case.observe(&values)))
    });
    let scenes = plans().into_iter().map(|case| case.join("before.json")).filter(|it| it.exists());
    let scenes = scenes.map(|path| (path.clone(), read::<Scene>(&path).observation()));
    let bundles = plans().into_iter().map(|case| case.join(BUNDLE)).filter(|it| it.exists());
    let bundles = bundles.map(|path| (path.clone(), bundle::open(&path).unwrap()));
    findings.chain(scenes).chain(bundles)
}

/// Fails if a finding on one of these hosts names an empty plan, or if too few findings name a
/// plan.
fn assert_no_empty_plan(hosts: impl Iterator<Item = (PathBuf, Observation)>, least: usize) {
    let (mut named, mut all) = (0, Vec::new());
    for (path, observation) in hosts {
        let (count, wrong) = judged(&observation);
        named += count;
        all.extend(wrong.into_iter().map(|wrong| format!("{}: {wrong}", path.display())));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
    assert!(named >= least, "only {named} plans are named");
}

#[test]
fn a_plan_that_a_finding_of_a_case_names_changes_something() {
    assert_no_empty_plan(case_hosts(), 100);
}

#[test]
fn a_plan_that_a_finding_of_a_fixture_names_changes_something() {
    let trees = names(&fixtures()).into_iter().map(|name| fixtures().join(name));
    let trees = trees.filter(|path| path.join("sys").is_dir());
    let trees = trees.map(|path| (path.clone(), tree(&path)));
    // those of veth have no interrupt that a plan could move
    let bundles =
        bundles(&fixtures()).into_iter().filter(|path| !path.iter().any(|it| it == "veth"));
    let bundles = bundles.map(|path| (path.clone(), bundle::open(&path).unwrap()));
    assert_no_empty_plan(trees.chain(bundles), 30);
}

/// Machines of up to 32 CPUs with one or two netdevs, in any state that a scene can have.
fn scenes() -> impl Strategy<Value = Scene> {
    let grid = (1..3u32, 1..3u32, 1..3u32, 1..3u32, 1..3u32, any::<bool>());
    let grid = grid.prop_map(|(nodes, llcs, l2s, cores, threads, siblings_apart)| Grid {
        nodes,
        llcs,
        l2s,
        cores,
        threads,
        siblings_apart,
    });
    let netdevs = || vec(netdev(), 1..3);
    let flows = proptest::option::of(prop_oneof![Just(0), Just(32768u32)]);
    (grid, netdevs(), flows, vec((0..32u32, 0.0..1.0f64), 0..6), cpus(3), any::<bool>()).prop_map(
        |(grid, mut netdevs, rps_sock_flow_entries, busy, isolated, without_bpf)| {
            let all = grid.topology().online.len() as u32;
            let fit = |cpus: &CpuSet| cpus.iter().map(|cpu| CpuId(cpu.0 % all)).collect();
            for (number, netdev) in netdevs.iter_mut().enumerate() {
                netdev.name = format!("eth{number}");
                fit_to(netdev, number as u32, all);
            }
            let busy = busy
                .into_iter()
                .map(|(cpu, usr)| CpuLoad { cpus: CpuSet::from_cpu(CpuId(cpu % all)), usr });
            let isolated: CpuSet = fit(&isolated);
            let isolated = if isolated.len() as u32 == all { CpuSet::new() } else { isolated };
            Scene {
                grid,
                netdevs,
                rps_sock_flow_entries,
                isolated,
                without_bpf,
                busy: busy.collect(),
                ..Scene::default()
            }
        },
    )
}

fn cpus(most: usize) -> impl Strategy<Value = CpuSet> {
    vec(0..32u32, 0..most).prop_map(|cpus| cpus.into_iter().map(CpuId).collect())
}

fn netdev() -> impl Strategy<Value = SceneNetdev> {
    (vec(queue(), 1..6), 0..2u32, any::<bool>(), prop_oneof![3 => Just(false), 1 => Just(true)])
        .prop_map(|(queues, node, threaded, down)| SceneNetdev {
            driver: "igb".into(),
            node: Some(node),
            threaded,
            down,
            queues,
            most_queues: Some(8),
            per_s: [("tx_packets".to_owned(), 50_000)].into(),
            ..SceneNetdev::default()
        })
}

fn queue() -> impl Strategy<Value = SceneQueue> {
    let writable = prop_oneof![4 => Just(Writable::Yes), 1 => Just(Writable::Managed)];
    let settings = (
        cpus(4),
        proptest::option::of(cpus(3)),
        proptest::option::of(prop_oneof![Just(0), Just(512u32)]),
        proptest::option::of(cpus(4)),
        writable,
    );
    (settings, 0.0..0.6f64, vec(0..32u32, 0..3)).prop_map(
        |((cpus, rps_cpus, rps_flow_cnt, xps_cpus, writable), load, readers)| SceneQueue {
            cpus,
            rps_cpus,
            rps_flow_cnt,
            xps_cpus,
            writable,
            load,
            packets_per_s: (load * 300_000.0) as u64,
            readers: readers
                .into_iter()
                .map(|cpu| Reader {
                    comm: "server".into(),
                    cpu: CpuId(cpu),
                    bytes_per_s: 10_000_000,
                    ..Reader::default()
                })
                .collect(),
            ..SceneQueue::default()
        },
    )
}

/// Gives a netdev's queues their own interrupts, and CPUs that the machine has.
fn fit_to(netdev: &mut SceneNetdev, number: u32, all: u32) {
    let fit = |cpus: &CpuSet| cpus.iter().map(|cpu| CpuId(cpu.0 % all)).collect::<CpuSet>();
    for (index, queue) in netdev.queues.iter_mut().enumerate() {
        queue.irq = Some(30 + 10 * number + index as u32);
        queue.cpus = fit(&queue.cpus);
        queue.rps_cpus = queue.rps_cpus.as_ref().map(fit);
        queue.xps_cpus = queue.xps_cpus.as_ref().map(fit);
        if queue.cpus.is_empty() {
            queue.cpus = CpuSet::from_cpu(CpuId(0));
        }
        queue.kthread_cpus = queue.cpus.clone();
        queue.readers.iter_mut().for_each(|reader| reader.cpu.0 %= all);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_that_a_finding_of_a_generated_machine_names_changes_something(scene in scenes()) {
        let (_, wrong) = judged(&scene.observation());
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
