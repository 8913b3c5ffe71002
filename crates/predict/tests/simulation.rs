//! The simulation against known results, and what must hold for any scenario.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

#[path = "../examples/agreement/cases.rs"]
#[allow(dead_code, reason = "tests/agreement.rs uses all of it")]
mod cases;

mod known;

use cases::Case;
use fastrand::Rng;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_predict::parameters::{Table, Values};
use netsilo_predict::scenario::{
    Filter, Forward, Kernel, Load, Machine, Nic, Protocol, RequestResponse, Scenario, Send, Setting,
};
use netsilo_predict::simulate::{Options, Simulated, simulate};
use proptest::prelude::*;

use known::repairman;

/// Parameters of a machine whose work costs nothing, with nothing lost to the scheduler or to
/// hardware threads.
fn free() -> Values {
    let mut values = Values::from_array([0.0; Values::NAMES.len()]);
    (values.balance, values.smt, values.recent, values.virtual_ipi) = (1.0, 2.0, 1.0, 1.0);
    values
}

/// A machine with one CPU of 1 GHz, one queue and no coalescing.
fn one_cpu(load: Load) -> Scenario {
    Scenario {
        machine: Machine { cores: vec![0], ghz: 1.0, kernel: Kernel::Old, is_virtual: false },
        nic: Nic {
            queue_count: 1,
            first_rss_queue: 0,
            hashes_udp_ports: true,
            gbit: 1e6,
            coalesce_us: 0.0,
            coalesce_frames: 1.0,
            mtu: 1500.0,
            bus_gbit: f64::INFINITY,
        },
        load,
    }
}

fn requests(instances: f64, work_us: f64) -> Load {
    Load::RequestResponse(RequestResponse {
        protocol: Protocol::Tcp,
        instances,
        bytes: 1.0,
        work_us,
        cpus: CpuSet::default(),
        connected: false,
    })
}

fn run(scenario: &Scenario, values: &Values, seconds: f64) -> Simulated {
    let setting = Setting { irq: vec![0], ..Setting::default() };
    simulate(scenario, &setting, values, &Options { seconds, seed: 1 }).unwrap()
}

#[test]
fn readers_that_share_a_cpu_are_the_machine_repairman() {
    // Work of many slices, so that the CPU is shared.
    let work = 0.1;
    for (customers, think) in [(1, 0.3), (3, 0.3), (8, 0.5), (5, 0.01)] {
        let values = Values { round_trip: think * 1e6, ..free() };
        let scenario = one_cpu(requests(f64::from(customers), work * 1e6));
        let found = run(&scenario, &values, 2000.0).prediction.rate;
        let exact = repairman(customers, think, work);
        assert!((found / exact - 1.0).abs() < 0.02, "{found} for {exact}: {customers}, {think}");
    }
}

/// Pollaczek and Khinchine: the mean time in a queue with one server and Poisson arrivals. Work
/// varies evenly by half to either side, so its square is 13/12 of its mean's square on average.
#[test]
fn packets_at_one_cpu_are_an_open_queue_with_general_service() {
    let service = 1e-6;
    let values = Values { poll: 1000.0, ..free() };
    for busy in [0.3, 0.6, 0.9] {
        let load = Forward {
            offered: busy / service,
            two_way: false,
            frame_bytes: 64.0,
            filter: Filter::None,
        };
        let found = run(&one_cpu(Load::Forward(load)), &values, 4.0);
        let exact = 1e6 * service * (1.0 + busy * 13.0 / 12.0 / (2.0 * (1.0 - busy)));
        let mean = found.prediction.latency_us.unwrap();
        assert!((mean / exact - 1.0).abs() < 0.03, "{mean} for {exact} at {busy}");
        assert!((found.prediction.cpus[0].softirq / busy - 1.0).abs() < 0.01, "{busy}");
        assert_eq!(found.lost, 0.0);
    }
}

#[test]
fn what_a_cpu_cannot_poll_is_lost_at_the_ring() {
    let load = Forward { offered: 2e6, two_way: false, frame_bytes: 64.0, filter: Filter::None };
    let values = Values { poll: 1000.0, ..free() };
    let found = run(&one_cpu(Load::Forward(load)), &values, 0.2);
    assert!((found.prediction.rate / 1e6 - 1.0).abs() < 0.01, "{}", found.prediction.rate);
    assert!((found.lost / 1e6 - 1.0).abs() < 0.01, "{}", found.lost);
}

#[test]
fn loads_without_packets_are_refused_with_the_reason() {
    let load = Send { protocol: Protocol::Tcp, senders: 1.0, call_bytes: 1.0, zero_copy: false };
    let options = Options { seconds: 0.1, seed: 1 };
    let scenario = one_cpu(Load::Send(load));
    let refused = simulate(&scenario, &Setting::default(), &free(), &options).unwrap_err();
    assert!(refused.to_string().starts_with("a load of kind send cannot be simulated: "));
}

fn simulated(seed: u64, run: u64) -> Simulated {
    let case = Case::random(&mut Rng::with_seed(seed));
    let values = Table::built_in().unwrap().values();
    let options = Options { seconds: 0.01, seed: run };
    simulate(&case.scenario, &case.setting, &values, &options).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_packet_is_handled_or_lost_or_inside_and_no_time_is_used_twice(seed in any::<u64>()) {
        let out = simulated(seed, 1);
        let packets = out.packets;
        prop_assert_eq!(packets.arrived, packets.handled + packets.lost + packets.inside);
        for cpu in out.timeline.cpus.iter().flatten().chain(&out.prediction.cpus) {
            prop_assert!(cpu.usr + cpu.sys + cpu.softirq <= 1.0 + 1e-9, "{cpu:?}");
            prop_assert!(cpu.booked_softirq <= cpu.softirq, "{cpu:?}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_again(seed in any::<u64>()) {
        prop_assert_eq!(simulated(seed, 1), simulated(seed, 1));
    }
}

#[test]
fn another_seed_gives_another_run() {
    assert_ne!(simulated(1, 1), simulated(1, 2));
}
