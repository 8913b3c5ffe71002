//! Forecasts for machines that the observed one could be, and for settings that divide packets over
//! other queues.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod observed;

use std::sync::Arc;

use netsilo_model::change::Change;
use netsilo_model::change::knobs::{Channels, FlowHash, XpsCpus};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::ethtool::{FlowType, HashFields};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::scene::{CpuLoad, Scene, SceneQueue};
use netsilo_predict::interval::Draws;
use netsilo_predict::live::forecast::{Expected, Forecast, forecast};
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::supposed::{CannotSuppose, Supposed, WhatIf};
use netsilo_predict::live::work::Work;
use netsilo_predict::parameters::Table;

use observed::cpu;

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

fn what_if(queues: Option<u32>, cpus: Option<u32>) -> WhatIf {
    WhatIf { queue_count: queues, cpu_count: cpus, on_metal: false }
}

/// The machine as it is, and the supposed one.
fn suppose(observation: &Observation, what_if: &WhatIf) -> Result<Forecast, CannotSuppose> {
    let costs = Costs::default();
    let analysis = Analysis::new(observation, &costs);
    let work = Work::new(&analysis).unwrap();
    let machine = Arc::new(Supposed::new(&work, what_if)?);
    let proposal = Proposal::of_supposed(what_if.name(), &machine, &[]);
    let draws = Draws::new(&Table::built_in().unwrap(), 50, 1);
    Ok(forecast(&work, 1.0, &[proposal], &draws))
}

/// The machine as it is, and with these changes.
fn change(observation: &Observation, changes: &[Change]) -> Forecast {
    let costs = Costs::default();
    let analysis = Analysis::new(observation, &costs);
    let work = Work::new(&analysis).unwrap();
    let proposal = Proposal::new("new", &observation.after, changes);
    let draws = Draws::new(&Table::built_in().unwrap(), 50, 1);
    forecast(&work, 1.0, &[proposal], &draws)
}

fn softirqs(of: &Expected) -> Vec<f64> {
    of.cpus.values().map(|cpu| cpu.softirq).collect()
}

fn tasks(of: &Expected) -> f64 {
    of.cpus.values().map(|cpu| cpu.usr + cpu.sys).sum()
}

#[test]
fn four_queues_divide_the_packets_of_one_and_poll_more_often() {
    let observation = scene(vec![queue(30, 0, 0.8)]).observation();
    let forecast = suppose(&observation, &what_if(Some(4), None)).unwrap();
    let [now, new] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert_eq!(new.name, "4 queues");
    let softirqs = softirqs(new);
    assert!(softirqs.iter().all(|share| (0.15..0.35).contains(share)), "{softirqs:?}");
    // Each poll has fewer packets, so that the begin of a poll costs more of them.
    assert!(softirqs.iter().sum::<f64>() > 0.8, "{softirqs:?}");
    assert!(new.is_clear && new.fits.value > 2.0 * now.fits.value, "{new:?}");
    assert!(forecast.assumed.iter().any(|it| it.contains("spread evenly over 4 queues")));
}

#[test]
fn one_queue_takes_the_packets_of_two_and_fewer_polls() {
    let observation = scene(vec![queue(30, 0, 0.5), queue(31, 1, 0.3)]).observation();
    let forecast = suppose(&observation, &what_if(Some(1), None)).unwrap();
    let softirqs = softirqs(&forecast.settings[1]);
    assert!((0.6..0.82).contains(&softirqs[0]) && softirqs[1] < 0.01, "{softirqs:?}");
}

#[test]
fn as_many_queues_with_an_even_load_change_nothing() {
    let observation = scene(vec![queue(30, 0, 0.4), queue(31, 1, 0.4)]).observation();
    let forecast = suppose(&observation, &what_if(Some(2), None)).unwrap();
    let [now, new] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    for (now, new) in softirqs(now).into_iter().zip(softirqs(new)) {
        assert!((now - new).abs() < 1e-3, "{forecast:?}");
    }
}

#[test]
fn threads_spread_over_more_cpus_and_interrupts_stay() {
    let observation = scene(vec![queue(30, 0, 0.8)]).observation();
    let forecast = suppose(&observation, &what_if(None, Some(16))).unwrap();
    let [now, new] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert_eq!(new.cpus.len(), 16);
    assert!((tasks(now) - tasks(new)).abs() < 0.02, "{forecast:?}");
    assert!((softirqs(new)[0] - 0.8).abs() < 0.02, "{new:?}");
    // What is full is the same CPU: more of them alone help no queue.
    assert!(!new.is_clear, "{new:?}");
}

