//! How a device chooses the rx queue of a packet: RSS, its contexts, and flow steering rules.

use serde::{Deserialize, Serialize};

use crate::change::knob::{Effect, Errno, Knob, KnobFacts, quoted};
use crate::change::knobs::netdev::{ethtool, ethtool_mut, ethtools};
use crate::change::location::{EthtoolSetting, Location};
use crate::change::rule::FlowRule;
use crate::change::step::{Interruption, Step, Traffic};
use crate::change::value::{Key, Table, Words};
use crate::machine::cpuset::CpuSet;
use crate::machine::reading::Reading;
use crate::snapshot::ethtool::{FlowType, HashFields, Rss};
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::NetdevIdentity;

/// The fields that RSS hashes for a type of flow (`ethtool -N <dev> rx-flow-hash udp4 sdfn`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowHash {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The type of flow.
    pub flow_type: FlowType,
}

impl Knob for FlowHash {
    type Value = HashFields;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "flow_hash",
        fields: "`flow_type` (`tcp4`, `udp6`, ...)",
        value: "`sdfn`",
        place: "`ethtool -N DEV rx-flow-hash`",
        step: Step::HashFields,
        refusals: &[
            (Errno::OpNotSupp, "its driver cannot choose what is hashed for these flows"),
            (Errno::Inval, "its driver cannot hash just these fields (many know sd and sdfn only)"),
        ],
        ..KnobFacts::usual(Effect { traffic: Traffic::FlowsMove, names_queues: false, owner: None })
    };

    fn name(&self) -> String {
        format!("{} rx-flow-hash {}", self.netdev.name, self.flow_type)
    }

    fn location(&self) -> Location<'_> {
        Location::Ethtool {
            netdev: &self.netdev,
            setting: EthtoolSetting::FlowHash(self.flow_type),
        }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<HashFields> {
        ethtool(snapshot, &self.netdev)?.flow_hash.get(&self.flow_type)?.value().copied()
    }

    fn set_in(&self, snapshot: &mut Snapshot, fields: HashFields) {
        if let Some(ethtool) = ethtool_mut(snapshot, &self.netdev) {
            ethtool.flow_hash.insert(self.flow_type, Reading::Value(fields));
        }
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        let mut all = Vec::new();
        for netdev in &snapshot.netdevs {
            let flow_types = netdev.ethtool.iter().flat_map(|it| it.flow_hash.keys());
            let netdev = || NetdevIdentity::from_netdev(netdev);
            all.extend(flow_types.map(|it| Self { netdev: netdev(), flow_type: *it }));
        }
        all
    }

    fn ethtool(&self, _: &HashFields, new: &HashFields) -> Option<String> {
        (!new.is_empty()).then(|| format!("-N rx-flow-hash {} {new}", self.flow_type))
    }
}

/// The RSS indirection table (`ethtool -X`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RssTable {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The RSS context. 0 is the device's own.
    #[serde(default)]
    pub context: u32,
}

impl Knob for RssTable {
    type Value = Table;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rss_table",
        fields: "`context` (0)",
        value: "the queue of each bucket",
        place: "`ethtool -X`",
        undo: "a table that looks like the driver's default goes back by `default` if that gives \
               the same bytes, else it is written back",
        step: Step::HashTable,
        refusals: &[(
            Errno::Inval,
            "it names a queue that is not in use, or its length differs from that of the netdev's \
             table",
        )],
        ..KnobFacts::usual(Effect { traffic: Traffic::FlowsMove, names_queues: true, owner: None })
    };

    fn name(&self) -> String {
        match self.context {
            0 => format!("{} rss table", self.netdev.name),
            context => format!("{} rss table of context {context}", self.netdev.name),
        }
    }

    fn location(&self) -> Location<'_> {
        Location::Ethtool { netdev: &self.netdev, setting: EthtoolSetting::RssTable(self.context) }
    }

    /// A snapshot has only the table of context 0.
    fn value_in(&self, snapshot: &Snapshot) -> Option<Table> {
        let table = &rss(snapshot, &self.netdev)?.indirection;
        (self.context == 0 && !table.is_empty()).then(|| Table(table.clone()))
    }

    fn set_in(&self, snapshot: &mut Snapshot, table: Table) {
        if let Some(rss) = rss_mut(snapshot, &self.netdev) {
            rss.indirection = table.0;
        }
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        ethtools(snapshot, |netdev| Self { netdev, context: 0 })
    }

    fn ethtool(&self, _: &Table, new: &Table) -> Option<String> {
        let words = (self.context == 0).then(|| new.as_ethtool())??;
        Some(format!("-X {words}"))
    }
}

