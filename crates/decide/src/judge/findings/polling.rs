//! Findings on busy polling and on interrupt deferral.

use netsilo_model::change::{Change, Words, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::audit::NapiSettings;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::builders::setting;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;

/// The sysctls that switch busy polling on for all sockets: in `poll`, `select` and `epoll_wait`,
/// and in reads. Values in microseconds.
const BUSY: [&str; 2] = ["net.core.busy_poll", "net.core.busy_read"];
/// Below this mean idle share, CPUs have no time for busy polling.
const NO_ROOM: f64 = 0.2;

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut found: Vec<Finding> = busy_poll(analysis).into_iter().collect();
    found.extend(analysis.running().filter_map(|netdev| half_on(analysis, netdev)));
    found
}

/// Busy polling is on for all sockets, while the CPUs that receive and read have no idle time.
fn busy_poll(analysis: &Analysis<'_>) -> Option<Finding> {
    let sysctls = &analysis.after().net.sysctls;
    let on = |name: &&str| {
        sysctls
            .get(*name)
            .is_some_and(|value| value.trim().parse().is_ok_and(|usecs: u64| usecs > 0))
    };
    let on: Vec<&str> = BUSY.into_iter().filter(on).collect();
    let mut used = CpuSet::new();
    for silo in analysis.silos.queues.iter().filter(|silo| silo.has_traffic()) {
        silo.polls
            .keys()
            .copied()
            .chain(silo.read_on().into_keys())
            .for_each(|cpu| used.insert(cpu));
    }
    let idle = |cpu: CpuId| Some(analysis.rates.cpus.get(&cpu)?.shares?.idle);
    let idle: Vec<f64> = used.iter().filter_map(idle).collect();
    let mean = idle.iter().sum::<f64>() / idle.len() as f64;
    if on.is_empty() || idle.is_empty() || mean >= NO_ROOM {
        return None;
    }
    let off = |name: &&str| {
        let knob = knobs::Sysctl { name: (*name).to_owned() };
        analysis.change(knob, Words::new("0"), "the cpus have no idle time for busy polling")
    };
    let mut evidence: Vec<Evidence> = on
        .iter()
        .map(|name| setting("busy polling time in microseconds", sysctls[*name].trim(), *name))
        .collect();
    evidence.push(Evidence::new(
        format!("mean idle time of cpus {used}, which receive and read"),
        Measure::Share(mean),
        "/proc/stat",
    ));
    Some(Finding {
        id: FindingId::BusyPollNoRoom,
        severity: Severity::Info,
        subject: Subject::Machine,
        title: "readers busy-poll, but the cpus that receive and read have almost no idle time"
            .into(),
        evidence,
        remedies: vec![
            Remedy::new(
                "switch busy polling off globally, and enable it only on sockets that need it \
                 (SO_BUSY_POLL)",
                Gain::Unknown("the time spent on polls that find nothing was not measured".into()),
            )
            .costs("latency: a reader sleeps until it is woken")
            .not_when(
                "only this polling makes the cpus busy, or latency matters most. Open sockets keep \
                 their value of busy_read",
            )
            .by(on.iter().flat_map(off).collect()),
        ],
    })
}

/// Interrupt deferral or suspension is configured without the timer that polls meanwhile, so
/// interrupts are not deferred.
fn half_on(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Finding> {
    // Since 6.13 each NAPI may have its own values. They override those of the netdev.
    let napis = analysis
        .after()
        .audit
        .iter()
        .flat_map(|audit| netdev.napis.iter().filter_map(|napi| audit.napis.get(&napi.id)));
    let napis: Vec<&NapiSettings> = napis.collect();
    let defers = |it: &&&NapiSettings| it.defer_hard_irqs.is_some_and(|polls| polls > 0);
    let no_timer = |it: &&&NapiSettings| it.gro_flush_timeout_nsecs == Some(0);
    let suspends =
        |it: &&&NapiSettings| it.irq_suspend_timeout_nsecs.is_some_and(|timeout| timeout > 0);
    let defer = napis.iter().filter(defers).filter(no_timer).count();
    let suspend = napis.iter().filter(suspends).filter(|it| !defers(it) || no_timer(it)).count();
    let by_netdev = netdev.napi_defer_hard_irqs.is_some_and(|polls| polls > 0)
        && netdev.gro_flush_timeout == Some(0);
    let by_netdev = by_netdev && (defer > 0 || napis.is_empty());
    if !by_netdev && defer == 0 && suspend == 0 {
        return None;
    }
    let mut evidence = Vec::new();
    let mut of_netdev = |name: &str, value: Option<u64>| {
        evidence.extend(value.map(|value| {
            setting(name, value.to_string(), format!("/sys/class/net/{}/{name}", netdev.name))
        }));
    };
    of_netdev("napi_defer_hard_irqs", netdev.napi_defer_hard_irqs.map(u64::from));
    of_netdev("gro_flush_timeout", netdev.gro_flush_timeout);
    let count = |what: &str, count: usize| {
        (count > 0)
            .then(|| Evidence::new(what, Measure::Count(count as u64), "netdev netlink, napi-get"))
    };
    evidence.extend(count("napis that defer without gro_flush_timeout", defer));
    evidence.extend(count("napis with irq_suspend_timeout alone", suspend));
    let changes: Vec<Change> = if by_netdev {
        let knob = knobs::NapiDeferHardIrqs { netdev: NetdevIdentity::from_netdev(netdev) };
        analysis.change(knob, 0, "without gro_flush_timeout this setting has no effect")
    } else {
        Vec::new()
    };
    Some(Finding {
        id: FindingId::DeferralHalfOn,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: "interrupt deferral is configured without its timer, so interrupts are not deferred"
            .into(),
        evidence,
        remedies: vec![
            Remedy::new(
                "set both napi_defer_hard_irqs and gro_flush_timeout, or neither",
                Gain::Unknown(
                    "the gain depends on the interrupt rate: see the verdict on IRQ deferral"
                        .into(),
                ),
            )
            .not_when("a program sets the timeout of its own NAPIs when it starts")
            .by(changes),
        ],
    })
}
