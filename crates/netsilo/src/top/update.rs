//! Makes the next state from a state and an event, and determines what the program has to do for
//! it.

use std::sync::Arc;
use std::time::Duration;

use netsilo_decide::judge::findings::FindingId;
use netsilo_decide::judge::fix::FixRequest;
use netsilo_decide::plan::Plan;
use netsilo_model::snapshot::subject::Subject;
use ratatui::crossterm::event::KeyCode;

use crate::tell::styled::Styled;
use crate::top::help;
use crate::top::listing::Sort;
use crate::top::map::Level;
use crate::top::pages::{self, drops};
use crate::top::state::{History, Overlay, Page, Pending, Seen, Source, State, Text};
use crate::top::window::Window;
use crate::views;

/// The intervals among which `+` and `-` choose.
const INTERVALS: [u64; 8] = [250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// Number of rows by which a page key moves.
const PAGE_ROWS: isize = 10;

/// What happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A key was pressed.
    Key(KeyCode),
    /// The terminal has another size, so only draw again.
    Resized,
    /// The clock, since boot.
    Now(Duration),
    /// Another window.
    Window(Arc<Window>),
    /// The window of a bundle with this number.
    Played(usize, Arc<Window>),
    /// There will be no more windows, for this reason.
    Ended(String),
    /// A plan was made.
    Planned(Result<Arc<Plan>, String>),
    /// The work on a part of the machine was explained.
    Explained(String, Result<String, String>),
    /// The page was written to this file.
    Saved(Result<String, String>),
    /// The user presses Ctrl-Z.
    Suspended,
    /// The program runs again after it was stopped.
    Continued,
    /// A step of an apply or undo.
    Step(String),
    /// The plan is written.
    Applied(Result<Pending, String>),
    /// An undo, a confirmation or the guard has ended the pending transaction, or there was none to
    /// end.
    Settled(String),
    /// The program is asked to end.
    Quit,
    /// A thread has panicked. The terminal is restored and the reason is printed.
    Panicked,
}

/// What the program has to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    Quit,
    /// End with a failure.
    Fail,
    /// Give the terminal to the shell until the program is continued.
    Suspend,
    /// Take over the terminal again.
    Resume,
    /// Write the page, or the text that covers it, to a file.
    Save,
    /// Observe at another interval from now on.
    Interval(Duration),
    /// Step by this many windows of a bundle. Negative means back.
    Step(isize),
    /// Pause the playback of a bundle, or continue it.
    Pause(bool),
    /// Make a plan. If a finding is given, only for that finding.
    Plan(Option<FixRequest>),
    /// Explain why work is on a part of the machine.
    Why(Subject),
    /// Write the plan, and restore the old values unless it is confirmed.
    Apply(Arc<Plan>),
    /// Keep this transaction, or report how it ended before.
    Confirm(u64),
    /// Undo the newest transaction.
    Undo,
}

/// Returns the next state, and what the program has to do for it.
pub(crate) fn update(mut state: State, event: Event) -> (State, Option<Request>) {
    let request = match event {
        Event::Key(key) => return pressed(state, key),
        Event::Quit => Some(Request::Quit),
        Event::Panicked => Some(Request::Fail),
        Event::Suspended => Some(Request::Suspend),
        Event::Continued => Some(Request::Resume),
        Event::Resized => None,
        Event::Now(now) => return ticked(state, now),
        Event::Window(window) => {
            if !state.frozen {
                state.history.push(&window);
                state.window = Some(window);
            }
            None
        }
        Event::Played(number, window) => {
            played(&mut state, number, window);
            None
        }
        Event::Ended(why) => {
            state.ended = Some(why);
            None
        }
        Event::Planned(Ok(plan)) => {
            let text = Text::new("plan", views::plan::render(&plan).as_str());
            state.overlay = Some(Overlay::Plan(plan, text));
            None
        }
        Event::Explained(subject, Ok(text)) => {
            let row = in_full(&state, &subject).map_or_else(String::new, |row| row + "\n");
            state.overlay =
                Some(Overlay::Text(Text::new(format!("why {subject}"), &(row + &text))));
            None
        }
        Event::Saved(Ok(file)) => {
            state.message = Some(format!("written to {file}"));
            None
        }
        Event::Planned(Err(why)) | Event::Explained(_, Err(why)) | Event::Saved(Err(why)) => {
            state.message = Some(why);
            None
        }
        Event::Step(line) => {
            if let Some(Overlay::Busy(text)) = &mut state.overlay {
                text.lines.push(line);
            }
            None
        }
        Event::Applied(Ok(pending)) => {
            state.pending = Some(pending);
            finish(&mut state, "applied; c keeps it, u undoes it");
            None
        }
        Event::Applied(Err(why)) => {
            finish(&mut state, &why);
            None
        }
        Event::Settled(words) => {
            state.pending = None;
            finish(&mut state, &words);
            None
        }
    };
    (state, request)
}

