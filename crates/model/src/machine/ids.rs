//! FILEDOC

use std::fmt;

use serde::{Deserialize, Serialize};

/// An interrupt number, as in `/proc/irq/<n>`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Irq(pub u32);

impl fmt::Display for Irq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A NAPI instance's id (`napi_struct.napi_id`), unique on a machine at one time; ids up to the
/// number of CPUs are not NAPIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NapiId(pub u32);

impl fmt::Display for NapiId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
