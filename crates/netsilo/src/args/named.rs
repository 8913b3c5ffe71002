//! Values that have names, as clap parsers. `--help` lists the names, and an error suggests one.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use netsilo_decide::judge::findings::Severity;
use netsilo_decide::plan::{AlgorithmName, Xps};
use netsilo_trial::workload::WorkloadMeasure;

use crate::args::objective::Objective;

/// Parses a value by its name. The types are defined in crates that do not depend on clap.
#[derive(Debug, Clone)]
pub struct Named<T: 'static> {
    values: &'static [T],
    name: fn(T) -> &'static str,
}

impl<T> Named<T> {
    /// A parser of these values by their names.
    pub const fn new(values: &'static [T], name: fn(T) -> &'static str) -> Self {
        Self { values, name }
    }
}

impl<T: Copy + Send + Sync> TypedValueParser for Named<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, text: &OsStr) -> Result<T, Error> {
        let names = self.values.iter().map(|value| (self.name)(*value));
        let text = PossibleValuesParser::new(names).parse_ref(command, arg, text)?;
        let found = self.values.iter().find(|it| (self.name)(**it).eq_ignore_ascii_case(&text));
        found.copied().ok_or_else(|| Error::new(ErrorKind::InvalidValue).with_cmd(command))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values.iter().map(|value| PossibleValue::new((self.name)(*value)))))
    }
}

/// The algorithm of this name.
pub(crate) fn algorithm(name: &str) -> Option<AlgorithmName> {
    AlgorithmName::ALL.iter().copied().find(|it| it.as_str() == name)
}

/// The names of all algorithms.
pub(crate) fn algorithm_names() -> Vec<&'static str> {
    AlgorithmName::ALL.iter().map(|it| it.as_str()).collect()
}

/// Algorithms that place interrupts.
pub(crate) fn algorithms() -> Named<AlgorithmName> {
    Named { values: AlgorithmName::ALL, name: AlgorithmName::as_str }
}

/// Severities that `check --fail-on` accepts.
pub(crate) fn severities() -> Named<Severity> {
    let values = &[Severity::Info, Severity::Warning, Severity::Critical];
    Named { values, name: Severity::as_str }
}

/// Ways to set XPS.
pub(crate) fn xps() -> Named<Xps> {
    Named {
        values: &[Xps::Near, Xps::Off],
        name: |xps| match xps {
            Xps::Near => "near",
            Xps::Off => "off",
        },
    }
}

/// Measures of the live workload.
pub(crate) fn measures() -> Named<WorkloadMeasure> {
    Named { values: &WorkloadMeasure::ALL, name: WorkloadMeasure::as_str }
}

/// Objectives of a search.
pub(crate) fn objectives() -> Named<Objective> {
    Named { values: &Objective::ALL, name: Objective::as_str }
}
