//! A full queue of a listening socket: connections that wait to be accepted, or requests that wait
//! for the client's answer (the SYN queue).

use netsilo_model::derive::namespaces::CountedNamespace;
use netsilo_model::snapshot::subject::{ProtocolPart, Subject};

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::loss::reader::cause::Cause;
use crate::judge::findings::loss::reader::full::{Full, by_hand};
use crate::judge::limits::{is_below_default, raised};

/// Maximum length of a listen queue.
const SOMAXCONN: &str = "net.core.somaxconn";

/// Whether a full SYN queue still answers: 0 never, 1 while it is full, 2 always.
const COOKIES: &str = "net.ipv4.tcp_syncookies";

/// Maximum length of a SYN queue without cookies.
const SYN_BACKLOG: &str = "net.ipv4.tcp_max_syn_backlog";

/// A counter of requests that were answered with a cookie because the SYN queue was full.
const ANSWERED: &str = "TcpExtTCPReqQFullDoCookies";

fn rejected(full: &Full<'_>, basis: &str) -> Gain {
    Gain::AtMost {
        measure: Measure::PerSecond(full.analysis.per_s(full.lost)),
        of: "connections rejected".into(),
        basis: basis.into(),
    }
}

/// A queue of a listening socket is full.
pub(super) fn listen(mut full: Full<'_>) -> Finding {
    let Full { namespace, subject, losers, lost, .. } = full;
    let socket = losers.worst();
    let limit = socket.and_then(|socket| socket.limit).map(u64::from);
    let waiting = socket.map(|it| u64::from(it.queued));
    full.show(&[
        ("connections waiting to be accepted", waiting, "sock_diag"),
        ("limit of the accept queue", limit, "sock_diag"),
        ("maximum of that limit", namespace.sysctl_number(SOMAXCONN), SOMAXCONN),
    ]);
    // Each overflow of the accept queue is counted as a drop too. Other drops are of requests.
    let overflows = namespace.growth("TcpExtListenOverflows");
    let is_full = waiting.zip(limit).is_some_and(|(waiting, limit)| waiting > limit);
    let of_requests = *subject.part() == Subject::Protocol(ProtocolPart::TcpRequests)
        || !is_full && overflows.is_some_and(|overflows| overflows < lost.div_ceil(2));
    if of_requests { requests(full, limit) } else { connections(full, limit) }
}

/// The accept queue of a listening socket is full.
fn connections(mut full: Full<'_>, limit: Option<u64>) -> Finding {
    let Full { analysis, namespace, subject, losers, lost, .. } = full;
    let bound = namespace.sysctl_number(SOMAXCONN);
    let reader = losers.reader();
    let cause = Cause::of(analysis, losers, None);
    let remedy = cause.remedy(&reader);
    if remedy.is_some() {
        full.evidence.extend(cause.evidence());
    }
    let reason =
        format!("{subject} rejected {lost} connections; {reader} must call listen again after it");
    // The kernel cuts the length given to `listen` to the maximum. Without tcp_diag, either may be
    // the one that limits.
    let binding = bound.filter(|bound| limit.is_none_or(|limit| limit >= *bound));
    let larger = |bound| raised(SOMAXCONN, bound);
    let title = match binding {
        _ if remedy.is_some() => {
            format!("{reader} {}: {lost} connections found its queue full", cause.title())
        }
        Some(bound) if is_below_default(SOMAXCONN, bound) => {
            format!("{reader} has a short accept queue ({bound}): {lost} connections found it full")
        }
        _ => format!("{reader} accepts too slowly: {lost} connections found its queue full"),
    };
    // A limit below the kernel's default is the more likely cause, unless another one is known.
    let longer_first =
        remedy.is_none() && binding.is_some_and(|bound| is_below_default(SOMAXCONN, bound));
    let faster = by_hand(
        remedy.unwrap_or_else(|| {
            format!(
                "make {reader} accept faster: more threads, or several listeners (SO_REUSEPORT)"
            )
        }),
        rejected(&full, "all connections that found the queue full"),
    );
    let what = match (binding, limit) {
        (Some(bound), _) => format!(
            "allow {} waiting connections; {reader} must call listen again, with that backlog{}",
            larger(bound),
            if limit.is_none() { " (its current value was not read)" } else { "" }
        ),
        (None, None) => {
            format!("make {reader} call listen with a larger backlog, up to net.core.somaxconn")
        }
        (None, Some(_)) => {
            format!("make {reader} call listen with a larger backlog: the kernel would allow it")
        }
    };
    let longer = Remedy {
        cost: Some("connections may wait longer before they are served".into()),
        not_when: Some(format!("{reader} accepts more slowly than connections arrive on average")),
        changes: binding
            .map_or_else(Vec::new, |bound| full.sysctl(SOMAXCONN, larger(bound), &reason)),
        ..by_hand(
            what,
            Gain::Unknown(
                "a longer queue holds bursts; whether the connections arrived in bursts was not \
                 measured"
                    .into(),
            ),
        )
    };
    let remedies = if longer_first { vec![longer, faster] } else { vec![faster, longer] };
    full.finding(FindingId::ListenOverflow, title, remedies)
}

