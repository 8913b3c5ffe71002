//! Why a reader does not keep up, by evidence: exactly one cause.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::thread_share::ThreadShare;
use netsilo_model::snapshot::attribution::{AttributionSource, Protocol};
use netsilo_model::snapshot::socket_readers::{SocketBuffer, SocketReader};

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::findings::loss::reader::group::{NEARLY_ALL, spread};
use crate::judge::findings::loss::reader::losers::Losers;
use crate::judge::findings::loss::reader::throttled::Throttled;
use crate::judge::verdict::percent;

/// A thread that ran for less than this share of its process's time does not read.
const ACTIVE: f64 = 0.1;

/// Memory that the kernel charges for a packet, beside twice its data (`truesize`): at most a page.
const PACKET_MEMORY: f64 = 4096.0;

/// A buffer that holds the packets of one period holds half as much again: periods vary.
const MARGIN: f64 = 1.5;

/// A larger buffer is not offered.
const LARGEST: f64 = (1 << 30) as f64;

/// Why a reader does not keep up.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cause {
    /// Its cgroup, or one above it, has used up its CPU quota.
    Throttled(Throttled),
    /// Its thread waits for a CPU during this share of the time, on run queues or while the
    /// hypervisor runs something else.
    WaitsForCpu { queued: f64, stolen: f64 },
    /// Its thread reads all the time, and the other sockets of the port get little.
    OneOfGroup { ran: f64, sockets: u32, share: f64 },
    /// Its thread uses this share of a CPU.
    ReadsAllTheTime(f64),
    /// It sleeps for a fixed time, not until packets arrive.
    Tick(Tick),
    /// The program has set a buffer smaller than the default.
    SmallBuffer { bytes: u32, default: u32 },
    /// Its threads use only this share of a CPU, for an unknown reason.
    Sleeps(f64),
    /// The observation does not have the evidence. The text says why.
    NotKnown(&'static str),
}

/// A reader that reads once in a period.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    /// Mean time between two reads, in seconds.
    pub(super) period: f64,
    /// Packets that arrive in one period.
    pub(super) arrive: f64,
    /// Packets that were read at once.
    pub(super) read: f64,
    /// The buffer that holds what arrives in one period, with a margin.
    pub(super) enough: u64,
}

impl Cause {
    /// The cause of the losses of these sockets. `default` is the size of their buffer unless the
    /// program sets it.
    pub(super) fn of(analysis: &Analysis<'_>, losers: &Losers<'_>, default: Option<u64>) -> Self {
        let Some(socket) = losers.worst() else { return Self::NotKnown("no socket is known") };
        let after = analysis.after();
        let (Some(before), Some(readers)) =
            (&analysis.observation.before.socket_readers, &after.socket_readers)
        else {
            return Self::NotKnown("the times of its threads were not read");
        };
        if !after.follows(&analysis.observation.before) {
            return Self::NotKnown("no time passed");
        }
        let buffer = readers.buffers.get(&socket.inode);
        let holder = socket.holder.as_ref().map(|holder| holder.tgid);
        let holders = buffer.into_iter().flat_map(|it| it.holders.iter().copied()).chain(holder);
        let work = |tgid: u32| {
            let (old, new) = (before.processes.get(&tgid)?, readers.processes.get(&tgid)?);
            Some(Work { tgid, threads: threads(analysis, old, new), reader: new })
        };
        let busiest = holders.filter_map(work).max_by(|a, b| a.busy().total_cmp(&b.busy()));
        let Some(work) = busiest else {
            return Self::NotKnown("it started during the observation, or was not read");
        };
        if let Some(throttled) = Throttled::of(analysis, work.reader) {
            return Self::Throttled(throttled);
        }
        let Some(busiest) = work.busiest() else {
            return Self::NotKnown("it has too many threads, or all of them are new");
        };
        let share = busiest.share;
        if share.waited >= ThreadShare::WAITS && work.reader.cgroup.is_none() {
            // time throttled counts as waiting
            return Self::NotKnown("it waits for a CPU or is throttled: no CPU quota was read");
        }
        let stolen = stolen(analysis, work.tgid);
        if share.waited + stolen >= ThreadShare::WAITS {
            return Self::WaitsForCpu { queued: share.waited, stolen };
        }
        if share.busy() >= ThreadShare::ALWAYS_READS {
            let sockets = buffer.map_or(1, |it| it.group);
            return match losers.share_of_worst() {
                part if sockets > 1 && part >= NEARLY_ALL => {
                    Self::OneOfGroup { ran: share.ran, sockets, share: part }
                }
                _ => Self::ReadsAllTheTime(share.ran),
            };
        }
        if let Some(tick) = tick(analysis, &work, losers.lost(), buffer) {
            return Self::Tick(tick);
        }
        let set = buffer.filter(|it| it.is_set == Some(true)).and_then(|it| it.bytes);
        let default = default.and_then(|default| u32::try_from(default).ok());
        match set.zip(default) {
            Some((bytes, default)) if bytes < default => Self::SmallBuffer { bytes, default },
            _ => Self::Sleeps(work.busy().min(1.0)),
        }
    }

