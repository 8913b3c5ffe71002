//! How long a NIC waits before it interrupts for received packets.

use netsilo_model::drivers::name::has_driver;
use netsilo_model::snapshot::ethtool::Coalesce;
use netsilo_model::snapshot::netdev::Netdev;

/// Values of `rx-usecs` that select an adaptive mode instead of microseconds
/// (`e1000_set_coalesce`, `igb_set_coalesce`, `igc_ethtool_set_coalesce`, `ixgbe_set_coalesce`;
/// 6.12).
const MODES: [(&str, &[u32]); 6] = [
    ("e1000", &[1, 3, 4]),
    ("e1000e", &[1, 3, 4]),
    ("igb", &[1, 3]),
    ("igc", &[1, 3]),
    ("ixgbe", &[1]),
    ("ixgbevf", &[1]),
];

/// What delays the interrupts, or polls in their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moderation {
    /// The driver chooses the delay: longer as packets arrive faster.
    Adaptive,
    /// The device waits `usecs` microseconds; if `frames` is not 0, it interrupts earlier when that
    /// number of packets has come.
    Device { usecs: u32, frames: u32 },
    /// The kernel's timer polls every `usecs` microseconds (IRQ deferral).
    Timer { usecs: u32 },
}

impl Moderation {
    /// `None` if neither the device nor the kernel tells.
    pub(super) fn of(netdev: &Netdev) -> Option<Self> {
        let polls = netdev.napi_defer_hard_irqs.unwrap_or(0);
        let timer = netdev.gro_flush_timeout.filter(|timeout| polls > 0 && *timeout > 0);
        if let Some(timeout) = timer {
            return Some(Self::Timer { usecs: u32::try_from(timeout / 1000).unwrap_or(u32::MAX) });
        }
        let settings = netdev.ethtool.as_ref()?.coalesce.value()?;
        Some(Self::of_device(netdev, settings))
    }

    /// What the device does.
    pub(super) fn of_device(netdev: &Netdev, settings: &Coalesce) -> Self {
        let (usecs, frames) = (settings.rx_coalesce_usecs, settings.rx_max_coalesced_frames);
        if settings.use_adaptive_rx_coalesce || selects_a_mode(netdev, usecs) {
            Self::Adaptive
        } else {
            Self::Device { usecs, frames }
        }
    }

    /// How many packets at this rate come to a queue before it is polled; `None` if adaptive.
    pub(super) fn packets(self, per_s: f64) -> Option<f64> {
        let in_time = |usecs: u32| per_s * f64::from(usecs) / 1e6;
        match self {
            Self::Adaptive => None,
            Self::Device { usecs, frames: 0 } | Self::Timer { usecs } => Some(in_time(usecs)),
            Self::Device { usecs, frames } => Some(in_time(usecs).min(f64::from(frames))),
        }
    }

    /// What tells it.
    pub(super) fn source(self) -> &'static str {
        match self {
            Self::Adaptive | Self::Device { .. } => "ethtool -c",
            Self::Timer { .. } => "gro_flush_timeout, napi_defer_hard_irqs",
        }
    }

    pub(super) fn in_words(self) -> String {
        match self {
            Self::Adaptive => {
                "interrupt moderation is adaptive: the driver waits longer as packets arrive faster"
                    .into()
            }
            Self::Device { usecs: 0, frames: 0 } | Self::Device { frames: 1, .. } => {
                "no interrupt moderation, as its driver tells: the device does not wait for more \
                 packets"
                    .into()
            }
            Self::Device { usecs, frames: 0 } => {
                format!("interrupt moderation: the device waits up to {usecs} us for more packets")
            }
            Self::Device { usecs, frames } => format!(
                "interrupt moderation: the device waits up to {usecs} us or for {frames} packets"
            ),
            Self::Timer { usecs } => {
                format!("IRQ deferral: a timer polls every {usecs} us in place of the interrupt")
            }
        }
    }
}

/// Whether a driver takes this `rx-usecs` as an adaptive mode.
fn selects_a_mode(netdev: &Netdev, usecs: u32) -> bool {
    MODES.iter().any(|(name, modes)| has_driver(netdev, &[*name]) && modes.contains(&usecs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_wait_ends_by_time_or_by_packets() {
        let of = |usecs, frames| Moderation::Device { usecs, frames }.packets(1e6);
        assert_eq!((of(250, 0), of(250, 64), of(8, 64)), (Some(250.0), Some(64.0), Some(8.0)));
        assert_eq!(Moderation::Timer { usecs: 20 }.packets(1e6), Some(20.0));
        assert_eq!(Moderation::Adaptive.packets(1e6), None, "not known");
    }

    #[test]
    fn a_timer_replaces_the_wait_of_the_device_only_if_empty_polls_keep_the_interrupt_off() {
        let mut netdev = Netdev { gro_flush_timeout: Some(20_000), ..Netdev::default() };
        assert_eq!(Moderation::of(&netdev), None);
        netdev.napi_defer_hard_irqs = Some(2);
        assert_eq!(Moderation::of(&netdev), Some(Moderation::Timer { usecs: 20 }));
    }
}
