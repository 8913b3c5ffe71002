//! The pages as a terminal shows them, at three sizes.

mod keys;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use netsilo_decide::control::{LogEntry, LogKind};
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::judge::fix::FixRequest;
use netsilo_decide::plan::{Goal, Plan};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::sanitize::is_control;
use netsilo_model::snapshot::attribution::Hook;
use netsilo_model::snapshot::drops::{DroppedPackets, QUANTITY};
use netsilo_model::snapshot::ethtool::Ethtool;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::synthetic::scene::Scene;
use netsilo_sys::daemon::self_cost::SelfCost;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use serde_json::{Value, json};

use crate::tell::palette::{Depth, Meaning, Palette};
use crate::tell::status::{ConfigStatus, Mode, Status};
use crate::top::draw::draw;
use crate::top::state::{Overlay, Page, Pending, Source, State};
use crate::top::update::{Event, Request, update};
use crate::top::window::Window;
use crate::top::{pages, save};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

const COLOUR: Palette = Palette { depth: Depth::Rgb, unicode: true };

fn scene(path: &str) -> Scene {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases").join(path);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn window_of(scene: &Scene) -> Arc<Window> {
    let none = Err("the daemon is not running; start it with `netsilo run`".into());
    Arc::new(Window::new(scene.observation(), &Costs::default(), none))
}

/// A live machine on which changes can be written.
fn state_of(scene: &Scene) -> State {
    let state = State::new(COLOUR, Source::Live, None);
    update(state, Event::Window(window_of(scene))).0
}

fn press(state: State, keys: &str) -> (State, Option<Request>) {
    let key = |c| match c {
        '\n' => KeyCode::Enter,
        '\t' => KeyCode::Tab,
        '\u{1b}' => KeyCode::Esc,
        '↓' => KeyCode::Down,
        c => KeyCode::Char(c),
    };
    keys.chars().fold((state, None), |(state, _), c| update(state, Event::Key(key(c))))
}

fn screen(state: &State, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame.buffer_mut(), state)).unwrap();
    let lines: Vec<String> = terminal
        .backend()
        .to_string()
        .lines()
        .map(|line| line.trim_matches('"').trim_end().to_owned())
        .collect();
    lines.join("\n") + "\n"
}

/// How many lines the frame around each page has, above and below.
const FRAME: (usize, usize) = (2, 1);

/// What a page shows inside the frame.
fn page(state: &State, size: (u16, u16)) -> String {
    let screen = screen(state, size);
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(lines.len(), usize::from(size.1), "{screen}");
    let page = lines[FRAME.0..lines.len() - FRAME.1].join("\n");
    format!("{}x{}\n{}\n", size.0, size.1, page.trim_end())
}

/// The frame at three sizes.
fn frame(state: &State) -> String {
    let frame = |size: (u16, u16)| {
        let screen = screen(state, size);
        let lines: Vec<&str> = screen.lines().collect();
        let (above, below) = (&lines[..FRAME.0], &lines[lines.len() - FRAME.1..]);
        format!("{}x{}\n{}\n{}\n", size.0, size.1, above.join("\n"), below.join("\n"))
    };
    SIZES.map(frame).concat()
}

fn at_three_sizes(state: &State) -> String {
    SIZES.map(|size| page(state, size)).join("\n")
}

/// Two sockets. The queues of the first are read on the second, as after a boot.
fn bad() -> Scene {
    scene("virtio-all-on-cpu0/before.json")
}

#[test]
fn each_page_has_the_recorded_look_at_three_sizes() {
    let state = state_of(&bad());
    for (digit, page) in ('1'..).zip(Page::ALL) {
        let (state, _) = press(state.clone(), &digit.to_string());
        insta::assert_snapshot!(page.name(), at_three_sizes(&state));
    }
}

#[test]
fn the_frame_of_each_page_has_the_recorded_look_and_marks_the_page() {
    let state = state_of(&bad());
    insta::assert_snapshot!("frame", frame(&state));
    let of_map = frame(&state);
    for (digit, page) in ('1'..).zip(Page::ALL) {
        let (state, _) = press(state.clone(), &digit.to_string());
        let frame = frame(&state);
        assert_eq!(frame.matches(&format!("[{digit} {}", page.name())).count(), 3, "{frame}");
        let unmarked = |frame: &str| frame.replace(['[', ']'], " ").replace(" \n", "\n");
        assert_eq!(unmarked(&frame), unmarked(&of_map));
    }
}

