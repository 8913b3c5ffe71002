//! What is true of a knob after any sequence of inputs.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::pattern::Workload;
use super::*;
use netsilo_model::change::knobs;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;

/// An input as an owned value.
#[derive(Debug, Clone)]
enum Given {
    Shows(u32, Option<Duration>),
    Gone,
    Announced,
    Return,
    Planned(Option<u32>, bool, Workload, Option<f64>),
    Held(Hold),
    Requested(u32),
    Written(WriteKind, Option<f64>, WriteResult),
}

fn cpu(cpu: u32) -> Value {
    Value::Cpus(CpuSet::from_cpu(CpuId(cpu)))
}

fn irq() -> Target {
    Target::IrqAffinity(knobs::IrqAffinity { irq: Irq(30), action: "eth0-0".into(), netdev: None })
}

fn to(new: u32) -> Change {
    Change::untyped(irq(), cpu(9), cpu(new), "near its reader").unwrap()
}

/// Any time, often within the first hours.
fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => (0..20_000u64).prop_map(Duration::from_secs), 1 => Just(Duration::MAX)]
}

fn given() -> impl Strategy<Value = Given> {
    let some_cpu = || 0..3u32;
    let workloads = [Workload::Changed, Workload::JustChanged, Workload::Same, Workload::Unrest];
    let share = || proptest::option::of(0.0..1.0f64);
    let result = prop_oneof![
        4 => some_cpu().prop_map(|it| WriteResult::InEffect(cpu(it))),
        2 => Just(WriteResult::Refused("EIO".into())),
        2 => some_cpu().prop_map(|it| WriteResult::Overwritten(cpu(it))),
        1 => Just(WriteResult::Gone),
    ];
    let kinds = [WriteKind::Write, WriteKind::Reapply, WriteKind::Revert];
    prop_oneof![
        3 => (some_cpu(), proptest::option::of(time())).prop_map(|(v, at)| Given::Shows(v, at)),
        1 => Just(Given::Gone),
        1 => Just(Given::Announced),
        1 => Just(Given::Return),
        4 => (proptest::option::of(some_cpu()), any::<bool>(), select(workloads.to_vec()), share())
            .prop_map(|(want, same, workload, share)| Given::Planned(want, same, workload, share)),
        1 => select(vec![Hold::Noise, Hold::SmallGain(1), Hold::Followed, Hold::Budget(1)])
            .prop_map(Given::Held),
        2 => some_cpu().prop_map(Given::Requested),
        3 => (select(kinds.to_vec()), share(), result)
            .prop_map(|(kind, share, result)| Given::Written(kind, share, result)),
    ]
}

fn policies() -> impl Strategy<Value = Policy> {
    (time(), time(), time(), proptest::option::of(time())).prop_map(
        |(dwell, calm, hold_off, yield_for)| Policy {
            dwell,
            calm,
            hold_off,
            yield_for,
            ..Policy::default()
        },
    )
}

