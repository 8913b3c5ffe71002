//! Which knobs a driver has, by kernel version: `data/drivers.toml`, which `docs/drivers.md`
//! renders.
//!
//! It tells what a driver *can* have, read off kernel sources. What a device has now is what it was
//! asked (`Ethtool`); this table is for what asking cannot tell without trying, and for advice
//! about another kernel.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// The table that netsilo is built with.
const SHIPPED: &str = include_str!("drivers.toml");

/// What is known of drivers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drivers {
    /// One entry each.
    pub driver: Vec<Driver>,
}

/// What is known of one driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Its name, as ethtool shows it.
    pub name: String,
    /// The file and the `struct ethtool_ops` that it was read off.
    pub source: String,
    /// Whether UDP ports are in its RSS hash; `None` where it was not found out.
    pub udp_ports: Option<UdpPorts>,
    /// Where that stands.
    pub udp_source: Option<String>,
    /// What it has, by kernel, oldest first; a version that was looked at and is not in it is as
    /// the one before.
    pub kernel: Vec<Knobs>,
}

/// Whether UDP ports are in the RSS hash of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UdpPorts {
    /// As it starts.
    ByDefault,
    /// After `rx-flow-hash udp4 sdfn`.
    OnRequest,
    /// It cannot.
    Never,
}

/// What a driver has from one kernel version on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knobs {
    /// The oldest version that it was seen in.
    pub since: String,
    /// What it has.
    pub knobs: BTreeSet<Knob>,
    /// Which parameters of `ethtool -C` it takes.
    pub coalesce: BTreeSet<String>,
}

/// Something that a driver may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// Number of channels (`ethtool -L`).
    Channels,
    /// Ring sizes (`ethtool -G`).
    Rings,
    /// Interrupt moderation (`ethtool -C`).
    Coalesce,
    /// The same queue by queue.
    CoalescePerQueue,
    /// RSS indirection table (`ethtool -X`).
    RssTable,
    /// It tells its RSS key.
    RssKey,
    /// The fields that RSS hashes can be set (`ethtool -N ... rx-flow-hash`).
    FlowHash,
    /// Flow steering rules (`ethtool -N`).
    Ntuple,
    /// More than one RSS table.
    RssContexts,
    /// A hash that is the same in both directions.
    SymmetricHash,
    /// Accelerated RFS (`ndo_rx_flow_steer`).
    Arfs,
    /// Large receive offload.
    Lro,
    /// GRO in hardware.
    HwGro,
    /// Byte queue limits.
    Bql,
    /// It tells the interrupt of each NAPI.
    NapiIrq,
}

impl Knob {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Channels,
        Self::Rings,
        Self::Coalesce,
        Self::CoalescePerQueue,
        Self::RssTable,
        Self::RssKey,
        Self::FlowHash,
        Self::Ntuple,
        Self::RssContexts,
        Self::SymmetricHash,
        Self::Arfs,
        Self::Lro,
        Self::HwGro,
        Self::Bql,
        Self::NapiIrq,
    ];

    /// As the data file and the page write it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Channels => "channels",
            Self::Rings => "rings",
            Self::Coalesce => "coalesce",
            Self::CoalescePerQueue => "coalesce-per-queue",
            Self::RssTable => "rss-table",
            Self::RssKey => "rss-key",
            Self::FlowHash => "flow-hash",
            Self::Ntuple => "ntuple",
            Self::RssContexts => "rss-contexts",
            Self::SymmetricHash => "symmetric-hash",
            Self::Arfs => "arfs",
            Self::Lro => "lro",
            Self::HwGro => "hw-gro",
            Self::Bql => "bql",
            Self::NapiIrq => "napi-irq",
        }
    }
}

impl Drivers {
    /// The table that netsilo is built with; a test makes sure that it can be read.
    pub fn shipped() -> Self {
        toml::from_str(SHIPPED).unwrap_or_default()
    }

    /// A driver by its name.
    pub fn find(&self, name: &str) -> Option<&Driver> {
        self.driver.iter().find(|driver| driver.name == name)
    }

    /// What a driver has on a kernel of this release (`6.12.48+deb12-amd64`); `None` on one older
    /// than all that were looked at.
    pub fn knobs(&self, driver: &str, release: &str) -> Option<&Knobs> {
        let running = version(release)?;
        self.find(driver)?
            .kernel
            .iter()
            .rfind(|knobs| version(&knobs.since).is_some_and(|since| since <= running))
    }

    /// Whether a driver is known not to have something on this kernel; what is not known is not
    /// denied.
    pub fn lacks(&self, driver: &str, release: &str, knob: Knob) -> bool {
        self.knobs(driver, release).is_some_and(|knobs| !knobs.knobs.contains(&knob))
    }

