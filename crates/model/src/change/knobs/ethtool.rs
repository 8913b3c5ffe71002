//! Settings of a device and its driver: MTU, offloads, channels, rings, interrupt moderation.

use serde::{Deserialize, Serialize};

use crate::change::knob::{Effect, Errno, Knob, KnobFacts, put, quoted};
use crate::change::knobs::netdev::{ethtool, ethtool_mut, ethtools, netdevs};
use crate::change::location::{EthtoolSetting, Location};
use crate::change::step::{Interruption, Step, Traffic};
use crate::change::value::Settings;
use crate::machine::reading::Reading;
use crate::snapshot::ethtool;
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::NetdevIdentity;

/// The number of channels of a device (`ethtool -L`). The driver sets up its queues and interrupts
/// again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Channels {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for Channels {
    type Value = Settings;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "channels",
        value: "`combined=4 other=1` (counts)",
        place: "`ethtool -L`",
        undo: "writes the old counts back, and what depends on them",
        step: Step::Channels,
        refusals: &[(
            Errno::Inval,
            "too few where its RSS table names a queue that would be gone (`ethtool -X DEV \
             default` first), or where a queue is in use (AF_XDP)",
        )],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Stops(Interruption::Always),
            names_queues: false,
            owner: None,
        })
    };

    fn location(&self) -> Location<'_> {
        Location::Ethtool { netdev: &self.netdev, setting: EthtoolSetting::Channels }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<Settings> {
        Some(ethtool(snapshot, &self.netdev)?.channels.value()?.settings())
    }

    fn set_in(&self, snapshot: &mut Snapshot, settings: Settings) {
        if let Some(Reading::Value(channels)) =
            ethtool_mut(snapshot, &self.netdev).map(|it| &mut it.channels)
        {
            channels.set(&settings);
        }
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        ethtools(snapshot, |netdev| Self { netdev })
    }

    fn ethtool(&self, old: &Settings, new: &Settings) -> Option<String> {
        Some(format!("-L {}", arguments(old, new)))
    }
}

/// The number of descriptors of its rings (`ethtool -G`). The driver sets them up again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rings {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for Rings {
    type Value = Settings;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rings",
        value: "`rx=4096 tx=512` (descriptors)",
        place: "`ethtool -G`",
        undo: "writes back; drivers round up, and the value read back after our write counts as \
               ours",
        step: Step::Rings,
        refusals: &[(Errno::Inval, "more than that, or fewer than it needs, is refused")],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Stops(Interruption::Always),
            names_queues: false,
            owner: None,
        })
    };

    fn location(&self) -> Location<'_> {
        Location::Ethtool { netdev: &self.netdev, setting: EthtoolSetting::Rings }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<Settings> {
        Some(ethtool(snapshot, &self.netdev)?.rings.value()?.settings())
    }

    fn set_in(&self, snapshot: &mut Snapshot, settings: Settings) {
        if let Some(Reading::Value(rings)) =
            ethtool_mut(snapshot, &self.netdev).map(|it| &mut it.rings)
        {
            rings.set(&settings);
        }
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        ethtools(snapshot, |netdev| Self { netdev })
    }

    /// Drivers round up to a multiple or to a power of two.
    fn may_round_to(requested: &Settings, now: &Settings) -> bool {
        let up = |name: &str| {
            let requested = requested.get(name);
            let highest = requested.saturating_mul(2).max(1) - 1;
            (requested..=highest).contains(&now.get(name)) || requested == now.get(name)
        };
        requested.names().chain(now.names()).all(up)
    }

    fn ethtool(&self, old: &Settings, new: &Settings) -> Option<String> {
        Some(format!("-G {}", arguments(old, new)))
    }
}

/// The MTU: the maximum number of bytes in a frame after the link header. The other end must accept
/// as many.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mtu {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for Mtu {
    type Value = u32;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "mtu",
        value: "bytes after the link header",
        place: "`/sys/class/net/DEV/`",
        undo: "writes back; the other end must take as many bytes. Below 1280 the device loses its \
               IPv6 addresses, which undo does not bring back",
        step: Step::Rings,
        refusals: &[(
            Errno::Inval,
            "outside of the range that its driver accepts (`ip -d link` shows minmtu and maxmtu), \
             or too large for its XDP program",
        )],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Stops(Interruption::Sometimes),
            names_queues: false,
            owner: None,
        })
    };

    fn location(&self) -> Location<'_> {
        Location::Netdev { netdev: &self.netdev, file: "mtu".into() }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<u32> {
        Some(snapshot.netdevs.identified(&self.netdev)?.mtu).filter(|mtu| *mtu > 0)
    }

    fn set_in(&self, snapshot: &mut Snapshot, mtu: u32) {
        put(snapshot.netdevs.identified_mut(&self.netdev).map(|netdev| &mut netdev.mtu), mtu);
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        netdevs(snapshot, |netdev| Self { netdev })
    }
}

/// How it moderates its interrupts (`ethtool -C`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Coalesce {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for Coalesce {
    type Value = Settings;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "coalesce",
        value: "`rx-usecs=50 adaptive-rx=on`; a missing name means 0",
        place: "`ethtool -C`",
        step: Step::Moderation,
        refusals: &[
            (
                Errno::OpNotSupp,
                "its driver does not know one of these settings; change only those that \
                 `ethtool -c` shows",
            ),
            (Errno::Inval, "its driver does not accept these numbers, or not together"),
        ],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Stops(Interruption::Sometimes),
            names_queues: false,
            owner: None,
        })
    };

    fn location(&self) -> Location<'_> {
        Location::Ethtool { netdev: &self.netdev, setting: EthtoolSetting::Coalesce }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<Settings> {
        Some(ethtool(snapshot, &self.netdev)?.coalesce.value()?.settings())
    }

    fn set_in(&self, snapshot: &mut Snapshot, settings: Settings) {
        let place = ethtool_mut(snapshot, &self.netdev).map(|it| &mut it.coalesce);
        put(place, Reading::Value(ethtool::Coalesce::of(&settings)));
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        ethtools(snapshot, |netdev| Self { netdev })
    }

    fn ethtool(&self, old: &Settings, new: &Settings) -> Option<String> {
        Some(format!("-C {}", arguments(old, new)))
    }
}