#[test]
fn a_pinned_thread_keeps_its_cpu_among_more() {
    let mut observation = scene(vec![queue(30, 0, 0.8)]).observation();
    let tgids = observation.attribution.consumption.iter().map(|it| it.consumer.tgid);
    observation.attribution.pinned = tgids.map(|tgid| (tgid, cpu(3))).collect();
    let forecast = suppose(&observation, &what_if(None, Some(8))).unwrap();
    let cpus = &forecast.settings[1].cpus;
    let busy = |number: u32| cpus[&CpuId(number)].usr;
    assert!(busy(3) > 0.09 && busy(7) < 0.01 && busy(6) > 0.04, "{cpus:?}");
}

#[test]
fn a_plan_for_the_supposed_machine_sees_its_queues_and_cpus() {
    let observation = scene(vec![queue(30, 0, 0.8)]).observation();
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let work = Work::new(&analysis).unwrap();
    let machine = Supposed::new(&work, &what_if(Some(8), Some(16))).unwrap();
    let analysis = Analysis::new(&machine.observation, &costs);
    let silos = &analysis.silos.queues;
    assert_eq!((silos.len(), analysis.after().topology.online.len()), (8, 16));
    for silo in silos {
        assert!((silo.packets_per_s.unwrap() - 20_000.0).abs() < 1.0, "{silo:?}");
        assert!(silo.irq.is_some() && silo.polls.len() == 1, "{silo:?}");
    }
    let homes: CpuSet = silos.iter().flat_map(|silo| silo.polls.keys().copied()).collect();
    assert_eq!(homes.len(), 8);
    let read: f64 = silos.iter().filter_map(|silo| silo.bytes_per_s).sum();
    assert!((read - 10_000_000.0).abs() < 100.0, "{read}");
}

#[test]
fn without_its_hypervisor_ipis_cost_less_and_nothing_else_does() {
    let mut rps = queue(30, 0, 0.5);
    rps.rps_cpus = Some(CpuSet::first(4));
    let observation = scene(vec![rps]).observation();
    let metal = WhatIf { on_metal: true, ..WhatIf::default() };
    let forecast = suppose(&observation, &metal).unwrap();
    let [now, new] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(now.ipis_per_s > 1000.0 && new.cpu_time.value < now.cpu_time.value, "{forecast:?}");
    let mut metal_host = observation;
    metal_host.after.machine.virtual_machine = Some(false);
    assert_eq!(suppose(&metal_host, &metal), Err(CannotSuppose::NoHypervisor));
}

#[test]
fn what_cannot_be_supposed_is_refused() {
    let observation = scene(vec![queue(30, 0, 0.8)]).observation();
    let refused = |queues, cpus| suppose(&observation, &what_if(queues, cpus)).unwrap_err();
    assert_eq!(refused(None, Some(6)), CannotSuppose::NoMultiple(6, 4));
    assert_eq!(refused(None, Some(2)), CannotSuppose::NoMultiple(2, 4));
    let mut threaded = scene(vec![queue(30, 0, 0.4)]);
    threaded.netdevs[0].threaded = true;
    let why = suppose(&threaded.observation(), &what_if(Some(4), None)).unwrap_err();
    assert_eq!(why, CannotSuppose::Kthreads("eth0".into()));
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
    assert!(new.not_modeled.is_empty() && new.is_clear, "{new:?}");
    let softirqs = softirqs(new);
    assert!((0.35..0.5).contains(&softirqs[0]) && (0.35..0.5).contains(&softirqs[1]), "{new:?}");
    assert!(forecast.assumed.iter().any(|it| it.contains("UDP flows")), "{forecast:?}");
}

#[test]
fn a_plan_of_more_channels_is_forecast_like_more_queues() {
    let observation = scene(vec![queue(30, 0, 0.8)]).observation();
    let netdev = NetdevIdentity::from_netdev(&observation.after.netdevs[0]);
    let old = "combined=1".parse().unwrap();
    let new = "combined=4".parse().unwrap();
    let forecast = change(&observation, &[Change::new(Channels { netdev }, old, new, "because")]);
    let supposed = suppose(&observation, &what_if(Some(4), None)).unwrap();
    assert_eq!(softirqs(&forecast.settings[1]), softirqs(&supposed.settings[1]));
    assert!(forecast.settings[1].not_modeled.is_empty(), "{forecast:?}");
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
