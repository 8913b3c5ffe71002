//! Forecasts of counts, where no CPU has a speed of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod observed;

use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::synthetic::scene::{Scene, SceneQueue};
use netsilo_predict::live::counts::Counts;
use netsilo_predict::live::work::{TooLittle, Work};
use netsilo_predict::parameters::Table;

/// A queue on CPU 0, read on CPU 1, whose packets take all of its time, as in emulation.
fn scene() -> Scene {
    let queue = SceneQueue {
        packets_per_s: 1000,
        packets_per_poll: 2,
        poll_time: false,
        wakeups_per_s: 0,
        ..observed::queue(30, 0, 0.0, 1)
    };
    observed::scene(vec![queue])
}

/// What was counted, and what a setting would do to it.
fn counts(change: impl Fn(&mut Snapshot)) -> (Counts, Counts) {
    let (observation, costs) = (scene().observation(), Costs::default());
    let analysis = Analysis::new(&observation, &costs);
    let mut settings = observation.after.clone();
    change(&mut settings);
    assert_eq!(Work::new(&analysis).unwrap_err(), TooLittle::NoCosts);
    let work = Work::without_costs(&analysis).unwrap();
    let values = Table::built_in().unwrap().values();
    (Counts::seen(&work), Counts::forecast(&work, &settings, &values))
}

#[test]
fn the_present_settings_change_no_count() {
    let (seen, same) = counts(|_| ());
    assert_eq!(seen, same);
    assert_eq!(seen.polled, [(CpuId(0), 1.0)].into());
    assert!((seen.interrupts - 0.5).abs() < 1e-9, "{seen:?}");
}

#[test]
fn an_interrupt_takes_polls_and_protocol_along() {
    let (seen, moved) = counts(|after| {
        after.irqs.get_mut(&Irq(30)).unwrap().requested = Some(CpuSet::from_cpu(CpuId(3)));
    });
    assert_eq!(moved.polled, [(CpuId(3), 1.0)].into());
    assert_eq!(moved.processed, moved.polled);
    assert_eq!(Counts::misplaced(&seen.polled, &moved.polled), 1.0);
}

#[test]
fn rps_divides_the_protocol_and_rfs_brings_it_to_the_reader() {
    let (seen, rps) = counts(|after| {
        after.netdevs[0].rx_queues[0].rps_cpus = Some(CpuSet::parse_list("2-3").unwrap());
    });
    assert_eq!(rps.polled, seen.polled);
    assert_eq!(rps.processed, [(CpuId(2), 0.5), (CpuId(3), 0.5)].into());
    // A poll of two packets sends one or two interrupts.
    assert!(rps.ipis > seen.ipis + 0.5 && rps.ipis < seen.ipis + 1.0, "{rps:?}");
    let (_, rfs) = counts(|after| {
        after.net.rps_sock_flow_entries = Some(32768);
        after.netdevs[0].rx_queues[0].rps_flow_cnt = Some(32768);
    });
    assert_eq!(rfs.processed, [(CpuId(1), 1.0)].into());
    assert!((rfs.ipis - seen.ipis - 0.5).abs() < 0.01, "one for each poll: {rfs:?}");
}
