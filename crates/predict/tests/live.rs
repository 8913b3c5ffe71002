//! Forecasts for observed machines, on synthetic hosts.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};
use netsilo_predict::interval::Draws;
use netsilo_predict::live::forecast::{Expected, Forecast, Limit, forecast};
use netsilo_predict::live::work::{TooLittle, Work};
use netsilo_predict::parameters::Table;
use proptest::prelude::*;

fn cpu(number: u32) -> CpuSet {
    CpuSet::from_cpu(CpuId(number))
}

/// A queue that takes this share of CPU 0, and is read on another CPU.
fn queue(irq: u32, load: f64, reader: u32) -> SceneQueue {
    let reader = Reader {
        comm: "server".into(),
        cpu: CpuId(reader),
        bytes_per_s: 10_000_000,
        unconnected: false,
    };
    SceneQueue {
        irq: Some(irq),
        cpus: cpu(0),
        packets_per_s: 100_000,
        load,
        poll_time: true,
        readers: vec![reader],
        wakeups_per_s: 50_000,
        rps_cpus: Some(CpuSet::new()),
        rps_flow_cnt: Some(0),
        ..SceneQueue::default()
    }
}

fn scene(queues: Vec<SceneQueue>) -> Scene {
    Scene {
        grid: Grid { cores: 4, ..Grid::default() },
        netdevs: vec![SceneNetdev {
            name: "eth0".into(),
            driver: "ixgbe".into(),
            queues,
            ..SceneNetdev::default()
        }],
        rps_sock_flow_entries: Some(0),
        ..Scene::default()
    }
}

fn foretell(scene: &Scene, load: f64, change: impl Fn(&mut Snapshot)) -> Forecast {
    let (observation, costs) = (scene.observation(), Costs::default());
    let analysis = Analysis::new(&observation, &costs);
    let mut after = observation.after.clone();
    change(&mut after);
    let draws = Draws::new(&Table::built_in().unwrap(), 100, 1);
    forecast(&Work::new(&analysis).unwrap(), load, &[("new".into(), after)], &draws)
}

fn move_irq(settings: &mut Snapshot, irq: u32, to: u32) {
    settings.irqs.get_mut(&Irq(irq)).unwrap().requested = Some(cpu(to));
}

