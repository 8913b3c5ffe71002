//! Looks at the running host: a snapshot, counting while time passes, another snapshot.

use std::time::Duration;

use netsilo_model::derive::sock_diag::{Sample, attribute, steerings};
use netsilo_model::snapshot::attribution::{Attribution, Hook};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;

use crate::bpf::tracer::{self, Tracer};
use crate::files::root::{ReadError, Root};
use crate::read::netlink::sock_diag;
use crate::read::refresh::Refresher;
use crate::read::snapshot::snapshot;

/// How to count who reads what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// eBPF, attached all the time; without it sock_diag.
    Continuous,
    /// eBPF, attached for this long in each interval, so that it costs less; without it sock_diag.
    Windows(Duration),
    /// sock_diag only.
    WithoutBpf,
}

/// Why the host could not be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// A snapshot failed.
    #[error("cannot read the host")]
    Read(#[from] ReadError),
    /// The counters of eBPF programs that were attached are lost.
    #[error("cannot read the eBPF counters")]
    Bpf(#[from] tracer::ReadError),
}

/// Observes the running host again and again; each observation begins where the last one ended.
pub struct Observer {
    counting: Counting,
    counter: Counter,
    /// What the next observation begins with; `None` until the last one is given back to an
    /// observer that looks lightly.
    before: Option<Snapshot>,
    /// `None`: each snapshot is a whole look.
    refresher: Option<Refresher>,
}

/// What counts now.
enum Counter {
    Attached(Box<Tracer>),
    /// Why eBPF does not count, and the sockets as they were.
    Sockets(Vec<Hook>, Option<Box<Sample>>),
}

impl Observer {
    /// Starts counting; each snapshot reads everything.
    pub fn start(root: &Root, counting: Counting) -> Result<Self, ObserveError> {
        Self::start_with(root, counting, tracer::Options::default())
    }

    /// Starts counting with other programs than the usual ones.
    pub fn start_with(
        root: &Root,
        counting: Counting,
        options: tracer::Options,
    ) -> Result<Self, ObserveError> {
        Self::begin(root, counting, options, None)
    }

    /// Starts counting for a long time: after the first, snapshots read only what changes by
    /// itself.
    ///
    /// Interrupts of other devices are left out, and so is what a decision does not need. Whoever
    /// hears that something else changed says so with [`Observer::invalidate`].
    pub fn start_light(root: &Root, counting: Counting) -> Result<Self, ObserveError> {
        Self::begin(root, counting, tracer::Options::default(), Some(Refresher::default()))
    }

    /// The next snapshot reads everything again.
    pub fn invalidate(&mut self) {
        if let Some(refresher) = &mut self.refresher {
            refresher.invalidate();
        }
    }

    fn begin(
        root: &Root,
        counting: Counting,
        options: tracer::Options,
        mut refresher: Option<Refresher>,
    ) -> Result<Self, ObserveError> {
        let mut counter = match counting {
            Counting::Continuous | Counting::Windows(_) => attached_or_sockets(options),
            Counting::WithoutBpf => {
                Counter::Sockets(Vec::new(), sock_diag::sample(None).ok().map(Box::new))
            }
        };
        if let (Counting::Windows(_), Counter::Attached(tracer)) = (counting, &mut counter) {
            tracer.pause();
        }
        let before = Some(match &mut refresher {
            Some(refresher) => refresher.first(root)?,
            None => snapshot(root)?,
        });
        Ok(Self { counting, counter, before, refresher })
    }

    /// Takes an observation back, so that the next one begins where it ended: an observer that was
    /// started with [`Observer::start_light`] keeps no copy of what it gives.
    pub fn keep(&mut self, observation: Observation) {
        self.before = Some(observation.after);
    }

    /// What happened in the next `interval`; `wait` passes the time, so that it can show progress.
    pub fn next(
        &mut self,
        root: &Root,
        interval: Duration,
        mut wait: impl FnMut(Duration),
    ) -> Result<Observation, ObserveError> {
        let before = match (self.before.take(), &mut self.refresher) {
            (Some(before), _) => before,
            (None, Some(refresher)) => refresher.first(root)?,
            (None, None) => snapshot(root)?,
        };
        let mut attribution = match (self.counting, &mut self.counter) {
            (Counting::Windows(length), Counter::Attached(tracer)) => {
                let length = length.min(interval);
                wait(interval - length);
                tracer.resume();
                wait(length);
                tracer.pause();
                tracer.read()?
            }
            (_, counter) => {
                wait(interval);
                crate::observe::read(counter, &before)?
            }
        };
        attribution.tame_names();
        let after = match &mut self.refresher {
            Some(refresher) => refresher.next(root, &before)?,
            None => snapshot(root)?,
        };
        self.before = self.refresher.is_none().then(|| after.clone());
        Ok(Observation { before, after, attribution })
    }
}

/// eBPF where anything attaches; else sock_diag, with what the hooks said.
fn attached_or_sockets(options: tracer::Options) -> Counter {
    let tracer = Tracer::attach(options);
    if tracer.hooks().iter().any(|hook| hook.refused.is_none()) {
        return Counter::Attached(Box::new(tracer));
    }
    Counter::Sockets(tracer.hooks(), sock_diag::sample(None).ok().map(Box::new))
}

fn read(counter: &mut Counter, snapshot: &Snapshot) -> Result<Attribution, ObserveError> {
    match counter {
        Counter::Attached(tracer) => Ok(tracer.read()?),
        Counter::Sockets(hooks, before) => {
            let refused = |why: String| Hook {
                question: "tcp bytes".into(),
                hook: "sock_diag".into(),
                refused: Some(why),
            };
            let sampled = match before.take() {
                Some(before) => sock_diag::sample(Some(&before)).map(|after| (before, after)),
                None => sock_diag::sample(None).map(|after| (Box::new(after.clone()), after)),
            };
            let mut attribution = match sampled {
                Ok((first, after)) => {
                    let key = snapshot
                        .net
                        .sysctls
                        .get("net.core.netdev_rss_key")
                        .map_or("", String::as_str);
                    let attribution = attribute(
                        &first,
                        &after,
                        &steerings(&snapshot.netdevs, &after.addresses, key),
                    );
                    *before = Some(Box::new(after));
                    attribution
                }
                Err(error) => Attribution {
                    hooks: vec![refused(error.to_string())],
                    ..Attribution::default()
                },
            };
            attribution.hooks.extend(hooks.iter().cloned());
            Ok(attribution)
        }
    }
}
