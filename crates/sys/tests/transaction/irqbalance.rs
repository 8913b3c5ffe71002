//! Transactions with an irqbalance that answers, refuses, cuts, forgets, and ends.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netsilo_model::change::{Change, Target};
use netsilo_model::machine::ids::Irq;
use netsilo_model::parse::irqbalance::{SETUP, ban_message};
use netsilo_sys::irqbalance::Irqbalance;
use netsilo_sys::transaction::apply::{ApplyError, Drift};
use netsilo_sys::transaction::undo::{RestoreResult, UndoScope};

use super::fake::{Fake, add_irqbalance, apply, ban, change, cpus, irq, tempdir, undo};

/// How this irqbalance behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    Usual,
    /// Closes each connection without an answer, as for a user who is not root.
    Refuses,
    /// Its answer ends too early.
    CutsAnswers,
    /// Takes no list.
    Forgets,
    /// Ends when it has answered this many requests.
    Ends(usize),
}

/// What it leaves alone, and the lists that it was given.
#[derive(Debug, Default)]
struct State {
    banned: BTreeSet<Irq>,
    messages: Vec<String>,
}

/// An irqbalance in a thread of this process, whose pid it has.
struct Server {
    state: Arc<Mutex<State>>,
}

fn serve(folder: &Path, manner: Manner, banned: &[u32]) -> Server {
    let path = folder.join(format!("irqbalance{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let banned = banned.iter().copied().map(Irq).collect();
    let state = Arc::new(Mutex::new(State { banned, messages: Vec::new() }));
    let server = Server { state: Arc::clone(&state) };
    std::thread::spawn(move || {
        for number in 1.. {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 500];
            let length = stream.read(&mut buffer).unwrap();
            let request = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if manner != Manner::Refuses {
                let answer = state.lock().unwrap().take(&request, manner);
                let _ = stream.write_all(answer.as_bytes());
            }
            if manner == Manner::Ends(number) {
                std::fs::remove_file(path).unwrap();
                return;
            }
        }
    });
    server
}

impl State {
    fn take(&mut self, request: &str, manner: Manner) -> String {
        if let Some(list) = request.strip_prefix("settings ban irqs ") {
            self.messages.push(request.to_owned());
            if manner != Manner::Forgets {
                let numbers = list.split(' ').filter_map(|word| word.parse().ok());
                self.banned = numbers.map(Irq).collect();
            }
            return String::new();
        }
        assert_eq!(request, SETUP);
        let irq = |irq: &Irq| format!("IRQ {irq} LOAD 0 DIFF 0 CLASS 0 ");
        let list: String = self.banned.iter().map(irq).collect();
        let end = if manner == Manner::CutsAnswers { "" } else { "BANNED 00000000" };
        format!("SLEEP 10 {list}{end}")
    }
}

impl Server {
    fn banned(&self) -> Vec<u32> {
        self.state.lock().unwrap().banned.iter().map(|irq| irq.0).collect()
    }

    fn messages(&self) -> Vec<String> {
        self.state.lock().unwrap().messages.clone()
    }

    fn set(&self, banned: &[u32]) {
        self.state.lock().unwrap().banned = banned.iter().copied().map(Irq).collect();
    }
}

/// A host with two interrupts on which this irqbalance runs.
fn host(manner: Manner, banned: &[u32]) -> (tempfile::TempDir, Fake, Server) {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let server = serve(dir.path(), manner, banned);
    let pid = std::process::id();
    add_irqbalance(dir.path(), pid);
    let patience = Duration::from_secs(5);
    kernel.irqbalance.replace(Some(Irqbalance::new(dir.path(), pid, patience)));
    (dir, kernel, server)
}

/// Moves both interrupts, with the list first.
fn plan(kernel: &Fake) -> Vec<Change> {
    let (knob, reason) = (ban(std::process::id()), "irqbalance would move them");
    vec![
        change(kernel, irq(27), cpus("4")),
        change(kernel, irq(28), cpus("5")),
        Change::new(knob, false, true, reason),
    ]
}

fn outcomes(kernel: &Fake) -> Vec<(Target, RestoreResult)> {
    undo(kernel, UndoScope::All).unwrap().into_iter().flat_map(|it| it.knobs).collect()
}

#[test]
fn irqbalance_is_told_before_interrupts_move_and_gets_them_back_after_they_returned() {
    let (_dir, kernel, server) = host(Manner::Usual, &[9]);
    let applied = apply(&kernel, &plan(&kernel)).unwrap();
    assert!(matches!(applied.settled[0].0, Target::IrqbalanceBan(_)), "{:?}", applied.settled);
    assert_eq!(server.messages(), ["settings ban irqs 9 27 28"], "one list with those of others");
    // someone bans another one meanwhile
    server.set(&[9, 27, 28, 40]);
    let outcomes = outcomes(&kernel);
    assert!(outcomes.iter().all(|(_, it)| matches!(it, RestoreResult::Restored)), "{outcomes:?}");
    assert!(matches!(outcomes[2].0, Target::IrqbalanceBan(_)), "{outcomes:?}");
    assert_eq!(server.banned(), [9, 40]);
    assert_eq!(server.messages().len(), 2);
}

#[test]
fn what_is_left_of_a_list_that_another_program_replaced_is_given_back() {
    let (_dir, kernel, server) = host(Manner::Usual, &[]);
    apply(&kernel, &plan(&kernel)).unwrap();
    server.set(&[28, 31]);
    outcomes(&kernel);
    assert_eq!(server.banned(), [31]);
    assert_eq!(server.messages()[1], "settings ban irqs 31");
}

#[test]
fn a_list_that_irqbalance_does_not_take_leaves_the_interrupts_where_they_are() {
    for (manner, words) in [
        (Manner::Refuses, "no SLEEP at the start"),
        (Manner::CutsAnswers, "no BANNED at the end"),
        (Manner::Forgets, "it did not take the list"),
        (Manner::Ends(1), "No such file or directory"),
        (Manner::Ends(2), "No such file or directory"),
        (Manner::Ends(3), "No such file or directory"),
    ] {
        let (_dir, kernel, _server) = host(manner, &[]);
        let before = kernel.knobs();
        let error = apply(&kernel, &plan(&kernel)).unwrap_err();
        assert!(error.to_string().contains(words), "{manner:?}: {error}");
        assert_eq!(kernel.knobs(), before, "{manner:?}");
        let nothing_written = matches!(&error, ApplyError::Drifted(drifts)
            if matches!(drifts[..], [Drift::Unreadable(_)]));
        assert!(nothing_written || matches!(error, ApplyError::Restored { .. }), "{error:?}");
    }
}

#[test]
fn a_list_that_would_be_cut_is_not_sent() {
    let others: Vec<u32> = (1000..1096).collect();
    let (_dir, kernel, server) = host(Manner::Usual, &others);
    let error = apply(&kernel, &plan(&kernel)).unwrap_err().to_string();
    assert!(error.contains("has 503 bytes, and this irqbalance reads 499"), "{error}");
    assert_eq!(server.messages(), Vec::<String>::new());
    let fits: Vec<u32> = (1000..1095).collect();
    let (_dir, kernel, server) = host(Manner::Usual, &fits);
    apply(&kernel, &plan(&kernel)).unwrap();
    assert_eq!(server.messages()[0].len(), 498);
    assert_eq!(server.messages()[0], ban_message(&server.state.lock().unwrap().banned));
}

#[test]
fn a_later_irqbalance_has_nothing_to_give_back() {
    let (dir, kernel, server) = host(Manner::Usual, &[]);
    apply(&kernel, &plan(&kernel)).unwrap();
    let stat = dir.path().join(format!("proc/{}/stat", std::process::id()));
    let text = std::fs::read_to_string(&stat).unwrap();
    std::fs::write(stat, text.replace(" 99 ", " 100 ")).unwrap();
    server.set(&[27]);
    let outcomes = outcomes(&kernel);
    assert!(matches!(outcomes[2].1, RestoreResult::Gone(_)), "{outcomes:?}");
    assert_eq!(server.banned(), [27], "banned by someone else");
}