    /// Whether `ethtool -C` takes this parameter (`adaptive-rx`) on this kernel.
    pub fn takes(&self, driver: &str, release: &str, parameter: &str) -> bool {
        self.knobs(driver, release).is_some_and(|knobs| knobs.coalesce.contains(parameter))
    }

    /// The tables of `docs/drivers.md`.
    pub fn tables(&self) -> String {
        let mut text =
            format!("| driver | kernel | {} |\n", Knob::ALL.map(Knob::label).join(" | "));
        let _ = writeln!(text, "|---|---|{}", "---|".repeat(Knob::ALL.len()));
        for (driver, knobs) in self.rows() {
            let marks = Knob::ALL.map(|knob| if knobs.knobs.contains(&knob) { "yes" } else { "" });
            let _ = writeln!(text, "| {} | {} | {} |", driver.name, knobs.since, marks.join(" | "));
        }
        let _ = writeln!(
            text,
            "\n## What `ethtool -C` takes\n| driver | kernel | parameters |\n|---|---|---|"
        );
        for (driver, knobs) in self.rows().filter(|(_, knobs)| !knobs.coalesce.is_empty()) {
            let parameters: Vec<&str> = knobs.coalesce.iter().map(String::as_str).collect();
            let _ =
                writeln!(text, "| {} | {} | {} |", driver.name, knobs.since, parameters.join(", "));
        }
        let _ = writeln!(
            text,
            "\n## UDP ports in the RSS hash\n| driver | ports | source |\n|---|---|---|"
        );
        for driver in &self.driver {
            let Some(ports) = driver.udp_ports else { continue };
            let ports = match ports {
                UdpPorts::ByDefault => "by default",
                UdpPorts::OnRequest => "after `rx-flow-hash udp4 sdfn`",
                UdpPorts::Never => "never",
            };
            let source = driver.udp_source.as_deref().unwrap_or("-");
            let _ = writeln!(text, "| {} | {ports} | `{source}` |", driver.name);
        }
        let _ = writeln!(text, "\n## Sources\n| driver | read off |\n|---|---|");
        for driver in &self.driver {
            let _ = writeln!(text, "| {} | `{}` |", driver.name, driver.source);
        }
        text
    }

    fn rows(&self) -> impl Iterator<Item = (&Driver, &Knobs)> {
        self.driver.iter().flat_map(|driver| driver.kernel.iter().map(move |knobs| (driver, knobs)))
    }
}

/// Major and minor number of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_table_reads_and_no_driver_is_twice_in_it() {
        let drivers: Drivers = toml::from_str(SHIPPED).unwrap();
        let names: BTreeSet<&str> =
            drivers.driver.iter().map(|driver| driver.name.as_str()).collect();
        assert!(names.len() > 30 && names.len() == drivers.driver.len());
        for driver in &drivers.driver {
            let versions: Vec<_> =
                driver.kernel.iter().map(|knobs| version(&knobs.since).unwrap()).collect();
            assert!(!versions.is_empty() && versions.is_sorted(), "{}", driver.name);
            assert_eq!(driver.udp_ports.is_some(), driver.udp_source.is_some(), "{}", driver.name);
        }
    }

    #[test]
    fn the_newest_version_not_newer_than_the_kernel_counts() {
        let drivers = Drivers::shipped();
        let knobs = |driver, release| &drivers.knobs(driver, release).unwrap().knobs;
        assert!(!knobs("bnxt_en", "6.1.0-40-amd64").contains(&Knob::RssContexts));
        assert!(knobs("bnxt_en", "6.12.48+deb12-amd64").contains(&Knob::RssContexts));
        assert!(
            knobs("igb", "6.18.3").contains(&Knob::FlowHash)
                && !knobs("igb", "6.18.3").contains(&Knob::NapiIrq)
        );
        assert!(knobs("igb", "7.3-rc1").contains(&Knob::NapiIrq));
    }

    #[test]
    fn what_is_not_known_is_not_denied() {
        let drivers = Drivers::shipped();
        assert_eq!(drivers.knobs("igb", "5.10.0"), None);
        assert!(
            !drivers.lacks("igb", "5.10.0", Knob::Lro)
                && !drivers.lacks("no_such", "6.12", Knob::Lro)
        );
        assert!(
            drivers.lacks("igb", "6.12", Knob::Lro) && !drivers.lacks("vmxnet3", "6.12", Knob::Lro)
        );
        assert!(
            drivers.takes("mlx5_core", "6.1", "adaptive-rx")
                && !drivers.takes("igb", "6.1", "adaptive-rx")
        );
    }

    #[test]
    fn the_page_shows_the_data() {
        let page = include_str!("../../../../docs/drivers.md");
        let tables = Drivers::shipped().tables();
        assert!(page.ends_with(&tables), "docs/drivers.md must end with:\n{tables}");
    }
}
