//! What the kernel announced lately: an event explains that a knob no longer has our value, without
//! another writer.

use std::time::Duration;

use netsilo_model::change::Target;
use netsilo_model::snapshot::event::Event;

/// An event may be announced so much before or after its effect is seen.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// So long an event is remembered, for knobs that are set up anew under another name or number.
pub(super) const MEMORY: Duration = Duration::from_secs(300);

/// The events of the last minutes.
#[derive(Debug, Clone, Default)]
pub(super) struct Events(Vec<(Duration, Event)>);

impl Events {
    pub(super) fn note(&mut self, now: Duration, event: Event) {
        self.0.retain(|(at, _)| *at + MEMORY >= now);
        self.0.push((now, event));
    }

    /// The event that may have changed this knob since a moment, and when it was.
    pub(super) fn behind(&self, target: &Target, since: Duration) -> Option<&(Duration, Event)> {
        self.0.iter().rev().find(|(at, event)| *at + GRACE >= since && covers(event, target))
    }

    /// The event that may have set this knob up anew.
    pub(super) fn before(&self, target: &Target, now: Duration) -> Option<&(Duration, Event)> {
        self.behind(target, now.saturating_sub(MEMORY - GRACE))
    }
}

/// Whether it may have changed this knob.
pub(super) fn covers(event: &Event, target: &Target) -> bool {
    match event {
        Event::LinkUp(name) | Event::LinkDown(name) | Event::Reset(name) => target.is_of(name),
        Event::NetdevAdded(name) | Event::NetdevRemoved(name) => target.is_of(name),
        Event::Renamed { from, to } => target.is_of(from) || target.is_of(to),
        Event::CpuOnline(_) | Event::CpuOffline(_) | Event::Resumed => true,
    }
}

/// What happened, as a person reads it.
pub(super) fn in_words(event: &Event) -> String {
    match event {
        Event::LinkUp(name) => format!("{name} came up"),
        Event::LinkDown(name) => format!("{name} went down"),
        Event::Reset(name) => format!("{name} was reset"),
        Event::NetdevAdded(name) => format!("{name} was added"),
        Event::NetdevRemoved(name) => format!("{name} was removed"),
        Event::Renamed { from, to } => format!("{from} was renamed to {to}"),
        Event::CpuOnline(cpu) => format!("cpu {cpu} came online"),
        Event::CpuOffline(cpu) => format!("cpu {cpu} went offline"),
        Event::Resumed => "the machine was suspended".into(),
    }
}
