//! Draws the map: a row for each queue, a column for each CPU, core, cache or node.

use netsilo_decide::report::{CpuLine, NetdevLine};
use netsilo_model::derive::locality::Locality;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::topology::Distance;
use netsilo_model::snapshot::attribution::AttributionSource;
use ratatui::layout::Rect;

use crate::tell::palette::{Meaning, Palette};
use crate::top::draw::parts::kept;
use crate::top::draw::pen::Pen;
use crate::top::draw::table::first_row;
use crate::top::map::{
    Column, CpuPosition, Grid, Level, Line, Mark, Marks, busy, hottest, lines, marks, softirq,
};
use crate::top::state::State;
use crate::top::window::Window;
use crate::views::show::netdev_title;
use crate::views::units::{bytes_per_s, count, or_dash, percent};

/// Width of the left margin: the queue and its packets per second.
const LEFT: usize = 19;

/// Width of the right margin: the locality, and at least the beginning of the readers' names.
const RIGHT: usize = 16;

/// Rows that the queues keep before other parts of the map are dropped.
const LEAST_LINES: usize = 4;

/// Minimum share of the bytes that is mentioned.
const WORTH: f64 = 0.005;

/// Draws the map, with the selected queue in view.
pub(super) fn draw(pen: &mut Pen<'_>, state: &State, window: &Window, selected: Option<&str>) {
    let width = usize::from(pen.area.width).saturating_sub(LEFT + RIGHT);
    let grid = Grid::fitting(window.topology(), width, state.zoom);
    let shown = Shown { skip: offset(&grid, state.left, width), grid: &grid, width };
    let lines = lines(window, &state.filter);
    // how high the header is shows where nothing is drawn
    let head = header(&mut pen.within(Rect::ZERO), &shown, 0);
    let height = usize::from(pen.area.height);
    let parts = [(1, 2), (head, 1), (2, 3), (3, 4)];
    let [summary, head, meters, legend] =
        kept(height.saturating_sub(lines.len().clamp(1, LEAST_LINES)), parts);
    if summary > 0 {
        pen.put_parts(0, &in_short(window, pen.palette));
    }
    let head = if head > 0 { header(pen, &shown, summary) } else { summary };
    if legend > 0 {
        let [marks, lines] = self::legend(pen.palette, grid.level);
        pen.put_parts(height - 2, &marks);
        pen.put_parts(height - 1, &lines);
    }
    if lines.is_empty() {
        let received = |it: &NetdevLine| it.rx_packets_per_s.is_some_and(|rate| rate > 0.0);
        let text = if !state.filter.is_empty() {
            "no queue with packets matches the filter"
        } else if window.report.netdevs.iter().any(received) {
            "on no queue more than a few packets are known in this window"
        } else {
            "no traffic on any rx queue in this window"
        };
        pen.put(2, head, text, Meaning::Quiet);
    }
    let room = height - head - meters - legend;
    let chosen = lines.iter().position(|line| line.key().as_deref() == selected).unwrap_or(0);
    let first = first_row(lines.len(), chosen, room);
    if meters > 0 {
        let below = head + lines.len().clamp(1, room);
        meter(pen, &shown, below, "softirq", &window.report.cpus, softirq);
        meter(pen, &shown, below + 1, "busy", &window.report.cpus, busy);
    }
    for (at, line) in lines.iter().enumerate().skip(first).take(room) {
        let y = head + at - first;
        match line {
            Line::Netdev(netdev) => {
                pen.put(2, y, &netdev_title(netdev), Meaning::Title);
            }
            Line::Quiet(queues) => {
                pen.put(4, y, &format!("{queues} without traffic seen"), Meaning::Quiet);
            }
            Line::Queue(silo) => {
                queue(pen, &shown, window, silo, y);
                if at == chosen {
                    pen.select(y);
                }
            }
        }
    }
}

/// The columns on the screen.
struct Shown<'a> {
    grid: &'a Grid,
    /// Number of characters of the columns that are scrolled out to the left.
    skip: usize,
    width: usize,
}

impl Shown<'_> {
    /// The column on the screen for a character of the columns; `None` if it is scrolled out.
    fn x(&self, x: usize) -> Option<usize> {
        x.checked_sub(self.skip).filter(|x| *x < self.width).map(|x| LEFT + x)
    }

    fn put(&self, pen: &mut Pen<'_>, x: usize, y: usize, text: &str, meaning: Meaning) {
        if let Some(x) = self.x(x) {
            pen.put_within(x, y, text, meaning, LEFT + self.width - x);
        }
    }

    /// Where the texts at the right begin.
    fn right(&self) -> usize {
        LEFT + self.grid.total.min(self.width) + 2
    }
}

/// How many characters to skip to reach the first column shown. The last column stays in view.
fn offset(grid: &Grid, left: usize, width: usize) -> usize {
    let most = grid.total.saturating_sub(width);
    grid.columns.get(left).map_or(most, |column| column.x).min(most)
}

