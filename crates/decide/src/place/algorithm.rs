//! The names of the affinity algorithms.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Generates the names of the algorithms; each entry is a variant and the name on the command line
/// and in hints.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// The affinity algorithms, by name.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum AlgorithmName {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl AlgorithmName {
            /// All algorithms.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name on the command line and in hints.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

algorithms! {
    /// Least cost by the model, for all vectors together; the reason names another algorithm that
    /// agrees.
    #[default]
    Auto = "auto";
    /// Near the weighted consumers on the closest shared cache, never on their CPU or its SMT
    /// sibling.
    NearConsumer = "near-consumer";
    /// The CPU of the heaviest consumer.
    RfsMaxWeight = "rfs-max-weight";
    /// The CPU where all consumers together read most.
    SameCpu = "same-cpu";
    /// As few CPUs as the softirq time needs, separate from the consumers.
    Dedicated = "dedicated";
    /// One queue per core, on the device's node first.
    Spread = "spread";
    /// The least busy CPU of the device's node.
    LeastLoaded = "least-loaded";
    /// The CPUs in the driver's `affinity_hint`.
    DriverHint = "driver-hint";
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
