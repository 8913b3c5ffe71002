//! The netdevs of a snapshot.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::slice::Iter;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::snapshot::netdev::{Netdev, NetdevIdentity};

/// As many names are compared sooner than hashed.
const FEW: usize = 8;

/// Netdevs, of which one is found without a search through all of them: a host can have thousands.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Netdevs {
    all: Vec<Netdev>,
    /// The position of each name, since the first search; unused while there are few.
    #[serde(skip)]
    positions: OnceLock<Arc<HashMap<String, usize>>>,
}

impl Netdevs {
    /// The netdev with this name.
    pub fn named(&self, name: &str) -> Option<&Netdev> {
        self.all.get(self.position(name)?)
    }

    /// The netdev that another snapshot of this boot has.
    pub fn same(&self, other: &Netdev) -> Option<&Netdev> {
        self.named(&other.name).filter(|netdev| netdev.ifindex == other.ifindex)
    }

    /// The netdev with this identity.
    pub fn identified(&self, identity: &NetdevIdentity) -> Option<&Netdev> {
        self.named(&identity.name).filter(|netdev| identity.is(netdev))
    }

    /// The same, to be changed; its name stays.
    pub fn identified_mut(&mut self, identity: &NetdevIdentity) -> Option<&mut Netdev> {
        let at = self.position(&identity.name)?;
        self.all.get_mut(at).filter(|netdev| identity.is(netdev))
    }

    fn position(&self, name: &str) -> Option<usize> {
        if self.all.len() <= FEW {
            return self.all.iter().position(|netdev| netdev.name == name);
        }
        let positions = self.positions.get_or_init(|| {
            let names = self.all.iter().enumerate().rev();
            Arc::new(names.map(|(at, netdev)| (netdev.name.clone(), at)).collect())
        });
        positions.get(name).copied()
    }
}

impl Deref for Netdevs {
    type Target = Vec<Netdev>;

    fn deref(&self) -> &Vec<Netdev> {
        &self.all
    }
}

impl DerefMut for Netdevs {
    fn deref_mut(&mut self) -> &mut Vec<Netdev> {
        self.positions.take();
        &mut self.all
    }
}

impl PartialEq for Netdevs {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl From<Vec<Netdev>> for Netdevs {
    fn from(all: Vec<Netdev>) -> Self {
        Self { all, positions: OnceLock::new() }
    }
}

impl<'a> IntoIterator for &'a Netdevs {
    type Item = &'a Netdev;
    type IntoIter = Iter<'a, Netdev>;

    fn into_iter(self) -> Iter<'a, Netdev> {
        self.all.iter()
    }
}
