//! Forecasts for an observed machine, for the verbs that print them: `predict`, `plan` and `tune`.

use anyhow::{Context as _, Result};
use netsilo_model::derive::analysis::Analysis;
use netsilo_predict::live::forecast::{Forecast, forecast};
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;

/// Predicts what each of `proposals` would do to the observed load.
pub fn forecast_of(analysis: &Analysis<'_>, load: f64, proposals: &[Proposal]) -> Result<Forecast> {
    let work = Work::new(analysis).context("cannot predict")?;
    Ok(forecast(&work, load, proposals))
}

/// A forecast for commands whose main output is something else; returns the reason as text if there
/// is too little data.
pub fn forecast_or_why(
    analysis: &Analysis<'_>,
    proposals: &[Proposal],
) -> Result<Forecast, String> {
    forecast_of(analysis, 1.0, proposals).map_err(|why| why.root_cause().to_string())
}
