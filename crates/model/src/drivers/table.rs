//! The knobs of each driver by kernel version: `drivers.toml`, rendered as `docs/drivers.md`.
//!
//! The table lists what a driver *can* support, according to kernel sources. `Ethtool` has what a
//! device reports now. The table is for what a query cannot show without an attempt to write, and
//! for advice about other kernels.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::drivers::name::DriverName;
use crate::drivers::software::SoftwareNetdev;
use crate::drivers::{counters, irq_patterns};
use crate::parse::scalar::version;
use crate::snapshot::netdev::Netdev;

/// The embedded table.
const SHIPPED: &str = include_str!("drivers.toml");

/// The table of all drivers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drivers {
    /// One entry per driver.
    pub driver: Vec<DriverEntry>,
}

/// The knobs of one driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverEntry {
    /// Name, as ethtool shows it.
    pub name: String,
    /// Source file and `struct ethtool_ops`.
    pub source: String,
    /// Whether its RSS hash includes UDP ports; `None` if not investigated.
    pub udp_ports: Option<UdpPorts>,
    /// Source of that fact.
    pub udp_source: Option<String>,
    /// Knobs by kernel version, oldest first. An examined version without an entry equals the
    /// previous one.
    pub kernel: Vec<DriverKnobs>,
}

/// Whether a driver's RSS hash includes UDP ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UdpPorts {
    /// By default.
    ByDefault,
    /// After `rx-flow-hash udp4 sdfn`.
    OnRequest,
    /// Not possible.
    Never,
}

/// The knobs of a driver from a given kernel version on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverKnobs {
    /// The oldest examined version with these knobs.
    pub since: String,
    /// The supported knobs.
    pub knobs: BTreeSet<DriverKnob>,
    /// The supported parameters of `ethtool -C`.
    pub coalesce: BTreeSet<String>,
}

/// A knob that a driver may support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverKnob {
    /// Number of channels (`ethtool -L`).
    Channels,
    /// Ring sizes (`ethtool -G`).
    Rings,
    /// Interrupt moderation (`ethtool -C`).
    Coalesce,
    /// Interrupt moderation per queue.
    CoalescePerQueue,
    /// RSS indirection table (`ethtool -X`).
    RssTable,
    /// Reports its RSS key.
    RssKey,
    /// Can set the fields of the RSS hash (`ethtool -N ... rx-flow-hash`).
    FlowHash,
    /// Flow steering rules (`ethtool -N`).
    Ntuple,
    /// More than one RSS context.
    RssContexts,
    /// A hash that is equal in both directions.
    SymmetricHash,
    /// Accelerated RFS (`ndo_rx_flow_steer`).
    Arfs,
    /// Large receive offload.
    Lro,
    /// GRO in hardware.
    HwGro,
    /// Byte queue limits.
    Bql,
    /// Reports the interrupt of each NAPI.
    NapiIrq,
}

impl DriverKnob {
    /// All knobs.
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

    /// The name in the data file and on the page.
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
    /// The embedded table, a constant that is parsed once; a test checks that it parses.
    pub fn shipped() -> &'static Self {
        static TABLE: LazyLock<Drivers> =
            LazyLock::new(|| toml::from_str(SHIPPED).unwrap_or_default());
        &TABLE
    }

    /// The entry of a driver.
    pub fn find(&self, name: DriverName<'_>) -> Option<&DriverEntry> {
        self.driver.iter().find(|driver| driver.name == name.as_str())
    }

    /// The knobs of a netdev's driver on a kernel release (`6.12.48+deb12-amd64`); `None` if the
    /// kernel is older than all examined ones.
    pub fn knobs(&self, netdev: &Netdev, release: &str) -> Option<&DriverKnobs> {
        let running = version(release)?;
        self.find(DriverName::of(netdev)?)?
            .kernel
            .iter()
            .rfind(|knobs| version(&knobs.since).is_some_and(|since| since <= running))
    }

    /// Whether a netdev's driver is known to lack a knob on this kernel. False if unknown.
    pub fn lacks(&self, netdev: &Netdev, release: &str, knob: DriverKnob) -> bool {
        self.knobs(netdev, release).is_some_and(|knobs| !knobs.knobs.contains(&knob))
    }

    /// Whether `ethtool -C` supports this parameter (`adaptive-rx`) on this kernel.
    pub fn supports_coalesce(&self, netdev: &Netdev, release: &str, parameter: &str) -> bool {
        self.knobs(netdev, release).is_some_and(|knobs| knobs.coalesce.contains(parameter))
    }

    /// The tables of `docs/drivers.md`, as markdown.
    pub fn tables(&self) -> String {
        let mut text = format!(
            "| driver | kernel | {} |\n",
            DriverKnob::ALL.map(DriverKnob::label).join(" | ")
        );
        let _ = writeln!(text, "|---|---|{}", "---|".repeat(DriverKnob::ALL.len()));
        for (driver, knobs) in self.rows() {
            let marks =
                DriverKnob::ALL.map(|knob| if knobs.knobs.contains(&knob) { "yes" } else { "" });
            let _ = writeln!(text, "| {} | {} | {} |", driver.name, knobs.since, marks.join(" | "));
        }
        let _ = writeln!(
            text,
            "\n## Parameters of `ethtool -C`\n| driver | kernel | parameters |\n|---|---|---|"
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
        let _ = writeln!(
            text,
            "\n## Names of interrupts\n{}\n## Counters of lost packets\n{}\n## Netdevs without \
             hardware\n{}\n## Sources\n| driver | source | not in the tables above |\n\
             |---|---|---|",
            irq_patterns::as_markdown(),
            counters::as_markdown(),
            SoftwareNetdev::as_markdown()
        );
        for driver in &self.driver {
            let missing = without(&driver.name).map_or("", |(_, missing)| missing);
            let _ = writeln!(text, "| {} | `{}` | {missing} |", driver.name, driver.source);
        }
        text
    }

    fn rows(&self) -> impl Iterator<Item = (&DriverEntry, &DriverKnobs)> {
        self.driver.iter().flat_map(|driver| driver.kernel.iter().map(move |knobs| (driver, knobs)))
    }
}

