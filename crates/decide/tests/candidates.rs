//! The candidates of a guest whose interrupts are all on CPU 0.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]

use std::collections::BTreeSet;
use std::path::Path;

use netsilo_decide::judge::candidates::{
    Candidate, CandidateEstimate, CandidateOptions, Candidates, Ranking, UnknownCandidate,
    candidates,
};
use netsilo_decide::plan::{Goal, Unchanged};
use netsilo_model::change::{Target, Value};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::ethtool::{
    Coalesce, Ethtool, FlowType, HashFields, HashFunction, Limit, Rings, Rss,
};
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bundle;

fn guest() -> Observation {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/outcomes/guest");
    bundle::open(folder.join("all-on-cpu0.tar.zst")).unwrap()
}

/// The guest with another driver that reports these settings.
fn with_driver(driver: &str, set: impl FnOnce(&mut Ethtool)) -> Observation {
    let mut observation = guest();
    let netdev = observation.after.netdevs.iter_mut().find(|it| it.name == "eth0").unwrap();
    netdev.driver = Some(driver.into());
    set(netdev.ethtool.get_or_insert_with(|| Ethtool::unavailable("not asked")));
    observation
}

fn made(options: &CandidateOptions) -> Result<Candidates, UnknownCandidate> {
    made_of(&guest(), options, &|_| Vec::new())
}

fn made_of(
    observation: &Observation,
    options: &CandidateOptions,
    ranking: Ranking<'_>,
) -> Result<Candidates, UnknownCandidate> {
    candidates(&Analysis::new(observation, &Costs::default()), options, ranking)
}

/// What each candidate writes whose name, without its netdev, is this one.
fn writes(made: &Candidates, name: &str) -> Vec<String> {
    let is_it = |it: &&Candidate| it.name.split(':').next() == Some(name);
    let changes = made.tried.iter().filter(is_it).flat_map(|it| &it.plan.changes);
    changes
        .map(|it| {
            let (old, new) = it.from_to();
            format!("{}: {old} -> {new}", it.target)
        })
        .collect()
}

fn names(made: &Candidates) -> Vec<&str> {
    made.tried.iter().map(|it| it.name.as_str()).collect()
}

#[test]
fn placements_knobs_and_the_best_placement_with_each_knob_are_tried_once_each() {
    let made = made(&CandidateOptions::default()).unwrap();
    let names = names(&made);
    for name in ["auto", "spread", "rfs", "auto+rfs"] {
        assert!(names.contains(&name), "{name} in {names:?}, without {:?}", made.left_out);
    }
    let written = |at: usize| {
        let changes = &made.tried[at].plan.changes;
        let write = |it: &netsilo_model::change::Change| format!("{} {}", it.target, it.new);
        changes.iter().map(write).collect::<BTreeSet<_>>()
    };
    let different: BTreeSet<_> = (0..made.tried.len()).map(written).collect();
    assert_eq!(different.len(), made.tried.len(), "{names:?}");
    assert!(made.tried.iter().all(|it| !it.plan.changes.is_empty()));
    let CandidateEstimate::Cost(cost) = &made.tried[0].expected else {
        unreachable!("auto has a cost")
    };
    assert!(cost.after_ns_per_s < cost.before_ns_per_s);
    // every name is either tried or left out
    let left_out: BTreeSet<_> = made.left_out.iter().map(|it| it.subject.as_str()).collect();
    assert!(names.iter().all(|name| !left_out.contains(name)));
}

/// A device that can set everything. Its interrupts wait 10 us.
fn capable() -> Observation {
    with_driver("ice", |ethtool| {
        let rx = Some(Limit { current: 256, max: 4096 });
        let rings = Rings { rx, rx_mini: None, rx_jumbo: None, tx: rx };
        ethtool.rings = Reading::Value(rings);
        let coalesce = Coalesce { rx_coalesce_usecs: 10, ..Coalesce::default() };
        ethtool.coalesce = Reading::Value(coalesce);
        ethtool.rx_rings = Reading::Value(4);
        ethtool.rss = Reading::Value(Rss {
            function: Some(HashFunction::Toeplitz),
            key: None,
            indirection: vec![0, 1, 2, 3, 0, 1, 0, 1],
            input_xfrm: 0,
        });
        let ports = HashFields::ADDRESSES_AND_PORTS;
        ethtool.flow_hash.insert(FlowType::Tcp4, Reading::Value(ports));
        ethtool.flow_hash.insert(FlowType::Udp4, Reading::Value(HashFields::ADDRESSES));
    })
}

