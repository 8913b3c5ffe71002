//! Where the guest's data is read, as observed by netsilo.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use netsilo_lab::Lab;

use crate::experiment::record::SettingRecord;

/// Shares of the bytes, by the distance from the CPU that ran the protocol to the reader's CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shares {
    /// Read on the same CPU.
    pub(crate) same_cpu: f64,
    /// Read on another CPU under the same last-level cache.
    pub(crate) same_llc: f64,
    /// Read on another socket.
    pub(crate) remote: f64,
}

impl Shares {
    /// Lets netsilo observe the guest for a second. Returns `None` if nobody reads what arrives.
    pub(crate) fn read(lab: &Lab, netsilo: &str) -> Result<Option<Self>> {
        let report: serde_json::Value =
            lab.json(&format!("{netsilo} show --interval 1s --json"))?;
        let shares = report["totals"]["locality"]["shares"].clone();
        let shares = serde_json::from_value(shares)
            .with_context(|| format!("a report without locality: {report}"))?;
        Ok(Self::new(&shares))
    }

    /// Adds them to the figures of a setting.
    pub(crate) fn record(self, setting: &mut SettingRecord) {
        let Self { same_cpu, same_llc, remote } = self;
        for (name, share) in [("same_cpu", same_cpu), ("same_llc", same_llc), ("remote", remote)] {
            let rounded = (share * 1e3).round() / 1e3;
            setting.figures.insert(format!("bytes_{name}"), vec![rounded]);
        }
    }

    /// Adds up the shares of the report; `None` if there are none.
    fn new(shares: &BTreeMap<String, f64>) -> Option<Self> {
        let share = |distance: &str| shares.get(distance).copied().unwrap_or(0.0);
        (!shares.is_empty()).then(|| Self {
            same_cpu: share("same_cpu"),
            same_llc: share("smt") + share("l2") + share("llc"),
            remote: share("remote"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_under_one_cache_are_added() {
        let shares = [("same_cpu", 0.5), ("smt", 0.25), ("llc", 0.125)];
        let shares = shares.map(|(distance, share)| (distance.to_owned(), share)).into();
        let expected = Shares { same_cpu: 0.5, same_llc: 0.375, remote: 0.0 };
        assert_eq!(Shares::new(&shares), Some(expected));
        assert_eq!(Shares::new(&BTreeMap::new()), None);
    }
}