/// Requests were dropped, although the accept queue was not full.
fn requests(mut full: Full<'_>, limit: Option<u64>) -> Finding {
    let Full { namespace, subject, losers, lost, .. } = full;
    let [cookies, backlog] = [COOKIES, SYN_BACKLOG].map(|name| namespace.sysctl_number(name));
    full.show(&cookie_counters(namespace));
    full.show(&[
        ("cookies while the SYN queue is full", cookies, COOKIES),
        ("maximum of the SYN queue without cookies", backlog, SYN_BACKLOG),
    ]);
    let reader = losers.reader();
    if cookies.is_some_and(|cookies| cookies > 0) {
        let title = format!(
            "{reader}: {lost} requests for connections were dropped, cause not known: its accept \
             queue was not full, and a full SYN queue answers with cookies"
        );
        let what = "find the reason and the place among what the kernel dropped (netsilo check -v)"
            .to_owned();
        let remedy = by_hand(what, rejected(&full, "all requests that were dropped"));
        return full.finding(FindingId::ListenOverflow, title, vec![remedy]);
    }
    let reason = format!("half-open connections fill the SYN queue of {subject}");
    let title = format!(
        "half-open connections fill the SYN queue of {reader}: {lost} requests were dropped, and \
         its accept queue was not full"
    );
    let answer = Remedy {
        cost: Some(
            "connections that begin with a cookie have no window scale and no SACK, if the client \
             sends no timestamps"
                .into(),
        ),
        changes: full.sysctl(COOKIES, 1, &reason),
        ..by_hand(
            format!("answer with cookies while the SYN queue is full ({COOKIES}=1)"),
            rejected(&full, "all requests that were dropped: a cookie takes no place in the queue"),
        )
    };
    // Without cookies, a client that is not known gets no place in the last quarter
    // (`tcp_conn_request`). The backlog of `listen` limits both queues.
    let by_program = limit.filter(|limit| backlog.is_none_or(|backlog| *limit <= backlog / 4 * 3));
    let what = match by_program {
        Some(limit) => format!(
            "a longer SYN queue: {reader} must call listen again with a backlog of more than \
             {limit}, and {SOMAXCONN} must allow it"
        ),
        None => format!("a longer SYN queue: {SYN_BACKLOG}, of which new clients get 3/4"),
    };
    let changes = match (by_program, backlog) {
        (None, Some(backlog)) => full.sysctl(SYN_BACKLOG, backlog.saturating_mul(2), &reason),
        _ => Vec::new(),
    };
    let longer = Remedy {
        cost: Some("memory for each half-open connection".into()),
        not_when: Some("a SYN flood: it fills a queue of any length".into()),
        changes,
        ..by_hand(
            what,
            Gain::Unknown("whether the requests are of real clients was not measured".into()),
        )
    };
    full.finding(FindingId::ListenOverflow, title, vec![answer, longer])
}

fn cookie_counters(
    namespace: &CountedNamespace<'_>,
) -> [(&'static str, Option<u64>, &'static str); 3] {
    let file = "/proc/net/netstat";
    [
        ("cookies sent", namespace.growth("TcpExtSyncookiesSent"), file),
        ("cookies that came back", namespace.growth("TcpExtSyncookiesRecv"), file),
        ("cookies that came back and were wrong", namespace.growth("TcpExtSyncookiesFailed"), file),
    ]
}

/// The SYN queue was full, and the kernel answered with cookies: nothing was lost.
pub(super) fn answered(namespace: &CountedNamespace<'_>) -> Option<Finding> {
    let answered = namespace.growth(ANSWERED).filter(|answered| *answered > 0)?;
    let mut evidence =
        vec![Evidence::new("TCPReqQFullDoCookies", Measure::Count(answered), "/proc/net/netstat")];
    let counters = cookie_counters(namespace);
    evidence.extend(counters.into_iter().filter_map(|(quantity, value, source)| {
        Some(Evidence::new(quantity, Measure::Count(value?), source))
    }));
    Some(Finding {
        id: FindingId::ListenOverflow,
        severity: Severity::Info,
        subject: namespace.subject(Subject::Protocol(ProtocolPart::TcpRequests)),
        title: format!(
            "half-open connections fill a SYN queue: {answered} requests were answered with \
             cookies, and none of them was dropped"
        ),
        evidence,
        remedies: vec![by_hand(
            "leave cookies on. If few cookies come back, this is a SYN flood: stop it before this \
             machine. If most come back, let the program call listen with a larger backlog"
                .into(),
            Gain::Nothing("cookies take no place in the queue".into()),
        )],
    })
}
