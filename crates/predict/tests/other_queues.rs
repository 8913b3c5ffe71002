//! Forecasts for settings that divide packets over other queues.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod observed;

use netsilo_model::change::Change;
use netsilo_model::change::knobs::{Channels, FlowHash, XpsCpus};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::ethtool::{FlowType, HashFields};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::scene::{CpuLoad, Scene, SceneQueue};
use netsilo_predict::live::claim::Claim;
use netsilo_predict::live::forecast::{Expected, Forecast, forecast};
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;

/// A queue on this CPU that takes this share of it, and is read on CPU 3.
fn queue(irq: u32, on: u32, load: f64) -> SceneQueue {
    let mut queue = SceneQueue {
        packets_per_s: (load * 200_000.0) as u64,
        packets_per_poll: 5,
        wakeups_per_s: 5_000,
        ..observed::queue(irq, on, load, 3)
    };
    queue.readers[0].unconnected = true;
    queue
}

fn scene(queues: Vec<SceneQueue>) -> Scene {
    Scene {
        busy: vec![CpuLoad { cpus: CpuSet::first(4), usr: 0.1 }],
        virtual_machine: Some(true),
        ..observed::scene(queues)
    }
}

/// The machine as it is, and with these changes.
fn change(observation: &Observation, changes: &[Change]) -> Forecast {
    let costs = Costs::default();
    let analysis = Analysis::new(observation, &costs);
    let work = Work::new(&analysis).unwrap();
    let proposal = Proposal::new("new", &observation.after, changes);
    forecast(&work, 1.0, &[proposal])
}

/// The machine as it is, and with this number of queues.
fn with_queues(observation: &Observation, count: u32) -> Forecast {
    let netdev = &observation.after.netdevs[0];
    let old = format!("combined={}", netdev.rx_queues.len()).parse().unwrap();
    let new = format!("combined={count}").parse().unwrap();
    let netdev = NetdevIdentity::from_netdev(netdev);
    change(observation, &[Change::new(Channels { netdev }, old, new, "because")])
}

fn softirqs(of: &Expected) -> Vec<f64> {
    of.cpus.values().map(|cpu| cpu.softirq).collect()
}

#[test]
fn four_queues_divide_the_packets_of_one_and_poll_more_often() {
    let observation = scene(vec![queue(30, 0, 0.85)]).observation();
    let forecast = with_queues(&observation, 4);
    let [now, new] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(new.not_modeled.is_empty(), "{new:?}");
    let softirqs = softirqs(new);
    assert!(softirqs.iter().all(|share| (0.15..0.35).contains(share)), "{softirqs:?}");
    // Each poll has fewer packets, so that the begin of a poll costs more of them.
    assert!(softirqs.iter().sum::<f64>() > 0.8, "{softirqs:?}");
    assert!(new.claim == Some(Claim::Help) && new.fits.value > 2.0 * now.fits.value, "{new:?}");
    assert!(forecast.assumed.iter().any(|it| it.contains("spread evenly over 4 queues")));
}

#[test]
fn one_queue_takes_the_packets_of_two_and_fewer_polls() {
    let observation = scene(vec![queue(30, 0, 0.5), queue(31, 1, 0.3)]).observation();
    let forecast = with_queues(&observation, 1);
    let softirqs = softirqs(&forecast.settings[1]);
    assert!((0.6..0.82).contains(&softirqs[0]) && softirqs[1] < 0.01, "{softirqs:?}");
}

#[test]
fn as_many_queues_with_an_even_load_change_nothing() {
    let observation = scene(vec![queue(30, 0, 0.4), queue(31, 1, 0.4)]).observation();
    let forecast = with_queues(&observation, 2);
    let [now, new] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    for (now, new) in softirqs(now).into_iter().zip(softirqs(new)) {
        assert!((now - new).abs() < 1e-3, "{forecast:?}");
    }
}

#[test]
fn where_other_queues_are_polled_is_not_known_of_kthreads() {
    let mut threaded = scene(vec![queue(30, 0, 0.4)]);
    threaded.netdevs[0].threaded = true;
    let forecast = with_queues(&threaded.observation(), 4);
    let why = &forecast.settings[1].not_modeled;
    assert!(why.len() == 1 && why[0].contains("kthreads poll the queues of eth0"), "{why:?}");
}

/// Both versions of UDP.
fn udp_hash(observation: &mut Observation, fields: HashFields) -> Vec<Change> {
    let netdev = NetdevIdentity::from_netdev(&observation.after.netdevs[0]);
    let ethtool = observation.after.netdevs[0].ethtool.as_mut().unwrap();
    let flows = [FlowType::Udp4, FlowType::Udp6];
    let changes = flows.map(|flow_type| {
        let old = Reading::Value(HashFields::ADDRESSES);
        ethtool.flow_hash.insert(flow_type, old);
        let knob = FlowHash { netdev: netdev.clone(), flow_type };
        Change::new(knob, HashFields::ADDRESSES, fields, "because")
    });
    changes.to_vec()
}

#[test]
fn ports_in_the_hash_spread_udp_over_all_queues() {
    let mut observation = scene(vec![queue(30, 0, 0.8), queue(31, 1, 0.0)]).observation();
    let ports = udp_hash(&mut observation, HashFields::ADDRESSES_AND_PORTS);
    let forecast = change(&observation, &ports);
    let new = &forecast.settings[1];
    assert!(new.not_modeled.is_empty() && new.gain.is_some_and(|gain| gain.low > 0.0), "{new:?}");
    let softirqs = softirqs(new);
    assert!((0.35..0.5).contains(&softirqs[0]) && (0.35..0.5).contains(&softirqs[1]), "{new:?}");
    assert!(forecast.assumed.iter().any(|it| it.contains("UDP flows")), "{forecast:?}");
}

#[test]
fn xps_moves_completions_to_the_queue_of_the_cpu_that_sends() {
    let mut scene = scene(vec![queue(30, 0, 0.6), queue(31, 1, 0.2)]);
    scene.netdevs[0].per_s = [("tx_packets".to_owned(), 100_000)].into();
    for queue in &mut scene.netdevs[0].queues {
        queue.xps_cpus = Some(CpuSet::new());
    }
    let observation = scene.observation();
    let netdev = NetdevIdentity::from_netdev(&observation.after.netdevs[0]);
    let xps = |queue, cpus| {
        let knob = XpsCpus { netdev: netdev.clone(), queue };
        Change::new(knob, CpuSet::new(), cpus, "because")
    };
    // CPU 3 sends all, until now through both queues.
    let changes = [xps(0, CpuSet::first(2)), xps(1, CpuSet::parse_list("2-3").unwrap())];
    let forecast = change(&observation, &changes);
    let [now, new] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(new.not_modeled.is_empty() && new.gain.is_some(), "{new:?}");
    let (now, new) = (softirqs(now), softirqs(new));
    assert!(new[0] < now[0] - 0.005 && new[1] > now[1] + 0.005, "{now:?} {new:?}");
    let sum = |softirqs: &[f64]| softirqs.iter().sum::<f64>();
    assert!((sum(&now) - sum(&new)).abs() < 0.02, "{now:?} {new:?}");
}