/// A daemon that wrote an affinity, measured a gain, and left a mask to another program.
fn daemon() -> Status {
    let seconds = Duration::from_secs;
    let entry = |at, target: Option<Value>, kind, why: &str| LogEntry {
        at: seconds(at),
        target: target.map(|it| serde_json::from_value(it).unwrap()),
        kind,
        why: why.into(),
    };
    let eth0 = json!({ "name": "eth0", "device_path": null });
    let irq = json!({ "knob": "irq_affinity", "irq": 32, "action": "eth0-rx-2", "netdev": eth0 });
    let irq = || Some(irq.clone());
    let rps = Some(json!({ "knob": "rps_cpus", "netdev": eth0, "queue": 1 }));
    let of_another = "another program wrote 0000000f: left alone for 10m\u{1b}[2J";
    let log = vec![
        entry(4000, irq(), LogKind::Write, "0 -> 2: nginx reads rx-2 under the cache of cpu 2"),
        entry(4001, irq(), LogKind::InEffect, "2"),
        entry(4061, None, LogKind::Confirm, "the cost of 1 change fell from 0.61 to 0.34"),
        entry(7000, rps, LogKind::Yield, of_another),
    ];
    let config = ConfigStatus {
        files: vec!["/etc/netsilo/netsilo.toml".into()],
        interval: seconds(10),
        error: None,
    };
    let first = Status::first(seconds(60), Mode::Placing, Vec::new());
    let own = SelfCost { cpu: Duration::from_millis(8300), resident_bytes: Some(36_000_000) };
    Status { version: "1.2.3".into(), pid: 812, at: seconds(7260), log, config, own, ..first }
}

#[test]
fn the_decisions_of_a_daemon_have_the_recorded_look_the_newest_first() {
    let window = Window::new(bad().observation(), &Costs::default(), Ok(daemon()));
    let state = State::new(COLOUR, Source::Live, None);
    let (state, _) = update(state, Event::Window(Arc::new(window)));
    let (state, _) = press(state, "6");
    insta::assert_snapshot!("decisions-of-a-daemon", at_three_sizes(&state));
    let (state, _) = press(state, "/irq\n");
    let text = screen(&state, (120, 40));
    assert!(text.contains("in effect") && !text.contains("another program"), "{text}");
}

/// 512 CPUs on 8 nodes with 64 queues. 2 of the queues are read far away.
fn large() -> Scene {
    let queue = |at: u64| {
        let reader = serde_json::json!({ "comm": "envoy", "cpu": (at * 8 + at % 2 * 256) % 512,
            "bytes_per_s": 1_000_000 });
        serde_json::json!({ "irq": 100 + at, "cpus": (at * 8).to_string(), "packets_per_s": 9000,
            "load": 0.2, "readers": [reader] })
    };
    let queues: Vec<_> = (0..64).map(queue).collect();
    serde_json::from_value(serde_json::json!({
        "grid": { "nodes": 8, "llcs": 4, "l2s": 8, "threads": 2, "siblings_apart": true },
        "netdevs": [{ "name": "eth0", "driver": "mlx5_core", "node": 0, "queues": queues }],
    }))
    .unwrap()
}

/// RPS spreads one queue over a cache. A queue of another device is quiet.
fn steered() -> Scene {
    serde_json::from_value(serde_json::json!({
        "grid": { "nodes": 2, "llcs": 2, "l2s": 2, "threads": 2, "siblings_apart": true },
        "netdevs": [
            { "name": "eth0", "driver": "virtio_net", "node": 0, "queues": [{
                "irq": 30, "cpus": "0", "rps_cpus": "1,9", "packets_per_s": 9000, "load": 0.3,
                "handed_load": 0.2, "readers": [
                    { "comm": "haproxy", "cpu": 1, "bytes_per_s": 700 },
                    { "comm": "haproxy", "cpu": 8, "bytes_per_s": 200 },
                    { "comm": "backup", "cpu": 2, "bytes_per_s": 100 },
                ] }] },
            { "name": "eth1", "driver": "igb", "node": 1, "queues": [
                { "irq": 40, "cpus": "4", "packets_per_s": 50, "load": 0.01 },
                { "irq": 41, "cpus": "5" }, { "irq": 42, "cpus": "6" },
            ] },
        ],
    }))
    .unwrap()
}

