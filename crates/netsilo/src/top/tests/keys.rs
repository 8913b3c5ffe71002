//! The effect of keys.

use super::*;

#[test]
fn ctrl_z_and_the_return_to_the_foreground_are_for_the_terminal() {
    let state = planned(state_of(&bad()));
    let (state, request) = update(state, Event::Suspended);
    assert_eq!(request, Some(Request::Suspend));
    let (state, request) = update(state, Event::Continued);
    assert_eq!(request, Some(Request::Resume));
    assert!(matches!(state.overlay, Some(Overlay::Plan(..))));
}

#[test]
fn keys_choose_the_page() {
    let page = |keys: &str| press(state_of(&bad()), keys).0.page;
    assert_eq!([page("3"), page("\t"), page("7\t")], [Page::Cpus, Page::Queues, Page::Map]);
    assert_eq!(press(state_of(&bad()), "q").1, Some(Request::Quit));
}

#[test]
fn a_filter_is_typed_and_cleared() {
    let (state, _) = press(state_of(&bad()), "4/redq");
    assert!(state.typing && screen(&state, (80, 24)).contains("/redq_"));
    let (state, request) = update(state, Event::Key(KeyCode::Backspace));
    assert_eq!(request, None);
    let (state, _) = press(state, "\n");
    let text = screen(&state, (80, 24));
    assert!(text.contains("only rows with \"red\"; esc shows all"), "{text}");
    assert!(text.contains("redis") && !text.contains("nginx"), "{text}");
    assert!(screen(&press(state, "\u{1b}").0, (80, 24)).contains("nginx"));
}

