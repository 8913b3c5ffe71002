//! The affinity algorithms: a file each, and the list that names them.
//!
//! To add one, write its file, with its [`Algorithm`], and name it in the list below.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::place::algorithm::Algorithm;
use crate::place::capacity::Capacity;
use crate::place::model::Model;
use crate::place::suggestion::Suggestion;
use crate::place::vector::Vector;

/// Makes the names of the algorithms; each entry is a variant, the file, and the name on the
/// command line and in hints.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident: $file:ident = $name:literal;)*) => {
        $(mod $file;)*

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

            /// The algorithm of this name.
            pub fn algorithm(self) -> &'static Algorithm {
                match self { $(Self::$variant => &$file::ALGORITHM,)* }
            }
        }
    };
}

algorithms! {
    /// Least cost by the model, for all vectors together; the reason names another algorithm that
    /// agrees.
    #[default]
    Auto: auto = "auto";
    /// Near the weighted consumers on the closest shared cache, never on their CPU or its SMT
    /// sibling.
    NearConsumer: near_consumer = "near-consumer";
    /// The CPU of the heaviest consumer.
    RfsMaxWeight: rfs_max_weight = "rfs-max-weight";
    /// The CPU where all consumers together read most.
    SameCpu: same_cpu = "same-cpu";
    /// As few CPUs as the softirq time needs, separate from the consumers.
    Dedicated: dedicated = "dedicated";
    /// One queue per core, on the device's node first.
    Spread: spread = "spread";
    /// The least busy CPU of the device's node.
    LeastLoaded: least_loaded = "least-loaded";
    /// The CPUs in the driver's `affinity_hint`.
    DriverHint: driver_hint = "driver-hint";
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Asks an algorithm for a suggestion for each vector, in the same order.
pub fn suggest(
    name: AlgorithmName,
    capacity: &Capacity<'_>,
    vectors: &[Vector],
) -> Vec<Suggestion> {
    (name.algorithm().suggest)(capacity, vectors)
}

/// Asks [`AlgorithmName::Auto`] about the vectors of a problem that has been built.
pub fn suggest_auto(model: &Model<'_>) -> Vec<Suggestion> {
    auto::suggest_by(model)
}
