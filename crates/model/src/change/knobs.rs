//! The table of knobs: a file for each family, and the list from which [`Target`] is made.
//!
//! To add a knob, write its descriptor in the file of its family and name it in the list below.

mod affinity;
mod ethtool;
mod irq;
mod irqbalance;
mod napi;
mod netdev;
mod rss;
mod steering;
mod sysctl;

use serde::{Deserialize, Serialize};

pub use affinity::*;
pub use ethtool::*;
pub use irq::*;
pub use irqbalance::*;
pub use napi::*;
pub use rss::*;
pub use steering::*;
pub use sysctl::*;

use crate::change::knob::{AnyKnob, Knob};
use crate::change::value::Kind;
use crate::snapshot::host::Snapshot;

macro_rules! knobs {
    ($($(#[$attribute:meta])* $knob:ident,)*) => {
        /// Any knob that netsilo may write. In JSON `knob` names the type, next to its fields.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(tag = "knob", rename_all = "snake_case")]
        #[allow(missing_docs)] // each has its own type
        pub enum Target {
            $($(#[$attribute])* $knob($knob),)*
        }

        $(impl From<$knob> for Target {
            fn from(knob: $knob) -> Self {
                Self::$knob(knob)
            }
        })*

        impl Target {
            pub(super) fn knob(&self) -> &dyn AnyKnob {
                match self {
                    $(Self::$knob(knob) => knob,)*
                }
            }

            /// All knobs that can be written and for which a snapshot has a value. Does not include
            /// rules and RSS contexts.
            pub fn all_in(snapshot: &Snapshot) -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend($knob::all_in(snapshot).into_iter().map(Self::$knob));)*
                all.retain(|target| target.value_in(snapshot).is_some());
                all
            }
        }

        /// The names of all types of knobs in JSON.
        pub fn kinds() -> Vec<&'static str> {
            vec![$($knob::FACTS.kind),*]
        }

        /// The table of `docs/knobs.md`.
        pub fn as_markdown() -> String {
            let mut text = "| `knob` | more fields | value | where | traffic | what undo does |\n\
                            |---|---|---|---|---|---|\n".to_owned();
            $(text += &$knob::FACTS.as_markdown(<$knob as Knob>::Value::NAME);)*
            text
        }
    };
}

// The table in `docs/knobs.md` and sorted targets have the order of this list.
knobs! {
    IrqAffinity,
    IrqbalanceBan,
    DefaultSmpAffinity,
    RpsCpus,
    RpsFlowCnt,
    RpsSockFlowEntries,
    RpsDefaultMask,
    XpsCpus,
    #[serde(alias = "ntuple_filter")]
    Offload,
    Channels,
    Rings,
    Mtu,
    Coalesce,
    TxUsecs,
    FlowHash,
    RssTable,
    RssKey,
    RssHash,
    RssContext,
    NtupleRule,
    NapiDeferHardIrqs,
    GroFlushTimeout,
    Threaded,
    Sysctl,
    NapiThread,
    ThreadAffinity,
    CgroupCpuset,
}
