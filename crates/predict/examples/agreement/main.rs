//! How often the simulation agrees with the analytic form of the model, on random scenarios.
//!
//! Arguments: the number of scenarios, and the simulated time of each (s). `-v` lists those that do
//! not agree. docs/model.md has the result, and the reasons.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program of its own: it has arguments"
)]

mod cases;

use std::error::Error;

use cases::{Case, Compared};
use fastrand::Rng;
use netsilo_predict::interval::Draws;
use netsilo_predict::parameters::Table;
use netsilo_predict::scenario::Load;

/// Draws of the parameters for each interval.
const DRAWS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_verbose = arguments.iter().any(|argument| argument == "-v");
    let mut numbers = arguments.iter().filter_map(|argument| argument.parse::<f64>().ok());
    let count = numbers.next().unwrap_or(300.0) as usize;
    let seconds = numbers.next().unwrap_or(0.2);
    let table = Table::built_in()?;
    let draws = Draws::new(&table, DRAWS, 1);
    let mut rng = Rng::with_seed(1);
    let mut all = [Summary::default(), Summary::default()];
    for _ in 0..count {
        let case = Case::random(&mut rng);
        let compared = case.compare(&table, &draws, seconds)?;
        let is_forward = matches!(case.scenario.load, Load::Forward(_));
        all[usize::from(is_forward)].add(&compared);
        if is_verbose && !compared.agrees() {
            println!("{}", line(&case, &compared));
        }
    }
    for (name, summary) in ["request/response", "forward"].iter().zip(&all) {
        println!("{name}: {}", summary.line());
    }
    Ok(())
}

#[derive(Default)]
struct Summary {
    agreed: usize,
    /// Simulated over analytic rate.
    ratios: Vec<f64>,
}

impl Summary {
    fn add(&mut self, compared: &Compared) {
        self.agreed += usize::from(compared.agrees());
        self.ratios.push(compared.simulated.prediction.rate / compared.rate.value);
    }

    fn line(&self) -> String {
        let mut ratios = self.ratios.clone();
        ratios.sort_by(f64::total_cmp);
        let at = |share: f64| match ratios.len() {
            0 => f64::NAN,
            count => ratios[(share * (count - 1) as f64).round() as usize],
        };
        let (low, middle, high) = (at(0.05), at(0.5), at(0.95));
        format!(
            "{} of {} agree; simulated / analytic rate: {middle:.3}, 90 % within {low:.3} to \
             {high:.3}, all within {:.3} to {:.3}",
            self.agreed,
            ratios.len(),
            at(0.0),
            at(1.0)
        )
    }
}

fn line(case: &Case, compared: &Compared) -> String {
    let (Case { scenario, setting }, simulated) = (case, &compared.simulated.prediction);
    let (machine, rate) = (&scenario.machine, compared.rate);
    format!(
        "{:.3} of {:.0} ({:.0} to {:.0}), limit {}\n  {} CPUs, {:?}, {:?}\n  {:?}\n  \
         interrupts on {} CPUs, RPS on {}, RFS {}",
        simulated.rate / rate.value,
        rate.value,
        rate.low,
        rate.high,
        simulated.bottleneck,
        machine.cpu_count(),
        machine.kernel,
        scenario.load,
        scenario.nic,
        setting.irq.len(),
        setting.rps.len(),
        setting.rfs,
    )
}
