//! Forecasts for observed machines, on synthetic hosts.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod observed;

use netsilo_model::change::knobs::{
    IrqAffinity, NapiThread, RpsCpus, RpsFlowCnt, RpsSockFlowEntries, Threaded, XpsCpus,
};
use netsilo_model::change::{Change, apply_to};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::attribution::Poll;
use netsilo_model::snapshot::ethtool::Coalesce;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue};
use netsilo_predict::live::claim::Claim;
use netsilo_predict::live::forecast::{Expected, Forecast, Limit, forecast};
use netsilo_predict::live::judge::Judge;
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::{TooLittle, Work};
use proptest::prelude::*;

use observed::{cpu, scene};

/// A queue that takes this share of CPU 0, and is read on another CPU.
fn queue(irq: u32, load: f64, reader: u32) -> SceneQueue {
    observed::queue(irq, 0, load, reader)
}

fn predict(scene: &Scene, load: f64, change: impl Fn(&mut Snapshot)) -> Forecast {
    let (observation, costs) = (scene.observation(), Costs::default());
    let analysis = Analysis::new(&observation, &costs);
    let setting = Proposal::edited("new", &observation.after, change);
    forecast(&Work::new(&analysis).unwrap(), load, &[setting])
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
    let forecast = predict(&scene(vec![queue(30, 0.4, 1), queue(31, 0.3, 2)]), 1.0, |_| ());
    let [now, same] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert_eq!(now.cpus, same.cpus);
    assert_eq!((same.claim, same.gain.unwrap().value), (Some(Claim::NoClearChange), 0.0));
    // On a full CPU each poll takes more packets, so that the load fits a little more often.
    let more = now.fits.value * 0.7;
    assert!(close(softirq(now, 0), 0.7) && (1.0..1.1).contains(&more), "{more}");
    assert_eq!(now.limit, Limit::Cpu(CpuId(0)));
}

#[test]
fn a_queue_that_moves_takes_its_work_along() {
    let forecast = predict(&scene(vec![queue(30, 0.4, 1), queue(31, 0.3, 2)]), 1.0, |after| {
        move_irq(after, 31, 3);
    });
    let [_, moved] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!((softirq(moved, 0) - 0.4).abs() < 0.02, "{moved:?}");
    assert!((softirq(moved, 3) - 0.3).abs() < 0.02, "{moved:?}");
    let gain = moved.gain.unwrap();
    assert!(gain.low > 0.05 && (0.6..0.9).contains(&gain.value), "{gain:?}");
    assert_eq!(moved.claim, Some(Claim::NoClearChange), "nothing is full");
}

#[test]
fn work_takes_longer_on_a_little_cpu() {
    let mut scene = scene(vec![queue(30, 0.2, 1), observed::queue(31, 2, 0.3, 1)]);
    scene.little = CpuSet::parse_list("0-1").unwrap();
    let slowdown = 1024.0 / 446.0;
    let forecast = predict(&scene, 1.0, |after| {
        move_irq(after, 30, 3);
        move_irq(after, 31, 0);
    });
    let [now, moved] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!((softirq(now, 0) - 0.2 * slowdown).abs() < 0.001, "{now:?}");
    assert!((softirq(now, 2) - 0.3).abs() < 0.001, "{now:?}");
    assert!((softirq(moved, 3) - 0.2).abs() < 0.02, "{moved:?}");
    assert!((softirq(moved, 0) - 0.3 * slowdown).abs() < 0.03, "{moved:?}");
}

#[test]
fn a_queue_on_its_readers_cpu_needs_no_ipis_for_wakeups() {
    let forecast = predict(&scene(vec![queue(30, 0.4, 1)]), 1.0, |after| move_irq(after, 30, 1));
    let [now, same_cpu] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(now.ipis_per_s > 10_000.0 && close(same_cpu.ipis_per_s, 0.0), "{forecast:?}");
    assert!(same_cpu.cpu_time.high < now.cpu_time.low, "{forecast:?}");
}

#[test]
fn rps_relieves_the_cpu_that_polls_and_adds_work_and_ipis() {
    let rps = |after: &mut Snapshot| {
        after.netdevs[0].rx_queues[0].rps_cpus = Some(CpuSet::first(4));
    };
    let forecast = predict(&scene(vec![queue(30, 0.9, 1)]), 1.0, rps);
    let [now, rps] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(softirq(rps, 0) < 0.85 && softirq(rps, 3) > 0.03, "{rps:?}");
    assert!(rps.cpu_time.value > now.cpu_time.value, "{forecast:?}");
    assert!(rps.ipis_per_s > now.ipis_per_s);
}

