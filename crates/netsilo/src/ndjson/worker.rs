//! A worker of the filter: this program again, with the same arguments, for one line at a time.
//!
//! A defect of netsilo ends a process, not a thread, because release builds abort on panic. So each
//! worker is a separate process. If it ends, only the answer of its line is lost, and the next line
//! starts another worker.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};
use netsilo_sys::read::process::THIS_PROGRAM;
use rustix::process::Signal;

/// Environment variable that is set in a worker.
const WORKER: &str = "NETSILO_NDJSON_WORKER";

/// The exit code of a process whose main thread panicked, in builds that unwind.
const PANICKED: i32 = 101;

/// Whether this process is a worker.
pub(super) fn is_one() -> bool {
    std::env::var_os(WORKER).is_some()
}

/// Reads `NUMBER LINE` from standard input until it ends. For each, prints `1` or `0` (whether the
/// line was usable) and the answer.
pub(super) fn serve(mut answer: impl FnMut(u64, Vec<u8>) -> Result<(bool, String)>) -> Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let (mut number, mut length) = (Vec::new(), 0);
    while input.read_until(b' ', &mut number).context("cannot read the next line")? > 0 {
        let digits = std::str::from_utf8(&number).ok().map(str::trim_end);
        let digits = digits.and_then(|digits| digits.parse().ok());
        // Lines are about as long as the one before.
        let mut line = Vec::with_capacity(length);
        length = input.read_until(b'\n', &mut line).context("cannot read a line")?;
        number.clear();
        let (usable, text) = answer(digits.context("a line has no number")?, line)?;
        let sent = write!(output, "{}{text}", u8::from(usable)).and_then(|()| output.flush());
        if sent.is_err() {
            // the filter has ended
            return Ok(());
        }
    }
    Ok(())
}

/// A worker. It is started when it gets its first line, and again after it has ended.
#[derive(Debug, Default)]
pub(super) struct Worker(Option<Running>);

#[derive(Debug)]
struct Running {
    child: Child,
    /// `None` while it must end.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Worker {
    /// Returns whether a line is usable, and its answer. If the worker ended meanwhile, returns the
    /// reason.
    pub(super) fn ask(
        &mut self,
        number: u64,
        line: &[u8],
    ) -> Result<Result<(bool, String), String>> {
        let mut running = match self.0.take().and_then(Running::unless_ended) {
            Some(running) => running,
            None => Running::start()?,
        };
        if let Some(answer) = running.ask(number, line) {
            self.0 = Some(running);
            return Ok(Ok(answer));
        }
        let status = running.end().context("cannot wait for a worker")?;
        // It has printed its error.
        ensure!(matches!(status.code(), None | Some(PANICKED)), "a worker ended: {status}");
        Ok(Err(if status.signal() == Some(Signal::KILL.as_raw()) {
            format!("its worker was killed ({status}), perhaps because memory ran out")
        } else {
            format!("a defect of netsilo: its worker ended ({status}): see its message")
        }))
    }
}

impl Running {
    fn start() -> Result<Self> {
        let mut command = Command::new(THIS_PROGRAM);
        command.args(std::env::args_os().skip(1)).env(WORKER, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a worker")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a worker has no output")?;
        Ok(Self { child, stdin, stdout: BufReader::new(stdout) })
    }

    /// Returns `None` if it ended while it had no line. Then no answer is lost.
    fn unless_ended(mut self) -> Option<Self> {
        matches!(self.child.try_wait(), Ok(None)).then_some(self)
    }

    /// `None` if it ended.
    fn ask(&mut self, number: u64, line: &[u8]) -> Option<(bool, String)> {
        let end: &[u8] = if line.ends_with(b"\n") { b"" } else { b"\n" };
        let head = format!("{number} ");
        let stdin = self.stdin.as_mut()?;
        for part in [head.as_bytes(), line, end] {
            stdin.write_all(part).ok()?;
        }
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).ok()?;
        let complete = answer.ends_with('\n');
        let usable = answer.starts_with('1');
        complete.then(|| (usable, answer.split_off(1)))
    }

    fn end(&mut self) -> io::Result<ExitStatus> {
        self.stdin = None;
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
