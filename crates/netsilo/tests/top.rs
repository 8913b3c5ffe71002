//! `netsilo top` in a real terminal (tmux): on a bundle, and live in a network namespace.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

#[path = "cli/bundles.rs"]
mod bundles;

use std::io::Write as _;
use std::process::{Command, Output};

use bundles::{OWNED, VIRTIO};
use netsilo_lab::until;
use tempfile::TempDir;

/// A terminal with a shell, on a separate tmux server. It ends with the test.
struct Terminal {
    dir: TempDir,
}

impl Terminal {
    /// Starts a shell of 100x30. If tmux is not installed, prints SKIPPED and returns `None`, or
    /// fails if nothing may be skipped.
    fn start() -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            assert!(
                std::env::var_os("NETSILO_NO_SKIP").is_none(),
                "no tmux, and NETSILO_NO_SKIP is set"
            );
            let _ = writeln!(std::io::stderr(), "SKIPPED: tmux is not installed");
            return None;
        }
        let terminal = Self { dir: tempfile::tempdir().unwrap() };
        // a shell without prompt and history, which shows what top leaves behind
        let shell = "env -i PATH=\"$PATH\" TERM=screen-256color LANG=C.UTF-8 PS1='$ ' sh";
        let output = terminal.tmux(&[
            "-f",
            "/dev/null",
            "-u",
            "new-session",
            "-d",
            "-x",
            "100",
            "-y",
            "30",
            shell,
        ]);
        assert!(output.status.success(), "{output:?}");
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let socket = self.dir.path().join("tmux");
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").arg("-S").arg(socket);
        command.args(arguments).output().unwrap()
    }

    /// Types a command line.
    fn run(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.keys(&["Enter"]);
    }

    fn keys(&self, keys: &[&str]) {
        assert!(self.tmux(&[&["send-keys"], keys].concat()).status.success());
    }

    fn screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p"]).stdout).unwrap()
    }

    /// Waits until the screen shows a text.
    fn sees(&self, text: &str) {
        self.sees_not(text, "\0");
    }

    /// Waits until the screen shows a text and no longer shows another one. Both are needed because
    /// a screen may be drawn in parts.
    fn sees_not(&self, text: &str, gone: &str) {
        let fits = |screen: &String| screen.contains(text) && !screen.contains(gone);
        let seen = until(text, || self.screen(), fits);
        assert!(seen.is_ok(), "{text} without {gone:?}: {}", self.screen());
    }

    /// Whether the terminal shows the shell's own screen, with a cursor, and echoes what is typed.
    fn is_restored(&self) {
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(String::from_utf8(flags.stdout).unwrap().trim(), "0 1");
        self.run("stty -a | grep -o ' icanon\\| echo ' | tr -d '\\n'; echo .");
        self.sees(" icanon echo .");
    }

    /// Starts top with these arguments. Afterwards the shell prints top's exit code.
    fn top(&self, arguments: &str) {
        let program = env!("CARGO_BIN_EXE_netsilo");
        self.run(&format!("{program} top {arguments}; echo code $?"));
    }

    /// The same, and returns the process id of top when it shows its first page.
    fn top_of(&self, arguments: &str) -> i32 {
        let (pid, program) = (self.dir.path().join("pid"), env!("CARGO_BIN_EXE_netsilo"));
        let file = pid.display();
        // the shell's process id becomes that of top
        self.run(&format!(
            "(sh -c 'echo $$ >{file}; exec {program} top {arguments}'; echo code $?)"
        ));
        self.sees("[1 map]");
        std::fs::read_to_string(pid).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn a_bundle_is_looked_at_by_keys_and_the_terminal_is_restored() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.top(&format!("--from {}", &*VIRTIO));
    terminal.sees("× 100% redis-server");
    terminal.sees("read-only: a bundle shows another time or machine");
    terminal.keys(&["2"]);
    terminal.sees("[2 queues]");
    terminal.sees_not("▶ eth0 rx-0", "read-only");
    terminal.keys(&["Down", "Down", "Down", "Enter"]);
    terminal.sees("why eth0 rx-3");
    terminal.keys(&["q"]);
    terminal.sees("▶ eth0 rx-3");
    terminal.keys(&["Tab", "Tab", "/", "r", "e", "d", "i", "s", "Enter"]);
    terminal.sees("only rows with \"redis\"");
    terminal.keys(&["5", "?", "PageDown"]);
    terminal.sees("a filled diamond");
    terminal.keys(&["q"]);
    terminal.sees("[5 findings");
    terminal.keys(&["q"]);
    terminal.sees_not("code 0", "[5 findings");
    terminal.is_restored();
}

#[test]
fn a_plan_of_a_bundle_is_shown_and_not_applied() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.top(&format!("--from {}", &*OWNED));
    terminal.sees("redis-server");
    terminal.keys(&["p"]);
    terminal.sees("irqbalance (pid 812)");
    terminal.sees("a apply");
    terminal.keys(&["a"]);
    terminal.sees("read-only: a bundle shows another time or machine");
    terminal.keys(&["C-c"]);
    terminal.sees("code 0");
    terminal.is_restored();
}