#[test]
fn rfs_brings_the_protocol_to_the_reader() {
    let rfs = |after: &mut Snapshot| {
        after.net.rps_sock_flow_entries = Some(32768);
        after.netdevs[0].rx_queues[0].rps_flow_cnt = Some(32768);
    };
    let forecast = predict(&scene(vec![queue(30, 0.9, 1)]), 1.0, rfs);
    let steered = &forecast.settings[1];
    assert!(softirq(steered, 1) > 0.2 && close(softirq(steered, 2), 0.0), "{steered:?}");
}

/// The scene with a fixed wait of the NIC before its interrupts.
fn coalescing(usecs: u32) -> impl Fn(&mut Snapshot) {
    move |after| {
        let coalesce = Coalesce { rx_coalesce_usecs: usecs, ..Coalesce::default() };
        after.netdevs[0].ethtool.as_mut().unwrap().coalesce = Reading::Value(coalesce);
    }
}

#[test]
fn a_longer_wait_before_interrupts_spares_some_of_them() {
    let mut observation = scene(vec![queue(30, 0.9, 1)]).observation();
    coalescing(10)(&mut observation.before);
    coalescing(10)(&mut observation.after);
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let settings = [10, 20, 100]
        .map(|usecs| Proposal::edited(usecs.to_string(), &observation.after, coalescing(usecs)));
    let forecast = forecast(&Work::new(&analysis).unwrap(), 1.0, &settings);
    let softirqs: Vec<f64> = forecast.settings.iter().map(|it| softirq(it, 0)).collect();
    assert!(close(softirqs[0], 0.9) && close(softirqs[1], 0.9), "{softirqs:?}");
    assert!(softirqs[2] < 0.9 && softirqs[3] < softirqs[2], "{softirqs:?}");
}

#[test]
fn handlers_of_interrupts_move_with_them_and_are_fewer_where_their_delay_adapts() {
    let mut observation = scene(vec![queue(30, 0.5, 1)]).observation();
    coalescing(0)(&mut observation.before);
    coalescing(0)(&mut observation.after);
    let time = observation.attribution.cpu_time.get_mut(&CpuId(0)).unwrap();
    // 30% of the CPU's ten seconds.
    (time.hardirqs, time.hardirq_ns) = (250_000, 3_000_000_000);
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let adaptive = |after: &mut Snapshot| {
        let coalesce = Coalesce { use_adaptive_rx_coalesce: true, ..Coalesce::default() };
        after.netdevs[0].ethtool.as_mut().unwrap().coalesce = Reading::Value(coalesce);
    };
    let settings = [
        Proposal::edited("moved", &observation.after, |after| move_irq(after, 30, 3)),
        Proposal::edited("adaptive", &observation.after, adaptive),
    ];
    let forecast = forecast(&Work::new(&analysis).unwrap(), 1.0, &settings);
    let [now, moved, adaptive] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!((softirq(now, 0) - 0.8).abs() < 0.01, "{now:?}");
    assert!(softirq(moved, 0) < 0.05 && softirq(moved, 3) > 0.75, "{moved:?}");
    assert!((0.5..0.6).contains(&softirq(adaptive, 0)), "70% of 30% are saved: {adaptive:?}");
    let per_s = [now, adaptive].map(|it| it.interrupts_per_s.unwrap());
    assert!((per_s[0] / per_s[1] - 3.3).abs() < 0.01, "{per_s:?}");
}

#[test]
fn a_kthread_polls_where_the_machine_is_idle_and_costs_its_wakeup() {
    let threaded = |after: &mut Snapshot| after.netdevs[0].threaded = Some(1);
    let forecast = predict(&scene(vec![queue(30, 0.9, 3)]), 1.0, threaded);
    let [now, threaded] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(softirq(threaded, 0) < 0.1 && softirq(threaded, 1) > 0.8, "{threaded:?}");
    assert!(threaded.cpu_time.value > now.cpu_time.value, "{forecast:?}");
}

#[test]
fn what_the_model_does_not_know_is_named_and_has_no_gain() {
    let observation = scene(vec![queue(30, 0.9, 1)]).observation();
    let netdev = NetdevIdentity::from_netdev(&observation.after.netdevs[0]);
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let xps = XpsCpus { netdev: netdev.clone(), queue: 0 };
    let rps = RpsCpus { netdev, queue: 0 };
    let off = CpuSet::new;
    let xps = Change::new(xps, off(), CpuSet::first(2), "because");
    let rps = Change::new(rps, off(), CpuSet::first(4), "because");
    let before = &observation.after;
    let settings = [
        Proposal::new("xps", before, std::slice::from_ref(&xps)),
        Proposal::new("both", before, &[xps, rps]),
    ];
    let forecast = forecast(&Work::new(&analysis).unwrap(), 1.0, &settings);
    let [_, xps, both] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert_eq!((xps.gain, &xps.not_modeled), (None, &vec!["eth0 tx-0 xps_cpus".to_owned()]));
    assert!(both.gain.is_some() && both.not_modeled == xps.not_modeled, "{both:?}");
}