fn softirq(of: &Expected, number: u32) -> f64 {
    of.cpus[&CpuId(number)].softirq
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn the_present_settings_change_nothing() {
    let forecast = foretell(&scene(vec![queue(30, 0.4, 1), queue(31, 0.3, 2)]), 1.0, |_| ());
    let [now, same] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert_eq!(now.cpus, same.cpus);
    assert_eq!((same.is_clear, same.gain.unwrap().value), (false, 0.0));
    assert!(close(softirq(now, 0), 0.7) && close(now.fits.value, 1.0 / 0.7));
    assert_eq!(now.limit, Limit::Cpu(CpuId(0)));
}

#[test]
fn a_queue_that_moves_takes_its_work_along() {
    let forecast = foretell(&scene(vec![queue(30, 0.4, 1), queue(31, 0.3, 2)]), 1.0, |after| {
        move_irq(after, 31, 3);
    });
    let [_, moved] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!((softirq(moved, 0) - 0.4).abs() < 0.02, "{moved:?}");
    assert!((softirq(moved, 3) - 0.3).abs() < 0.02, "{moved:?}");
    let gain = moved.gain.unwrap();
    assert!(moved.is_clear && (0.6..0.9).contains(&gain.value), "{gain:?}");
}

#[test]
fn a_queue_on_its_readers_cpu_needs_no_ipis_for_wakeups() {
    let forecast = foretell(&scene(vec![queue(30, 0.4, 1)]), 1.0, |after| move_irq(after, 30, 1));
    let [now, same_cpu] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(now.ipis_per_s > 10_000.0 && close(same_cpu.ipis_per_s, 0.0), "{forecast:?}");
    assert!(same_cpu.cpu_time.high < now.cpu_time.low, "{forecast:?}");
}

#[test]
fn rps_relieves_the_cpu_that_polls_and_adds_work_and_ipis() {
    let rps = |after: &mut Snapshot| {
        after.netdevs[0].rx_queues[0].rps_cpus = Some(CpuSet::first(4));
    };
    let forecast = foretell(&scene(vec![queue(30, 0.9, 1)]), 1.0, rps);
    let [now, rps] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(softirq(rps, 0) < 0.85 && softirq(rps, 3) > 0.03, "{rps:?}");
    assert!(rps.cpu_time.low > now.cpu_time.high, "{forecast:?}");
    assert!(rps.ipis_per_s > now.ipis_per_s);
}

#[test]
fn rfs_brings_the_protocol_to_the_reader() {
    let rfs = |after: &mut Snapshot| {
        after.net.rps_sock_flow_entries = Some(32768);
        after.netdevs[0].rx_queues[0].rps_flow_cnt = Some(32768);
    };
    let forecast = foretell(&scene(vec![queue(30, 0.9, 1)]), 1.0, rfs);
    let steered = &forecast.settings[1];
    assert!(softirq(steered, 1) > 0.2 && close(softirq(steered, 2), 0.0), "{steered:?}");
}

#[test]
fn twice_the_load_fits_half_as_often() {
    let scene = scene(vec![queue(30, 0.3, 1)]);
    let (once, twice) = (foretell(&scene, 1.0, |_| ()), foretell(&scene, 2.0, |_| ()));
    assert!(close(once.settings[0].fits.value, 2.0 * twice.settings[0].fits.value));
    assert!(close(2.0 * once.packets_per_s, twice.packets_per_s));
}

#[test]
fn an_observation_that_says_too_little_is_refused() {
    let why = |scene: &Scene| {
        let (observation, costs) = (scene.observation(), Costs::default());
        Work::new(&Analysis::new(&observation, &costs)).unwrap_err()
    };
    let without_bpf = Scene { without_bpf: true, ..scene(vec![queue(30, 0.3, 1)]) };
    assert_eq!(why(&without_bpf), TooLittle::NoPolls);
    let idle = SceneQueue { packets_per_s: 0, readers: Vec::new(), ..queue(30, 0.0, 1) };
    assert_eq!(why(&scene(vec![idle])), TooLittle::NoPackets("10s".into()));
    assert_eq!(why(&scene(vec![queue(30, 0.0, 1)])), TooLittle::NoCosts);
}

proptest! {
    #[test]
    fn work_is_moved_and_neither_lost_nor_made(
        loads in prop::collection::vec(0.01..0.3_f64, 1..5),
        to in prop::collection::vec(0..4_u32, 5),
        rps in 0..16_u32,
    ) {
        let queues = loads.iter().enumerate();
        let queues: Vec<_> =
            queues.map(|(at, load)| queue(30 + at as u32, *load, at as u32 % 4)).collect();
        let count = queues.len();
        let targets: CpuSet = (0..4).filter(|cpu| rps >> cpu & 1 == 1).map(CpuId).collect();
        let forecast = foretell(&scene(queues), 1.0, |after| {
            for (at, to) in to.iter().enumerate().take(count) {
                move_irq(after, 30 + at as u32, *to);
                after.netdevs[0].rx_queues[at].rps_cpus = Some(targets.clone());
            }
        });
        for setting in &forecast.settings {
            let all: f64 = loads.iter().sum();
            let softirq: f64 = setting.cpus.values().map(|cpu| cpu.softirq).sum();
            prop_assert!(setting.cpus.values().all(|cpu| cpu.softirq >= 0.0 && cpu.sys >= 0.0));
            // What a setting adds or spares is bounded by the packets: 400 000 per second at most,
            // each with some microseconds of IPIs, lines and wakeups.
            prop_assert!(softirq > 0.5 * all && softirq < all + 4.0, "{softirq} of {all}");
            prop_assert!(setting.fits.low <= setting.fits.value);
            prop_assert!(setting.fits.value <= setting.fits.high);
        }
    }
}
