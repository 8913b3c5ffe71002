//! The folder of an experiment: its plan, then its records. A plan that passes its check gives
//! results whatever the records hold.

use std::time::Duration;

use netsilo_trial::experiment::results::Results;
use netsilo_trial::experiment::{Experiment, Failed, Load, MachineSummary, Record, Setting, Trial};
use netsilo_trial::traffic::{Spec, Test};

use crate::json;
use crate::target::FuzzTarget;

/// Larger plans are checked, and take too long to compute here.
const TRIALS: u64 = 1000;

pub(crate) const TARGET: FuzzTarget =
    FuzzTarget { seeds, mutate: json::mutate_lines, inputs: 5_000, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    let mut lines = text.lines();
    let Some(plan) = lines.next() else { return };
    let Ok(experiment) = serde_json::from_str::<Experiment>(plan) else { return };
    let trials = u64::from(experiment.rounds)
        .saturating_mul(experiment.settings.len() as u64)
        .saturating_mul(experiment.loads.len() as u64);
    if experiment.check().is_err() || trials > TRIALS {
        return;
    }
    assert_eq!(experiment.steps().len() as u64, trials);
    let records: Vec<Record> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(experiment.remaining_steps(&records).len() as u64 <= trials);
    let results = Results::from_records(&experiment, &records);
    assert!(serde_json::to_string(&results).is_ok());
}

fn seeds() -> Vec<Vec<u8>> {
    let setting = |name: &str| Setting {
        name: name.into(),
        what: String::new(),
        changes: Vec::new(),
        command: None,
    };
    let load = |name: &str, test| Load {
        name: name.into(),
        spec: Spec::default_for(test, Duration::from_secs(1)),
        senders: 1,
        early_drop: false,
    };
    let experiment = Experiment {
        schema: 1,
        kind: "matrix".into(),
        netsilo: "0".into(),
        command: Vec::new(),
        started_s: 0,
        settings: ["none", "irq-affinity"].map(setting).into(),
        loads: vec![load("a", Test::TcpRr), load("b", Test::UdpRr)],
        rounds: 3,
        pause: Duration::ZERO,
        seed: 7,
        machine: MachineSummary::default(),
    };
    let record = |(at, step)| match at % 2 {
        0 => Record::Failed(Failed { step, why: "no answer".into() }),
        _ => {
            Record::Trial(Box::new(Trial { step, started_ms: at, runs: Vec::new(), between: None }))
        }
    };
    let records: Vec<Record> = (0..).zip(experiment.steps()).map(record).collect();
    let mut text = serde_json::to_string(&experiment).expect("an experiment") + "\n";
    for record in &records {
        text += &(serde_json::to_string(record).expect("a record") + "\n");
    }
    vec![text.into_bytes()]
}