#[test]
fn readers_that_are_pinned_cannot_leave_a_cpu_that_becomes_full() {
    let mut observation = scene(vec![queue(30, 0.4, 1)]).observation();
    let tgids = observation.attribution.consumption.iter().map(|it| it.consumer.tgid);
    let pinned = tgids.map(|tgid| (tgid, cpu(1))).collect();
    let before = observation.after.clone();
    let to_reader = Proposal::edited("same cpu", &before, |after| move_irq(after, 30, 1));
    let costs = Costs::default();
    let limits = |observation: &Observation| {
        let analysis = Analysis::new(observation, &costs);
        let work = Work::new(&analysis).unwrap();
        let forecast = forecast(&work, 1.0, std::slice::from_ref(&to_reader));
        forecast.settings.into_iter().map(|it| it.limit).collect::<Vec<_>>()
    };
    assert_eq!(limits(&observation), [Limit::Cpu(CpuId(0)), Limit::Cpu(CpuId(1))]);
    observation.attribution.pinned = pinned;
    // Of equal shares the first one is named; the reader takes time, too.
    assert_eq!(limits(&observation)[0], Limit::Cpu(CpuId(0)));
    assert_eq!(limits(&observation)[1], Limit::Pinned(cpu(1)));
}

#[test]
fn twice_the_load_fits_half_as_often() {
    let scene = scene(vec![queue(30, 0.3, 1)]);
    let (once, twice) = (predict(&scene, 1.0, |_| ()), predict(&scene, 2.0, |_| ()));
    assert!(close(once.settings[0].fits.value, 2.0 * twice.settings[0].fits.value));
    assert!(close(2.0 * once.packets_per_s, twice.packets_per_s));
}

