//! The result of `apply` as JSON.

use std::time::Duration;

use netsilo_model::change::{Target, Value};
use netsilo_model::machine::ids::Irq;
use netsilo_sys::transaction::apply::Applied;
use netsilo_sys::transaction::verify::Arrival;
use netsilo_trial::comparison::Comparison;
use serde::Serialize;

/// What was written.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ApplyResult<'a> {
    /// The transaction; `None` if nothing was written.
    transaction: Option<u64>,
    /// The knobs written, with the values read back.
    changes: Vec<KnobNow<'a>>,
    /// Where each moved interrupt arrived.
    arrivals: Vec<ArrivalOf<'a>>,
    /// Knobs that another program has written since, with their values.
    overwritten: Vec<KnobNow<'a>>,
    /// Time in which `netsilo confirm` must follow, in seconds.
    confirm_within_seconds: Option<u64>,
    /// With `--verify`: the comparison because of which the plan was not applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<&'a Comparison>,
}

/// A knob with its value now.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct KnobNow<'a> {
    target: &'a Target,
    value: &'a Value,
}

/// Where an interrupt arrived after it was moved.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ArrivalOf<'a> {
    irq: Irq,
    arrival: &'a Arrival,
}

impl<'a> ApplyResult<'a> {
    /// The result of a transaction.
    pub(crate) fn new(applied: &'a Applied, confirm_within: Option<Duration>) -> Self {
        let now = |all: &'a [(Target, Value)]| {
            all.iter().map(|(target, value)| KnobNow { target, value }).collect()
        };
        let arrivals = applied.arrivals.iter();
        Self {
            transaction: applied.transaction,
            changes: now(&applied.settled),
            arrivals: arrivals.map(|(irq, arrival)| ArrivalOf { irq: *irq, arrival }).collect(),
            overwritten: now(&applied.overwritten),
            confirm_within_seconds: confirm_within.map(|time| time.as_secs()),
            verified: None,
        }
    }

    /// The result of a plan without changes.
    pub(crate) fn nothing() -> Self {
        Self::default()
    }

    /// The result if the plan made the machine worse.
    pub(crate) fn worse(verified: Option<&'a Comparison>) -> Self {
        Self { verified, ..Self::default() }
    }
}
