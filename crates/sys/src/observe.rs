//! Observes the running host: takes a snapshot, counts during an interval, and takes another
//! snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::derive::observed_irqs::name_observed_interrupts;
use netsilo_model::derive::sock_diag::{SocketSample, attribute_reads, steerings};
use netsilo_model::snapshot::attribution::{Attribution, Hook};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;

use crate::bpf::tracer::{self, Tracer};
use crate::consumer::pinned;
use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::netlink::sock_diag;
use crate::read::refresh::Refresher;
use crate::read::snapshot::{Series, snapshot, snapshot_here};
use crate::read::{containers, queue_users};

/// Maximum number of thread groups whose affinity is read.
const MOST_READERS: usize = 32;

/// How to count which threads read which data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountingMode {
    /// eBPF, always attached. Uses sock_diag if eBPF is refused.
    Continuous,
    /// eBPF, attached for this long in each interval to reduce its cost. Uses sock_diag if eBPF is
    /// refused.
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
    /// The eBPF programs were attached, but their counters cannot be read.
    #[error("cannot read the eBPF counters")]
    Bpf(#[from] tracer::ReadError),
}

/// Observes the running host repeatedly. Each observation begins where the last one ended.
pub struct Observer {
    counting: CountingMode,
    counter: Counter,
    /// The start of the next observation.
    ///
    /// `None` while the caller of an observer started with [`Observer::start_light`] has the last
    /// observation.
    before: Option<Snapshot>,
    /// `None`: each snapshot is a full read, or is the next one of `series`.
    refresher: Option<Refresher>,
    series: Option<Series>,
    /// Whether a full read includes the other network namespaces.
    namespaces: bool,
}

/// The active counter.
enum Counter {
    Attached(Box<Tracer>),
    /// The reasons why eBPF does not count, and the last sample of the sockets.
    Sockets(Vec<Hook>, Option<Box<SocketSample>>),
}

impl Observer {
    /// Starts counting; each snapshot is a full read.
    pub fn start(root: &Root, counting: CountingMode) -> Result<Self, ObserveError> {
        Self::start_with(root, counting, tracer::Options::default())
    }

    /// Starts counting with the given eBPF programs instead of the default ones.
    pub fn start_with(
        root: &Root,
        counting: CountingMode,
        options: tracer::Options,
    ) -> Result<Self, ObserveError> {
        Self::begin(root, counting, options, None)
    }

    /// Starts counting for a long time. Later snapshots read only what changes without an
    /// announcement.
    ///
    /// Leaves out interrupts of other devices and data that no decision needs. Call
    /// [`Observer::invalidate`] when something else changed.
    pub fn start_light(root: &Root, counting: CountingMode) -> Result<Self, ObserveError> {
        let options = tracer::Options { drops: true, ..tracer::Options::default() };
        Self::begin(root, counting, options, Some(Refresher::default()))
    }

    /// Changes how long eBPF is attached in each later interval. Has an effect only in
    /// [`CountingMode::Windows`].
    pub fn set_window(&mut self, length: Duration) {
        if let CountingMode::Windows(window) = &mut self.counting {
            *window = length;
        }
    }

    /// Makes the next snapshot a full read.
    pub fn invalidate(&mut self) {
        if let Some(refresher) = &mut self.refresher {
            refresher.invalidate();
        }
    }

    fn begin(
        root: &Root,
        counting: CountingMode,
        options: tracer::Options,
        mut refresher: Option<Refresher>,
    ) -> Result<Self, ObserveError> {
        let mut counter = match counting {
            CountingMode::Continuous | CountingMode::Windows(_) => attached_or_sockets(options),
            CountingMode::WithoutBpf => {
                Counter::Sockets(Vec::new(), sock_diag::sample(None).ok().map(Box::new))
            }
        };
        if let (CountingMode::Windows(_), Counter::Attached(tracer)) = (counting, &mut counter) {
            tracer.pause();
        }
        let before = Some(match &mut refresher {
            Some(refresher) => refresher.first(root)?,
            None => full(root, options.drops)?,
        });
        // As in all later windows, counting starts with this snapshot.
        if let (CountingMode::Continuous, Counter::Attached(tracer)) = (counting, &mut counter) {
            tracer.restart()?;
        }
        let namespaces = options.drops;
        Ok(Self { counting, counter, before, refresher, series: None, namespaces })
    }