#[test]
fn a_link_that_is_the_limit_also_fits_half_as_often_under_twice_the_load() {
    let mut scene = scene(vec![queue(30, 0.1, 1)]);
    scene.netdevs[0].speed_mbps = Some(1000);
    // 800 Mbit/s, with the framing of 100 000 packets/s another 19
    scene.netdevs[0].per_s =
        [("rx_bytes".to_owned(), 100_000_000), ("rx_packets".to_owned(), 100_000)].into();
    let fits = |load: f64| {
        let forecast = predict(&scene, load, |_| ());
        assert_eq!(forecast.settings[0].limit, Limit::Link("eth0".into()));
        forecast.settings[0].fits.value
    };
    assert!(close(fits(1.0), 2.0 * fits(2.0)) && close(fits(1.0), 1.0 / 0.8192));
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
        let forecast = predict(&scene(queues), 1.0, |after| {
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

/// A veth on whose packets CPU 0 spends two fifths of its time, as their sender.
fn veth(rps: CpuSet) -> Observation {
    let queue = SceneQueue { rps_cpus: Some(rps), rps_flow_cnt: Some(0), ..SceneQueue::default() };
    let mut scene = scene(vec![queue]);
    let veth = &mut scene.netdevs[0];
    (veth.driver, veth.software) = ("veth".into(), true);
    veth.per_s.insert("rx_packets".into(), 100_000);
    let mut observation = scene.observation();
    let seconds = observation.attribution.elapsed.as_secs();
    let (polls, packets) = (50_000 * seconds, 100_000 * seconds);
    let time = observation.attribution.cpu_time.entry(CpuId(0)).or_default();
    time.net_rx_ns = 400_000_000 * seconds;
    observation.attribution.polls = vec![Poll {
        napi: NapiId(0),
        netdev: String::new(),
        ifindex: 0,
        netns: 0,
        cpu: CpuId(0),
        polls,
        packets,
        ns: None,
    }];
    observation
}

fn rps_of_veth(observation: &Observation, to: CpuSet) -> Forecast {
    let veth = &observation.after.netdevs[0];
    let knob = RpsCpus { netdev: NetdevIdentity::from_netdev(veth), queue: 0 };
    let now = veth.rx_queues[0].rps_cpus.clone().unwrap();
    changed(observation, Change::new(knob, now, to, "because"))
}

fn changed(observation: &Observation, change: Change) -> Forecast {
    let costs = Costs::default();
    let analysis = Analysis::new(observation, &costs);
    let setting = Proposal::new("rps", &observation.after, &[change]);
    forecast(&Work::new(&analysis).unwrap(), 1.0, &[setting])
}

#[test]
fn rps_takes_all_of_a_backlogs_work_to_another_cpu_at_the_price_of_ipis() {
    let forecast = rps_of_veth(&veth(CpuSet::new()), cpu(2));
    let [now, rps] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
    assert!(close(softirq(now, 0), 0.4) && close(now.ipis_per_s, 0.0), "{now:?}");
    assert!(softirq(rps, 2) > 0.4 && softirq(rps, 0) < 0.3, "{rps:?}");
    assert!(rps.ipis_per_s > 10_000.0 && rps.cpu_time.value > now.cpu_time.value, "{rps:?}");
}

#[test]
fn what_another_mask_does_is_unknown_where_rps_hides_the_senders() {
    let hidden = veth(cpu(0));
    let netdev = NetdevIdentity::from_netdev(&hidden.after.netdevs[0]);
    let rfs = Change::new(RpsFlowCnt { netdev, queue: 0 }, 0, 4096, "because");
    let table = Change::new(RpsSockFlowEntries {}, 0, 4096, "because");
    let others = [rps_of_veth(&hidden, cpu(2)), changed(&hidden, rfs), changed(&hidden, table)];
    for forecast in others {
        let [now, then] = forecast.settings.as_slice() else { panic!("{forecast:?}") };
        assert_eq!((&now.cpus, then.gain, then.not_modeled.len()), (&then.cpus, None, 1));
    }
}

#[test]
fn nothing_is_said_of_a_kthread_without_an_interrupt_that_ends() {
    let queues = vec![SceneQueue { irq: None, ..queue(30, 0.9, 1) }];
    let mut scene = scene(queues);
    scene.netdevs[0].threaded = true;
    let observation = scene.observation();
    let netdev = NetdevIdentity::from_netdev(&observation.after.netdevs[0]);
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let off = Change::new(Threaded { netdev }, 1, 0, "because");
    let proposal = Proposal::new("off", &observation.after, &[off]);
    let forecast = forecast(&Work::new(&analysis).unwrap(), 1.0, &[proposal]);
    let off = &forecast.settings[1];
    assert_eq!((off.gain, off.claim, off.not_modeled.len()), (None, None, 1), "{off:?}");
}

#[test]
fn changes_give_the_same_as_all_settings_after_them() {
    let mut scene = scene(vec![queue(30, 0.3, 1), queue(31, 0.2, 2)]);
    let second = SceneNetdev {
        name: "eth1".into(),
        // It shares an interrupt with the first netdev, and has RFS without its table.
        queues: vec![
            SceneQueue { rps_flow_cnt: Some(4096), ..queue(31, 0.1, 3) },
            queue(32, 0.1, 1),
        ],
        ..scene.netdevs[0].clone()
    };
    let third = SceneNetdev {
        name: "eth2".into(),
        threaded: true,
        queues: vec![queue(33, 0.1, 2)],
        ..scene.netdevs[0].clone()
    };
    scene.netdevs.extend([second, third]);
    let mut observation = scene.observation();
    // It was moved while the machine was observed.
    move_irq(&mut observation.after, 32, 3);
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let work = Work::new(&analysis).unwrap();
    let after = &observation.after;
    let netdev = NetdevIdentity::from_netdev(&after.netdevs[1]);
    let thread = after.netdevs[2].napis[0].thread.clone().unwrap();
    let (pid, comm, start_time) = (thread.pid, thread.comm, thread.start_time);
    let changes = [
        Change::of(
            after,
            IrqAffinity {
                irq: Irq(31),
                action: after.irqs[&Irq(31)].actions.join(","),
                netdev: None,
            },
            cpu(3),
            "",
        ),
        Change::of(after, RpsCpus { netdev, queue: 1 }, cpu(2), ""),
        Change::of(after, RpsSockFlowEntries {}, 4096, ""),
        Change::of(after, NapiThread { pid, comm, start_time }, cpu(3), ""),
    ];
    for change in changes {
        let change = [change.unwrap()];
        let named = Proposal::new("new", after, &change);
        let whole = Proposal::edited("new", after, |it| *it = apply_to(it, &change));
        let both = forecast(&work, 1.0, &[named.clone(), whole]);
        let [now, named_gives, whole_gives] = both.settings.as_slice() else { panic!("{both:?}") };
        assert_ne!(now.cpus, named_gives.cpus, "{change:?}");
        assert_eq!(named_gives, whole_gives, "{change:?}");
        let fits = Judge::new(work.clone(), 1.0).fits(&named);
        assert_eq!(fits, Some(named_gives.fits.value));
    }
}
