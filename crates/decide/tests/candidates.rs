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
    CandidateOptions, Candidates, Expected, UnknownCandidate, candidates,
};
use netsilo_decide::plan::Goal;
use netsilo_model::change::{Target, Value};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_sys::bundle;

fn made(options: &CandidateOptions) -> Result<Candidates, UnknownCandidate> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/outcomes/guest");
    let observation = bundle::open(folder.join("all-on-cpu0.tar.zst")).unwrap();
    candidates(&Analysis::new(&observation, &Costs::default()), options)
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
    let writes = |at: usize| {
        let changes = &made.tried[at].plan.changes;
        let write = |it: &netsilo_model::change::Change| format!("{} {}", it.target, it.new);
        changes.iter().map(write).collect::<BTreeSet<_>>()
    };
    let different: BTreeSet<_> = (0..made.tried.len()).map(writes).collect();
    assert_eq!(different.len(), made.tried.len(), "{names:?}");
    assert!(made.tried.iter().all(|it| !it.plan.changes.is_empty()));
    let Expected::Cost(cost) = &made.tried[0].expected else { unreachable!("auto has a cost") };
    assert!(cost.after_ns_per_s < cost.before_ns_per_s);
    // every name has one fate
    let left_out: BTreeSet<_> = made.left_out.iter().map(|it| it.subject.as_str()).collect();
    assert!(names.iter().all(|name| !left_out.contains(name)));
}

#[test]
fn a_knob_that_may_interrupt_traffic_is_tried_only_with_permission() {
    let interrupts = |made: &Candidates| {
        let changes = made.tried.iter().flat_map(|it| &it.plan.changes);
        changes.filter(|it| it.target.interrupts_traffic().is_some()).count()
    };
    let careful = made(&CandidateOptions::default()).unwrap();
    assert_eq!(interrupts(&careful), 0);
    let options = CandidateOptions { allow_interruption: true, ..CandidateOptions::default() };
    let bold = made(&options).unwrap();
    let permission = |it: &&netsilo_decide::plan::Unchanged| it.reason.contains("--allow-interr");
    assert_eq!(interrupts(&bold) > 0, careful.left_out.iter().any(|it| permission(&it)));
    assert!(!bold.left_out.iter().any(|it| permission(&it)));
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
    // what is requested by name is tried even if the model expects that it hurts
    assert_eq!(names(&of(&["rps", "auto"], &[]).unwrap()), ["auto", "rps"]);
    assert!(!names(&of(&[], &["auto"]).unwrap()).contains(&"auto"));
    let unknown = of(&["rsp"], &[]).unwrap_err().to_string();
    assert!(unknown.starts_with("no candidate is called rsp; known here are auto, "), "{unknown}");
}