/// Shows a window of a bundle. If it is the next window, the history continues.
fn played(state: &mut State, number: usize, next: Arc<Window>) {
    if let Source::Bundle { window, .. } = &mut state.source {
        if number != *window + 1 {
            state.history = History::default();
        }
        *window = number;
    }
    state.history.push(&next);
    state.window = Some(next);
}

/// Ends an apply or undo. Its steps stay on the screen.
fn finish(state: &mut State, words: &str) {
    match state.overlay.take() {
        Some(Overlay::Busy(mut text)) => {
            text.lines.extend(words.lines().map(str::to_owned));
            state.overlay = Some(Overlay::Text(text));
        }
        other => {
            state.overlay = other;
            state.message = words.lines().next().map(str::to_owned);
        }
    }
}

/// After the deadline, `Confirm` finds the result of the transaction in the journal.
fn ticked(mut state: State, now: Duration) -> (State, Option<Request>) {
    state.now = now;
    let is_over = |pending: &mut Pending| now > pending.deadline + Duration::from_secs(1);
    let over = state.pending.take_if(is_over);
    (state, over.map(|pending| Request::Confirm(pending.transaction)))
}

fn pressed(mut state: State, key: KeyCode) -> (State, Option<Request>) {
    state.message = None;
    if state.typing {
        typed(&mut state, key);
        return (state, None);
    }
    match state.overlay.take() {
        Some(overlay) => in_overlay(state, overlay, key),
        None => on_page(state, key),
    }
}

/// Handles a key while the user types the filter.
fn typed(state: &mut State, key: KeyCode) {
    match key {
        KeyCode::Char(c) => state.filter.push(c),
        KeyCode::Backspace => {
            state.filter.pop();
        }
        KeyCode::Esc => {
            state.filter.clear();
            state.typing = false;
        }
        KeyCode::Enter => state.typing = false,
        _ => {}
    }
}

fn in_overlay(mut state: State, overlay: Overlay, key: KeyCode) -> (State, Option<Request>) {
    let mut request = None;
    state.overlay = match (overlay, key) {
        (Overlay::Busy(text), _) => Some(Overlay::Busy(text)),
        (Overlay::AskApply(plan, mut text), KeyCode::Char('y')) => {
            (text.title, text.lines) = ("settings".into(), Vec::new());
            request = Some(Request::Apply(plan));
            text.scroll = 0;
            Some(Overlay::Busy(text))
        }
        (Overlay::AskApply(plan, text), _) => Some(Overlay::Plan(plan, text)),
        (Overlay::AskUndo, KeyCode::Char('y')) => {
            request = Some(Request::Undo);
            Some(Overlay::Busy(Text::new("settings", "")))
        }
        (Overlay::AskUndo, _) | (_, KeyCode::Esc | KeyCode::Char('q')) => None,
        (overlay @ (Overlay::Plan(..) | Overlay::Text(_)), KeyCode::Char('w')) => {
            request = Some(Request::Save);
            Some(overlay)
        }
        (Overlay::Plan(plan, text), KeyCode::Char('a')) => ask_apply(&mut state, plan, text),
        (Overlay::Plan(plan, text), key) => Some(Overlay::Plan(plan, scrolled(text, key))),
        (Overlay::Text(_), KeyCode::Enter | KeyCode::Char('?')) => None,
        (Overlay::Text(text), KeyCode::Char('c')) if state.pending.is_some() => {
            request = confirmation(&state);
            Some(Overlay::Text(text))
        }
        (Overlay::Text(text), key) => Some(Overlay::Text(scrolled(text, key))),
    };
    (state, request)
}

