//! Since when each interrupt, kthread and queue exists. A knob is new if an event created it.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::change::Target;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;

/// What a driver creates and numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Numbered {
    /// An interrupt and its action.
    Irq(Irq, String),
    /// A NAPI kthread, by process id and start time.
    Kthread(u32, u64),
    /// An rx queue of a netdev.
    RxQueue(String, u32),
    TxQueue(String, u32),
}

/// The end of the first window that showed each of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Existing(Option<BTreeMap<Numbered, Duration>>);

impl Existing {
    /// Takes a window. Whatever the first window shows existed before.
    pub(super) fn observe(&mut self, now: Duration, snapshot: &Snapshot) {
        let before = self.0.take();
        let since = |it: &Numbered| match &before {
            Some(before) => before.get(it).copied().unwrap_or(now),
            None => Duration::ZERO,
        };
        self.0 = Some(all_in(snapshot).map(|it| (it.clone(), since(&it))).collect());
    }

    /// Since when a knob exists; `None` if that is not known.
    pub(super) fn since(&self, target: &Target) -> Option<Duration> {
        let numbered = match target {
            Target::IrqAffinity(knob) => Numbered::Irq(knob.irq, knob.action.clone()),
            Target::NapiThread(knob) => Numbered::Kthread(knob.pid, knob.start_time),
            Target::RpsCpus(knob) => Numbered::RxQueue(knob.netdev.name.clone(), knob.queue),
            Target::RpsFlowCnt(knob) => Numbered::RxQueue(knob.netdev.name.clone(), knob.queue),
            Target::XpsCpus(knob) => Numbered::TxQueue(knob.netdev.name.clone(), knob.queue),
            _ => return None,
        };
        self.0.as_ref()?.get(&numbered).copied()
    }
}

fn all_in(snapshot: &Snapshot) -> impl Iterator<Item = Numbered> {
    let irqs =
        snapshot.irqs.iter().map(|(irq, state)| Numbered::Irq(*irq, state.actions.join(",")));
    irqs.chain(snapshot.netdevs.iter().flat_map(of_netdev))
}

fn of_netdev(netdev: &Netdev) -> impl Iterator<Item = Numbered> {
    let name = || netdev.name.clone();
    let rx = netdev.rx_queues.iter().map(move |it| Numbered::RxQueue(name(), it.index));
    let tx = netdev.tx_queues.iter().map(move |it| Numbered::TxQueue(name(), it.index));
    let threads = netdev.napis.iter().filter_map(|napi| napi.thread.as_ref());
    rx.chain(tx).chain(threads.map(|it| Numbered::Kthread(it.pid, it.start_time)))
}