/// How far the data of all queues travels, in one line.
fn in_short(window: &Window, palette: Palette) -> Vec<(String, Meaning)> {
    let locality = &window.report.totals.locality;
    if locality.bytes_per_s == 0.0 {
        let words = match window.report.attribution.source {
            AttributionSource::None => "the readers are not known: nothing counted them",
            _ => "no data from an rx queue was seen to be read in this window",
        };
        return vec![(words.to_owned(), Meaning::Quiet)];
    }
    let part = |(mark, name, share): (Mark, &str, f64)| {
        let text = format!("  {} {name} {}", mark.glyph(palette), percent(share));
        (text, if share < WORTH { Meaning::Quiet } else { mark.meaning() })
    };
    let read = (format!("{} read:", bytes_per_s(locality.bytes_per_s)), Meaning::Plain);
    [read].into_iter().chain(shares(locality).map(part)).collect()
}

/// The shares of the bytes by where they are read, relative to the protocol work.
fn shares(locality: &Locality) -> [(Mark, &'static str, f64); 4] {
    let of = |distances: &[Distance]| {
        distances
            .iter()
            .filter_map(|distance| locality.shares.get(distance))
            .fold(0.0, |a, b| a + b)
    };
    [
        (Mark::Together, "same cpu", of(&[Distance::SameCpu])),
        (Mark::Near, "cache", of(&[Distance::Smt, Distance::L2, Distance::Llc])),
        (Mark::SameNode, "node", of(&[Distance::Node])),
        (Mark::Remote, "other node", of(&[Distance::Remote])),
    ]
}

/// The names of nodes, caches and CPUs above the columns. Returns the row below.
fn header(pen: &mut Pen<'_>, shown: &Shown<'_>, top: usize) -> usize {
    let grid = shown.grid;
    let nodes = grid.runs(|place| place.node);
    band(pen, shown, top, "node", &nodes, |place| or_dash(place.node, |node| node.to_string()));
    let caches = grid.runs(|place| (place.node, place.llc));
    let mut y = top + 1;
    if caches.len() != nodes.len() && grid.level as usize <= Level::Core as usize {
        band(pen, shown, y, "llc", &caches, |place| place.llc.to_string());
        y += 1;
    }
    if grid.level == Level::Node {
        return y;
    }
    numbers(pen, shown, y)
}

/// A line over each run of columns, with its name.
fn band(
    pen: &mut Pen<'_>,
    shown: &Shown<'_>,
    y: usize,
    title: &str,
    runs: &[(usize, usize)],
    name: impl Fn(&CpuPosition) -> String,
) {
    let columns = &shown.grid.columns;
    for (first, last) in runs {
        let (from, to) = (columns[*first].x, columns[*last].x + shown.grid.width);
        let length = to - from - usize::from(shown.grid.width > 1);
        shown.put(pen, from, y, &pen.palette.glyph("─", "-").repeat(length), Meaning::Quiet);
        let name = name(&columns[*first].place);
        let words = [format!(" {title} {name} "), name];
        if let Some(words) = words.iter().find(|words| words.len() + 2 <= length) {
            shown.put(pen, from + 1, y, words, Meaning::Plain);
        } else if words[1].len() <= length {
            shown.put(pen, from, y, &words[1], Meaning::Plain);
        }
    }
}

/// The numbers of the columns, written vertically if they are too wide. Returns the row below.
fn numbers(pen: &mut Pen<'_>, shown: &Shown<'_>, y: usize) -> usize {
    let grid = shown.grid;
    let lowest = |column: &Column| column.cpus.lowest().map_or(0, |cpu| cpu.0).to_string();
    let digits = grid.columns.iter().map(|column| lowest(column).len()).max().unwrap_or(1);
    let name = match grid.level {
        Level::Cpu => "cpu",
        Level::Core => "core of cpu",
        Level::Llc | Level::Node => "llc of cpu",
    };
    let rows = if digits < grid.width { 1 } else { digits };
    pen.put_right(LEFT - 2, y + rows - 1, name, Meaning::Quiet);
    for column in &grid.columns {
        let text = lowest(column);
        if rows == 1 {
            shown.put(pen, column.x, y, &text, Meaning::Plain);
            continue;
        }
        for (row, digit) in format!("{text:>digits$}").chars().enumerate() {
            shown.put(pen, column.x, y + row, &digit.to_string(), Meaning::Plain);
        }
    }
    y + rows
}

/// A row below the queues: for each column, a share of its busiest CPU.
fn meter(
    pen: &mut Pen<'_>,
    shown: &Shown<'_>,
    y: usize,
    name: &str,
    cpus: &[CpuLine],
    share: impl Fn(&CpuLine) -> Option<f64> + Copy,
) {
    pen.put_right(LEFT - 2, y, name, Meaning::Quiet);
    let mut most = 0.0;
    for column in &shown.grid.columns {
        let Some(share) = hottest(column, cpus, share) else { continue };
        most = f64::max(most, share);
        let bar = pen.palette.level(share).to_string().repeat(shown.grid.width.min(2));
        shown.put(pen, column.x, y, &bar, Meaning::of_load(share));
    }
    pen.put(shown.right(), y, &format!("at most {}", percent(most)), Meaning::of_load(most));
}

/// The row of a queue.
fn queue(pen: &mut Pen<'_>, shown: &Shown<'_>, window: &Window, silo: &Silo, y: usize) {
    let name = silo.queue.map_or_else(
        || silo.napi.as_ref().map_or_else(String::new, |napi| format!("napi {}", napi.to)),
        |queue| format!("rx-{queue}"),
    );
    pen.put_within(2, y, &name, Meaning::Plain, 9);
    let packets = or_dash(silo.received_per_s(), |rate| format!("{}/s", count(rate)));
    pen.put_right(LEFT - 1, y, &packets, Meaning::Plain);
    ground(pen, shown, y);
    let marks = marks(silo, shown.grid, window.topology());
    arrows(pen, shown, y, &marks);
    for (column, cell) in shown.grid.columns.iter().zip(&marks.cells) {
        let Some((mark, share)) = cell else { continue };
        let glyph = mark.glyph(pen.palette);
        shown.put(pen, column.x, y, &glyph.to_string(), mark.meaning());
        let bar = pen.palette.level(*share);
        if bar != ' ' {
            shown.put(pen, column.x + 1, y, &bar.to_string(), mark.meaning());
        }
    }
    readers(pen, shown, silo, y);
}

/// A dot in each column, and a line between two nodes.
fn ground(pen: &mut Pen<'_>, shown: &Shown<'_>, y: usize) {
    let columns = &shown.grid.columns;
    for column in columns {
        shown.put(pen, column.x, y, pen.palette.glyph("·", "."), Meaning::Quiet);
    }
    for pair in columns.windows(2).filter(|pair| pair[0].place.node != pair[1].place.node) {
        let end = pair[0].x + shown.grid.width;
        let gap = pair[1].x - end;
        if gap > 0 {
            shown.put(pen, end + gap / 2, y, pen.palette.glyph("│", "|"), Meaning::Quiet);
        }
    }
}

/// The lines from where the protocol runs to where the data is read. Those to other nodes are on
/// top.
fn arrows(pen: &mut Pen<'_>, shown: &Shown<'_>, y: usize, marks: &Marks) {
    for to_other_node in [false, true] {
        let lines = marks.lines.iter().filter(|(.., remote)| *remote == to_other_node);
        for (home, reader, _) in lines {
            let x = |at: &usize| shown.grid.columns[*at].x;
            let (from, to) = (x(home).min(x(reader)) + 1, x(home).max(x(reader)));
            let (line, meaning) = if to_other_node {
                (pen.palette.glyph("═", "="), Meaning::Bad)
            } else {
                (pen.palette.glyph("─", "-"), Meaning::Good)
            };
            (from..to).for_each(|x| shown.put(pen, x, y, line, meaning));
        }
    }
}

/// Where most of the distant data is read, and by which process.
fn readers(pen: &mut Pen<'_>, shown: &Shown<'_>, silo: &Silo, y: usize) {
    let mut x = shown.right();
    if silo.locality.bytes_per_s > 0.0 {
        let (mark, _, share) = worst(&silo.locality);
        let text = format!("{} {}", mark.glyph(pen.palette), percent(share));
        pen.put_within(x, y, &text, mark.meaning(), 6);
        x += 7;
    }
    let names = silo.consumers.iter().map(|consumer| consumer.comm.clone());
    let forwards = silo.forwards.iter().map(|forward| format!("-> {}", forward.label()));
    let mut names: Vec<String> = names.chain(forwards).collect();
    names.dedup();
    if silo.unknown_share > 0.0 {
        names.push("not known".to_owned());
    }
    pen.put(x, y, &names.join(" "), Meaning::Plain);
}

/// The farthest place where a share of the data worth mentioning is read, and that share.
fn worst(locality: &Locality) -> (Mark, &'static str, f64) {
    let shares = shares(locality);
    let far = shares.iter().rev().find(|(_, _, share)| *share >= 0.05);
    *far.unwrap_or(&shares[0])
}

/// The marks in words.
fn legend(palette: Palette, level: Level) -> [Vec<(String, Meaning)>; 2] {
    let named =
        |mark: Mark, name: &str| (format!("{} {name}  ", mark.glyph(palette)), mark.meaning());
    let together = match level {
        Level::Cpu => "same cpu",
        Level::Core => "same core",
        Level::Llc | Level::Node => "same column",
    };
    let first = vec![
        named(Mark::Polled, "polled"),
        named(Mark::Steered, "RPS"),
        ("read: ".to_owned(), Meaning::Plain),
        named(Mark::Together, together),
        named(Mark::Near, "same cache"),
        named(Mark::SameNode, "same node"),
        named(Mark::Remote, "other node"),
    ];
    let bars: String = [0.1, 0.5, 1.0].map(|share| palette.level(share)).iter().collect();
    let line = |unicode: &str, ascii: &str| palette.glyph(unicode, ascii).repeat(2);
    let second = vec![
        (format!("{bars} share of the queue's bytes   "), Meaning::Quiet),
        (format!("{} near   ", line("─", "-")), Meaning::Good),
        (format!("{} to another node", line("═", "=")), Meaning::Bad),
    ];
    [first, second]
}
