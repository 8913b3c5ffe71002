//! What ethtool says of a device.
use serde::{Deserialize, Serialize};

/// What ethtool says of a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ethtool {}
