//! Forecasts for an observed machine, for the verbs that print them: `predict`, `plan`, `check` and
//! `tune`.

use anyhow::{Context as _, Result};
use netsilo_decide::judge::findings::Check;
use netsilo_decide::judge::verdict::RemedyVerdict;
use netsilo_model::derive::analysis::Analysis;
use netsilo_predict::interval::Draws;
use netsilo_predict::live::forecast::{Forecast, forecast};
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;

/// Number of draws of the parameters if a forecast is not the main output.
const QUICK_DRAWS: usize = 60;

/// Draws of the parameters.
pub fn draws(count: usize, seed: u64) -> Result<Draws> {
    Draws::built_in(count, seed).map_err(anyhow::Error::msg)
}

/// Predicts what each of `proposals` would do to the observed load.
pub fn forecast_of(
    analysis: &Analysis<'_>,
    load: f64,
    proposals: &[Proposal],
    draws: &Draws,
) -> Result<Forecast> {
    let work = Work::new(analysis).context("cannot predict")?;
    Ok(forecast(&work, load, proposals, draws))
}

/// A cheap forecast with few draws, for commands whose main output is something else. If there is
/// too little data, returns the reason as text.
pub fn quick_forecast(analysis: &Analysis<'_>, proposals: &[Proposal]) -> Result<Forecast, String> {
    draws(QUICK_DRAWS, 1)
        .and_then(|draws| forecast_of(analysis, 1.0, proposals, &draws))
        .map_err(|why| why.root_cause().to_string())
}

/// Predicts what each remedy that has changes would do to the observed load. Returns `None` if no
/// remedy has changes. If there is too little data, the error is the reason.
pub fn forecast_of_remedies(
    analysis: &Analysis<'_>,
    check: &Check,
) -> Option<Result<Forecast, String>> {
    let with_changes = check.verdicts.iter().filter(|verdict| !verdict.changes.is_empty());
    let proposal =
        |verdict: &RemedyVerdict| Proposal::new(verdict.name(), analysis.after(), &verdict.changes);
    let proposals: Vec<Proposal> = with_changes.map(proposal).collect();
    (!proposals.is_empty()).then(|| quick_forecast(analysis, &proposals))
}