#[test]
fn the_selected_row_stays_selected_when_rows_are_sorted() {
    let (state, _) = press(state_of(&bad()), "2↓↓");
    assert_eq!(state.view().selected.as_deref(), Some("eth0 rx-2"));
    let (state, _) = press(state, "sr");
    let text = screen(&state, (80, 24));
    assert!(text.contains("▶ eth0 rx-2") && !text.contains("▶ eth0 rx-0"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("eth0 rx-")).collect();
    assert!(rows[0].contains("rx-3") && rows[3].contains("rx-0"), "{text}");
}

#[test]
fn a_frozen_screen_ignores_windows() {
    let (state, _) = press(state_of(&bad()), " ");
    let (state, _) = update(state, Event::Window(window_of(&steered())));
    assert_eq!(state.history.read.len(), 1);
    assert!(screen(&state, (80, 24)).contains("FROZEN: space continues"));
    let (state, _) = press(state, " ");
    let (state, _) = update(state, Event::Window(window_of(&steered())));
    assert!(screen(&state, (80, 24)).contains("haproxy"));
}

#[test]
fn the_interval_grows_and_shrinks_within_limits() {
    let interval = |keys: &str| press(state_of(&bad()), keys).1;
    let request = |ms| Some(Request::Interval(Duration::from_millis(ms)));
    assert_eq!([interval("+"), interval("-")], [request(2000), request(500)]);
    assert_eq!([interval("++++++"), interval("+++++++")], [None, None], "60 s is the longest");
    let between = State { interval: Duration::from_millis(700), ..state_of(&bad()) };
    assert_eq!(press(between.clone(), "-").1, request(500));
    assert_eq!(press(between, "+").1, request(1000));
}

#[test]
fn enter_explains_the_selected_row() {
    let request = |keys: &str| press(state_of(&bad()), keys).1;
    assert_eq!(request("↓\n"), Some(Request::Why("eth0 rx-1".parse().unwrap())));
    assert_eq!(request("3↓\n"), Some(Request::Why("cpu1".parse().unwrap())));
    let (state, _) = press(state_of(&bad()), "5↓\n");
    insta::assert_snapshot!("finding", page(&state, (100, 30)));
    assert!(press(state, "\u{1b}").0.overlay.is_none());
    let (help, _) = press(state_of(&bad()), "?");
    insta::assert_snapshot!("help", page(&help, (80, 40)));
}

#[test]
fn a_plan_is_shown_asked_about_written_and_confirmed() {
    let state = planned(state_of(&bad()));
    insta::assert_snapshot!("plan", page(&state, (100, 24)));
    let (state, request) = press(state, "a");
    assert_eq!(request, None);
    let text = screen(&state, (100, 24));
    assert!(text.contains("restored after 1m unless confirmed? y/n"), "{text}");
    assert_eq!(press(state.clone(), "n").1, None, "only y writes");
    let (state, request) = press(state, "y");
    assert!(matches!(request, Some(Request::Apply(written)) if *written == plan()));
    let (state, _) = update(state, Event::Step("1/3 irq 32: 0 -> 2".into()));
    assert!(press(state.clone(), "q\u{1b}").1.is_none(), "keys wait while settings are written");
    let (state, _) = update(state, Event::Applied(Ok(pending(100))));
    let (state, _) = update(state, Event::Now(Duration::from_secs(58)));
    insta::assert_snapshot!("applied", page(&state, (100, 24)));
    let (state, request) = press(state, "\u{1b}c");
    assert_eq!(request, Some(Request::Confirm(3)));
    let (state, _) = update(state, Event::Settled("transaction 3 is kept".into()));
    let text = screen(&state, (100, 24));
    assert!(state.pending.is_none() && text.contains("transaction 3 is kept"), "{text}");
}

#[test]
fn after_the_deadline_the_journal_is_asked_what_became_of_the_changes() {
    let state = State { pending: Some(pending(100)), ..state_of(&bad()) };
    let (state, request) = update(state, Event::Now(Duration::from_millis(100_500)));
    assert_eq!(request, None, "its guard may still be at work");
    let (state, request) = update(state, Event::Now(Duration::from_secs(102)));
    assert_eq!((request, state.pending), (Some(Request::Confirm(3)), None));
    let (state, _) = update(state, Event::Settled("transaction 3 was undone by its guard".into()));
    assert!(screen(&state, (100, 24)).contains("transaction 3 was undone by its guard"));
}

#[test]
fn the_newest_transaction_is_undone_after_a_question() {
    let (state, request) = press(state_of(&bad()), "u");
    assert_eq!(request, None);
    assert!(screen(&state, (80, 24)).contains("undo the newest transaction? y/n"));
    assert!(press(state.clone(), "n").0.overlay.is_none());
    let (state, request) = press(state, "y");
    assert_eq!(request, Some(Request::Undo));
    let (state, _) =
        update(state, Event::Settled("transaction 3: 3 of 3 settings restored".into()));
    assert!(screen(&state, (80, 24)).contains("3 of 3 settings restored"));
}

#[test]
fn the_plan_of_a_finding_fixes_only_that_finding() {
    let (_, request) = press(state_of(&bad()), "5p");
    let Some(Request::Plan(Some(fix))) = request else { panic!("{request:?}") };
    assert_eq!(fix.to_string(), "far-from-consumers:eth0");
}

#[test]
fn without_root_nothing_is_written_and_that_is_said_once() {
    let state = State::new(COLOUR, Source::Live, Some("not root".into()));
    let (state, _) = update(state, Event::Window(window_of(&bad())));
    assert!(screen(&state, (80, 24)).contains("read-only: not root"));
    let (state, _) = press(state, "↓");
    assert!(!screen(&state, (80, 24)).contains("read-only"), "once");
    let (after_a, request) = press(planned(state.clone()), "ay");
    assert!(request.is_none() && matches!(after_a.overlay, Some(Overlay::Plan(..))));
    let (state, request) = press(state, "u");
    assert!(request.is_none() && screen(&state, (80, 24)).contains("read-only: not root"));
}

#[test]
fn a_second_apply_waits_for_the_first_to_be_confirmed() {
    let state = State { pending: Some(pending(100)), ..planned(state_of(&bad())) };
    let (state, request) = press(state, "a");
    assert_eq!(request, None);
    assert!(screen(&state, (80, 24)).contains("transaction 3 waits: c keeps it, u undoes it"));
}

#[test]
fn an_end_of_observing_is_said() {
    let state = State::new(COLOUR, Source::Live, None);
    assert!(screen(&state, (80, 24)).contains("observing: the first window comes after"));
    let (state, _) = update(state, Event::Ended("cannot read the host".into()));
    assert!(screen(&state, (80, 24)).contains("cannot read the host"));
    let (state, _) = update(state_of(&bad()), Event::Ended("cannot read the eBPF counters".into()));
    assert!(screen(&state, (80, 24)).contains("cannot read the eBPF counters"));
}

#[test]
fn the_windows_of_a_bundle_are_played_and_stepped_through() {
    let bundle = Source::Bundle { window: 0, of: 3 };
    let state = State::new(COLOUR, bundle, Some("a bundle".into()));
    let play = |state, number| update(state, Event::Played(number, window_of(&bad()))).0;
    let state = play(play(state, 1), 2);
    assert!(screen(&state, (80, 24)).contains("window 2 of 3"));
    assert_eq!(state.history.read.len(), 2);
    let (state, request) = press(state, " ");
    assert_eq!(request, Some(Request::Pause(true)));
    assert_eq!(press(state.clone(), "[").1, Some(Request::Step(-1)));
    assert_eq!(press(state.clone(), "]").1, Some(Request::Step(1)));
    // a frozen bundle shows the requested window; the history does not go back
    let state = play(state, 1);
    assert!(screen(&state, (80, 24)).contains("FROZEN: window 1 of 3"));
    assert_eq!(state.history.read.len(), 1);
    assert_eq!(press(state_of(&bad()), "]").1, None, "a live view has no windows to step to");
}
