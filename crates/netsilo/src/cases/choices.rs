//! Laws of the placement that a plan chooses, tested with the findings' hosts, the hosts of
//! plans, and all bundles.

use std::path::{Path, PathBuf};

use netsilo_decide::judge::findings::FindingId;
use netsilo_decide::place::AlgorithmName;
use netsilo_decide::plan::{Goal, plan};
use netsilo_model::change::{Change, Target, apply_to};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::scene::Scene;
use netsilo_predict::live::claim::is_near_full;
use netsilo_predict::live::proposal::Proposal;
use netsilo_sys::bundle;

use crate::forecast::forecast_of;

use super::remedies::{bundles, fixtures};
use super::{BUNDLE, FindingCase, Values, plans, read};

/// How many times as much load may fit with another placement than with the plan's, which moves
/// something or not.
fn margin(moves: bool) -> f64 {
    if moves { 1.15 } else { 1.25 }
}

fn goal(algorithm: AlgorithmName) -> Goal {
    Goal { algorithm, even_if_owned: true, ..Goal::default() }
}

/// Checks a host's plan. Returns whether something is nearly full with it.
fn assert_chosen_well(path: &Path, observation: &Observation) -> bool {
    let costs = Costs::default();
    let analysis = Analysis::new(observation, &costs);
    let chosen = plan(&analysis, &Goal { even_if_owned: true, ..Goal::default() });
    let after = apply_to(analysis.after(), &chosen.changes);
    let applied = Observation { after, ..observation.clone() };
    let again = plan(&Analysis::new(&applied, &costs), &goal(AlgorithmName::Auto));
    let waits = |change: &Change| matches!(change.target, Target::NapiThread(_));
    // How long a kthread waits was measured where it was.
    if !chosen.changes.iter().any(waits) {
        assert_eq!(again.changes, [], "{}: the plan of the plan", path.display());
    }
    let proposal = |algorithm: &AlgorithmName| {
        let changes = plan(&analysis, &goal(*algorithm)).changes;
        Proposal::new(algorithm.as_str(), analysis.after(), &changes)
    };
    let proposals: Vec<Proposal> = AlgorithmName::ALL.iter().map(proposal).collect();
    let Ok(forecast) = forecast_of(&analysis, 1.0, &proposals) else { return false };
    let of_plan = &forecast.settings[1];
    if !is_near_full(of_plan.fits.value) {
        return false;
    }
    let moves = chosen.placements.iter().any(|it| it.moves);
    for other in &forecast.settings {
        let (most, its) = (other.fits.value, of_plan.fits.value);
        assert!(
            most <= margin(moves) * its,
            "{}: {} x{most} plan x{its}",
            path.display(),
            other.name
        );
    }
    true
}

#[test]
fn no_placement_is_clearly_better_than_that_of_the_plan_and_its_own_plan_is_empty() {
    let findings = FindingId::ALL
        .iter()
        .map(|id| (PathBuf::from(id.as_str()), FindingCase::of(*id).observe(&Values::new())));
    let of_plans = plans().into_iter().map(|case| case.join(BUNDLE)).filter(|it| it.exists());
    let bundles = bundles(&fixtures()).into_iter().chain(of_plans).map(|path| {
        let observation = bundle::open(&path).unwrap();
        (path, observation)
    });
    let scenes = plans().into_iter().map(|case| case.join("before.json")).filter(|it| it.exists());
    let scenes = scenes.map(|path| (path.clone(), read::<Scene>(&path).observation()));
    let hosts = findings.chain(scenes).chain(bundles);
    let full = hosts.filter(|(path, observation)| assert_chosen_well(path, observation)).count();
    assert!(full >= 100, "something is nearly full on only {full} hosts");
}
