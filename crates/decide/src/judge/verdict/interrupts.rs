//! Verdicts on fewer interrupts for the same packets: interrupt coalescing in the device, or
//! polling from a kernel timer.

use netsilo_model::change::{Settings, knobs};
use netsilo_model::drivers::table::Drivers;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::ethtool::Coalesce;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_predict::live::claim::Claim;

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::moderation::Moderation;
use crate::judge::verdict::effect::{Effect, percent, unjudged};
use crate::judge::verdict::look::NetdevLook;
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};

/// Packets per interrupt from which a longer wait is not worthwhile.
const ENOUGH: f64 = 8.0;
/// The shortest and the longest proposed wait in microseconds.
const WAIT_USECS: (f64, f64) = (5.0, 100.0);
/// Empty polls from the timer after which the interrupt is enabled again: one late packet does not
/// end the deferral.
const EMPTY_POLLS: u32 = 2;

/// The verdict on interrupt coalescing in the device.
pub(super) fn coalescing(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Coalescing;
    let Some(settings) = coalesce(look) else {
        return RemedyVerdict::new(
            look,
            remedy,
            Claim::NoClearChange,
            "its driver does not support changing it",
        );
    };
    let moderation = Moderation::of_device(look.netdev, settings);
    let now = Measure::Text(moderation.in_words());
    let now = Evidence::new("interrupt delay", now, moderation.source());
    if moderation == Moderation::Adaptive {
        let because = "it is adaptive: the driver waits longer as packets arrive faster";
        return RemedyVerdict::new(look, remedy, Claim::NoClearChange, because).reasons(vec![now]);
    }
    let wait = wait_usecs(look);
    if settings.rx_coalesce_usecs >= wait {
        let because = format!(
            "it already waits {} us: a longer wait delays each packet",
            settings.rx_coalesce_usecs
        );
        return RemedyVerdict::new(look, remedy, Claim::NoClearChange, because).reasons(vec![now]);
    }
    let (drivers, release) = (Drivers::shipped(), &look.analysis.observation.after.machine.release);
    let adapts = drivers.supports_coalesce(look.netdev, release, "adaptive-rx");
    let (name, value, reason) = if adapts {
        (
            "adaptive-rx",
            1,
            "the driver waits longer as packets arrive faster, and not at all when they are rare"
                .into(),
        )
    } else {
        ("rx-usecs", wait, format!("in {wait} us, {ENOUGH:.0} packets arrive at the present rate"))
    };
    // A value other than 0 shows that the driver supports the setting.
    let supported = adapts
        || settings.rx_coalesce_usecs > 0
        || drivers.supports_coalesce(look.netdev, release, "rx-usecs");
    let edit = |settings: &Settings| Some(settings.clone().with(name, value));
    let knob = knobs::Coalesce { netdev: NetdevIdentity::from_netdev(look.netdev) };
    let verdict = fewer_interrupts(look, remedy, now, |it| it.writes(look, knob, edit, &reason));
    if supported { verdict } else { RemedyVerdict { changes: Vec::new(), ..verdict } }
}

/// The verdict on IRQ deferral, which polls from a timer instead of taking interrupts.
pub(super) fn deferral(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::IrqDeferral;
    let no_change = |because: &str| RemedyVerdict::new(look, remedy, Claim::NoClearChange, because);
    if coalesce(look).is_some() {
        return no_change("its device supports coalescing, which does the same without a timer");
    }
    let (Some(polls), Some(timeout)) =
        (look.netdev.napi_defer_hard_irqs, look.netdev.gro_flush_timeout)
    else {
        return no_change("this kernel does not support it (5.8 and later do)");
    };
    if polls > 0 && timeout > 0 {
        return no_change("it is on (napi_defer_hard_irqs, gro_flush_timeout)");
    }
    let now = Evidence::new(
        "coalescing",
        Measure::Text("not supported by its driver".into()),
        "ethtool -c",
    );
    let wait = wait_usecs(look);
    let netdev = || NetdevIdentity::from_netdev(look.netdev);
    let at_least = |least: u32| move |count: &u32| Some(least.max(*count));
    let reason = format!(
        "the timer polls every {wait} us, in which {ENOUGH:.0} packets arrive at the present rate"
    );
    let empty =
        format!("the interrupt stays off until {EMPTY_POLLS} consecutive polls find nothing");
    let (timer, polls) = (
        knobs::GroFlushTimeout { netdev: netdev() },
        knobs::NapiDeferHardIrqs { netdev: netdev() },
    );
    fewer_interrupts(look, remedy, now, |it| {
        it.writes(look, timer, at_least(wait * 1000), &reason).writes(
            look,
            polls,
            at_least(EMPTY_POLLS),
            &empty,
        )
    })
}

