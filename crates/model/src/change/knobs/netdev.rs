//! The netdevs of a snapshot, for the knobs that belong to them.

use crate::snapshot::ethtool::Ethtool;
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::NetdevIdentity;

/// A knob of each netdev.
pub(super) fn netdevs<K>(snapshot: &Snapshot, knob: impl Fn(NetdevIdentity) -> K) -> Vec<K> {
    snapshot.netdevs.iter().map(|netdev| knob(NetdevIdentity::from_netdev(netdev))).collect()
}

/// A knob of each netdev that has ethtool settings.
pub(super) fn ethtools<K>(snapshot: &Snapshot, knob: impl Fn(NetdevIdentity) -> K) -> Vec<K> {
    let netdevs = snapshot.netdevs.iter().filter(|netdev| netdev.ethtool.is_some());
    netdevs.map(|netdev| knob(NetdevIdentity::from_netdev(netdev))).collect()
}

/// The ethtool settings of a netdev in a snapshot.
pub(super) fn ethtool<'a>(snapshot: &'a Snapshot, netdev: &NetdevIdentity) -> Option<&'a Ethtool> {
    snapshot.netdevs.identified(netdev)?.ethtool.as_ref()
}

/// The same, to be changed.
pub(super) fn ethtool_mut<'a>(
    snapshot: &'a mut Snapshot,
    netdev: &NetdevIdentity,
) -> Option<&'a mut Ethtool> {
    snapshot.netdevs.identified_mut(netdev)?.ethtool.as_mut()
}