#[test]
fn every_knob_that_the_driver_can_set_is_tried_whatever_the_verdicts_say() {
    let options = CandidateOptions { allow_interruption: true, ..CandidateOptions::default() };
    let made = made_of(&capable(), &options, &|_| Vec::new()).unwrap();
    let expected = [
        ("threaded-napi", "eth0 threaded: 0 -> 1"),
        ("coalescing-off", "eth0 coalesce: rx-usecs=10 -> rx-usecs=0"),
        ("coalescing-longer", "eth0 coalesce: rx-usecs=10 -> rx-usecs=20"),
        ("coalescing-adaptive", "eth0 coalesce: adaptive-rx=off -> adaptive-rx=on"),
        ("table-equal", "eth0 rss table: "),
        ("hash-ports", "eth0 rx-flow-hash udp4: sd -> sdfn"),
        ("ring-max", "eth0 rings: rx=256 -> rx=4096"),
    ];
    for (name, write) in expected {
        let writes = writes(&made, name);
        let is_it = writes.len() == 1 && writes[0].starts_with(write);
        assert!(is_it, "{name}: {writes:?} in {:?}, without {:?}", names(&made), made.left_out);
    }
    // the kernel's timer is for devices that cannot wait
    assert!(writes(&made, "irq-deferral").is_empty());
    let cannot_wait = with_driver("virtio_net", |ethtool| {
        ethtool.coalesce = Reading::Absent("not supported".into());
    });
    let virtio = made_of(&cannot_wait, &options, &|_| Vec::new()).unwrap();
    assert_eq!(writes(&virtio, "irq-deferral").len(), 2, "{:?}", names(&virtio));
    assert!(writes(&virtio, "coalescing-off").is_empty());
}

#[test]
fn what_a_driver_lacks_or_has_in_effect_is_not_tried() {
    let observation = with_driver("ice", |ethtool| {
        let adaptive = Coalesce { use_adaptive_rx_coalesce: true, ..Coalesce::default() };
        ethtool.coalesce = Reading::Value(adaptive);
        let rx = Some(Limit { current: 4096, max: 4096 });
        let rings = Rings { rx, rx_mini: None, rx_jumbo: None, tx: rx };
        ethtool.rings = Reading::Value(rings);
    });
    let options = CandidateOptions { allow_interruption: true, ..CandidateOptions::default() };
    let made = made_of(&observation, &options, &|_| Vec::new()).unwrap();
    for name in ["coalescing-adaptive", "ring-max", "table-equal", "hash-ports"] {
        assert!(writes(&made, name).is_empty(), "{name}: {:?}", writes(&made, name));
    }
    // an adaptive wait is compared with none and with a fixed one
    let fixed = |name| writes(&made, name).join(" ");
    assert_eq!(fixed("coalescing-off"), "eth0 coalesce: adaptive-rx=on -> adaptive-rx=off");
    assert!(fixed("coalescing-longer").ends_with("-> adaptive-rx=off rx-usecs=20"));
    // igb interprets 3 as a mode, so there is no time to double
    let mode = with_driver("igb", |ethtool| {
        let mode = Coalesce { rx_coalesce_usecs: 3, ..Coalesce::default() };
        ethtool.coalesce = Reading::Value(mode);
    });
    let made = made_of(&mode, &options, &|_| Vec::new()).unwrap();
    let longer = writes(&made, "coalescing-longer");
    assert_eq!(longer, ["eth0 coalesce: rx-usecs=3 -> rx-usecs=20"], "{:?}", names(&made));
}

