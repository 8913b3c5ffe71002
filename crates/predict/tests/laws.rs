//! Known results, and what must hold for any scenario.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_predict::limit::Limit;
use netsilo_predict::parameters::Table;
use netsilo_predict::predict;
use netsilo_predict::scenario::{
    Filter, Forward, Kernel, Load, Machine, Nic, Protocol, RequestResponse, Scenario, Setting,
};
use netsilo_predict::station::Station;
use proptest::prelude::*;

/// The same by the station's fixed point.
fn by_station(customers: u32, think: f64, demand: f64, servers: f64) -> f64 {
    let (mut station, mut rate) = (Station::default(), 0.0);
    for _ in 0..2000 {
        let residence = station.residence(demand, servers, f64::from(customers));
        let new = f64::from(customers) / (think + residence);
        rate = 0.5 * (rate + new);
        station.update(rate, demand, servers, residence, 0.5);
    }
    rate
}

proptest! {
    #[test]
    fn a_closed_station_is_the_machine_repairman_within_7_percent(
        customers in 1_u32..200, think in 0.0_f64..100.0, demand in 0.01_f64..2.0,
    ) {
        let exact = repairman(customers, think, demand);
        let found = by_station(customers, think, demand, 1.0);
        prop_assert!((found / exact - 1.0).abs() < 0.07, "{found} for {exact}");
    }

    #[test]
    fn several_servers_give_no_more_than_their_number_and_no_less_than_one(
        customers in 1_u32..200, think in 0.0_f64..100.0, demand in 0.01_f64..2.0,
        servers in 1_u32..32,
    ) {
        let servers = f64::from(servers);
        let rate = by_station(customers, think, demand, servers);
        prop_assert!(rate <= servers / demand * 1.0001);
        prop_assert!(rate <= f64::from(customers) / (think + demand) * 1.0001);
        prop_assert!(rate >= by_station(customers, think, demand, 1.0) * 0.999);
    }
}

/// What the server does for a request is its own time, not the kernel's.
#[test]
fn work_of_the_server_is_user_time() {
    let values = Table::built_in().unwrap().values();
    let setting = Setting { irq: vec![0], ..Setting::default() };
    let times = |work_us| {
        let load = RequestResponse { work_us, ..load(Protocol::Tcp, 1.0, 1.0) };
        let out = predict(&scenario(1, 1, 1, load), &setting, &values);
        let cpu = out.cpus[0];
        (cpu.usr / out.rate * 1e6, cpu.sys / out.rate * 1e6)
    };
    let ((usr, sys), (usr_with, sys_with)) = (times(0.0), times(1000.0));
    assert!((usr_with - usr - 1000.0).abs() < 10.0, "{usr} us, then {usr_with} us");
    assert!((sys_with - sys).abs() < 10.0, "{sys} us, then {sys_with} us");
}

/// An open queue is a closed one whose customers are many and think long: M/M/1.
#[test]
fn many_customers_who_think_long_are_an_open_queue() {
    for busy in [0.2, 0.5, 0.8] {
        let (demand, customers) = (1.0, 100_000);
        let think = f64::from(customers) / busy;
        let mut station = Station::default();
        for _ in 0..5000 {
            let residence = station.residence(demand, 1.0, f64::from(customers));
            let rate = f64::from(customers) / (think + residence);
            station.update(rate, demand, 1.0, residence, 0.5);
        }
        let expected = busy / (1.0 - busy);
        assert!((station.queue / expected - 1.0).abs() < 0.01, "{} for {expected}", station.queue);
    }
}

fn scenario(cpus: u32, threads: u32, queues: usize, load: RequestResponse) -> Scenario {
    let machine = Machine {
        cores: (0..cpus * threads).map(|cpu| cpu % cpus).collect(),
        ghz: 2.5,
        kernel: Kernel::Recent,
        is_virtual: false,
    };
    let nic = Nic {
        queue_count: queues,
        first_rss_queue: 0,
        hashes_udp_ports: true,
        gbit: 25.0,
        coalesce_us: 20.0,
        client_coalesce_us: 20.0,
        coalesce_frames: 64.0,
        mtu: 1500.0,
        bus_gbit: f64::INFINITY,
    };
    Scenario { machine, nic, load: Load::RequestResponse(load) }
}

fn load(protocol: Protocol, instances: f64, bytes: f64) -> RequestResponse {
    let cpus = CpuSet::default();
    RequestResponse { protocol, instances, bytes, work_us: 0.0, cpus, connected: false }
}

prop_compose! {
    fn any_case()(
        cpus in 1_u32..32, threads in 1_u32..3, queues in 1_usize..16,
        udp in any::<bool>(), instances in 1.0_f64..5000.0, bytes in 1.0_f64..100_000.0,
        irqs in 1_usize..16, rps in any::<bool>(), rfs in any::<bool>(),
    ) -> (Scenario, Setting) {
        let all = (cpus * threads) as usize;
        let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
        let setting = Setting {
            irq: (0..irqs.min(all)).collect(),
            rps: if rps { (0..all).collect() } else { Vec::new() },
            rfs,
            ..Setting::default()
        };
        (scenario(cpus, threads, queues, load(protocol, instances, bytes)), setting)
    }
}

