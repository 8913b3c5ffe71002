//! The cost model checked against measured outcomes, in three states of one guest
//! (`evidence/outcomes.md`; `netsilo-lab experiment outcome` checks the default's choices).

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]

use std::path::Path;

use netsilo_decide::place::AlgorithmName;
use netsilo_decide::plan::{Goal, Plan, plan};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_sys::bundle;

/// States of the guest: as it booted, under irqbalance, with all interrupts on CPU 0.
const STATES: [&str; 3] = ["booted", "irqbalance", "all-on-cpu0"];

fn plan_of(state: &str, algorithm: AlgorithmName) -> Plan {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/outcomes/guest");
    let observation = bundle::open(folder.join(format!("{state}.tar.zst"))).unwrap();
    let costs = Costs::default();
    plan(&Analysis::new(&observation, &costs), &Goal { algorithm, ..Goal::default() })
}

#[test]
fn the_placement_that_measured_worse_is_expected_to_cost_more() {
    // Measured transactions per second, TCP and UDP: as booted 3518 and 8634, near-consumer 2737
    // and 7514, on the readers' CPUs 5924 and 12070.
    for state in STATES {
        let near = plan_of(state, AlgorithmName::NearConsumer).predicted.unwrap();
        let same = plan_of(state, AlgorithmName::SameCpu).predicted.unwrap();
        assert!(same.after_ns_per_s * 10 < near.after_ns_per_s, "{state}: {same:?} {near:?}");
        assert!(same.after_ns_per_s * 10 < same.before_ns_per_s, "{state}: {same:?}");
    }
}