#[test]
fn the_map_shows_many_machines() {
    let proxy = scene("auto-proxy-every-queue-feeds-every-worker/before.json");
    let proxy = state_of(&proxy);
    let maps = [
        page(&proxy, (80, 24)),
        page(&proxy, (120, 24)),
        page(&state_of(&steered()), (100, 24)),
        page(&in_ascii(), (80, 24)),
    ];
    insta::assert_snapshot!("maps", maps.join("\n"));
}

#[test]
fn a_large_machine_is_summed_up() {
    let state = state_of(&large());
    let (zoomed, _) = press(state.clone(), "zz");
    let (cpus, _) = press(state.clone(), "3");
    let pages = [
        page(&state, (80, 24)),
        page(&state, (200, 60)),
        page(&zoomed, (80, 24)),
        page(&cpus, (120, 40)),
    ];
    insta::assert_snapshot!("512-cpus", pages.join("\n"));
}

/// A terminal without UTF-8.
fn in_ascii() -> State {
    let ascii = Palette { depth: Depth::None, unicode: false };
    State { palette: ascii, ..state_of(&bad()) }
}

#[test]
fn a_terminal_without_utf8_gets_ascii() {
    let state = in_ascii();
    let drops = State { palette: state.palette, ..dropping() };
    for state in
        ["1", "3", "4", "5", "p"].map(|keys| press(state.clone(), keys).0).iter().chain([&drops])
    {
        let screen = screen(state, (100, 30));
        assert!(screen.is_ascii(), "{screen}");
    }
}

#[test]
fn colours_change_no_text() {
    for scene in [bad(), steered()] {
        for digit in '1'..='7' {
            let (state, _) = press(state_of(&scene), &digit.to_string());
            let plain = Palette { depth: Depth::None, ..COLOUR };
            let plain = State { palette: plain, ..state.clone() };
            assert_eq!(screen(&state, (120, 40)), screen(&plain, (120, 40)));
        }
    }
}

#[test]
fn what_is_read_on_another_node_has_another_shape_and_another_colour() {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame.buffer_mut(), &state_of(&bad()))).unwrap();
    let cells = || terminal.backend().buffer().content().iter();
    let colours = |symbol: &str| -> Vec<_> {
        let mut colours: Vec<_> =
            cells().filter(|cell| cell.symbol() == symbol).map(|cell| cell.fg).collect();
        colours.dedup();
        colours
    };
    let style = |meaning| COLOUR.style(meaning).fg.unwrap();
    assert_eq!(colours("×"), [style(Meaning::Bad)]);
    assert_eq!(colours("═"), [style(Meaning::Bad)]);
    assert_eq!(colours("○"), [style(Meaning::Good)]);
}

#[test]
fn hostile_names_stay_in_their_cells() {
    let scene: Scene = serde_json::from_value(serde_json::json!({
        "grid": { "nodes": 2, "l2s": 2 },
        "netdevs": [{ "name": "e\u{1b}[2Jth", "driver": "x\u{202e}y\n", "queues": [{
            "irq": 30, "cpus": "0", "packets_per_s": 9000, "load": 0.9,
            "readers": [{ "comm": "a\u{1b}]0;owned\u{7}\u{200b}", "cpu": 2, "bytes_per_s": 10 }],
        }] }],
    }))
    .unwrap();
    let state = state_of(&scene);
    for keys in ["1", "1\n", "2", "3", "3\n", "4", "5", "5\n", "6", "7", "7\n"] {
        let (state, _) = press(state.clone(), keys);
        let mut terminal = Terminal::new(TestBackend::new(160, 40)).unwrap();
        terminal.draw(|frame| draw(frame.buffer_mut(), &state)).unwrap();
        let cells = terminal.backend().buffer().content();
        let symbols: String = cells.iter().map(|cell| cell.symbol()).collect();
        assert!(!symbols.contains(is_control), "{keys}: {symbols:?}");
    }
    assert!(screen(&state, (160, 40)).contains("a\\u{1b}]0;owned\\u{7}\\u{200b}"));
}

