//! The model's predictions for the settings of an experiment, before they are measured.

use netsilo::forecast::forecast_or_why;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::observation::Observation;
use netsilo_predict::live::forecast::Expected;
use netsilo_predict::live::proposal::Proposal;
use netsilo_trial::experiment::{Expectation, ExpectedChange, Experiment, Load};

/// Predicts what all settings except the first change, as `netsilo predict` does, from what was
/// observed under this load with the first setting.
pub(crate) fn expect(
    experiment: &Experiment,
    load: &Load,
    seen: &Observation,
    costs: &Costs,
) -> Expectation {
    let others = experiment.settings.iter().skip(1);
    let proposals: Vec<Proposal> =
        others.map(|it| Proposal::new(&it.name, &seen.after, &it.changes)).collect();
    let change = |it: Expected| ExpectedChange {
        setting: it.name,
        change: it.gain,
        not_modeled: it.not_modeled,
    };
    let (settings, why_not) = match forecast_or_why(&Analysis::new(seen, costs), &proposals) {
        // the first one is the machine as it is
        Ok(forecast) => (forecast.settings.into_iter().skip(1).map(change).collect(), None),
        Err(why) => (Vec::new(), Some(why)),
    };
    Expectation { load: load.name.clone(), settings, why_not }
}
