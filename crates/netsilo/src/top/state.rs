//! What `netsilo top` shows at one moment. The pages draw it, and `update` makes the next state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use netsilo_decide::judge::dropped::DropRow;
use netsilo_decide::judge::findings::{Finding, Severity};
use netsilo_decide::judge::fix::FixRequest;
use netsilo_decide::plan::Plan;
use netsilo_model::machine::cpuset::CpuId;

use crate::tell::palette::Palette;
use crate::top::listing::Sort;
use crate::top::map::Level;
use crate::top::window::Window;

/// How many windows the history keeps.
pub(crate) const HISTORY: usize = 60;

/// Number of past windows that a row shows.
pub(crate) const PAST: usize = 12;

/// The pages, in the order of their keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Page {
    #[default]
    Map,
    Queues,
    Cpus,
    Consumers,
    Findings,
    Decisions,
    Drops,
}

impl Page {
    /// All pages.
    pub(crate) const ALL: [Self; 7] = [
        Self::Map,
        Self::Queues,
        Self::Cpus,
        Self::Consumers,
        Self::Findings,
        Self::Decisions,
        Self::Drops,
    ];

    /// The name in the row of pages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Queues => "queues",
            Self::Cpus => "cpus",
            Self::Consumers => "consumers",
            Self::Findings => "findings",
            Self::Decisions => "decisions",
            Self::Drops => "drops",
        }
    }
}

/// What the user chose on one page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// The key of the selected row. If no row has it, the first row is selected.
    pub(crate) selected: Option<String>,
    pub(crate) sort: Sort,
}

/// A text that covers the page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) title: String,
    pub(crate) lines: Vec<String>,
    /// Number of lines above the first one shown.
    pub(crate) scroll: usize,
}

impl Text {
    /// A text from its first line on.
    pub(crate) fn new(title: impl Into<String>, text: &str) -> Self {
        let lines = text.lines().map(str::to_owned).collect();
        Self { title: title.into(), lines, scroll: 0 }
    }
}

/// What covers the page.
#[derive(Debug, Clone)]
pub(crate) enum Overlay {
    /// A text to read: help, an explanation, or the result of an apply or undo.
    Text(Text),
    /// A plan. The next key may apply it.
    Plan(Arc<Plan>, Text),
    /// The question whether to apply the plan.
    AskApply(Arc<Plan>, Text),
    /// The question whether to undo the newest transaction.
    AskUndo,
    /// Changes are being written or restored.
    Busy(Text),
}

impl Overlay {
    /// Its text; `None` for a question over the page.
    pub(crate) fn text(&self) -> Option<&Text> {
        match self {
            Self::Text(text) | Self::Plan(_, text) | Self::AskApply(_, text) | Self::Busy(text) => {
                Some(text)
            }
            Self::AskUndo => None,
        }
    }
}

/// A transaction that is restored unless it is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) transaction: u64,
    pub(crate) changes: usize,
    /// When the guard restores it, as time since boot.
    pub(crate) deadline: Duration,
    /// The time limit for its confirmation.
    pub(crate) within: Duration,
}

/// Past windows, the newest last.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// Share of each CPU's time in use.
    pub(crate) busy: BTreeMap<CpuId, VecDeque<f64>>,
    /// Packets per second of each rx queue.
    pub(crate) packets: BTreeMap<String, VecDeque<f64>>,
    /// Bytes per second read from queues.
    pub(crate) read: VecDeque<f64>,
    /// The problems found in this window, and in earlier ones up to [`FINDINGS_STAY`] ago. The most
    /// severe come first; otherwise they stay in the order in which they were found, so that rows
    /// do not jump.
    pub(crate) findings: Vec<Seen>,
    /// What the kernel dropped in the windows that a row shows, by [`PastDrops::key`].
    pub(crate) drops: BTreeMap<String, PastDrops>,
}

/// Packets that were dropped at one place for one reason.
#[derive(Debug, Clone)]
pub(crate) struct PastDrops {
    /// This window.
    pub(crate) row: DropRow,
    /// Packets per second.
    pub(crate) past: VecDeque<f64>,
}

impl PastDrops {
    fn key(row: &DropRow) -> String {
        // All but the counts, so that a new field cannot be forgotten.
        format!("{:?}", DropRow { packets: 0, per_s: 0.0, ..row.clone() })
    }

    /// Packets per second in all windows that the row shows.
    pub(crate) fn sum(&self) -> f64 {
        self.past.iter().rev().take(PAST).sum()
    }
}

/// How long a finding stays after its last window, or for one window if that is longer.
pub(crate) const FINDINGS_STAY: Duration = Duration::from_secs(30);

/// A problem that `netsilo check` finds in a window.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) finding: Finding,
    /// The last window in which it was found.
    pub(crate) window: Arc<Window>,
    /// How much time was observed since that window.
    pub(crate) ago: Duration,
}

impl Seen {
    /// The key of its row: the request that fixes it.
    pub(crate) fn key(&self) -> String {
        FixRequest::of(&self.finding).to_string()
    }

    /// When it was found, if not in the window on the screen.
    pub(crate) fn earlier(&self) -> Option<String> {
        let ago = Duration::from_secs(self.ago.as_secs_f64().ceil() as u64);
        (!ago.is_zero()).then(|| format!("{} ago", humantime::format_duration(ago)))
    }
}