/// What the tables of interrupts and of lost packets lack of a driver that this table lists.
const WITHOUT: &[(&str, &str)] = &[
    ("bonding", "interrupts, losses: software"),
    ("fbnic", "losses: no counter known"),
    ("hns3", "losses: no counter known"),
    ("hv_netvsc", "interrupts: VMBus channels instead"),
    ("idpf", "losses: no counter known"),
    ("mvneta", "interrupts: one, with the name of the netdev (before 4.3: of the driver)"),
    ("r8169", "interrupts: one, with the name of the netdev"),
    ("tun", "interrupts, losses: software"),
    ("veth", "interrupts: software"),
];

fn without(driver: &str) -> Option<&'static (&'static str, &'static str)> {
    WITHOUT.iter().find(|(name, _)| *name == driver)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::irq_names;
    use crate::drivers::name::OTHER_NAMES;

    fn of(driver: &str) -> Netdev {
        Netdev { driver: Some(driver.into()), ..Netdev::default() }
    }

    #[test]
    fn the_shipped_table_parses_without_duplicates() {
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
    fn each_driver_has_names_of_interrupts_and_loss_counters_or_the_page_says_what_is_missing() {
        for driver in &Drivers::shipped().driver {
            let netdev = of(&driver.name);
            let name = DriverName::of(&netdev).unwrap();
            let missing = without(&driver.name).map_or("", |(_, missing)| missing);
            let (interrupts, losses) = (irq_names::lists(name), counters::lists(name));
            assert_ne!(missing.contains("interrupts"), interrupts, "interrupts of {name}");
            assert_ne!(missing.contains("losses"), losses, "losses of {name}");
        }
        for (other, own) in OTHER_NAMES {
            let listed = |name: &str| {
                let names = of(name);
                let name = DriverName::of(&names).filter(|it| it.as_str() == name)?;
                Some(irq_names::lists(name) || counters::lists(name))
            };
            assert_eq!((listed(own), listed(other)), (Some(true), None), "{other}: {own}");
        }
        assert!(
            WITHOUT
                .iter()
                .all(|(name, _)| Drivers::shipped().driver.iter().any(|it| it.name == *name))
        );
    }

    #[test]
    fn the_newest_entry_up_to_the_kernel_counts() {
        let drivers = Drivers::shipped();
        let knobs = |driver, release| &drivers.knobs(&of(driver), release).unwrap().knobs;
        assert!(!knobs("bnxt_en", "6.1.0-40-amd64").contains(&DriverKnob::RssContexts));
        assert!(knobs("bnxt_en", "6.12.48+deb12-amd64").contains(&DriverKnob::RssContexts));
        assert!(
            knobs("igb", "6.18.3").contains(&DriverKnob::FlowHash)
                && !knobs("igb", "6.18.3").contains(&DriverKnob::NapiIrq)
        );
        assert!(knobs("igb", "7.3-rc1").contains(&DriverKnob::NapiIrq));
    }

    #[test]
    fn an_unknown_driver_or_kernel_lacks_nothing() {
        let drivers = Drivers::shipped();
        assert_eq!(drivers.knobs(&of("igb"), "5.10.0"), None);
        let lacks = |driver, release| drivers.lacks(&of(driver), release, DriverKnob::Lro);
        assert!(!lacks("igb", "5.10.0") && !lacks("no_such", "6.12"));
        assert!(lacks("igb", "6.12") && !lacks("vmxnet3", "6.12"));
        let adapts = |driver| drivers.supports_coalesce(&of(driver), "6.1", "adaptive-rx");
        assert!(adapts("mlx5_core") && !adapts("igb"));
    }
}