proptest! {
    #[test]
    fn shares_are_shares_and_no_resource_gives_more_than_it_has((scenario, setting) in any_case()) {
        let out = predict(&scenario, &setting, &Table::built_in().unwrap().values());
        let Load::RequestResponse(load) = &scenario.load else { unreachable!() };
        prop_assert!(out.rate.is_finite() && out.rate > 0.0);
        prop_assert!(out.rate * load.bytes * 8.0 <= scenario.nic.gbit * 1e9 * 1.001);
        for cpu in &out.cpus {
            for share in [cpu.usr, cpu.sys, cpu.softirq, cpu.booked_softirq, cpu.idle()] {
                prop_assert!((-1e-9..=1.0 + 1e-9).contains(&share), "{cpu:?}");
            }
            prop_assert!(cpu.usr + cpu.sys + cpu.softirq <= 1.005, "{cpu:?}");
            prop_assert!(cpu.booked_softirq <= cpu.softirq + 1e-9, "{cpu:?}");
        }
        // Little's law: instances = rate x time of a transaction.
        let inside = out.rate * out.latency_us.unwrap() * 1e-6;
        let off = inside / load.instances - 1.0;
        prop_assert!(off.abs() < 0.02, "{inside} of {}", load.instances);
    }

    #[test]
    fn a_faster_clock_does_not_hurt(
        (scenario, setting) in any_case(), forwards in any::<bool>(),
    ) {
        let slow = filled(scenario, forwards);
        let mut fast = slow.clone();
        fast.machine.ghz *= 2.0;
        let [slow, fast] = [slow, fast].map(|it| rate(&it, &setting));
        prop_assert!(fast >= slow * 0.98, "{fast} after {slow}");
    }

    #[test]
    fn idle_cpus_do_not_hurt_where_each_stage_stays(
        (scenario, setting) in any_case(), forwards in any::<bool>(), more in 1_u32..64,
    ) {
        let few = filled(scenario, forwards);
        let mut many = few.clone();
        many.machine.cores.extend(1000..1000 + more);
        let [few, many] = [few, many].map(|it| rate(&it, &setting));
        prop_assert!(many >= few * 0.999, "{many} after {few}");
    }

    #[test]
    fn what_is_offered_is_forwarded_until_something_is_full(
        (mut scenario, setting) in any_case(), offered in 1e4_f64..1e7, two_way in any::<bool>(),
    ) {
        let values = Table::built_in().unwrap().values();
        let mut out = |offered| {
            scenario.load = forward(offered, two_way);
            predict(&scenario, &setting, &values)
        };
        let (less, more) = (out(offered), out(1.5 * offered));
        let all = if two_way { 2.0 * offered } else { offered };
        prop_assert!(less.rate <= all * 1.0001);
        prop_assert!(more.rate >= less.rate * 0.999, "{} after {}", more.rate, less.rate);
        prop_assert!(less.limit != Limit::Load || less.rate >= all * 0.999, "{less:?}");
        prop_assert!(more.cpus.iter().all(|cpu| cpu.softirq <= 1.001), "{more:?}");
    }

    #[test]
    fn more_instances_hardly_get_less((scenario, setting) in any_case()) {
        let mut more = scenario.clone();
        if let Load::RequestResponse(load) = &mut more.load {
            load.instances *= 1.5;
        }
        let [few, many] = [scenario, more].map(|it| rate(&it, &setting));
        // Near saturation the rounds may end before the fixed point.
        prop_assert!(many >= few * 0.95, "{many} after {few}");
    }
}

/// The scenario with more than fits: of requests, whose readers stay where they are, or of packets
/// to forward.
fn filled(mut scenario: Scenario, forwards: bool) -> Scenario {
    let cpus = CpuSet::first(scenario.machine.cpu_count() as u32);
    match &mut scenario.load {
        Load::RequestResponse(load) if !forwards => (load.instances, load.cpus) = (1e5, cpus),
        load => *load = forward(1e8, false),
    }
    scenario
}

fn forward(offered: f64, two_way: bool) -> Load {
    Load::Forward(Forward { offered, two_way, frame_bytes: 64.0, filter: Filter::None })
}

fn rate(scenario: &Scenario, setting: &Setting) -> f64 {
    predict(scenario, setting, &Table::built_in().unwrap().values()).rate
}

/// Throughput of `customers` who think for `think` and share one server, `demand` each: exact mean
/// value analysis (Reiser and Lavenberg, 1980), which for exponential times is the machine
/// repairman. With processor sharing it holds for any distribution of both times.
fn repairman(customers: u32, think: f64, demand: f64) -> f64 {
    let (mut queue, mut rate) = (0.0, 0.0);
    for population in 1..=customers {
        let residence = demand * (1.0 + queue);
        rate = f64::from(population) / (think + residence);
        queue = rate * residence;
    }
    rate
}
