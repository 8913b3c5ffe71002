//! Runs commands in a guest, through frames to and from its agent.

use crate::frame;
use crate::frame::Message;
use crate::output::Output;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The lab's connection to the agent of one guest.
#[derive(Debug)]
pub(crate) struct Guest {
    writer: Mutex<UnixStream>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: bool,
    gone: bool,
    last_id: u32,
    running: HashMap<u32, Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    pid: Option<u32>,
    output: Option<Output>,
}

impl Guest {
    pub(crate) fn new(stream: UnixStream) -> Result<Arc<Self>> {
        let reader = stream.try_clone()?;
        let writer = Mutex::new(stream);
        let guest = Arc::new(Self { writer, state: Mutex::default(), changed: Condvar::new() });
        let listener = Arc::clone(&guest);
        // The thread ends when QEMU ends and closes its end of the socket.
        thread::Builder::new().name("lab-guest".into()).spawn(move || listener.listen(&reader))?;
        Ok(guest)
    }

    fn listen(&self, reader: &UnixStream) {
        loop {
            let frame = frame::read(reader);
            let mut state = self.lock();
            match frame {
                Ok((_, Message::Hello)) => state.ready = true,
                Ok((id, message)) => {
                    if let Some(progress) = state.running.get_mut(&id) {
                        progress.update(message);
                    }
                }
                Err(_) => state.gone = true,
            }
            let gone = state.gone;
            drop(state);
            self.changed.notify_all();
            if gone {
                return;
            }
        }
    }

    /// Waits for the agent's hello. Returns `false` if it does not arrive within `timeout`.
    pub(crate) fn wait_ready(&self, timeout: Duration) -> Result<bool> {
        let ready = self.wait_for(timeout, |state| state.ready.then_some(()))?;
        Ok(ready.is_some())
    }

    pub(crate) fn spawn(self: &Arc<Self>, command: &str) -> Result<Job> {
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        state.running.insert(id, Progress::default());
        drop(state);
        let job = Job { guest: Arc::clone(self), id };
        self.send(id, &Message::Run(command.to_owned()))?;
        Ok(job)
    }

    fn send(&self, id: u32, message: &Message) -> Result<()> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&*writer, id, message).context("cannot reach the guest: it has ended")
    }

    /// Waits until `wanted` returns a value. Returns `None` after `timeout`.
    fn wait_for<T>(
        &self,
        timeout: Duration,
        mut wanted: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(found) = wanted(&mut state) {
                return Ok(Some(found));
            }
            if state.gone {
                bail!("the guest has ended (see its console)");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn update(&mut self, message: Message) {
        match message {
            Message::Started(pid) => self.pid = Some(pid),
            Message::Done { status, stdout, stderr } => {
                self.output = Some(Output { status, stdout, stderr })
            }
            _ => {}
        }
    }
}

/// A command that runs in a guest; killed when dropped.
#[derive(Debug)]
pub struct Job {
    guest: Arc<Guest>,
    id: u32,
}

impl Job {
    /// Returns the process id in the guest of the shell that runs the command. With `exec`, it is
    /// that of the program itself.
    pub fn pid(&self) -> Result<u32> {
        let pid = self.guest.wait_for(crate::time::RUN_TIMEOUT, |state| {
            state
                .running
                .get(&self.id)
                .and_then(|progress| progress.pid.or(progress.output.as_ref().map(|_| 0)))
        })?;
        pid.filter(|pid| *pid != 0).context("the guest could not start the command")
    }

    /// Waits for the command to end. After `timeout`, kills it and returns an error.
    pub fn wait(self, timeout: Duration) -> Result<Output> {
        let output =
            self.guest.wait_for(timeout, |state| state.running.get_mut(&self.id)?.output.take())?;
        // The command has ended, so dropping this value must not send a kill.
        if output.is_some() {
            self.guest.lock().running.remove(&self.id);
        }
        output.with_context(|| format!("still running after {timeout:?}: killed"))
    }

    /// Sends a signal to the command and all processes that it started.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.pid()?;
        self.guest.send(self.id, &signal_message(signal))
    }

    /// Terminates the command and returns its output.
    pub fn stop(self) -> Result<Output> {
        self.signal(Signal::TERM)?;
        self.wait(crate::time::STOP_TIMEOUT)
    }

    /// Lets the command run until the guest ends.
    pub fn detach(self) {
        self.guest.lock().running.remove(&self.id);
    }
}

fn signal_message(signal: Signal) -> Message {
    Message::Signal(signal.as_raw().cast_unsigned())
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.guest.lock().running.remove(&self.id).is_some() {
            let _ = self.guest.send(self.id, &signal_message(Signal::KILL));
        }
    }
}