/// How long after a frame was sent the device raises its completion interrupt (`ethtool -C <dev>
/// tx-usecs`), in microseconds.
///
/// A number of [`Coalesce`] that can be planned alone. The other numbers may change meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TxUsecs {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for TxUsecs {
    type Value = u32;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "tx_usecs",
        value: "microseconds; not together with `coalesce`, which sets it too",
        place: "`ethtool -C DEV tx-usecs`",
        undo: "writes back; the other numbers stay as they are",
        ..*Coalesce::FACTS
    };

    fn name(&self) -> String {
        format!("{} tx-usecs", self.netdev.name)
    }

    fn location(&self) -> Location<'_> {
        Location::Ethtool {
            netdev: &self.netdev,
            setting: EthtoolSetting::CoalesceNumber("tx-usecs"),
        }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<u32> {
        Some(ethtool(snapshot, &self.netdev)?.coalesce.value()?.tx_coalesce_usecs)
    }

    fn set_in(&self, snapshot: &mut Snapshot, usecs: u32) {
        if let Some(Reading::Value(coalesce)) =
            ethtool_mut(snapshot, &self.netdev).map(|it| &mut it.coalesce)
        {
            coalesce.tx_coalesce_usecs = usecs;
        }
    }

    fn is_void_after(&self, other: &Location<'_>) -> bool {
        let Location::Ethtool { netdev, setting: EthtoolSetting::Coalesce } = other else {
            return false;
        };
        **netdev == self.netdev
    }

    fn ethtool(&self, _: &u32, usecs: &u32) -> Option<String> {
        Some(format!("-C 'tx-usecs' '{usecs}'"))
    }
}

/// An offload (`ethtool -K`), by the kernel's name for it.
///
/// `rx-ntuple-filter` lets the driver steer flows to queues by itself (aRFS). Earlier versions of
/// netsilo had a knob `ntuple_filter` for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offload {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The name (`rx-gro-hw`).
    #[serde(default = "ntuple_filter")]
    pub feature: String,
}

/// The kernel's name of the offload that lets a driver steer flows (`netdev_features_strings`).
pub const NTUPLE_FILTER: &str = "rx-ntuple-filter";

fn ntuple_filter() -> String {
    NTUPLE_FILTER.to_owned()
}

impl Knob for Offload {
    type Value = bool;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "offload",
        fields: "`feature` (`rx-lro`, the kernel's name)",
        place: "`ethtool -K`",
        undo: "writes the old requested state back, from which the kernel derives the old \
               effective state",
        step: Step::Offloads,
        refusals: &[(
            Errno::OpNotSupp,
            "its driver does not let it be changed ([fixed] in `ethtool -k`)",
        )],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Stops(Interruption::Sometimes),
            names_queues: false,
            owner: None,
        })
    };

    fn name(&self) -> String {
        format!("{} {}", self.netdev.name, self.feature)
    }

    fn location(&self) -> Location<'_> {
        let setting = EthtoolSetting::Offload(self.feature.clone());
        Location::Ethtool { netdev: &self.netdev, setting }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<bool> {
        Some(ethtool(snapshot, &self.netdev)?.feature(&self.feature)?.active)
    }

    fn set_in(&self, snapshot: &mut Snapshot, on: bool) {
        let ethtool = ethtool_mut(snapshot, &self.netdev);
        if let Some(feature) = ethtool.and_then(|it| it.feature_mut(&self.feature)) {
            (feature.active, feature.requested) = (on, on);
        }
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        let mut all = Vec::new();
        for netdev in &snapshot.netdevs {
            let features = netdev.ethtool.as_ref().and_then(|it| it.features.value());
            let changeable = features.into_iter().flatten().filter(|it| !it.fixed());
            all.extend(changeable.map(|it| Self {
                netdev: NetdevIdentity::from_netdev(netdev),
                feature: it.name.clone(),
            }));
        }
        all
    }

    fn step(&self, off: bool) -> Step {
        match self.feature.as_str() {
            NTUPLE_FILTER if off => Step::SteeringOff,
            NTUPLE_FILTER => Step::SteeringOn,
            _ => Step::Offloads,
        }
    }

    fn ethtool(&self, _: &bool, on: &bool) -> Option<String> {
        Some(format!("-K {} {}", quoted(&self.feature), if *on { "on" } else { "off" }))
    }
}

/// The settings that change, in the form of ethtool's arguments: `'rx' '4096'`.
fn arguments(old: &Settings, new: &Settings) -> String {
    let words = new.unlike(old).to_string();
    let word = |word: &str| quoted(&word.replacen('=', " ", 1)).replace(' ', "' '");
    words.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_rounded_up_to_less_than_twice() {
        let settings = |text: &str| text.parse::<Settings>().unwrap();
        let may = |now| <Rings as Knob>::may_round_to(&settings("rx=300 tx=256"), &settings(now));
        assert!(may("rx=512 tx=256") && may("rx=300 tx=256") && may("rx=304 tx=511"));
        assert!(!may("rx=600 tx=256") && !may("rx=299 tx=256") && !may("rx=512 tx=128"));
    }
}
