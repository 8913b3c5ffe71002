//! The facts of a captured tree that plain files cannot hold.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The facts that plain files of a tree cannot hold (`tree.json`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TreeFacts {
    /// When it was read, as time since boot.
    #[serde(default)]
    pub(crate) at: Option<Duration>,
    /// Permission bits by path.
    #[serde(default)]
    pub(crate) modes: BTreeMap<String, u32>,
    /// Error numbers of files that exist but could not be read, by path.
    #[serde(default)]
    pub(crate) errnos: BTreeMap<String, i32>,
}

pub(crate) const TREE_FACTS: &str = "tree.json";