fn coalesce<'a>(look: &NetdevLook<'a>) -> Option<&'a Coalesce> {
    look.netdev.ethtool.as_ref()?.coalesce.value()
}

/// The time in microseconds in which [`ENOUGH`] packets arrive on the busiest queue, within
/// [`WAIT_USECS`].
fn wait_usecs(look: &NetdevLook<'_>) -> u32 {
    let (shortest, longest) = WAIT_USECS;
    let most = look.received.most_packets_per_s();
    (ENOUGH / most * 1e6).clamp(shortest, longest).round() as u32
}

/// The verdict on the changes that `write` adds, which let several packets share an interrupt.
fn fewer_interrupts(
    look: &NetdevLook<'_>,
    remedy: RemedyName,
    now: Evidence,
    write: impl FnOnce(RemedyVerdict) -> RemedyVerdict,
) -> RemedyVerdict {
    let rates = look.received.silos().filter_map(|silo| silo.interrupts_per_s.as_ref());
    let interrupts: f64 = rates.flat_map(|rates| rates.values()).sum();
    let each = (interrupts > 0.0).then(|| look.received.packets_per_s() / interrupts);
    let elapsed = look.analysis.observation.attribution.elapsed.as_secs_f64();
    let times = &look.analysis.observation.attribution.cpu_time;
    let hardirq = |cpu: CpuId| {
        Some(times.get(&cpu).filter(|_| elapsed > 0.0)?.hardirq_ns as f64 / 1e9 / elapsed)
    };
    let time: Option<f64> = look.received.pollers().iter().map(hardirq).sum();
    let mut reasons =
        vec![now, Evidence::new("interrupts", Measure::PerSecond(interrupts), "/proc/interrupts")];
    reasons.extend(each.map(|each| {
        Evidence::new(
            "packets per interrupt",
            Measure::Text(format!("{each:.1}")),
            "/proc/interrupts, napi_poll",
        )
    }));
    reasons.extend(time.map(|time| {
        Evidence::new(
            "time in interrupt handlers",
            Measure::Share(time),
            "eBPF (irq_handler_entry)",
        )
    }));
    let verdict = |claim, because: String| {
        RemedyVerdict::new(look, remedy, claim, because).reasons(reasons.clone())
    };
    let Some(each) = each else {
        return verdict(Claim::Unknown, "its interrupts or packets were not counted".into());
    };
    if each >= ENOUGH {
        return verdict(
            Claim::NoClearChange,
            format!("each interrupt already announces {each:.0} packets"),
        );
    }
    let changes = write(verdict(Claim::NoClearChange, String::new())).changes;
    let effect = match Effect::of(look, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(look, remedy, why).reasons(reasons),
    };
    let because = match (time, effect.is_near()) {
        (None, true) => {
            let because =
                format!("{}; the time in interrupt handlers was not measured", effect.now(look));
            return verdict(Claim::Unknown, because);
        }
        (Some(time), _) if effect.claim == Claim::Help => format!(
            "{}, {} in interrupt handlers for {each:.1} packets each ({})",
            effect.now(look),
            percent(time),
            effect.between()
        ),
        _ => format!("{}; fewer interrupts: {}", effect.now(look), effect.between()),
    };
    let judged = verdict(effect.claim, because).gain(effect.as_gain());
    if judged.claim != Claim::Help {
        return judged;
    }
    judged.calls_for(Claim::Help, changes).not_when(
        "each request waits for the previous answer: the device's or timer's wait delays each \
         answer",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::findings::check;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::machine::reading::Reading;
    use netsilo_model::snapshot::ethtool::Ethtool;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::SceneNetdev;
    use netsilo_model::synthetic::scene::SceneQueue;
    use netsilo_model::synthetic::scene::{CpuLoad, Scene};

    /// The verdict for 120 thousand packets per second with an interrupt for every second packet,
    /// on a CPU that spends 30% of its time in interrupt handlers, and all else in tasks.
    fn judged(driver: &str, coalesce: Option<Coalesce>, remedy: RemedyName) -> RemedyVerdict {
        let (irq, cpus) = (Some(30), CpuSet::from_cpu(CpuId(0)));
        let queue = SceneQueue {
            irq,
            cpus,
            packets_per_s: 120_000,
            packets_per_poll: 2,
            load: 0.3,
            ..SceneQueue::default()
        };
        let (name, queues) = ("eth0".into(), vec![queue]);
        let netdev = SceneNetdev { name, driver: driver.into(), queues, ..SceneNetdev::default() };
        let busy = vec![CpuLoad { cpus: CpuSet::from_cpu(CpuId(0)), usr: 0.4 }];
        let scene =
            Scene { grid: Grid::default(), busy, netdevs: vec![netdev], ..Scene::default() };
        let mut observation = scene.observation();
        observation.after.machine.release = "6.12.48".into();
        let time = observation.attribution.cpu_time.get_mut(&CpuId(0)).unwrap();
        (time.hardirqs, time.hardirq_ns) = (600_000, 3_000_000_000);
        for snapshot in [&mut observation.before, &mut observation.after] {
            let netdev = &mut snapshot.netdevs[0];
            (netdev.napi_defer_hard_irqs, netdev.gro_flush_timeout) = (Some(0), Some(0));
            netdev.ethtool = coalesce.map(|it| Ethtool {
                coalesce: Reading::Value(it),
                ..Ethtool::unavailable("not asked")
            });
        }
        let all = check(&Analysis::new(&observation, &Costs::default())).verdicts;
        all.into_iter().find(|verdict| verdict.remedy == remedy).unwrap()
    }

    fn written(verdict: &RemedyVerdict) -> Vec<String> {
        verdict
            .changes
            .iter()
            .map(|change| format!("{}: {} -> {}", change.target, change.old, change.new))
            .collect()
    }

    #[test]
    fn adaptive_coalescing_is_enabled_where_supported_else_a_wait_is_set() {
        let ena = judged("ena", Some(Coalesce::default()), RemedyName::Coalescing);
        assert!(ena.claim == Claim::Help && written(&ena)[0].contains("adaptive-rx"), "{ena:?}");
        let waits = Coalesce { rx_coalesce_usecs: 2, ..Coalesce::default() };
        let plain = judged("atlantic", Some(waits), RemedyName::Coalescing);
        assert!(plain.claim == Claim::Help, "{plain:?}");
        assert!(written(&plain)[0].contains("rx-usecs=67"), "8 packets in 67 us: {plain:?}");
        let shows_it = judged("nobody-knows-it", Some(waits), RemedyName::Coalescing);
        assert_eq!(written(&shows_it), written(&plain), "a value other than 0 is supported");
        let unknown = judged("nobody-knows-it", Some(Coalesce::default()), RemedyName::Coalescing);
        assert_eq!(
            (unknown.claim, written(&unknown)),
            (Claim::Help, vec![]),
            "the value 0 may mean that the driver lacks the setting"
        );
    }

    #[test]
    fn adaptive_modes_and_long_waits_are_not_changed() {
        for (driver, usecs) in [("igb", 3), ("ixgbe", 1), ("atlantic", 80)] {
            let waits = Coalesce { rx_coalesce_usecs: usecs, ..Coalesce::default() };
            let verdict = judged(driver, Some(waits), RemedyName::Coalescing);
            assert_eq!(
                (verdict.claim, verdict.changes.len()),
                (Claim::NoClearChange, 0),
                "{driver}: {verdict:?}"
            );
        }
    }

    #[test]
    fn irq_deferral_is_proposed_only_where_the_device_cannot_coalesce() {
        let timer = judged("virtio_net", None, RemedyName::IrqDeferral);
        let wanted = ["eth0 gro_flush_timeout: 0 -> 67000", "eth0 napi_defer_hard_irqs: 0 -> 2"];
        assert_eq!(
            (timer.claim, written(&timer)),
            (Claim::Help, wanted.map(str::to_owned).to_vec())
        );
        let both = judged("ena", Some(Coalesce::default()), RemedyName::IrqDeferral);
        assert_eq!((both.claim, both.changes.len()), (Claim::NoClearChange, 0));
    }
}