    /// What the reader does, after its name.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Throttled(throttled) => throttled.title(),
            Self::WaitsForCpu { queued, stolen } => {
                format!("waits for a CPU {} of the time", percent(queued + stolen))
            }
            Self::OneOfGroup { sockets, share, .. } => {
                format!("reads all the time: 1 of {sockets} sockets loses {}", percent(*share))
            }
            Self::ReadsAllTheTime(ran) => {
                format!("reads all the time (its thread uses {} of a CPU)", percent(*ran))
            }
            Self::Tick(tick) => format!(
                "reads once in {:.0} ms, and {:.0} packets arrive in that time",
                tick.period * 1e3,
                tick.arrive
            ),
            Self::SmallBuffer { bytes, .. } => format!("has set a small buffer of {bytes} bytes"),
            Self::Sleeps(ran) => {
                format!("sleeps, cause not known (it uses {} of a CPU)", percent(*ran))
            }
            Self::NotKnown(_) => "reads too slowly".into(),
        }
    }

    /// What shows it.
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        let thread = |quantity, share| {
            Evidence::new(quantity, Measure::Share(share), "/proc/PID/task/TID/schedstat")
        };
        match self {
            Self::Throttled(throttled) => throttled.evidence(),
            Self::WaitsForCpu { queued, stolen } => vec![
                thread("its thread waits for a CPU", *queued),
                Evidence::new("stolen from its cpus", Measure::Share(*stolen), "/proc/stat"),
            ],
            Self::OneOfGroup { ran, .. } | Self::ReadsAllTheTime(ran) | Self::Sleeps(ran) => {
                vec![thread("its thread runs", *ran)]
            }
            Self::Tick(tick) => {
                let source = "voluntary_ctxt_switches, reads";
                vec![
                    Evidence::new(
                        "time between reads",
                        Measure::Nanoseconds(tick.period * 1e9),
                        source,
                    ),
                    Evidence::new("packets read at once", Measure::Count(tick.read as u64), source),
                ]
            }
            Self::SmallBuffer { .. } => Vec::new(),
            Self::NotKnown(why) => {
                vec![Evidence::new(
                    "cause of its slowness",
                    Measure::Text(format!("not known: {why}")),
                    "/proc/PID/schedstat",
                )]
            }
        }
    }

    /// How to make this reader faster; `None` if the cause does not say it.
    pub(super) fn remedy(&self, reader: &str) -> Option<String> {
        match self {
            Self::Throttled(throttled) => Some(throttled.remedy()),
            Self::WaitsForCpu { queued, stolen } if stolen > queued => Some(format!(
                "give this virtual machine more CPU time: the hypervisor takes {} of the time of \
                 the cpus on which {reader} reads",
                percent(*stolen)
            )),
            Self::WaitsForCpu { queued, .. } => Some(format!(
                "give {reader} a cpu with idle time, or fewer neighbours on its cpu: its thread \
                 waits {} of the time",
                percent(*queued)
            )),
            Self::OneOfGroup { sockets, .. } => Some(spread(*sockets, reader)),
            _ => None,
        }
    }
}

