//! Polling without interrupts: busy polling, and interrupts that are to stay off for a while.

use super::growth::setting;
use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::audit::NapiSettings;
use crate::change::{Change, NetdevIdentity, Words, knobs};
use crate::cpuset::{CpuId, CpuSet};
use crate::host::Netdev;

/// What makes readers poll, of all sockets: those that wait in `poll`, `select` or `epoll_wait`,
/// and those that read.
const BUSY: [&str; 2] = ["net.core.busy_poll", "net.core.busy_read"];
/// CPUs that idle for less than this, on the average, have no time to spend on waiting.
const NO_ROOM: f64 = 0.2;

pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = busy_poll(seen).into_iter().collect();
    found.extend(seen.running().filter_map(|netdev| half_on(seen, netdev)));
    found
}

/// Readers of the whole machine poll, while what receives and reads has no idle time to poll in.
fn busy_poll(seen: &Seen<'_>) -> Option<Finding> {
    let sysctls = &seen.after().net.sysctls;
    let on = |name: &&str| sysctls.get(*name).is_some_and(|value| value.trim().parse().is_ok_and(|usecs: u64| usecs > 0));
    let on: Vec<&str> = BUSY.into_iter().filter(on).collect();
    let mut used = CpuSet::new();
    for silo in seen.silos.queues.iter().filter(|silo| silo.has_traffic()) {
        silo.polls.keys().copied().chain(silo.read_on().into_keys()).for_each(|cpu| used.insert(cpu));
    }
    let idle = |cpu: CpuId| Some(seen.rates.cpus.get(&cpu)?.shares?.idle);
    let idle: Vec<f64> = used.iter().filter_map(idle).collect();
    let mean = idle.iter().sum::<f64>() / idle.len() as f64;
    if on.is_empty() || idle.is_empty() || mean >= NO_ROOM {
        return None;
    }
    let off = |name: &&str| {
        let knob = knobs::Sysctl { name: (*name).to_owned() };
        seen.change(knob, Words::new("0"), "readers poll in time that nobody has to spare")
    };
    let mut evidence: Vec<Evidence> =
        on.iter().map(|name| setting("microseconds that readers poll", sysctls[*name].trim(), *name)).collect();
    evidence.push(Evidence::new(format!("cpus {used} idle, which receive and read"), Measure::Share(mean), "/proc/stat"));
    Some(Finding {
        id: FindingId::BusyPollNoRoom,
        severity: Severity::Info,
        subject: "machine".into(),
        title: "readers busy-poll, and the cpus that receive and read have next to no idle time".into(),
        evidence,
        remedies: vec![
            Remedy::new(
                "switch busy polling off for all, and let those sockets ask for it that need it (SO_BUSY_POLL)",
                Gain::Unknown("how much of the time is spent on polling that finds nothing was not measured".into()),
            )
            .costs("latency: a reader sleeps until it is woken")
            .not_when("the cpus are busy with this polling alone; latency is what matters. Sockets that are open keep busy_read as it was")
            .by(on.iter().flat_map(off).collect()),
        ],
    })
}

/// Interrupts that are to stay off after a poll, without the timer that would poll instead: they do
/// not stay off.
fn half_on(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    // Where each NAPI has its own values, these are in force (6.13).
    let napis = seen.after().audit.iter().flat_map(|audit| netdev.napis.iter().filter_map(|napi| audit.napis.get(&napi.id)));
    let napis: Vec<&NapiSettings> = napis.collect();
    let defers = |it: &&&NapiSettings| it.defer_hard_irqs.is_some_and(|polls| polls > 0);
    let no_timer = |it: &&&NapiSettings| it.gro_flush_timeout_nsecs == Some(0);
    let suspends = |it: &&&NapiSettings| it.irq_suspend_timeout_nsecs.is_some_and(|timeout| timeout > 0);
    let defer = napis.iter().filter(defers).filter(no_timer).count();
    let suspend = napis.iter().filter(suspends).filter(|it| !defers(it) || no_timer(it)).count();
    let by_netdev = netdev.napi_defer_hard_irqs.is_some_and(|polls| polls > 0) && netdev.gro_flush_timeout == Some(0);
    let by_netdev = by_netdev && (defer > 0 || napis.is_empty());
    if !by_netdev && defer == 0 && suspend == 0 {
        return None;
    }
    let mut evidence = Vec::new();
    let mut of_netdev = |name: &str, value: Option<u64>| {
        evidence.extend(value.map(|value| setting(name, value.to_string(), format!("/sys/class/net/{}/{name}", netdev.name))));
    };
    of_netdev("napi_defer_hard_irqs", netdev.napi_defer_hard_irqs.map(u64::from));
    of_netdev("gro_flush_timeout", netdev.gro_flush_timeout);
    let count = |what: &str, count: usize| {
        (count > 0).then(|| Evidence::new(what, Measure::Count(count as u64), "netdev netlink, napi-get"))
    };
    evidence.extend(count("napis that defer without gro_flush_timeout", defer));
    evidence.extend(count("napis with irq_suspend_timeout alone", suspend));
    let changes: Vec<Change> = match by_netdev {
        true => {
            let knob = knobs::NapiDeferHardIrqs { netdev: NetdevIdentity::of(netdev) };
            seen.change(knob, 0, "without gro_flush_timeout it does nothing")
        }
        false => Vec::new(),
    };
    Some(Finding {
        id: FindingId::DeferralHalfOn,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: "interrupts are to stay off after a poll, but no timer polls instead: they do not stay off".into(),
        evidence,
        remedies: vec![
            Remedy::new(
                "have both napi_defer_hard_irqs and gro_flush_timeout, or none",
                Gain::Unknown("what fewer interrupts are worth is judged by itself (IRQ deferral): it hangs on their rate".into()),
            )
            .not_when("a program sets the timeout of its own NAPIs when it starts")
            .by(changes),
        ],
    })
}