#[test]
fn a_size_change_is_followed() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.top(&format!("--from {}", &*VIRTIO));
    terminal.sees("rx-3");
    terminal.tmux(&["resize-window", "-x", "60", "-y", "15"]);
    let title = || terminal.screen().lines().next().unwrap_or_default().to_owned();
    let fits = |title: &String| title.chars().count() == 60 && title.ends_with("a bundle");
    until("60 columns", title, fits).unwrap();
    // with the first key, the list of keys replaces the note
    terminal.keys(&["Down"]);
    terminal.sees("q quit");
    terminal.tmux(&["resize-window", "-y", "10"]);
    let rows = || terminal.screen().lines().count();
    until("10 rows", rows, |rows| *rows == 10).unwrap();
    terminal.sees("× 100% redis-s…");
    terminal.sees("q quit");
    terminal.keys(&["q"]);
    terminal.sees("code 0");
}

#[test]
fn each_page_fits_a_real_terminal_of_three_sizes() {
    let Some(terminal) = Terminal::start() else { return };
    let pages = [
        ("1", "[1 map]", "rx-3"),
        ("2", "[2 queues]", "▶ eth0 rx-0"),
        ("3", "[3 cpus]", "time: ░ usr"),
        ("4", "[4 consumers]", "redis-server"),
        ("5", "[5 findings", "severity"),
        ("6", "[6 decisions]", "a bundle has no daemon"),
        ("7", "[7 drops]", "counters only"),
    ];
    for (columns, rows) in [(80, 24), (120, 40), (200, 60)] {
        let (x, y) = (columns.to_string(), rows.to_string());
        terminal.tmux(&["resize-window", "-x", &x, "-y", &y]);
        // tmux passes the new size to the pane's terminal some time later
        terminal.run(&format!(
            "until test \"$(stty size)\" = '{rows} {columns}'; do sleep 0.01; done; clear"
        ));
        terminal.top(&format!("--from {}", &*VIRTIO));
        // with the first key, the list of keys replaces the note
        terminal.sees("read-only: a bundle shows another time or machine");
        for (key, tab, content) in pages {
            terminal.keys(&[key]);
            terminal.sees_not(tab, "read-only");
            terminal.sees(content);
            let screen = terminal.screen();
            let lines: Vec<&str> = screen.lines().collect();
            let widest = lines.iter().map(|line| line.chars().count()).max();
            assert_eq!((lines.len(), widest), (rows, Some(columns)), "{screen}");
            assert!(lines[0].starts_with("netsilo ") && lines[0].ends_with("a bundle"), "{screen}");
            assert!(lines[1].contains(tab) && lines[rows - 1].contains("q quit"), "{screen}");
        }
        terminal.keys(&["q"]);
        terminal.sees_not("code 0", "[7 drops]");
    }
    terminal.is_restored();
}

#[test]
fn recorded_windows_are_played_and_stepped_through() {
    let Some(terminal) = Terminal::start() else { return };
    let program = env!("CARGO_BIN_EXE_netsilo");
    terminal.run(&format!("cd {}", terminal.dir.path().display()));
    terminal.run(&format!("{program} capture --for 800ms -i 300ms -o a; echo code $?"));
    terminal.sees("3 windows: netsilo top --from plays them");
    terminal.sees("code 0");
    terminal.top("--from a -i 1m");
    terminal.sees("window 1 of 3");
    terminal.keys(&["]", "]"]);
    terminal.sees("window 3 of 3");
    terminal.keys(&["[", "Space"]);
    terminal.sees("FROZEN: window 2 of 3");
    terminal.keys(&["q"]);
    terminal.sees_not("code 0", "FROZEN");
    terminal.run("clear");
    terminal.top("--record b -i 300ms");
    terminal.sees_not("[1 map]", "observing");
    terminal.keys(&["q"]);
    terminal.sees("b has ");
    terminal.sees_not("code 0", "[1 map]");
    terminal.run("clear");
    terminal.top("--from b");
    terminal.sees("[1 map]");
    terminal.keys(&["q"]);
}

#[test]
fn a_panic_restores_the_terminal_and_prints_its_message_there() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.top(&format!("--from {} --panic-at x", &*VIRTIO));
    terminal.sees("[1 map]");
    terminal.keys(&["x"]);
    terminal.sees_not("code 101", "[1 map]");
    terminal.sees("the key of --panic-at was pressed");
    terminal.is_restored();
}

#[test]
fn sigterm_restores_the_terminal() {
    let Some(terminal) = Terminal::start() else { return };
    let pid = terminal.top_of(&format!("--from {}", &*VIRTIO));
    let process = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    terminal.sees("code 0");
    terminal.is_restored();
}