fn confirmation(state: &State) -> Option<Request> {
    state.pending.map(|pending| Request::Confirm(pending.transaction))
}

/// Asks before a plan is written, or reports why it cannot be written.
fn ask_apply(state: &mut State, plan: Arc<Plan>, text: Text) -> Option<Overlay> {
    let cannot = if let Some(why) = &state.read_only {
        Some(format!("read-only: {why}"))
    } else if plan.changes.is_empty() {
        Some("this plan changes nothing".to_owned())
    } else {
        state
            .pending
            .map(|it| format!("transaction {} waits: c keeps it, u undoes it", it.transaction))
    };
    match cannot {
        None => Some(Overlay::AskApply(plan, text)),
        Some(why) => {
            state.message = Some(why);
            Some(Overlay::Plan(plan, text))
        }
    }
}

fn scrolled(mut text: Text, key: KeyCode) -> Text {
    let last = text.lines.len().saturating_sub(1);
    text.scroll = match direction(key) {
        Some(by) => moved(text.scroll, by, last),
        None => text.scroll,
    };
    text
}

/// How many rows a key moves.
fn direction(key: KeyCode) -> Option<isize> {
    Some(match key {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -PAGE_ROWS,
        KeyCode::PageDown => PAGE_ROWS,
        KeyCode::Home => isize::MIN / 2,
        KeyCode::End => isize::MAX / 2,
        _ => return None,
    })
}

fn moved(at: usize, by: isize, last: usize) -> usize {
    (at as isize).saturating_add(by).clamp(0, last as isize) as usize
}

fn on_page(mut state: State, key: KeyCode) -> (State, Option<Request>) {
    let mut request = None;
    match key {
        KeyCode::Char('q') => request = Some(Request::Quit),
        KeyCode::Char(digit @ '1'..='7') => {
            state.page = Page::ALL[digit as usize - '1' as usize];
        }
        KeyCode::Tab => state.page = beside(state.page, 1),
        KeyCode::BackTab => state.page = beside(state.page, Page::ALL.len() - 1),
        KeyCode::Char('?') | KeyCode::F(1) => state.overlay = Some(Overlay::Text(help(&state))),
        KeyCode::Char('/') => state.typing = true,
        KeyCode::Esc => state.filter.clear(),
        KeyCode::Char(' ') => {
            state.frozen = !state.frozen;
            request = is_bundle(&state).then_some(Request::Pause(state.frozen));
        }
        KeyCode::Char('[') if is_bundle(&state) => request = Some(Request::Step(-1)),
        KeyCode::Char(']') if is_bundle(&state) => request = Some(Request::Step(1)),
        KeyCode::Char('+' | '=') => request = change_interval(&mut state, true),
        KeyCode::Char('-') => request = change_interval(&mut state, false),
        KeyCode::Char('s') => sort_by_next(&mut state),
        KeyCode::Char('r') => {
            let sort = &mut state.view_mut().sort;
            sort.reversed = !sort.reversed;
        }
        KeyCode::Char('z') => zoom(&mut state),
        KeyCode::Char('w') => request = Some(Request::Save),
        KeyCode::Left => state.left = state.left.saturating_sub(1),
        KeyCode::Right => state.left += 1,
        KeyCode::Enter => request = explain(&mut state),
        KeyCode::Char('p') if state.window.is_none() => {
            state.message = Some("nothing was observed yet: press p again later".into());
        }
        KeyCode::Char('p') => request = Some(Request::Plan(fix_of_selected(&state))),
        KeyCode::Char('u') => match &state.read_only {
            Some(why) => state.message = Some(format!("read-only: {why}")),
            None => state.overlay = Some(Overlay::AskUndo),
        },
        KeyCode::Char('a') => {
            state.message = Some("press p first, then a writes the plan that p shows".into())
        }
        KeyCode::Char('c') if state.pending.is_some() => request = confirmation(&state),
        key => select(&mut state, direction(key)),
    }
    (state, request)
}

