//! Makes a [`Supposed`] machine of an observed one.

use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::live::resplit::{Moved, with_interrupts};
use crate::live::supposed::{CannotSuppose, Supposed, WhatIf};
use crate::live::work::Work;

impl Supposed {
    /// Supposes another machine under the observed load.
    ///
    /// # Errors
    /// Why nothing can be said of it.
    pub fn new(work: &Work<'_>, what_if: &WhatIf) -> Result<Self, CannotSuppose> {
        let mut supposed = Self::same(work);
        if let Some(count) = what_if.cpu_count {
            supposed.more_cpus(work, count)?;
        }
        if let Some(count) = what_if.queue_count {
            let netdevs = with_interrupts(work)?;
            for netdev in &netdevs {
                supposed.spread(work, netdev, Moved::All(count))?;
            }
        }
        if what_if.on_metal {
            supposed.without_hypervisor()?;
        }
        supposed.write_ticks(work);
        Ok(supposed)
    }

    /// Supposes another number of queues of one netdev.
    ///
    /// # Errors
    /// Why nothing can be said of it.
    pub(crate) fn with_queues(
        work: &Work<'_>,
        netdev: &NetdevIdentity,
        count: u32,
    ) -> Result<Self, CannotSuppose> {
        let mut supposed = Self::same(work);
        supposed.spread(work, netdev, Moved::All(count))?;
        supposed.write_ticks(work);
        Ok(supposed)
    }

    /// Supposes that a netdev also hashes the ports of UDP.
    ///
    /// # Errors
    /// Why nothing can be said of it.
    pub(crate) fn with_udp_ports(
        work: &Work<'_>,
        netdev: &NetdevIdentity,
    ) -> Result<Self, CannotSuppose> {
        let mut supposed = Self::same(work);
        supposed.spread(work, netdev, Moved::Udp)?;
        supposed.write_ticks(work);
        Ok(supposed)
    }
}
