//! Reads what `ethtool` shows about a netdev from its driver.
//!
//! Decoding is in [`netsilo_model::parse::ethtool_decode`]; writing is in
//! [`set`](crate::ethtool::set).

use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::ethtool_decode as decode;
use netsilo_model::snapshot::ethtool::{Ethtool, FlowType};
use rustix::io::Errno;

use crate::ethtool::device::{
    Device, ETHTOOL_GCHANNELS, ETHTOOL_GCOALESCE, ETHTOOL_GDRVINFO, ETHTOOL_GRINGPARAM,
    ETHTOOL_GRXCLSRLCNT, ETHTOOL_GRXRINGS, EthtoolError,
};

/// Reads all parts of a netdev of this thread's network namespace; needs no privilege.
pub fn read(netdev: &str) -> Result<Ethtool, EthtoolError> {
    let device = Device::open(netdev)?;
    if let Err(Errno::NODEV) = device.get(ETHTOOL_GDRVINFO, &[], decode::DRVINFO_LEN) {
        return Err(EthtoolError::NoNetdev(netdev.to_owned()));
    }
    let flow_hash = FlowType::ALL.map(|flow| (flow, device.flow_hash(flow).into()));
    Ok(Ethtool {
        driver: device.fixed(ETHTOOL_GDRVINFO, decode::DRVINFO_LEN, decode::driver),
        channels: device.fixed(ETHTOOL_GCHANNELS, decode::CHANNELS_LEN, decode::channels),
        rings: device.fixed(ETHTOOL_GRINGPARAM, decode::RINGPARAM_LEN, decode::rings),
        coalesce: device.fixed(ETHTOOL_GCOALESCE, decode::COALESCE_LEN, decode::coalesce),
        features: device.features().into(),
        rss: device.rss().into(),
        rx_rings: device.fixed(ETHTOOL_GRXRINGS, decode::RXNFC_LEN, decode::rx_rings),
        ntuple_rules: device.fixed(ETHTOOL_GRXCLSRLCNT, decode::RXNFC_LEN, decode::rule_count),
        flow_hash: flow_hash.into_iter().collect(),
        link: device.link().into(),
        stats: device.stats().into(),
    })
}

/// Reads the driver's counters alone.
pub(crate) fn counters(netdev: &str) -> Result<Reading<Vec<(String, u64)>>, EthtoolError> {
    Ok(Device::open(netdev)?.stats().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_features_and_a_reason_for_missing_channels() {
        let lo = read("lo").unwrap();
        let features = lo.features.value().unwrap();
        let loopback = features.iter().find(|feature| feature.name == "loopback").unwrap();
        assert!(loopback.active && loopback.fixed());
        assert_eq!(lo.channels.reason(), Some("EOPNOTSUPP: the driver does not offer it"));
        assert!(lo.rss.value().is_none());
        let json = serde_json::to_string(&lo).unwrap();
        assert_eq!(serde_json::from_str::<Ethtool>(&json).unwrap(), lo);
    }

    #[test]
    fn a_missing_netdev_is_reported_by_name() {
        for name in ["", "no-such-netdev", "a-name-longer-than-any-netdev's"] {
            let error = read(name).unwrap_err();
            assert!(matches!(error, EthtoolError::NoNetdev(found) if found == name));
        }
    }
}