fn is_bundle(state: &State) -> bool {
    matches!(state.source, Source::Bundle { .. })
}

fn beside(page: Page, by: usize) -> Page {
    Page::ALL[(page as usize + by) % Page::ALL.len()]
}

/// Moves the selection by this many rows.
fn select(state: &mut State, by: Option<isize>) {
    let Some(by) = by else { return };
    let keys = pages::keys(state);
    let Some(selected) = pages::selected(state, &keys) else { return };
    let at = keys.iter().position(|key| *key == selected).unwrap_or(0);
    state.view_mut().selected = keys.get(moved(at, by, keys.len() - 1)).cloned();
}

fn change_interval(state: &mut State, longer: bool) -> Option<Request> {
    let mut all = INTERVALS.map(Duration::from_millis).into_iter();
    let next = if longer {
        all.find(|it| *it > state.interval)
    } else {
        all.rfind(|it| *it < state.interval)
    };
    state.interval = next?;
    next.map(Request::Interval)
}

/// Sorts by the next column. After the last column comes the page's own order.
fn sort_by_next(state: &mut State) {
    let Some(window) = state.window.clone() else { return };
    let Some(listing) = pages::listing(state, &window) else {
        state.message =
            Some("the map cannot be sorted: it is in the order of queues and cpus".into());
        return;
    };
    let next = state.view().sort.column.map_or(0, |column| column + 1);
    let column = (next < listing.columns.len()).then_some(next);
    state.view_mut().sort = Sort { column, reversed: false };
    let by = column.map_or("the page's own order", |column| listing.columns[column].name);
    state.message = Some(format!("sorted by {by}"));
}

fn zoom(state: &mut State) {
    let next = state.zoom.map_or(0, |level| level as usize + 1);
    state.zoom = Level::ALL.get(next).copied();
    state.left = 0;
    let columns = state.zoom.map_or("the finest that fits", Level::name);
    state.message = Some(format!("columns: {columns}"));
}

/// The fix of the selected finding, on the page of findings, if netsilo can write a fix.
fn fix_of_selected(state: &State) -> Option<FixRequest> {
    if state.page != Page::Findings {
        return None;
    }
    pages::selected(state, &pages::keys(state))?.parse().ok()
}

/// Explains the selected row.
fn explain(state: &mut State) -> Option<Request> {
    let selected = pages::selected(state, &pages::keys(state))?;
    match state.page {
        Page::Map | Page::Queues | Page::Cpus => selected.parse().ok().map(Request::Why),
        Page::Findings => {
            let text = finding(state.history.finding(&selected)?);
            state.overlay = Some(Overlay::Text(text));
            None
        }
        Page::Consumers | Page::Decisions | Page::Drops => {
            let text = in_full(state, &selected)? + &drops::meaning(state, &selected);
            state.overlay = Some(Overlay::Text(Text::new("all columns", &text)));
            None
        }
    }
}

/// A row of the current table with all its columns.
fn in_full(state: &State, key: &str) -> Option<String> {
    pages::listing(state, state.window.as_deref()?)?.in_full(key)
}

/// The keys, and the notes of the current table, for which a small terminal has no room.
fn help(state: &State) -> Text {
    let mut text = help::text();
    let listing = state.window.as_deref().and_then(|window| pages::listing(state, window));
    if let Some(listing) = listing.filter(|listing| !listing.notes.is_empty()) {
        text.lines.extend([String::new(), format!("notes on the page {}", state.page.name())]);
        text.lines.extend(listing.note_lines().iter().map(|note| format!("  {note}")));
    }
    text
}

/// A finding with its evidence and remedies, then the page about its kind.
fn finding(seen: &Seen) -> Text {
    let id = seen.finding.id;
    let mut text = Styled::default();
    views::check::one(&mut text, &seen.finding, true);
    let earlier = seen.earlier().map_or_else(String::new, |ago| {
        format!("last seen {ago}: the newest window does not show it\n\n")
    });
    Text::new(id.as_str(), &format!("{earlier}{text}\n{}", FindingId::page(id)))
}
