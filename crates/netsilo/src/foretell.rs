//! Forecasts for an observed machine, for the verbs that print them: `predict`, and in passing
//! `plan`, `check` and `tune`.

use anyhow::{Context as _, Result};
use netsilo_decide::judge::findings::Check;
use netsilo_decide::judge::verdict::RemedyVerdict;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::observation::Observation;
use netsilo_predict::interval::Draws;
use netsilo_predict::live::forecast::{Forecast, forecast};
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;
use netsilo_predict::parameters::Table;

/// Draws of the parameters where a forecast is not what was asked for.
const QUICK_DRAWS: usize = 60;

/// Draws of the parameters.
pub(crate) fn draws(count: usize, seed: u64) -> Result<Draws> {
    Ok(Draws::new(&Table::built_in().map_err(anyhow::Error::msg)?, count, seed))
}

/// Foretells what each of `proposals` would do to the observed load.
pub(crate) fn foretell(
    observation: &Observation,
    costs: &Costs,
    load: f64,
    proposals: &[Proposal],
    draws: &Draws,
) -> Result<Forecast> {
    let analysis = Analysis::new(observation, costs);
    let work = Work::new(&analysis).context("cannot predict")?;
    Ok(forecast(&work, load, proposals, draws))
}

/// Foretells in passing, for a verb whose own result is another one: with fewer draws, and the
/// reason in words where too little was seen.
pub(crate) fn foretell_quickly(
    observation: &Observation,
    costs: &Costs,
    proposals: &[Proposal],
) -> Result<Forecast, String> {
    draws(QUICK_DRAWS, 1)
        .and_then(|draws| foretell(observation, costs, 1.0, proposals, &draws))
        .map_err(|why| why.root_cause().to_string())
}

/// What each remedy that has changes would do to the observed load, by its name; `None` if none has
/// changes. The error is the reason why too little was seen.
pub(crate) fn forecast_of_remedies(
    observation: &Observation,
    costs: &Costs,
    check: &Check,
) -> Option<Result<Forecast, String>> {
    let with_changes = check.verdicts.iter().filter(|verdict| !verdict.changes.is_empty());
    let proposal = |verdict: &RemedyVerdict| {
        Proposal::new(verdict.name(), &observation.after, &verdict.changes)
    };
    let proposals: Vec<Proposal> = with_changes.map(proposal).collect();
    (!proposals.is_empty()).then(|| foretell_quickly(observation, costs, &proposals))
}
