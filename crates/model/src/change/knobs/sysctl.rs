//! The sysctls that netsilo may write.

use serde::{Deserialize, Serialize};

use crate::change::knob::{Capability, Effect, Knob, KnobFacts};
use crate::change::location::Location;
use crate::change::step::{Step, Traffic};
use crate::change::sysctl::{SYSCTLS, sysctl_path};
use crate::change::value::Words;
use crate::snapshot::host::{OwnedKnob, Snapshot};

/// A sysctl of [`SYSCTLS`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sysctl {
    /// Its name (`net.core.netdev_budget`).
    pub name: String,
}

impl Knob for Sysctl {
    type Value = Words;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "sysctl",
        fields: "`name`",
        value: "words with one space between them",
        place: "`/proc/sys/net`",
        step: Step::Sysctls,
        needs: Capability::None,
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Unchanged,
            names_queues: false,
            owner: Some(OwnedKnob::Sysctls),
        })
    };

    fn name(&self) -> String {
        self.name.clone()
    }

    fn location(&self) -> Location<'_> {
        sysctl_path(&self.name)
            .map_or(Location::Refused("netsilo does not write this sysctl"), Location::File)
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<Words> {
        snapshot.net.sysctls.get(&self.name).map(|text| Words::new(text))
    }

    fn set_in(&self, snapshot: &mut Snapshot, words: Words) {
        snapshot.net.sysctls.insert(self.name.clone(), words.to_string());
    }

    fn all_in(_: &Snapshot) -> Vec<Self> {
        SYSCTLS.iter().map(|name| Self { name: (*name).to_owned() }).collect()
    }
}