/// The RSS hash key (`ethtool -X <dev> hkey`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RssKey {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for RssKey {
    type Value = Key;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rss_key",
        value: "`6d:5a:...`",
        place: "`ethtool -X DEV hkey`",
        step: Step::Hash,
        refusals: &[(
            Errno::Inval,
            "its length differs from that of the netdev's key, or its driver does not accept it",
        )],
        ..KnobFacts::usual(Effect { traffic: Traffic::FlowsMove, names_queues: false, owner: None })
    };

    fn location(&self) -> Location<'_> {
        Location::Ethtool { netdev: &self.netdev, setting: EthtoolSetting::RssKey }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<Key> {
        rss(snapshot, &self.netdev)?.key.clone().map(Key)
    }

    fn set_in(&self, snapshot: &mut Snapshot, key: Key) {
        if let Some(rss) = rss_mut(snapshot, &self.netdev) {
            rss.key = Some(key.0);
        }
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        ethtools(snapshot, |netdev| Self { netdev })
    }

    fn ethtool(&self, _: &Key, new: &Key) -> Option<String> {
        Some(format!("-X hkey {new}"))
    }
}

/// The RSS hash function, and how its input is transformed (`toeplitz symmetric-xor`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RssHash {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for RssHash {
    type Value = Words;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rss_hash",
        value: "`toeplitz symmetric-xor`",
        place: "`ethtool -X DEV hfunc`, `xfrm`",
        step: Step::Hash,
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Stops(Interruption::Sometimes),
            names_queues: false,
            owner: None,
        })
    };

    fn location(&self) -> Location<'_> {
        Location::Ethtool { netdev: &self.netdev, setting: EthtoolSetting::RssHash }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<Words> {
        rss(snapshot, &self.netdev)?.hash_words()
    }

    fn set_in(&self, snapshot: &mut Snapshot, words: Words) {
        if let Some(rss) = rss_mut(snapshot, &self.netdev)
            && let Some((function, input_xfrm)) = Rss::hash_of_words(words.as_str())
        {
            (rss.function, rss.input_xfrm) = (Some(function), input_xfrm);
        }
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        ethtools(snapshot, |netdev| Self { netdev })
    }

    fn ethtool(&self, _: &Words, new: &Words) -> Option<String> {
        Some(match new.as_str().split_once(' ') {
            None => format!("-X hfunc {}", quoted(new.as_str())),
            Some((function, xfrm)) => {
                format!("-X hfunc {} xfrm {}", quoted(function), quoted(xfrm))
            }
        })
    }
}

/// An RSS context that spreads packets evenly over exactly these rx queues. On means that it
/// exists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RssContext {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The rx queues, as a set of numbers.
    pub queues: CpuSet,
}

/// A snapshot does not list contexts, and a script would create another one each time it runs.
impl Knob for RssContext {
    type Value = bool;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rss_context",
        fields: "`queues` (`2-3`)",
        value: "exists or not",
        place: "`ethtool -X DEV context`",
        undo: "deletes the context that spreads over just these queues",
        step: Step::ContextsOn,
        refusals: &[(Errno::NoSpc, "no free RSS context")],
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: true, owner: None })
    };

    fn name(&self) -> String {
        format!("{} rss context over queues {}", self.netdev.name, self.queues)
    }

    fn location(&self) -> Location<'_> {
        let setting = EthtoolSetting::RssContext(self.queues.clone());
        Location::Ethtool { netdev: &self.netdev, setting }
    }

    fn step(&self, off: bool) -> Step {
        if off { Step::ContextsOff } else { Step::ContextsOn }
    }
}

/// A flow steering rule (`ethtool -N`). On means that it exists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NtupleRule {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The whole rule.
    pub rule: FlowRule,
}

/// A snapshot does not list rules, and a script would install another one each time it runs.
impl Knob for NtupleRule {
    type Value = bool;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "ntuple_rule",
        fields: "`rule` (`tcp4 dst-port 443 action 3`, `... queues 2-3`)",
        value: "exists or not",
        place: "`ethtool -N`",
        undo: "deletes the rule with just this content, wherever it is; a rule that we deleted \
               comes back to its place",
        step: Step::RulesOn,
        refusals: &[
            (
                Errno::Inval,
                "its driver cannot match these flows, or cannot steer them there (is \
                 rx-ntuple-filter on?)",
            ),
            (Errno::NoSpc, "no free location for another rule (`ethtool -n DEV` lists them)"),
        ],
        ..KnobFacts::usual(Effect { traffic: Traffic::FlowsMove, names_queues: true, owner: None })
    };

    fn name(&self) -> String {
        format!("{} rule {}", self.netdev.name, self.rule)
    }

    fn location(&self) -> Location<'_> {
        Location::Ethtool { netdev: &self.netdev, setting: EthtoolSetting::Rule(self.rule.clone()) }
    }

    fn step(&self, off: bool) -> Step {
        if off { Step::RulesOff } else { Step::RulesOn }
    }
}

fn rss<'a>(snapshot: &'a Snapshot, netdev: &NetdevIdentity) -> Option<&'a Rss> {
    ethtool(snapshot, netdev)?.rss.value()
}

fn rss_mut<'a>(snapshot: &'a mut Snapshot, netdev: &NetdevIdentity) -> Option<&'a mut Rss> {
    match &mut ethtool_mut(snapshot, netdev)?.rss {
        Reading::Value(rss) => Some(rss),
        Reading::Absent(_) => None,
    }
}
