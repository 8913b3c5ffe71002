//! The name by which the tables of this folder know a netdev's driver.
//!
//! A driver has a name in sysfs (its bus driver) and one in ethtool, which may differ. Each table
//! is written for one of them, so a table takes a [`DriverName`], which only [`DriverName::of`]
//! makes.

use std::fmt;

use crate::snapshot::ethtool::Ethtool;
use crate::snapshot::netdev::Netdev;

/// The name of a driver in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverName<'a>(&'a str);

/// Other names of a driver, then its name in the tables.
pub(super) const OTHER_NAMES: &[(&str, &str)] = &[
    // gve_main.c: the PCI driver was named gvnic before 6.5
    ("gvnic", "gve"),
    // mlx4/main.c: the PCI driver; its Ethernet part is mlx4_en
    ("mlx4_core", "mlx4_en"),
    // stmmac_ethtool.c: GMAC_ETHTOOL_NAME, MAC100_ETHTOOL_NAME, XGMAC_ETHTOOL_NAME
    ("st_gmac", "stmmac"),
    ("st_mac100", "stmmac"),
    ("st_xgmac", "stmmac"),
    ("stmmaceth", "stmmac"),
    ("qcom-ethqos", "stmmac"),
    // xen-netfront.c: the xenbus driver is named after the kind of device
    ("vif", "xen-netfront"),
    ("xen_netfront", "xen-netfront"),
    ("hclge", "hns3"),
    ("hclgevf", "hns3"),
    ("rvu-nicpf", "rvu_nicpf"),
    ("rvu-nicvf", "rvu_nicvf"),
    ("nfp_netvf", "nfp"),
    ("cpsw-switch", "cpsw"),
    ("sfc_siena", "sfc"),
];

impl<'a> DriverName<'a> {
    /// The driver of a netdev: the name in the tables for which ethtool or sysfs has another one,
    /// else that of sysfs. `None` if neither is known.
    pub fn of(netdev: &'a Netdev) -> Option<Self> {
        let ethtool = netdev.ethtool.as_ref().and_then(Self::of_ethtool);
        let other = ethtool.filter(|own| OTHER_NAMES.iter().any(|(_, name)| own.0 == *name));
        other.or_else(|| netdev.driver.as_deref().map(Self::in_tables)).or(ethtool)
    }

    /// The driver that ethtool names.
    pub fn of_ethtool(ethtool: &'a Ethtool) -> Option<Self> {
        ethtool.driver.value().map(|driver| Self::in_tables(&driver.driver))
    }

    fn in_tables(name: &'a str) -> Self {
        // the platform drivers around stmmac: rk_gmac-dwmac, meson8b-dwmac, dwmac-sun8i
        if name.split('-').any(|word| word == "dwmac") {
            return Self("stmmac");
        }
        Self(OTHER_NAMES.iter().find(|(other, _)| *other == name).map_or(name, |(_, own)| own))
    }

    /// Whether a table's list contains the driver.
    pub fn is_in(self, names: &[&str]) -> bool {
        names.contains(&self.0)
    }

    /// The name.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

impl fmt::Display for DriverName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Whether a netdev's driver is one of these, by its name in the tables.
pub fn has_driver(netdev: &Netdev, names: &[&str]) -> bool {
    DriverName::of(netdev).is_some_and(|driver| driver.is_in(names))
}

#[cfg(test)]
mod tests {
    use crate::machine::reading::Reading;
    use crate::snapshot::ethtool::Driver;

    use super::*;

    fn name(sysfs: &str, ethtool: Option<&str>) -> String {
        let driver = |name: &str| Driver {
            driver: name.into(),
            version: None,
            fw_version: None,
            bus_info: None,
        };
        let ethtool = ethtool.map(|name| Ethtool {
            driver: Reading::Value(driver(name)),
            ..Ethtool::unavailable("not read")
        });
        let netdev = Netdev { driver: Some(sysfs.into()), ethtool, ..Netdev::default() };
        DriverName::of(&netdev).unwrap().to_string()
    }

    #[test]
    fn a_table_is_looked_up_by_the_name_that_it_was_written_for() {
        assert_eq!(name("gvnic", None), "gve");
        assert_eq!(name("gvnic", Some("gve")), "gve");
        assert_eq!(name("mlx4_core", None), "mlx4_en");
        assert_eq!(name("rk_gmac-dwmac", Some("st_gmac")), "stmmac");
        assert_eq!(name("rk_gmac-dwmac", None), "stmmac");
        assert_eq!(name("mlx5_core", Some("mlx5e_rep")), "mlx5_core");
        assert_eq!(name("newnic", Some("NEW")), "newnic", "sysfs names what no table lists");
    }
}
