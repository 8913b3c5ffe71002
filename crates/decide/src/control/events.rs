//! Recent kernel events. An event explains why a knob no longer has our value although no other
//! program wrote it.

use std::time::Duration;

use super::owner::owners_of;
use netsilo_model::change::Target;
use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::host::KnobOwner;

/// An event may be announced this long before or after its effect is seen.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// Events are remembered for this long, for knobs that are created under another name or number.
pub(super) const MEMORY: Duration = Duration::from_secs(300);

/// The events of the last minutes, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Events(Vec<(Duration, Event)>);

impl Events {
    pub(super) fn note(&mut self, now: Duration, event: Event) {
        self.0.retain(|(at, _)| at.saturating_add(MEMORY) >= now);
        self.0.push((now, event));
    }

    /// The newest event that may have changed this knob, and when it was announced. `owners` are
    /// the other programs that write knobs.
    pub(super) fn newest(
        &self,
        target: &Target,
        owners: &[KnobOwner],
    ) -> Option<&(Duration, Event)> {
        self.0.iter().rev().find(|(_, event)| covers(event, target, owners))
    }

    /// Whether an event may have created a knob that has existed since this time.
    pub(super) fn may_have_created(
        &self,
        target: &Target,
        since: Duration,
        now: Duration,
        owners: &[KnobOwner],
    ) -> bool {
        let remembered = |at: Duration| at.saturating_add(MEMORY) >= now;
        self.newest(target, owners)
            .is_some_and(|(at, _)| remembered(*at) && since.saturating_add(GRACE) >= *at)
    }
}

/// Whether an event may have changed this knob.
///
/// When a CPU comes or goes, the kernel moves interrupts and kthreads, and some drivers
/// (virtio_net, in `virtnet_cpu_online` and `virtnet_cpu_down_prep`) set interrupts and XPS again.
/// Programs that write interrupts also do so. If one of these runs, the event of a CPU explains
/// nothing.
pub(super) fn covers(event: &Event, target: &Target, owners: &[KnobOwner]) -> bool {
    match event {
        Event::LinkUp(name) | Event::LinkDown(name) | Event::Reset(name) => target.is_of(name),
        Event::NetdevAdded(name) | Event::NetdevRemoved(name) => target.is_of(name),
        Event::Renamed { from, to } => target.is_of(from) || target.is_of(to),
        Event::CpuOnline(_) | Event::CpuOffline(_) => {
            let moved = matches!(
                target,
                Target::IrqAffinity(_) | Target::NapiThread(_) | Target::XpsCpus(_)
            );
            moved && owners_of(owners, target).next().is_none()
        }
        Event::Started(program) => owners_of(owners, target).any(|owner| owner.name == *program),
        Event::Resumed => true,
    }
}

/// Whether an event concerns only this netdev.
pub(super) fn is_of(event: &Event, netdev: &str) -> bool {
    match event {
        Event::LinkUp(name) | Event::LinkDown(name) | Event::Reset(name) => name == netdev,
        Event::NetdevAdded(name) | Event::NetdevRemoved(name) => name == netdev,
        Event::Renamed { from, to } => from == netdev || to == netdev,
        Event::CpuOnline(_) | Event::CpuOffline(_) | Event::Started(_) | Event::Resumed => false,
    }
}

/// An event in words.
pub(super) fn describe(event: &Event) -> String {
    match event {
        Event::LinkUp(name) => format!("{name} came up"),
        Event::LinkDown(name) => format!("{name} went down"),
        Event::Reset(name) => format!("{name} was reset"),
        Event::NetdevAdded(name) => format!("{name} was added"),
        Event::NetdevRemoved(name) => format!("{name} was removed"),
        Event::Renamed { from, to } => format!("{from} was renamed to {to}"),
        Event::CpuOnline(cpu) => format!("cpu {cpu} came online"),
        Event::CpuOffline(cpu) => format!("cpu {cpu} went offline"),
        Event::Started(program) => format!("{program} was started"),
        Event::Resumed => "the machine was suspended".into(),
    }
}