#[test]
fn ctrl_z_gives_the_terminal_to_the_shell_until_fg() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.top(&format!("--from {}", &*VIRTIO));
    terminal.sees("[1 map]");
    for page in ["[2 queues]", "[3 cpus]"] {
        terminal.keys(&["C-z"]);
        // 128 and SIGTSTP
        terminal.sees_not("code 148", "[1 map]");
        terminal.is_restored();
        terminal.run("clear; echo code 148; fg");
        terminal.sees_not("a bundle", "code 148");
        terminal.keys(&["Tab"]);
        terminal.sees(page);
    }
    terminal.keys(&["q"]);
    terminal.sees_not("$", "[3 cpus]");
    terminal.is_restored();
}

#[test]
fn a_terminal_that_says_it_is_huge_costs_little_memory() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.run("stty rows 65535 cols 65535");
    let pid = terminal.top_of(&format!("--from {}", &*VIRTIO));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kb: u32 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kb < 200_000, "{kb} kB");
    terminal.keys(&["q"]);
    terminal.sees_not("code 0", "[1 map]");
}

#[test]
fn a_dumb_terminal_is_refused_with_another_command() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.run("export TERM=dumb");
    terminal.top(&format!("--from {}", &*VIRTIO));
    terminal.sees("top cannot draw on a terminal with TERM=dumb; use netsilo show --watch");
    terminal.sees("code 2");
    terminal.is_restored();
}

#[test]
fn w_saves_each_page_to_a_new_file() {
    let Some(terminal) = Terminal::start() else { return };
    let dir = terminal.dir.path();
    terminal.run(&format!("cd {}", dir.display()));
    terminal.top(&format!("--from {}", &*VIRTIO));
    terminal.sees("rx-3");
    terminal.keys(&["2", "w"]);
    terminal.sees("written to netsilo-queues-1.txt");
    std::fs::write(dir.join("netsilo-queues-1.txt"), "mine").unwrap();
    terminal.keys(&["w"]);
    terminal.sees("written to netsilo-queues-2.txt");
    let read = |number| std::fs::read_to_string(dir.join(format!("netsilo-queues-{number}.txt")));
    assert_eq!(read(1).unwrap(), "mine");
    assert!(read(2).unwrap().contains("eth0 rx-3"));
    terminal.keys(&["q"]);
    terminal.sees("code 0");
}

#[test]
fn without_a_terminal_top_says_what_to_use_instead() {
    let mut top = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    let output = top.args(["top", "--from", &VIRTIO]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message, "netsilo: top needs a terminal; netsilo show prints the same once\n");
}

/// Runs top in a network namespace with a netdev of two queues. Its process id is in `$DIR/pid`.
const NAMESPACE: &str = r#"
set -e
mount -t sysfs sysfs /sys
ip link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1
ip link set v0 up
ip link set v1 up
sh -c 'echo $$ >"$DIR/pid"; exec "$NETSILO" top --no-bpf --interval 250ms \
    --state-dir "$DIR/state" --netdev v0 --no-irqs --rps 0-1'
echo code $?
"#;

#[test]
fn a_plan_is_applied_kept_and_undone_on_a_real_netdev() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let Some(terminal) = Terminal::start() else { return };
    let dir = terminal.dir.path();
    std::fs::write(dir.join("script"), NAMESPACE).unwrap();
    let (shown, program) = (dir.display(), env!("CARGO_BIN_EXE_netsilo"));
    terminal.run(&format!("DIR={shown} NETSILO={program} unshare --net --mount sh {shown}/script"));
    terminal.sees("by sock_diag");
    let pid = std::fs::read_to_string(dir.join("pid")).unwrap();
    let queues = format!("/proc/{}/root/sys/class/net/v0/queues", pid.trim());
    let rps = || {
        [0, 1].map(|queue| {
            let text = std::fs::read_to_string(format!("{queues}/rx-{queue}/rps_cpus")).unwrap();
            u32::from_str_radix(&text.trim().replace(',', ""), 16).unwrap()
        })
    };
    assert_eq!(rps(), [0, 0]);
    terminal.keys(&["p"]);
    terminal.sees("2 changes");
    terminal.keys(&["a"]);
    terminal.sees("write 2 changes, restored after 1m unless confirmed? y/n");
    terminal.keys(&["y"]);
    terminal.sees("applied; c keeps it, u undoes it");
    assert_eq!(rps(), [3, 3]);
    terminal.sees("transaction 1 (2 changes)  restored in ");
    terminal.keys(&["c"]);
    terminal.sees_not("transaction 1 is kept", "restored in");
    terminal.keys(&["q", "u"]);
    terminal.sees("undo the newest transaction? y/n");
    assert_eq!(rps(), [3, 3]);
    terminal.keys(&["y"]);
    terminal.sees("2 of 2 settings restored");
    assert_eq!(rps(), [0, 0]);
    terminal.keys(&["q", "q"]);
    terminal.sees("code 0");
    terminal.is_restored();
}
