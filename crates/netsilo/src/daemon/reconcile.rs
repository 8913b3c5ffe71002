//! After an announcement of the kernel: a new window at once, a short one, so that what a driver
//! has forgotten is back soon.

use std::collections::BTreeSet;

#[cfg(test)]
use std::path::Path;
use std::time::Duration;

use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_sys::files::root::Root;

/// The length of the window after an announcement: drivers announce one thing in several steps.
const SHORT: Duration = Duration::from_secs(1);

/// Since when announcements keep coming, and of which netdevs they matter.
#[derive(Debug, Default)]
pub(crate) struct Reconcile {
    since: Option<Duration>,
    devices: BTreeSet<String>,
}

impl Reconcile {
    /// The length of the next window.
    pub(crate) fn window(&self, interval: Duration) -> Duration {
        if self.since.is_some() { SHORT.min(interval) } else { interval }
    }

    /// Takes the netdevs of a window.
    pub(crate) fn know(&mut self, netdevs: &[Netdev]) {
        let on_a_device = netdevs.iter().filter(|netdev| netdev.device_path.is_some());
        self.devices = on_a_device.map(|netdev| netdev.name.clone()).collect();
    }

    /// Whether the window in which these events came is of no use, and a new one is to begin.
    ///
    /// A link that never comes to rest keeps the others from being looked at no longer than an
    /// interval.
    pub(crate) fn disturbs(
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
        let patient = now.saturating_sub(since) <= interval;
        if !patient {
            self.since = None;
        }
        patient
    }

    /// Whether an event can move interrupts: netdevs without a device have none (containers come
    /// and go all the time).
    pub(crate) fn matters(&self, root: &Root, event: &Event) -> bool {
        let on_a_device = |name: &String| {
            self.devices.contains(name)
                || root.path(&format!("/sys/class/net/{name}/device")).exists()
        };
        match event {
            Event::LinkUp(name) | Event::LinkDown(name) | Event::Reset(name) => on_a_device(name),
            Event::NetdevAdded(name) | Event::NetdevRemoved(name) => on_a_device(name),
            Event::Renamed { from, to } => on_a_device(from) || on_a_device(to),
            Event::CpuOnline(_) | Event::CpuOffline(_) | Event::Resumed => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window_after(events: &[Event], at: u64, reconcile: &mut Reconcile) -> (bool, Duration) {
        let interval = Duration::from_secs(10);
        let root = Root::at(Path::new("/nonexistent-for-this-test")).unwrap_or(Root::live());
        let disturbed = reconcile.disturbs(&root, events, Duration::from_secs(at), interval);
        (disturbed, reconcile.window(interval))
    }

    #[test]
    fn what_matters_begins_a_short_window_until_it_is_quiet() {
        let mut reconcile = Reconcile::default();
        reconcile.know(&[Netdev {
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
    fn a_link_that_never_rests_does_not_keep_the_others_from_being_looked_at() {
        let mut reconcile = Reconcile::default();
        let resumed = [Event::Resumed];
        let looked_at =
            (100..150).filter(|at| !window_after(&resumed, *at, &mut reconcile).0).count();
        assert!(looked_at >= 4, "{looked_at}");
    }
}