fn step(knob: TrackedKnob, now: Duration, policy: &Policy, given: &Given) -> Step {
    let target = irq();
    let context = Context { now, target: &target, policy, owners: &[] };
    match given {
        Given::Shows(value, event) => {
            let event = event.map(|at| (at, Event::Resumed));
            knob.step(&context, Input::Shows { value: &cpu(*value), event: event.as_ref() })
        }
        Given::Gone => knob.step(&context, Input::Gone),
        Given::Announced => knob.step(&context, Input::Announced(&Event::Resumed)),
        Given::Return => knob.step(&context, Input::Return { why: "asked to" }),
        Given::Planned(want, same, workload, read_there) => {
            let change = want.map(to);
            let (same, workload, read_there) = (*same, *workload, *read_there);
            let planned = Planned { change: change.as_ref(), same, workload, read_there };
            knob.step(&context, Input::Planned(planned))
        }
        Given::Held(hold) => knob.step(&context, Input::Held(hold)),
        Given::Requested(new) => knob.step(&context, Input::Requested(&to(*new))),
        Given::Written(request, read_there, result) => {
            let (request, read_there) = (*request, *read_there);
            knob.step(&context, Input::Written { request, change: &to(1), read_there, result })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any input in any reachable state, at any time, under any policy.
    #[test]
    fn step_is_total_and_ends_where_the_input_says(
        policy in policies(),
        reset: bool,
        inputs in vec((time(), given()), 1..60),
    ) {
        let mut knob = TrackedKnob::new(Duration::ZERO, reset);
        for (now, given) in &inputs {
            let (was, before) = (knob.clone(), knob.state.clone());
            let (next, actions) = step(knob, *now, &policy, given);
            prop_assert_eq!(&step(was, *now, &policy, given), &(next.clone(), actions.clone()));
            match given {
                Given::Written(_, _, WriteResult::InEffect(value)) => {
                    prop_assert_eq!(next.ours(), Some(value));
                    prop_assert!(next.wanted().is_none());
                }
                Given::Written(_, _, WriteResult::Overwritten(value)) => {
                    prop_assert_eq!(next.as_yielded().map(|it| &it.theirs), Some(value));
                }
                Given::Written(_, _, WriteResult::Gone) | Given::Gone => {
                    prop_assert!(next.is_blank() && actions.contains(&Action::Forget));
                }
                Given::Shows(value, _) => {
                    prop_assert!(next.ours().is_none_or(|ours| *ours == cpu(*value)));
                    let lost = matches!(before, KnobState::Ours(_)) && next.ours().is_none();
                    prop_assert_eq!(actions.contains(&Action::EndVerifications), lost);
                }
                Given::Return => prop_assert!(next.as_yielded().is_none()),
                Given::Planned(want, ..) => {
                    prop_assert_eq!(next.wanted().cloned(), want.map(to));
                }
                Given::Announced | Given::Held(_) | Given::Requested(_)
                | Given::Written(_, _, WriteResult::Refused(_)) => {}
            }
            let hold = next.hold(*now, true, Some(0), false, &policy);
            prop_assert!(next.as_yielded().is_none() || hold.is_some(), "{:?}", next);
            knob = next;
        }
    }
}

#[test]
fn a_refusal_is_kept_in_each_state_and_ends_with_a_write() {
    let (policy, now) = (Policy::default(), Duration::from_secs(1000));
    let refused = Given::Written(WriteKind::Write, None, WriteResult::Refused("EIO".into()));
    let planned = Given::Planned(Some(1), true, Workload::Changed, None);
    let (knob, _) = step(TrackedKnob::new(now, true), now, &policy, &planned);
    assert_eq!(
        knob.hold(now, false, None, false, &policy),
        None,
        "a re-application waits for nothing"
    );
    let (knob, actions) = step(knob, now, &policy, &refused);
    let why = "EIO; next attempt at 1060 s".to_owned();
    assert_eq!(actions, [Action::Log(LogKind::Refused, why)]);
    let until = Duration::from_secs(1060);
    let hold = knob.hold(now, false, None, false, &policy);
    assert_eq!(hold, Some(Hold::Refused(until, "EIO".into())));
    assert_eq!(knob.hold(until, false, None, false, &policy), None);
    let in_effect = Given::Written(WriteKind::Reapply, None, WriteResult::InEffect(cpu(1)));
    let (knob, _) = step(knob, until, &policy, &in_effect);
    assert_eq!(knob.ours(), Some(&cpu(1)));
    assert_eq!(knob.history.refusal, None);
}

/// A knob with this want, planned twice under a changed workload.
fn wanting(now: Duration, policy: &Policy) -> TrackedKnob {
    let planned = Given::Planned(Some(1), true, Workload::Changed, None);
    let (knob, _) = step(TrackedKnob::new(now, false), now, policy, &planned);
    step(knob, now, policy, &planned).0
}

#[test]
fn a_gain_below_the_least_one_holds_a_change() {
    let policy = Policy { min_gain: 0.01, ..Policy::default() };
    let now = Duration::from_secs(1000);
    let knob = wanting(now, &policy);
    let held =
        |gain| matches!(knob.hold(now, false, gain, false, &policy), Some(Hold::SmallGain(_)));
    assert!(held(Some(9_999_999)));
    assert!(!held(Some(10_000_000)) && !held(Some(20_000_000)) && !held(None));
}

#[test]
fn an_event_announced_long_after_another_programs_write_does_not_explain_it() {
    let (policy, then) = (Policy::default(), Duration::from_secs(1000));
    let in_effect = Given::Written(WriteKind::Write, None, WriteResult::InEffect(cpu(1)));
    let (knob, _) = step(wanting(then, &policy), then, &policy, &in_effect);
    let (knob, _) = step(knob, then, &policy, &Given::Shows(2, None));
    assert!(knob.as_yielded().is_some());
    let soon = step(knob.clone(), then + GRACE, &policy, &Given::Announced).0;
    assert!(soon.as_yielded().is_none() && soon.is_reset());
    let late = then + GRACE + Duration::from_secs(1);
    assert!(step(knob, late, &policy, &Given::Announced).0.as_yielded().is_some());
}

#[test]
fn readers_follow_if_they_come_to_the_knobs_core_after_a_move() {
    let (policy, now) = (Policy::default(), Duration::from_secs(1000));
    let moved_twice = |read_there_after: f64| {
        let mut knob = wanting(now, &policy);
        for _ in 0..2 {
            let in_effect = WriteResult::InEffect(cpu(1));
            let written = Given::Written(WriteKind::Write, Some(0.2), in_effect);
            let planned = Given::Planned(Some(2), true, Workload::Changed, Some(read_there_after));
            knob = step(knob, now, &policy, &written).0;
            knob = step(knob, now, &policy, &planned).0;
        }
        knob.history.is_followed(now)
    };
    assert!(moved_twice(0.9));
    assert!(!moved_twice(0.2) && !moved_twice(0.25));
}

#[test]
fn what_gains_too_little_is_held_until_the_workload_changes_and_may_go_along() {
    let (now, policy) = (Duration::from_secs(1000), Policy::default());
    let want = |knob: TrackedKnob, workload| {
        step(knob, now, &policy, &Given::Planned(Some(1), true, workload, None)).0
    };
    let knob = want(want(TrackedKnob::default(), Workload::Changed), Workload::JustChanged);
    let (small, large) = (Some(1), Some(1_000_000_000));
    let hold =
        |knob: &TrackedKnob, gain, goes_along| knob.hold(now, false, gain, goes_along, &policy);
    assert_eq!(hold(&knob, small, false), Some(Hold::SmallGain(1)));
    assert_eq!(hold(&knob, large, false), None);
    let knob = step(knob, now, &policy, &Given::Held(Hold::SmallGain(1))).0;
    let knob = want(knob, Workload::Same);
    assert_eq!(hold(&knob, large, false), Some(Hold::SmallGain(1_000_000_000)));
    assert_eq!(hold(&knob, large, true), None);
    assert_eq!(hold(&want(knob, Workload::Changed), large, false), None);
}
