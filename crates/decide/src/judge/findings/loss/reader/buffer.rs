//! A full receive buffer: its finding.

use netsilo_model::snapshot::socket_readers::SocketBuffer;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::Finding;
use crate::judge::findings::id::FindingId;
use crate::judge::findings::loss::lost::all_of;
use crate::judge::findings::loss::reader::cause::Cause;
use crate::judge::findings::loss::reader::full::{Full, by_hand};
use crate::judge::limits::raised;

const DEFAULT: &str = "net.core.rmem_default";
const MAX: &str = "net.core.rmem_max";

/// The receive buffer of a socket is full.
pub(super) fn buffer(mut full: Full<'_>) -> Finding {
    let Full { analysis, namespace, subject, losers, lost, .. } = full;
    let tcp = subject.is_tcp();
    let default = namespace.sysctl_number(DEFAULT).filter(|_| !tcp);
    let cause = if tcp {
        Cause::NotKnown("no socket is known")
    } else {
        Cause::of(analysis, losers, default)
    };
    let buffer = losers
        .worst()
        .and_then(|socket| analysis.after().socket_readers.as_ref()?.buffers.get(&socket.inode));
    full.evidence.extend(losers.worst().map(|socket| {
        let queued = Measure::Bytes(socket.queued.into());
        Evidence::new("bytes waiting to be read", queued, "/proc/net/udp")
    }));
    let size = buffer.and_then(|buffer| buffer.bytes);
    full.evidence.extend(size.map(|size| {
        let by = if is_set(buffer) { ", which the program has set" } else { "" };
        let quantity = format!("size of the buffer{by}");
        Evidence::new(quantity, Measure::Bytes(size.into()), "SO_RCVBUF")
    }));
    let bounds: &[&str] = if tcp { &["net.ipv4.tcp_rmem"] } else { &[DEFAULT, MAX] };
    for name in bounds {
        let value = namespace.sysctl(name);
        full.evidence.extend(value.map(|value| {
            Evidence::new("limit of the buffer", Measure::Text(value.replace('\t', " ")), *name)
        }));
    }
    if !tcp {
        full.evidence.extend(cause.evidence());
    }
    let reader = losers.reader();
    let title = format!("{reader} {}: {lost} packets found its buffer full", cause.title());
    let all = all_of(analysis, lost, "all packets that found the buffer full");
    let faster = by_hand(faster(&cause, &reader), all);
    let larger = if is_set(buffer) {
        larger_by_program(&full, &cause, &reader, size.unwrap_or(0).into())
    } else {
        larger_by_default(&full, &cause, &reader, default)
    };
    let longer_first = matches!(cause, Cause::Tick(_) | Cause::SmallBuffer { .. });
    let remedies = if longer_first { vec![larger, faster] } else { vec![faster, larger] };
    full.finding(FindingId::SocketBufferOverflow, title, remedies)
}

fn is_set(buffer: Option<&SocketBuffer>) -> bool {
    buffer.is_some_and(|buffer| buffer.is_set == Some(true))
}

fn faster(cause: &Cause, reader: &str) -> String {
    cause.remedy(reader).unwrap_or_else(|| match cause {
        Cause::Tick(_) => {
            format!("make {reader} read more often, or in a thread that waits for packets")
        }
        Cause::Sleeps(_) | Cause::SmallBuffer { .. } => format!(
            "find what {reader} waits for while it does not read (perf trace, /proc/PID/stack): a \
             disk, a lock, another service"
        ),
        Cause::ReadsAllTheTime(_) => format!(
            "make {reader} read faster: more threads or sockets (SO_REUSEPORT), batches (recvmmsg)"
        ),
        _ => format!(
            "make {reader} read faster: more threads or sockets (SO_REUSEPORT), batches \
             (recvmmsg), a cpu with idle time"
        ),
    })
}

/// A larger default of the kernel.
fn larger_by_default(full: &Full<'_>, cause: &Cause, reader: &str, default: Option<u64>) -> Remedy {
    let Full { namespace, subject, lost, .. } = full;
    let size = match cause {
        Cause::Tick(tick) => default.map(|_| tick.enough),
        _ => default.map(|default| raised(DEFAULT, default)),
    };
    let what = match size {
        Some(size) => format!(
            "a default buffer of {size} bytes, for sockets opened from now on that do not set \
             SO_RCVBUF{}",
            held(cause)
        ),
        None => {
            "a larger buffer: the application sets it (SO_RCVBUF) up to net.core.rmem_max".into()
        }
    };
    let reason = format!("{subject} lost {lost} packets because its buffer was full");
    let max = namespace.sysctl_number(MAX);
    let changes = size.zip(max).map(|(size, max)| {
        let mut names = vec![DEFAULT];
        names.extend((max < size).then_some(MAX));
        names.into_iter().flat_map(|name| full.sysctl(name, size, &reason)).collect()
    });
    Remedy { changes: changes.unwrap_or_default(), ..larger(full, cause, reader, what, size) }
}

/// A larger buffer of a program that sets its size, in bytes of the kernel: twice what the program
/// requests.
fn larger_by_program(full: &Full<'_>, cause: &Cause, reader: &str, now: u64) -> Remedy {
    let Full { namespace, subject, lost, .. } = full;
    let max = namespace.sysctl_number(MAX);
    let size = match cause {
        Cause::Tick(tick) => tick.enough,
        Cause::SmallBuffer { default, .. } => now.saturating_mul(2).max((*default).into()),
        _ => now.saturating_mul(2),
    };
    let request = size.div_ceil(2);
    let beyond = max.filter(|max| *max < request);
    let allowed = match beyond {
        Some(max) => format!(", which {MAX} ({max}) does not allow: raise it to {request} first"),
        None => String::new(),
    };
    let what = format!(
        "{reader} sets its buffer itself, so {DEFAULT} has no effect on it: let it request \
         {request} bytes (SO_RCVBUF; the kernel doubles it to {size}){allowed}{}",
        held(cause)
    );
    let reason = format!("{subject} lost {lost} packets; {reader} must request a larger buffer");
    let changes = beyond.map_or_else(Vec::new, |_| full.sysctl(MAX, request, &reason));
    Remedy { changes, ..larger(full, cause, reader, what, Some(size)) }
}

/// What a buffer of the offered size holds.
fn held(cause: &Cause) -> String {
    match cause {
        Cause::Tick(tick) => format!(
            ": it holds the {:.0} packets that arrive in {:.0} ms, with a margin",
            tick.arrive,
            tick.period * 1e3
        ),
        _ => String::new(),
    }
}

fn larger(full: &Full<'_>, cause: &Cause, reader: &str, what: String, size: Option<u64>) -> Remedy {
    let fits = matches!(cause, Cause::Tick(_));
    let gain = if fits {
        all_of(full.analysis, full.lost, "all packets that arrived between two reads")
    } else {
        Gain::Unknown(
            "a larger buffer holds bursts; whether the packets arrived in bursts was not measured"
                .into(),
        )
    };
    let cost = match size.filter(|_| fits) {
        Some(size) => {
            format!("up to {size} bytes of memory for each socket, and packets may wait longer")
        }
        None => "more memory for each socket, and packets may wait longer".into(),
    };
    let not_when = format!(
        "{reader} reads more slowly than packets arrive on average: then a buffer of any size \
         fills up. Open sockets keep their buffer size"
    );
    Remedy { cost: Some(cost), not_when: Some(not_when), ..by_hand(what, gain) }
}
