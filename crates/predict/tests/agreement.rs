//! The two forms of the model on random scenarios: docs/model.md says where they differ, and why.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

#[path = "../examples/agreement/cases.rs"]
mod cases;

use cases::Case;
use fastrand::Rng;
use netsilo_predict::interval::Draws;
use netsilo_predict::parameters::Table;
use netsilo_predict::scenario::Load;

/// Scenarios of one kind of load.
#[derive(Debug, Default)]
struct Agreement {
    agreed: usize,
    /// Simulated over analytic rate.
    ratios: Vec<f64>,
}

impl Agreement {
    fn share(&self) -> f64 {
        self.agreed as f64 / self.ratios.len() as f64
    }

    fn at(&self, share: f64) -> f64 {
        let mut ratios = self.ratios.clone();
        ratios.sort_by(f64::total_cmp);
        ratios[(share * (ratios.len() - 1) as f64).round() as usize]
    }
}

/// Compares the forms on `count` random scenarios, each simulated for `seconds`: requests and
/// responses, and forwarding.
fn compare(count: usize, seconds: f64) -> [Agreement; 2] {
    let table = Table::built_in().unwrap();
    let draws = Draws::new(&table, 100, 1);
    let mut rng = Rng::with_seed(1);
    let mut all = [Agreement::default(), Agreement::default()];
    for _ in 0..count {
        let case = Case::random(&mut rng);
        let compared = case.compare(&table, &draws, seconds).unwrap();
        let own = &mut all[usize::from(matches!(case.scenario.load, Load::Forward(_)))];
        own.agreed += usize::from(compared.agrees());
        own.ratios.push(compared.simulated.prediction.rate / compared.rate.value);
    }
    all
}

/// 0.05 s is short: rates above 20/s are what is compared.
#[test]
fn simulated_rates_are_in_nine_of_ten_analytic_90_percent_intervals_of_100_scenarios() {
    let [requests, forward] = compare(100, 0.05);
    assert!(requests.share() >= 0.88, "{requests:?}");
    assert!(forward.share() >= 0.95, "{forward:?}");
    for ratio in requests.ratios.iter().chain(&forward.ratios) {
        assert!((0.7..1.4).contains(ratio), "{ratio}");
    }
}

#[test]
#[ignore = "minutes: make test-long"]
fn simulated_rates_are_in_nine_of_ten_analytic_90_percent_intervals_of_1000_scenarios() {
    let [requests, forward] = compare(1000, 0.1);
    println!("requests and responses: {} of {}", requests.agreed, requests.ratios.len());
    println!("forwarding: {} of {}", forward.agreed, forward.ratios.len());
    assert_eq!(requests.ratios.len() + forward.ratios.len(), 1000);
    assert!(requests.share() >= 0.9, "{} of {}", requests.agreed, requests.ratios.len());
    assert!(forward.share() >= 0.98, "{} of {}", forward.agreed, forward.ratios.len());
    for (found, from, to) in [
        (requests.at(0.5), 0.98, 1.04),
        (requests.at(0.05), 0.9, 1.0),
        (requests.at(0.95), 1.0, 1.2),
        (forward.at(0.5), 0.99, 1.01),
        (forward.at(0.05), 0.95, 1.0),
        (forward.at(0.95), 1.0, 1.05),
    ] {
        assert!((from..=to).contains(&found), "{found}, not within {from} to {to}");
    }
}