/// What a process did.
struct Work<'a> {
    tgid: u32,
    threads: Vec<Activity>,
    reader: &'a SocketReader,
}

/// What a thread did.
#[derive(Clone, Copy)]
struct Activity {
    share: ThreadShare,
    sleeps: u64,
}

impl Work<'_> {
    /// CPUs used and waited for by all threads.
    fn busy(&self) -> f64 {
        self.threads.iter().map(|it| it.share.busy()).sum()
    }

    fn busiest(&self) -> Option<Activity> {
        self.threads.iter().copied().max_by(|a, b| a.share.busy().total_cmp(&b.share.busy()))
    }
}

fn threads(analysis: &Analysis<'_>, old: &SocketReader, new: &SocketReader) -> Vec<Activity> {
    let seconds = analysis.rates.elapsed.as_secs_f64();
    let pairs = new.threads.iter().filter_map(|(tid, new)| Some((old.threads.get(tid)?, new)));
    pairs
        .filter_map(|(old, new)| {
            let share = ThreadShare::between(old.time, new.time, seconds)?;
            Some(Activity { share, sleeps: new.sleeps.checked_sub(old.sleeps)? })
        })
        .collect()
}

/// The share of time that the hypervisor takes from the CPUs on which a process reads, weighted by
/// its reads.
fn stolen(analysis: &Analysis<'_>, tgid: u32) -> f64 {
    let rows = &analysis.observation.attribution.consumption;
    let (mut all, mut stolen) = (0.0, 0.0);
    for row in rows.iter().filter(|row| row.consumer.tgid == tgid) {
        let cpu = analysis.rates.cpus.get(&row.consumer_cpu).and_then(|cpu| cpu.shares);
        all += row.events as f64;
        stolen += row.events as f64 * cpu.map_or(0.0, |shares| shares.steal);
    }
    if all > 0.0 { stolen / all } else { 0.0 }
}

/// Whether the process reads by a timer: packets do not wake it, and each time it reads about as
/// many packets as its buffer holds.
fn tick(
    analysis: &Analysis<'_>,
    work: &Work<'_>,
    lost: u64,
    buffer: Option<&SocketBuffer>,
) -> Option<Tick> {
    let bytes = f64::from(buffer?.bytes.filter(|bytes| *bytes > 0)?);
    let ran: f64 = work.threads.iter().map(|it| it.share.ran).sum();
    let mut active = work.threads.iter().filter(|it| it.share.ran > ACTIVE * ran);
    // of several threads, it is not known which one reads
    let sleeps = active.next().filter(|_| active.next().is_none())?.sleeps.max(1) as f64;
    let attribution = &analysis.observation.attribution;
    if attribution.source != AttributionSource::Bpf
        || attribution.windowed
        || !attribution.counts("wakeups")
    {
        return None;
    }
    let woken = attribution.wakeups.iter().filter(|it| it.tgid == work.tgid);
    let woken = woken.map(|it| it.count).fold(0, u64::saturating_add);
    let read = attribution.consumption.iter();
    let read = read.filter(|it| it.consumer.tgid == work.tgid && it.protocol == Protocol::Udp);
    let (reads, data) = read
        .fold((0.0, 0.0), |(reads, data), it| (reads + it.events as f64, data + it.bytes as f64));
    let at_once = reads / sleeps;
    let holds = at_once * (PACKET_MEMORY + 2.0 * data / reads);
    if woken as f64 > sleeps / 2.0 || reads == 0.0 || holds < bytes {
        return None;
    }
    // What one period brings, in the memory that the full buffer takes for each packet.
    let arrive = (reads + lost as f64) / sleeps;
    let enough = arrive * (bytes / at_once) * MARGIN;
    let period = analysis.rates.elapsed.as_secs_f64() / sleeps;
    (enough <= LARGEST).then(|| Tick {
        period,
        arrive,
        read: at_once,
        enough: (enough / 4096.0).ceil() as u64 * 4096,
    })
}
