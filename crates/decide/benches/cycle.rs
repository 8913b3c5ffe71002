//! The whole cycle and its steps on a large host.
//!
//! The host has 512 CPUs, 4000 interrupts, 4 netdevs of 64 queues and 1024 consumers.
//!
//! `TMPDIR=/dev/shm cargo bench -p netsilo-sys --bench cycle`. Everything between `observe` and the
//! plan is pure.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

#[path = "../../sys/tests/trees/big_host.rs"]
mod big_host;
#[path = "synthetic/counted.rs"]
mod counted;

use std::path::PathBuf;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use big_host::BigHost;
use divan::{Bencher, black_box};
use netsilo_decide::control::{Controller, Policy, WINDOW, WriteResult};
use netsilo_decide::judge::findings::check;
use netsilo_decide::plan::find_outcome::FoundOutcome;
use netsilo_decide::plan::{AlgorithmName, Goal, Xps, plan};
use netsilo_decide::report::Report;
use netsilo_model::change::apply_to;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::rates::rates;
use netsilo_model::derive::silos::silos;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::root::Root;
use netsilo_sys::snapshot;

const FULL: BigHost = BigHost { cpus: 512, irqs: 4000, netdevs: 4, queues: 64 };

static TREE: OnceLock<PathBuf> = OnceLock::new();
static OBSERVED: LazyLock<Observation> = LazyLock::new(|| {
    let before = read();
    let after = a_second_later(&before);
    let attribution = counted::attribution(&after, Duration::from_secs(1));
    Observation { before, after, attribution }
});

fn main() {
    let dir = tempfile::tempdir().unwrap();
    FULL.write(dir.path()).unwrap();
    TREE.set(dir.path().to_owned()).unwrap();
    // Not auto, because auto moves nothing without sufficient gain.
    let goal = Goal { algorithm: AlgorithmName::NearConsumer, ..Goal::default() };
    assert!(
        plan(&analysis(&goal), &goal).changes.len() >= 200,
        "the benchmarked plan must have many changes"
    );
    divan::main();
}

fn analysis(goal: &Goal) -> Analysis<'_> {
    Analysis::new(black_box(&OBSERVED), &goal.costs)
}

fn read() -> Snapshot {
    snapshot(&Root::at(TREE.get().unwrap()).unwrap()).unwrap()
}

/// A snapshot one second later. Each interrupt occurred on one CPU, and each CPU was busy for a
/// share that depends on its number.
fn a_second_later(before: &Snapshot) -> Snapshot {
    let mut after = before.clone();
    after.at += Duration::from_secs(1);
    after
        .irqs
        .values_mut()
        .filter_map(|irq| irq.counts.values_mut().next())
        .for_each(|count| *count += 1000);
    for (cpu, counters) in &mut after.cpus {
        let busy = u64::from(cpu.0) * 13 % 90;
        counters.stat.user += busy;
        counters.stat.idle += 100 - busy;
    }
    after
}

/// Reading only: two snapshots.
#[divan::bench(sample_count = 20)]
fn a_observe(bencher: Bencher<'_, '_>) {
    bencher.bench(|| (read(), read()));
}

#[divan::bench]
fn b_rates(bencher: Bencher<'_, '_>) {
    bencher.bench(|| rates(black_box(&OBSERVED.before), black_box(&OBSERVED.after)));
}

#[divan::bench]
fn c_silos(bencher: Bencher<'_, '_>) {
    let rates = rates(&OBSERVED.before, &OBSERVED.after);
    bencher.bench(|| silos(black_box(&OBSERVED), &rates));
}

/// Includes rates and silos.
#[divan::bench]
fn d_report(bencher: Bencher<'_, '_>) {
    let goal = Goal::default();
    bencher.bench(|| Report::of(&analysis(&goal)));
}

/// Includes rates and silos.
#[divan::bench(args = AlgorithmName::ALL)]
fn e_plan(bencher: Bencher<'_, '_>, algorithm: AlgorithmName) {
    let goal = Goal { algorithm, ..Goal::default() };
    bencher.bench(|| plan(&analysis(&goal), &goal));
}

/// All findings and verdicts.
#[divan::bench(sample_count = 3)]
fn e_check(bencher: Bencher<'_, '_>) {
    let goal = Goal::default();
    let analysis = analysis(&goal);
    bencher.bench_local(|| check(&analysis));
}

/// Also RPS, RFS and XPS of all queues.
#[divan::bench]
fn f_plan_of_everything(bencher: Bencher<'_, '_>) {
    let cpus = Some(OBSERVED.after.topology.online.clone());
    let goal = Goal {
        rps: cpus.clone(),
        rfs: Some(32768),
        xps: Some(Xps::Near),
        rps_default_mask: cpus,
        ..Goal::default()
    };
    bencher.bench(|| plan(&analysis(&goal), &goal));
}

/// From the files to report and plan.
#[divan::bench(sample_count = 20)]
fn g_cycle(bencher: Bencher<'_, '_>) {
    bencher.bench(|| {
        let (before, after) = (read(), read());
        let observation = Observation { before, after, attribution: OBSERVED.attribution.clone() };
        let goal = Goal::default();
        let analysis = Analysis::new(&observation, &goal.costs);
        (Report::of(&analysis), plan(&analysis, &goal))
    });
}

/// One window of the daemon's controller after placement. Includes rates, silos and plan.
#[divan::bench]
fn h_tick_of_a_settled_controller(bencher: Bencher<'_, '_>) {
    let now = |window: u32| WINDOW * window;
    let mut controller =
        Controller::new(Policy { changes_per_minute: u32::MAX, ..Policy::default() });
    let mut settled = OBSERVED.clone();
    for window in 1..4 {
        let writes =
            controller.tick(now(window), &settled, &|_| FoundOutcome::Nothing).writes.changes;
        settled.after = apply_to(&settled.after, &writes);
        let in_effect = writes
            .into_iter()
            .map(|change| (change.target.clone(), WriteResult::InEffect(change.new.clone())));
        controller.wrote(now(window), &in_effect.collect::<Vec<_>>());
    }
    bencher.with_inputs(|| controller.clone()).bench_refs(|controller| {
        controller.tick(now(4), black_box(&settled), &|_| FoundOutcome::Nothing)
    });
}