#[test]
fn a_knob_that_may_interrupt_traffic_is_tried_only_with_permission() {
    let interrupting = |made: &Candidates| -> BTreeSet<String> {
        let stops = |it: &&Candidate| {
            it.plan.changes.iter().any(|change| change.target.interrupts_traffic().is_some())
        };
        made.tried.iter().filter(stops).map(|it| it.name.clone()).collect()
    };
    let permission = |made: &Candidates| -> BTreeSet<String> {
        let needs = |it: &&Unchanged| it.reason.contains("--allow-interruption");
        made.left_out.iter().filter(needs).map(|it| it.subject.clone()).collect()
    };
    let observation = capable();
    let made = |allow_interruption| {
        let options = CandidateOptions { allow_interruption, ..CandidateOptions::default() };
        made_of(&observation, &options, &|_| Vec::new()).unwrap()
    };
    let (careful, bold) = (made(false), made(true));
    let resets = ["ring-max:eth0", "coalescing-off:eth0", "coalescing-longer:eth0"];
    assert_eq!(interrupting(&careful), BTreeSet::new());
    for name in resets {
        assert!(permission(&careful).contains(name), "{:?}", careful.left_out);
        assert!(interrupting(&bold).contains(name), "{:?}", names(&bold));
    }
    assert_eq!(permission(&bold), BTreeSet::new());
}

#[test]
fn the_best_placement_is_tried_with_the_knobs_that_rank_first_and_with_two_that_may_gain() {
    // the ranking prefers hashed ports, then kthreads, and predicts no gain for the others
    let ranking = |all: &[Candidate]| -> Vec<Option<f64>> {
        let gain = |it: &Candidate| match it.name.as_str() {
            "hash-ports:eth0" => Some(0.5),
            "threaded-napi:eth0" => Some(0.2),
            _ => None,
        };
        all.iter().map(gain).collect()
    };
    let observation = capable();
    let made = made_of(&observation, &CandidateOptions::default(), &ranking).unwrap();
    let names = names(&made);
    let best = names.iter().find_map(|name| name.strip_suffix("+hash-ports:eth0")).unwrap();
    let both = format!("{best}+hash-ports:eth0+threaded-napi:eth0");
    assert!(names.contains(&format!("{best}+threaded-napi:eth0").as_str()), "{names:?}");
    assert!(names.contains(&both.as_str()), "{names:?}");
    let pair = made.tried.iter().find(|it| it.name == both).unwrap();
    let single = made.tried.iter().find(|it| it.name == best).unwrap();
    assert_eq!(pair.plan.changes.len(), single.plan.changes.len() + 2);
    let later = made.left_out.iter().find(|it| it.reason.contains("other knobs rank before"));
    let Some(later) = later else { unreachable!("{:?}", made.left_out) };
    // a candidate that was left out can be requested
    let only = vec![later.subject.clone()];
    let requested = CandidateOptions { only: only.clone(), ..CandidateOptions::default() };
    let made = made_of(&observation, &requested, &ranking).unwrap();
    assert_eq!(self::names(&made), only);
}

#[test]
fn candidates_change_only_the_netdevs_and_cpus_of_the_goal() {
    let cpus = CpuSet::parse_list("0-3").unwrap();
    let goal = Goal { netdevs: vec!["eth0".into()], cpus: Some(cpus.clone()), ..Goal::default() };
    let made = made(&CandidateOptions { goal, ..CandidateOptions::default() }).unwrap();
    assert!(!made.tried.is_empty());
    for change in made.tried.iter().flat_map(|it| &it.plan.changes) {
        let is_table = change.target.to_string() == "rps_sock_flow_entries";
        assert!(is_table || change.target.is_of("eth0"), "{}", change.target);
        if let Value::Cpus(to) = &change.new {
            let is_xps = matches!(change.target, Target::XpsCpus(_));
            assert!(is_xps || to.is_subset(&cpus), "{}: {to}", change.target);
        }
    }
}

#[test]
fn only_and_except_select_by_name_and_an_unknown_name_is_an_error() {
    let of = |only: &[&str], except: &[&str]| {
        let owned = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        let (only, except) = (owned(only), owned(except));
        made(&CandidateOptions { only, except, ..CandidateOptions::default() })
    };
    // a candidate that is requested by name is tried even if the model predicts that it hurts
    assert_eq!(names(&of(&["rps", "auto"], &[]).unwrap()), ["auto", "rps"]);
    assert!(!names(&of(&[], &["auto"]).unwrap()).contains(&"auto"));
    let unknown = of(&["rsp"], &[]).unwrap_err().to_string();
    assert!(unknown.starts_with("no candidate is called rsp; known here are auto, "), "{unknown}");
}
