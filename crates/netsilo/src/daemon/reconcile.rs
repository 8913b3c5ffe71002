//! After a kernel event a short window starts at once, so that what a driver has reset is restored
//! soon.

use std::collections::BTreeSet;
use std::time::Duration;

use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::netdev::has_device;

/// Length of the window after an event. It is not shorter because drivers announce one reset in
/// several steps.
const SHORT: Duration = Duration::from_secs(1);

/// When the current series of events began, and the netdevs whose events matter.
#[derive(Debug, Default)]
pub(crate) struct Reconcile {
    since: Option<Duration>,
    devices: BTreeSet<String>,
}

impl Reconcile {
    /// Returns the length of the next window.
    pub(crate) fn window(&self, interval: Duration) -> Duration {
        if self.since.is_some() { SHORT.min(interval) } else { interval }
    }

    /// Remembers the netdevs of a window that have a device.
    pub(crate) fn remember_netdevs(&mut self, netdevs: &[Netdev]) {
        let on_a_device = netdevs.iter().filter(|netdev| netdev.device_path.is_some());
        self.devices = on_a_device.map(|netdev| netdev.name.clone()).collect();
    }

    /// Whether to discard the window in which these events arrived.
    ///
    /// Windows are discarded for at most one interval. Otherwise a link that flaps forever would
    /// stop the observation of the others.
    pub(crate) fn discards_window(
        &mut self,
        root: &Root,
        events: &[Event],
        now: Duration,
        interval: Duration,
    ) -> bool {
        if !events.iter().any(|event| self.matters(root, event)) {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let may_discard = now.saturating_sub(since) <= interval;
        if !may_discard {
            self.since = None;
        }
        may_discard
    }

    /// Whether an event can move interrupts. Netdevs without a device have none, and those of
    /// containers come and go all the time.
    pub(crate) fn matters(&self, root: &Root, event: &Event) -> bool {
        let on_a_device = |name: &String| self.devices.contains(name) || has_device(root, name);
        match event {
            Event::LinkUp(name) | Event::LinkDown(name) | Event::Reset(name) => on_a_device(name),
            Event::NetdevAdded(name) | Event::NetdevRemoved(name) => on_a_device(name),
            Event::Renamed { from, to } => on_a_device(from) || on_a_device(to),
            Event::CpuOnline(_) | Event::CpuOffline(_) | Event::Resumed => true,
            Event::Started(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window_after(events: &[Event], at: u64, reconcile: &mut Reconcile) -> (bool, Duration) {
        let interval = Duration::from_secs(10);
        let nothing = tempfile::tempdir().unwrap();
        let root = Root::at(nothing.path()).unwrap();
        let disturbed = reconcile.discards_window(&root, events, Duration::from_secs(at), interval);
        (disturbed, reconcile.window(interval))
    }

    #[test]
    fn a_device_event_starts_short_windows_until_events_stop() {
        let mut reconcile = Reconcile::default();
        reconcile.remember_netdevs(&[Netdev {
            name: "ens5".into(),
            device_path: Some("/devices/x".into()),
            ..Netdev::default()
        }]);
        let (down, veth) =
            ([Event::LinkDown("ens5".into())], [Event::NetdevAdded("veth-9a".into())]);
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(10));
        assert_eq!(window_after(&veth, 100, &mut reconcile), (false, long));
        assert_eq!(window_after(&down, 101, &mut reconcile), (true, short));
        assert_eq!(window_after(&down, 102, &mut reconcile), (true, short));
        assert_eq!(window_after(&[], 103, &mut reconcile), (false, long));
    }

    #[test]
    fn a_flapping_link_does_not_stop_observation() {
        let mut reconcile = Reconcile::default();
        let resumed = [Event::Resumed];
        let observed =
            (100..150).filter(|at| !window_after(&resumed, *at, &mut reconcile).0).count();
        assert!(observed >= 4, "{observed}");
    }
}
