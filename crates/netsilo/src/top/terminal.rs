//! The terminal: the alternate screen and raw mode, and the return from them in every case.
//!
//! While the screen is in use, standard error goes to a file in memory, because a message would
//! destroy the picture. The file's contents are printed when the terminal is restored: by
//! `Screen::drop`, or by the panic hook before the panic's own message.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Seek as _, Write as _, stdout};
use std::os::fd::OwnedFd;
use std::panic;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, Frame, TerminalOptions, Viewport};
use rustix::process::Signal;

use crate::tell::exit::{Exit, ExitError};
use crate::top::update::Event;

/// The largest size that is drawn. A larger terminal shows the screen in its upper left part.
///
/// A terminal may say that it has 65535 columns and rows, for which ratatui would need 400 GB. This
/// size needs 30 MB.
const LARGEST: (u16, u16) = (1000, 300);

/// What is drawn if the terminal does not know its size, as on a serial line.
const UNKNOWN: (u16, u16) = (80, 24);

/// Time within which a stop signal stops this thread.
const STOPPING: Duration = Duration::from_millis(100);

/// The terminal while it shows the screen.
pub(super) struct Screen {
    /// The part of the terminal that is drawn.
    pub(super) area: Rect,
    terminal: DefaultTerminal,
    messages: Arc<Messages>,
}

/// Standard error, kept for later.
struct Messages {
    /// The real standard error, until it is restored.
    stderr: Mutex<Option<OwnedFd>>,
    kept: File,
}

impl Messages {
    fn keep() -> Result<Self> {
        let stderr = rustix::io::dup(std::io::stderr()).context("cannot keep standard error")?;
        let file = rustix::fs::memfd_create("messages", rustix::fs::MemfdFlags::CLOEXEC)
            .context("cannot keep messages in memory")?;
        rustix::stdio::dup2_stderr(&file).context("cannot redirect standard error")?;
        Ok(Self { stderr: Mutex::new(Some(stderr)), kept: file.into() })
    }

    /// Restores standard error and prints the stored messages. Only the first call has an effect.
    fn release(&self) {
        let Some(stderr) = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        // a terminal that is gone accepts no messages
        let _ = rustix::stdio::dup2_stderr(&stderr);
        let mut text = Vec::new();
        let mut kept = &self.kept;
        if kept.rewind().and_then(|()| kept.read_to_end(&mut text)).is_ok() {
            let _ = std::io::stderr().write_all(&text);
        }
    }
}

impl Screen {
    /// Takes over the terminal. Fails if standard input or output is not a terminal.
    pub(super) fn open() -> Result<Self> {
        if !stdout().is_terminal() || !std::io::stdin().is_terminal() {
            let words = "top needs a terminal; netsilo show prints the same once";
            return Err(ExitError(Exit::Usage, words.into()).into());
        }
        if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
            let words = "top cannot draw on a terminal with TERM=dumb; use netsilo show --watch";
            return Err(ExitError(Exit::Usage, words.into()).into());
        }
        let messages = Arc::new(Messages::keep()?);
        let kept = messages.clone();
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            ratatui::restore();
            kept.release();
            before(info);
        }));
        let area = area();
        let options = TerminalOptions { viewport: Viewport::Fixed(area) };
        let terminal = ratatui::try_init_with_options(options).inspect_err(|_| messages.release());
        let terminal = terminal.context("cannot use the terminal")?;
        let mut screen = Self { area, terminal, messages };
        screen.resume()?;
        Ok(screen)
    }

    /// Draws. Only what differs from the last picture is sent to the terminal.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        let area = area();
        if area != self.area {
            self.area = area;
            self.clear()?;
        }
        self.terminal.draw(draw).map(|_| ()).context("cannot write to the terminal")
    }

    /// Makes the next picture complete. `Terminal::clear` would ask the terminal for the cursor,
    /// and the thread of keys would read the answer.
    fn clear(&mut self) -> Result<()> {
        execute!(stdout(), Clear(ClearType::All)).context("cannot write to the terminal")?;
        self.terminal.resize(self.area).context("cannot write to the terminal")
    }

    /// Restores the terminal and stops the process group, as Ctrl-Z does without raw mode. Returns
    /// with the screen as before when the shell continues it.
    pub(super) fn suspend(&mut self) -> Result<()> {
        self.terminal.show_cursor().context("cannot write to the terminal")?;
        ratatui::restore();
        rustix::process::kill_current_process_group(Signal::TSTP).context("cannot stop")?;
        // Another thread may receive the signal, a moment later. The kernel ignores it if no shell
        // could continue this process group; then the screen comes back.
        std::thread::sleep(STOPPING);
        self.resume()
    }

    /// Takes over the terminal again, whatever was done with it meanwhile.
    pub(super) fn resume(&mut self) -> Result<()> {
        // crossterm sets the mode only if it thinks that the terminal is not raw
        disable_raw_mode().and_then(|()| enable_raw_mode()).context("cannot use the terminal")?;
        execute!(stdout(), EnterAlternateScreen).context("cannot write to the terminal")?;
        self.clear()
    }
}

/// The part of the terminal that is drawn.
fn area() -> Rect {
    let (columns, rows) = match size() {
        Ok((0, _) | (_, 0)) | Err(_) => UNKNOWN,
        Ok(size) => size,
    };
    Rect::new(0, 0, columns.min(LARGEST.0), rows.min(LARGEST.1))
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
        self.messages.release();
    }
}

/// Waits for the next key or a new size. Returns `None` for other events.
pub(super) fn next_event() -> std::io::Result<Option<Event>> {
    Ok(match event::read()? {
        event::Event::Key(key) if key.kind != KeyEventKind::Release => pressed(key),
        event::Event::Resize(..) => Some(Event::Resized),
        _ => None,
    })
}

/// Ctrl-C ends the program, and Ctrl-Z suspends it. Other keys with Ctrl or Alt do nothing,
/// especially not `a`.
fn pressed(key: KeyEvent) -> Option<Event> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            return Some(Event::Quit);
        }
        KeyCode::Char('z') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            return Some(Event::Suspended);
        }
        _ => {}
    }
    let plain = !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    plain.then_some(Event::Key(key.code))
}