/// The states that are drawn at many sizes: each page and overlay, with and without a transaction.
fn many_states() -> Vec<State> {
    let pending = pending(60);
    let mut states = Vec::new();
    for base in [bad(), large(), steered()].map(|scene| state_of(&scene)) {
        let keys = ["1", "2", "3", "4", "5", "6", "7", "?", "5\n", "4\n", "/x", "1zz"];
        let mut of_base: Vec<State> = keys.map(|keys| press(base.clone(), keys).0).into();
        let (asking, _) = press(planned(base.clone()), "a");
        of_base.extend([press(base, "u").0, asking]);
        of_base
            .extend(of_base.clone().into_iter().map(|it| State { pending: Some(pending), ..it }));
        states.extend(of_base);
    }
    let daemon = Window::new(bad().observation(), &Costs::default(), Ok(daemon()));
    let waiting = State::new(COLOUR, Source::Live, None);
    let (daemon, _) = update(waiting.clone(), Event::Window(Arc::new(daemon)));
    states.extend([waiting, press(daemon, "6").0, dropping(), press(dropping(), "\n").0]);
    states
}

const WIDTHS: [u16; 11] = [1, 5, 15, 30, 45, 60, 79, 80, 100, 133, 200];

#[test]
fn a_short_terminal_drops_whole_parts_and_no_part_overlaps_another() {
    let trimmed = |line: &str| line.trim_matches(['│', ' ']).to_owned();
    for (at, state) in many_states().into_iter().enumerate() {
        // each state at some of the widths, because drawing all of them takes a minute
        for width in WIDTHS.into_iter().skip(at % 4).step_by(4) {
            // each line must be a line of a terminal that is high enough for everything
            let tall = screen(&state, (width, 150));
            let all: Vec<String> = tall.lines().map(trimmed).collect();
            for height in (1..13).chain([15, 20, 24, 40]) {
                let short = screen(&state, (width, height));
                let mut rest = all.iter();
                for line in short.lines().map(trimmed).filter(|line| !line.is_empty()) {
                    let is_cut = line.starts_with("? ") && !line.starts_with("? h");
                    assert!(
                        is_cut || rest.any(|of_tall| *of_tall == line),
                        "state {at} at {width}x{height}: {line:?}\n{short}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_keys_are_shown_whole_and_the_most_important_ones_last_of_all() {
    let keys = |width| screen(&state_of(&bad()), (width, 15)).lines().last().unwrap().to_owned();
    let all = "? help  / filter  space freeze  enter explain  p plan  u undo  w save  q quit";
    assert_eq!(keys(80), all);
    for width in 14..80 {
        let shown = keys(width);
        assert!(shown.split("  ").all(|key| all.contains(key)), "{shown}");
        assert!(shown.starts_with("? help") && shown.ends_with("q quit"), "{shown}");
    }
}

#[test]
fn each_page_shows_rows_in_a_terminal_of_ten_rows() {
    for (keys, row) in [("1", "▶ rx-0"), ("2", "▶ eth0 rx-0"), ("3", "▶   0"), ("4", "▶ redis")]
    {
        for size in [(80, 10), (60, 15)] {
            let text = screen(&press(state_of(&bad()), keys).0, size);
            assert!(text.contains(row) && text.contains("q quit"), "{text}");
        }
    }
}

/// What a page or text shows if the user scrolls it to its end, line by line.
fn scrolled_through(mut state: State, size: (u16, u16)) -> String {
    let mut seen = String::new();
    for _ in 0..200 {
        seen += &screen(&state, size);
        state = press(state, "↓").0;
    }
    seen
}

#[test]
fn everything_can_be_reached_in_a_terminal_of_80_columns_and_24_rows() {
    let size = (80, 24);
    let (help, _) = press(state_of(&large()), "3?");
    let Some(Overlay::Text(text)) = &help.overlay else { panic!("no help") };
    let seen = scrolled_through(help.clone(), size);
    for line in &text.lines {
        assert!(seen.contains(line.trim_end()), "{line}");
    }
    for (keys, page) in ('1'..).zip(Page::ALL) {
        let (state, _) = press(state_of(&large()), &keys.to_string());
        let seen = scrolled_through(state.clone(), size);
        assert!(!seen.lines().any(|line| line.starts_with("netsilo") && line.contains('…')));
        let Some(listing) = pages::listing(&state, state.window.as_ref().unwrap()) else {
            continue;
        };
        let (help, _) = press(state.clone(), "?");
        let notes = scrolled_through(help, size);
        for note in listing.note_lines() {
            let start: String = note.chars().take(60).collect();
            assert!(notes.contains(&start), "{page:?}: {note}");
        }
        for row in &listing.rows {
            let first: String = row.cells[0].parts.iter().map(|(text, _)| text.as_str()).collect();
            assert!(seen.contains(&first), "{page:?}: {first}");
        }
    }
    // what the table cuts or leaves out is in the text of the row
    let (row, _) = press(state_of(&bad()), "4\n");
    let text = scrolled_through(row, size);
    assert!(text.contains("cgroup") && text.contains("other node"), "{text}");
    let (queue, request) = press(state_of(&bad()), "2\n");
    assert!(matches!(request, Some(Request::Why(_))));
    let explained = Event::Explained("eth0 rx-0".into(), Ok("polled on cpu 0".into()));
    let text = screen(&update(queue, explained).0, size);
    assert!(text.contains("requested") && text.contains("polled on cpu 0"), "{text}");
}

#[test]
fn a_message_is_shown_whole() {
    let why = "cannot do this for a reason of many words, ".repeat(5) + "which ends here";
    let (state, _) = update(state_of(&bad()), Event::Planned(Err(why)));
    let text = screen(&state, (60, 15));
    assert!(text.contains("which ends here"), "{text}");
}

#[test]
fn a_finding_does_not_blink() {
    let well = window_of(&scene("already-good/before.json"));
    let (state, _) = press(state_of(&bad()), "5↓");
    let keys = |state: &State| pages::keys(state);
    let (before, selected) = (keys(&state), state.view().selected.clone());
    assert!(before.len() > 1 && selected.is_some());
    // windows of 10 s without the findings
    let (state, _) = update(state, Event::Window(well.clone()));
    assert_eq!(keys(&state)[..before.len()], before);
    let text = screen(&state, (100, 24));
    assert!(text.contains("! 10s ago") && text.contains("findings 2!"), "{text}");
    let (text, _) = press(state.clone(), "\n");
    assert!(screen(&text, (100, 24)).contains("last seen 10s ago"));
    let (_, request) = press(state.clone(), "p");
    let Some(Request::Plan(Some(fix))) = request else { panic!("{request:?}") };
    assert_eq!(Some(fix.to_string()), selected);
    let of_fix = state.window_of(Some(&fix)).unwrap();
    assert!(of_fix.check.findings.iter().any(|finding| FixRequest::of(finding) == fix));
    assert_eq!(of_fix.report.netdevs[0].queues.len(), 4);
    // it is found again, with the other rows as before
    let (again, _) = update(state.clone(), Event::Window(window_of(&bad())));
    assert!(!screen(&again, (100, 24)).contains("ago") && keys(&again)[..before.len()] == before);
    let gone = [&well; 3]
        .into_iter()
        .fold(state, |it, window| update(it, Event::Window(window.clone())).0);
    assert!(!screen(&gone, (100, 24)).contains("ago"), "after 30 s");
}

#[test]
fn the_page_of_queues_shows_past_packets_and_drops() {
    let mut observation = bad().observation();
    for (netdevs, drops) in
        [(&mut observation.before.netdevs, 1000), (&mut observation.after.netdevs, 1500)]
    {
        let stats =
            vec![("rx_queue_1_drops".to_owned(), drops), ("rx1_hw_drops".into(), drops + 1)];
        let ethtool = Ethtool { stats: Reading::Value(stats), ..Ethtool::unavailable("a test") };
        netdevs[0].ethtool = Some(ethtool);
    }
    let none = || Err(String::new());
    let lossy = Arc::new(Window::new(observation, &Costs::default(), none()));
    let (state, _) = press(state_of(&bad()), "2");
    let (state, _) = update(state, Event::Window(lossy));
    let text = screen(&state, (80, 24));
    let row = |queue: &str| text.lines().find(|line| line.contains(queue)).unwrap().to_owned();
    assert!(row("rx-1").contains("██") && row("rx-1").contains(" 50.0 "), "{text}");
    assert!(row("rx-0").contains(" - "), "{text}");
}

/// A hook that counts dropped packets, unless the kernel refused it.
fn hook(refused: Option<&str>) -> Hook {
    let refused = refused.map(str::to_owned);
    Hook { quantity: QUANTITY.into(), hook: "kfree_skb".into(), refused }
}

/// A window in which a full socket lost this many packets, others were dropped for other reasons,
/// and the NIC lost some before the kernel saw them.
fn lossy(lost: u64) -> Observation {
    let mut observation = bad().observation();
    observation.attribution.hooks.push(hook(None));
    let drop = |reason: &str, function: &str, netdev: &str, port, packets| DroppedPackets {
        reason: reason.into(),
        function: function.into(),
        netdev: netdev.into(),
        netns: observation.after.machine.netns,
        ethertype: 0x0800,
        protocol: 17,
        port,
        packets,
        ..DroppedPackets::default()
    };
    let elsewhere = DroppedPackets {
        netns: 4_026_532_256,
        ..drop("NEIGH_QUEUEFULL", "__neigh_event_send", "veth\u{1b}[2J", 0, 7)
    };
    let mut drops = vec![
        drop("NETFILTER_DROP", "nf_hook_slow", "eth0", 7002, 31_000),
        drop("NO_SOCKET", "__udp4_lib_rcv", "eth0", 9999, 80),
        drop("SOCKET_RCVBUFF", "__udp_enqueue_schedule_skb", "eth0", 53, lost),
        elsewhere,
    ];
    drops.retain(|drop| drop.packets > 0);
    observation.attribution.drops = drops;
    for (snapshot, missed) in [(&mut observation.before, 0), (&mut observation.after, 60)] {
        snapshot.netdevs[0].statistics.insert("rx_missed_errors".into(), missed);
    }
    observation
}

fn with_windows(state: State, windows: impl IntoIterator<Item = Observation>) -> State {
    windows.into_iter().fold(state, |state, observation| {
        let window = Window::new(observation, &Costs::default(), Err(String::new()));
        update(state, Event::Window(Arc::new(window))).0
    })
}

/// The page of drops after some windows.
fn dropping() -> State {
    let state = press(State::new(COLOUR, Source::Live, None), "7").0;
    with_windows(state, [0, 400, 1200, 9000, 300, 0, 0, 2500].map(lossy))
}

#[test]
fn the_page_of_drops_has_the_recorded_look_and_explains_a_reason() {
    let small = (80, 24);
    let pages = [(60, 15), small, (120, 40)].map(|size| page(&dropping(), size));
    insta::assert_snapshot!("drops-of-windows", pages.join("\n"));
    let text = screen(&press(dropping(), "\n").0, small);
    assert!(text.contains("function") && text.contains("the buffer of a UDP or raw"), "{text}");
    let filtered = screen(&press(dropping(), "/udp 53\n").0, small);
    assert!(filtered.contains("SOCKET_RCVBUFF") && !filtered.contains("NO_SOCKET"), "{filtered}");
}

#[test]
fn a_row_of_drops_stays_while_its_past_shows_them() {
    let shows = |state: &State| screen(state, (80, 24)).contains("SOCKET_RCVBUFF");
    let state = with_windows(dropping(), (0..11).map(|_| lossy(0)));
    assert!(shows(&state));
    assert!(!shows(&with_windows(state, [lossy(0)])));
}

#[test]
fn without_the_hook_the_page_of_drops_says_why_and_shows_counters() {
    let mut observation = lossy(5);
    observation.attribution.hooks = vec![hook(Some("needs CAP_BPF"))];
    let state = with_windows(press(state_of(&bad()), "7").0, [observation]);
    let text = screen(&state, (80, 24));
    assert!(text.contains("NIC: buffer full") && text.contains("rx_missed_errors"), "{text}");
    assert!(text.contains("needs CAP_BPF") && !text.contains("RCVBUFF"), "{text}");
}

#[test]
fn the_page_is_saved_with_all_rows_and_without_the_keys() {
    let (state, request) = press(state_of(&large()), "2w");
    assert_eq!(request, Some(Request::Save));
    let text = save::text(&state, 80);
    assert!(text.starts_with("netsilo scene") && text.contains("eth0 rx-63"), "{text}");
    assert!(!text.contains("q quit") && text.lines().count() < 80, "{text}");
    let (plan, request) = press(planned(state), "w");
    assert_eq!(request, Some(Request::Save));
    assert!(save::text(&plan, 80).starts_with("plan\n\n"));
    let (state, _) = update(plan, Event::Saved(Ok("netsilo-text-1.txt".into())));
    assert!(screen(&state, (80, 24)).contains("written to netsilo-text-1.txt"));
}

fn plan() -> Plan {
    let goal = Goal::default();
    plan_with_verdicts(&Analysis::new(&bad().observation(), &goal.costs), &goal)
}

fn planned(state: State) -> State {
    let (state, request) = press(state, "p");
    assert_eq!(request, Some(Request::Plan(None)));
    update(state, Event::Planned(Ok(Arc::new(plan())))).0
}

fn pending(deadline: u64) -> Pending {
    let (deadline, within) = (Duration::from_secs(deadline), Duration::from_secs(60));
    Pending { transaction: 3, changes: 3, deadline, within }
}
