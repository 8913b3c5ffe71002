//! Predicted and measured values, as Markdown.

use netsilo_trial::stats::Estimate;

use crate::predictions::draw::words;
use crate::predictions::predicted::PredictedLoad;
use crate::say::markdown;

/// Settings whose rate is within this share of the best one count as equally good.
const AS_GOOD: f64 = 0.03;

/// One pair: the prediction and the measurement.
struct Pair {
    gain: Estimate,
    measured: f64,
}

impl Pair {
    fn error(&self) -> f64 {
        (self.gain.value - self.measured).abs()
    }

    fn is_clear(&self) -> bool {
        !self.gain.contains(0.0)
    }
}

/// A row for each pair, and the summary.
pub(super) fn render(rows: &[PredictedLoad]) -> String {
    let mut table = markdown(&["load", "from", "to", "predicted", "90 %", "measured", "limit"]);
    for row in rows {
        let from = words(&row.settings[0].setting);
        for (setting, pair) in row.settings[1..].iter().zip(pairs(row)) {
            table.add_row([
                row.load.clone(),
                from.clone(),
                words(&setting.setting),
                percent(pair.gain.value),
                format!("{} to {}", percent(pair.gain.low), percent(pair.gain.high)),
                percent(pair.measured),
                setting.limit.clone(),
            ]);
        }
    }
    format!("{table}\n\n{}", summary(rows))
}

/// The pairs of a load.
fn pairs(row: &PredictedLoad) -> Vec<Pair> {
    let rates = row.medians();
    let settings = row.settings.iter().zip(&rates).skip(1);
    settings
        .map(|(setting, rate)| Pair { gain: setting.gain, measured: rate / rates[0] - 1.0 })
        .collect()
}

/// The rate of the setting with the best prediction, as a share of the highest measured rate.
fn share_of_best(row: &PredictedLoad) -> f64 {
    let rates = row.medians();
    let by_gain =
        |a: &usize, b: &usize| row.settings[*a].gain.value.total_cmp(&row.settings[*b].gain.value);
    // Among settings with the same prediction, the current one is chosen.
    let chosen = (0..rates.len()).rev().max_by(by_gain).unwrap_or(0);
    rates[chosen] / rates.iter().copied().fold(f64::NAN, f64::max)
}

fn summary(rows: &[PredictedLoad]) -> String {
    let all: Vec<Pair> = rows.iter().flat_map(pairs).collect();
    let count = |is: &dyn Fn(&&Pair) -> bool| all.iter().filter(is).count();
    let errors: Vec<f64> = all.iter().map(Pair::error).collect();
    let covered = count(&|pair| pair.gain.contains(pair.measured));
    let clear = count(&|pair| pair.is_clear());
    let right = count(&|pair| pair.is_clear() && pair.gain.value * pair.measured > 0.0);
    let best: Vec<f64> = rows.iter().map(share_of_best).collect();
    let good = best.iter().filter(|share| **share >= 1.0 - AS_GOOD).count();
    let lost = 1.0 - best.iter().sum::<f64>() / best.len().max(1) as f64;
    format!(
        "{} loads, {} pairs. Error of the change: mean {:.1}, median {:.1}, worst {:.1} \
         points. {covered} of {} measured changes in the 90 % interval. {right} of {clear} clear \
         predictions have the right sign. The setting that was predicted best was the best \
         measured one or within 3 % of it for {good} of {} loads; {:.1} % less on average. \
         Predicted and measured rates differ by {:.0} % (root mean square); rates differ by {:.0} \
         % from round to round (standard deviation, median of all settings).",
        rows.len(),
        all.len(),
        100.0 * errors.iter().sum::<f64>() / errors.len().max(1) as f64,
        100.0 * netsilo_trial::stats::median(&errors).unwrap_or(f64::NAN),
        100.0 * errors.iter().copied().fold(0.0, f64::max),
        all.len(),
        rows.len(),
        100.0 * lost,
        100.0 * root_mean_square(&all),
        100.0 * noise(rows),
    )
}

/// The root mean square of the logarithms of measured rates divided by predicted rates.
fn root_mean_square(pairs: &[Pair]) -> f64 {
    let squares =
        pairs.iter().map(|pair| ((1.0 + pair.measured) / (1.0 + pair.gain.value)).ln().powi(2));
    (squares.sum::<f64>() / pairs.len() as f64).sqrt()
}

/// The standard deviation of the logarithms of a setting's rates over the rounds. Returns the
/// median over all settings.
fn noise(rows: &[PredictedLoad]) -> f64 {
    let deviation = |rates: &Vec<f64>| {
        let logs: Vec<f64> = rates.iter().map(|rate| rate.ln()).collect();
        let mean = netsilo_trial::stats::mean(&logs).filter(|_| logs.len() > 1)?;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        Some((squares / (logs.len() - 1) as f64).sqrt())
    };
    let all: Vec<f64> = rows.iter().flat_map(|row| &row.rates).filter_map(deviation).collect();
    netsilo_trial::stats::median(&all).unwrap_or(f64::NAN)
}

fn percent(share: f64) -> String {
    format!("{:+.0}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictions::draw::draw;
    use crate::predictions::predicted::PredictedSetting;

    fn row(gains: [f64; 3], rates: [f64; 3]) -> PredictedLoad {
        let (load, settings) = draw(1, 0);
        let predicted = settings.iter().zip(gains).map(|(setting, value)| PredictedSetting {
            setting: setting.clone(),
            gain: Estimate { value, low: value - 0.05, high: value + 0.05 },
            limit: "the CPUs".into(),
        });
        let rates = rates.map(|rate| vec![0.9 * rate, 1.1 * rate]).to_vec();
        PredictedLoad { load: load.name(), settings: predicted.collect(), rates }
    }

    #[test]
    fn errors_coverage_signs_and_the_choice_are_counted() {
        let rows = [
            row([0.0, 0.2, -0.2], [100.0, 124.0, 70.0]),
            row([0.0, 0.1, 0.02], [100.0, 80.0, 100.0]),
        ];
        let expected = "2 loads, 4 pairs. Error of the change: mean 11.5, median 7.0, worst \
                        30.0 points. 2 of 4 measured changes in the 90 % interval. 2 of 3 clear \
                        predictions have the right sign. The setting that was predicted best was \
                        the best measured one or within 3 % of it for 1 of 2 loads; 10.0 % less on \
                        average. Predicted and measured rates differ by 17 % (root mean square); \
                        rates differ by 14 % from round to round (standard deviation, median of \
                        all settings).";
        assert_eq!(summary(&rows), expected);
    }
}