    /// Allows some data to be up to 5 s old, for views that are updated each second. This applies
    /// to the topology, the list of processes, the programs that write the same knobs, sysctls, the
    /// settings of netdevs, the audit, and the hints and nodes of interrupts. A write of a setting
    /// by this process makes them all read again.
    pub fn read_seldom(&mut self) {
        self.series = Some(Series::default());
    }

    fn whole(&mut self, root: &Root) -> Result<Snapshot, ReadError> {
        match &mut self.series {
            Some(series) => series.next(root),
            None => full(root, self.namespaces),
        }
    }

    /// Takes an observation back, so that the next one begins where it ended.
    ///
    /// Required after [`Observer::start_light`], because it keeps no copy of its observations.
    pub fn give_back(&mut self, observation: Observation) {
        self.before = Some(observation.after);
    }

    /// Observes the next `interval`. `wait` lets the time pass, for example with a progress
    /// display.
    pub fn next(
        &mut self,
        root: &Root,
        interval: Duration,
        mut wait: impl FnMut(Duration),
    ) -> Result<Observation, ObserveError> {
        let before = match (self.before.take(), &mut self.refresher) {
            (Some(before), _) => before,
            (None, Some(refresher)) => refresher.first(root)?,
            (None, None) => full(root, self.namespaces)?,
        };
        let mut attribution = match (self.counting, &mut self.counter) {
            (CountingMode::Windows(length), Counter::Attached(tracer)) => {
                let length = length.min(interval);
                wait(interval - length);
                tracer.resume();
                wait(length);
                let attribution = tracer.read()?;
                tracer.pause();
                attribution
            }
            (_, counter) => {
                wait(interval);
                crate::observe::read(counter, &before)?
            }
        };
        attribution.containers = containers::names(root, &attribution.consumption);
        let after = match &mut self.refresher {
            Some(refresher) => refresher.next(root, &before)?,
            None => self.whole(root)?,
        };
        if self.refresher.is_none() {
            let root = root.unrecorded();
            let readers = heaviest_readers(&attribution);
            attribution.pinned = pinned(&root, readers, &after.topology.online);
            attribution.queue_users = queue_users::read(&root, &after, &attribution);
        }
        attribution.escape_names();
        let mut observation = Observation { before, after, attribution };
        name_observed_interrupts(&mut observation);
        self.refresher.iter_mut().for_each(|it| it.learn(&observation.after));
        self.before = self.refresher.is_none().then(|| observation.after.clone());
        observation.name_users_of_queues();
        Ok(observation)
    }
}

fn full(root: &Root, namespaces: bool) -> Result<Snapshot, ReadError> {
    if namespaces { snapshot(root) } else { snapshot_here(root) }
}

/// The thread groups that read the most data, and some that capture packets.
fn heaviest_readers(attribution: &Attribution) -> impl Iterator<Item = u32> {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for one in &attribution.consumption {
        *bytes.entry(one.consumer.tgid).or_default() += one.bytes;
    }
    let mut readers: Vec<(u32, u64)> = bytes.into_iter().collect();
    readers.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let sockets = attribution.packet_sockets.iter().map(|it| it.holder.tgid);
    readers.into_iter().map(|(tgid, _)| tgid).take(MOST_READERS).chain(sockets.take(MOST_READERS))
}

/// Uses eBPF if any hook attaches; else sock_diag, with the reasons of the hooks.
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
                quantity: "tcp bytes".into(),
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
                    let attribution = attribute_reads(
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
