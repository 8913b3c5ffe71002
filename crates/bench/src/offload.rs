//! A setting that switches an offload, by ethtool's name.

use netsilo_model::change::{Change, Value, knobs};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use serde::Deserialize;

/// An offload by ethtool's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Offload {
    Tso,
    Gro,
    Lro,
    Sg,
    Checksum,
}

impl Offload {
    /// The kernel's names of its features (`netdev_features_strings`).
    fn features(self) -> &'static [&'static str] {
        match self {
            Self::Tso => &["tx-tcp-segmentation", "tx-tcp6-segmentation"],
            Self::Gro => &["rx-gro"],
            Self::Lro => &["rx-lro"],
            Self::Sg => &["tx-scatter-gather"],
            Self::Checksum => {
                &["rx-checksum", "tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"]
            }
        }
    }

    /// Switches it off if it is on anywhere, and otherwise on.
    pub(crate) fn switched<'a>(self, netdevs: impl Iterator<Item = &'a Netdev>) -> Vec<Change> {
        let mut changes = Vec::new();
        for netdev in netdevs {
            let of = |name: &&str| netdev.ethtool.as_ref()?.feature(name);
            for feature in self.features().iter().filter_map(of) {
                if feature.never_changed || !feature.available {
                    continue;
                }
                let (netdev, name) = (NetdevIdentity::from_netdev(netdev), feature.name.clone());
                let knob = knobs::Offload { netdev, feature: name };
                let reason = format!("{} switched", feature.name);
                changes.push(Change::new(knob, feature.active, !feature.active, reason));
            }
        }
        let on = changes.iter().any(|change| change.old == Value::Switch(true));
        changes.retain(|change| change.old == Value::Switch(on));
        changes
    }
}