impl History {
    /// Adds a window.
    pub(crate) fn push(&mut self, window: &Arc<Window>) {
        let add = |past: &mut VecDeque<f64>, value: f64| {
            past.push_back(value);
            if past.len() > HISTORY {
                past.pop_front();
            }
        };
        for line in &window.report.cpus {
            if let Some(shares) = line.shares {
                add(self.busy.entry(line.cpu).or_default(), shares.busy());
            }
        }
        for silo in window.report.netdevs.iter().flat_map(|netdev| &netdev.queues) {
            if let Some(rate) = silo.received_per_s() {
                add(self.packets.entry(silo.label()).or_default(), rate);
            }
        }
        add(&mut self.read, window.report.totals.locality.bytes_per_s);
        for seen in self.drops.values_mut() {
            (seen.row.packets, seen.row.per_s) = (0, 0.0);
        }
        for row in window.check.ledger.dropped.iter().flatten() {
            let seen = || PastDrops { row: row.clone(), past: VecDeque::new() };
            self.drops.entry(PastDrops::key(row)).or_insert_with(seen).row = row.clone();
        }
        self.drops.values_mut().for_each(|seen| add(&mut seen.past, seen.row.per_s));
        self.drops.retain(|_, seen| seen.sum() > 0.0);
        self.find(window);
    }

    fn find(&mut self, window: &Arc<Window>) {
        self.findings.retain(|seen| seen.ago < FINDINGS_STAY);
        self.findings.iter_mut().for_each(|seen| seen.ago += window.check.interval);
        let problems = window.check.findings.iter().filter(|it| it.severity > Severity::Ok);
        for finding in problems.cloned() {
            let seen = Seen { finding, window: Arc::clone(window), ago: Duration::ZERO };
            match self.findings.iter_mut().find(|known| known.key() == seen.key()) {
                Some(known) => *known = seen,
                None => self.findings.push(seen),
            }
        }
        self.findings.sort_by_key(|seen| Reverse(seen.finding.severity));
    }

    /// The finding with this key.
    pub(crate) fn finding(&self, key: &str) -> Option<&Seen> {
        self.findings.iter().find(|seen| seen.key() == key)
    }
}

/// The newest of some past values, one character for each, the newest at the right.
pub(crate) fn sparkline(
    past: &VecDeque<f64>,
    highest: f64,
    length: usize,
    palette: Palette,
) -> String {
    let shown = past.iter().skip(past.len().saturating_sub(length));
    let level = |value: &f64| if highest > 0.0 { palette.level(value / highest) } else { ' ' };
    let text: String = shown.map(level).collect();
    format!("{text:>length$}")
}

/// Where windows come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// This machine.
    Live,
    /// A bundle: the number of the window, from 1, and the number of windows.
    Bundle { window: usize, of: usize },
}

/// What `netsilo top` shows.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// How the terminal shows texts.
    pub(crate) palette: Palette,
    pub(crate) source: Source,
    /// Why nothing can be written; `None` if changes can be applied.
    pub(crate) read_only: Option<String>,
    /// Time after which an apply is restored unless confirmed.
    pub(crate) confirm_within: Duration,
    pub(crate) interval: Duration,
    pub(crate) page: Page,
    pub(crate) views: [View; Page::ALL.len()],
    /// The window on the screen.
    pub(crate) window: Option<Arc<Window>>,
    pub(crate) history: History,
    /// Whether new windows are ignored. A bundle pauses.
    pub(crate) frozen: bool,
    pub(crate) filter: String,
    /// Whether keys go into the filter.
    pub(crate) typing: bool,
    /// What the map's columns stand for; `None` for the finest that fit.
    pub(crate) zoom: Option<Level>,
    /// How many of the map's columns are scrolled out to the left.
    pub(crate) left: usize,
    pub(crate) overlay: Option<Overlay>,
    pub(crate) pending: Option<Pending>,
    /// One line for the user, until the next key.
    pub(crate) message: Option<String>,
    /// Why there will be no more windows.
    pub(crate) ended: Option<String>,
    /// Time since boot.
    pub(crate) now: Duration,
}

impl State {
    /// Starts without a window. Reports once why nothing can be written.
    pub(crate) fn new(palette: Palette, source: Source, read_only: Option<String>) -> Self {
        let message = read_only.as_ref().map(|why| format!("read-only: {why}"));
        Self {
            palette,
            source,
            read_only,
            confirm_within: Duration::from_secs(60),
            interval: Duration::from_secs(1),
            page: Page::default(),
            views: Default::default(),
            window: None,
            history: History::default(),
            frozen: false,
            filter: String::new(),
            typing: false,
            zoom: None,
            left: 0,
            overlay: None,
            pending: None,
            message,
            ended: None,
            now: Duration::ZERO,
        }
    }

    /// The window from which this fix is planned, the newest that has its finding.
    pub(crate) fn window_of(&self, fix: Option<&FixRequest>) -> Option<&Window> {
        let seen = fix.and_then(|fix| self.history.finding(&fix.to_string()));
        seen.map(|seen| &seen.window).or(self.window.as_ref()).map(Arc::as_ref)
    }

    /// What the user chose on the current page.
    pub(crate) fn view(&self) -> &View {
        &self.views[self.page as usize]
    }

    /// The same, to change it.
    pub(crate) fn view_mut(&mut self) -> &mut View {
        &mut self.views[self.page as usize]
    }
}
