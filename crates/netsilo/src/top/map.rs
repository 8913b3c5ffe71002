//! The map: rx queues as rows, CPUs as columns. It shows where each queue is polled and where its
//! data is read.
//!
//! Columns are in the order of nodes, last-level caches and cores, so that the distance on the
//! screen corresponds to the distance in the machine. If CPUs do not fit, a column is a core, a
//! last-level cache or a node.

use netsilo_decide::report::{CpuLine, NetdevLine};
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{Distance, NodeId, Topology};

use crate::tell::palette::{Meaning, Palette};
use crate::top::window::Window;

/// What a column stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Cpu,
    Core,
    Llc,
    Node,
}

impl Level {
    /// All levels, the finest first.
    pub(crate) const ALL: [Self; 4] = [Self::Cpu, Self::Core, Self::Llc, Self::Node];

    /// Name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Core => "core",
            Self::Llc => "last-level cache",
            Self::Node => "node",
        }
    }
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) cpus: CpuSet,
    /// Its first character.
    pub(crate) x: usize,
    pub(crate) place: CpuPosition,
}

/// Where a CPU is. Columns are sorted by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CpuPosition {
    /// `None` sorts first: CPUs that belong to no node.
    pub(crate) node: Option<NodeId>,
    /// Lowest CPU under the last-level cache.
    pub(crate) llc: CpuId,
    /// Lowest CPU of the core.
    core: CpuId,
    cpu: CpuId,
}

/// The columns of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) level: Level,
    pub(crate) columns: Vec<Column>,
    /// Characters of a column.
    pub(crate) width: usize,
    /// Width of all columns in characters, including the gaps.
    pub(crate) total: usize,
}

/// The width of a column, and of the gaps between cores, last-level caches and nodes.
type Spacing = (usize, [usize; 3]);

/// The spacings of each level, widest first.
const SPACINGS: [(Level, &[Spacing]); 4] = [
    (
        Level::Cpu,
        &[
            (5, [1, 2, 5]),
            (3, [1, 2, 3]),
            (3, [0, 1, 3]),
            (2, [1, 2, 3]),
            (2, [1, 1, 3]),
            (2, [0, 1, 2]),
        ],
    ),
    (Level::Core, &[(3, [0, 1, 3]), (2, [0, 1, 2])]),
    (Level::Llc, &[(4, [0, 0, 3]), (2, [0, 0, 2])]),
    (Level::Node, &[(9, [0, 0, 1]), (3, [0, 0, 1])]),
];

impl Grid {
    /// The finest columns that fit into `width`. If `level` is given, its columns, whatever their
    /// width.
    pub(crate) fn fitting(topology: &Topology, width: usize, level: Option<Level>) -> Self {
        let places = places(topology);
        let mut last = None;
        for (of, spacings) in SPACINGS.iter().filter(|(of, _)| level.is_none_or(|it| it == *of)) {
            for spacing in *spacings {
                let grid = Self::spaced(&places, *of, *spacing);
                if grid.total <= width {
                    return grid;
                }
                last = Some(grid);
            }
        }
        last.unwrap_or(Self { level: Level::Cpu, columns: Vec::new(), width: 1, total: 0 })
    }

    fn spaced(places: &[CpuPosition], level: Level, (width, gaps): Spacing) -> Self {
        let mut columns: Vec<Column> = Vec::new();
        for place in places {
            let x = match columns.last_mut() {
                None => 0,
                Some(last) if last.place.shares(place, level) => {
                    last.cpus.insert(place.cpu);
                    continue;
                }
                Some(last) => last.x + width + last.place.gap(place, gaps),
            };
            columns.push(Column { cpus: CpuSet::from_cpu(place.cpu), x, place: *place });
        }
        let total = columns.last().map_or(0, |last| last.x + width);
        Self { level, columns, width, total }
    }

    /// The first and last column of each run of columns that share `what`.
    pub(crate) fn runs<T: PartialEq>(
        &self,
        what: impl Fn(&CpuPosition) -> T,
    ) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (at, column) in self.columns.iter().enumerate() {
            match runs.last_mut() {
                Some((first, last)) if what(&self.columns[*first].place) == what(&column.place) => {
                    *last = at;
                }
                _ => runs.push((at, at)),
            }
        }
        runs
    }
}

impl CpuPosition {
    /// Whether both are in one column.
    fn shares(&self, other: &Self, level: Level) -> bool {
        match level {
            Level::Cpu => self == other,
            Level::Core => (self.node, self.core) == (other.node, other.core),
            Level::Llc => (self.node, self.llc) == (other.node, other.llc),
            Level::Node => self.node == other.node,
        }
    }

    /// The gap before the next column.
    fn gap(&self, next: &Self, [core, llc, node]: [usize; 3]) -> usize {
        if self.node != next.node {
            node
        } else if self.llc != next.llc {
            llc
        } else if self.core != next.core {
            core
        } else {
            0
        }
    }
}

/// The online CPUs in the order of the columns.
fn places(topology: &Topology) -> Vec<CpuPosition> {
    let place = |cpu: CpuId| {
        let lowest = |cpus: CpuSet| cpus.lowest().unwrap_or(cpu);
        CpuPosition {
            node: topology.cpus.get(&cpu).and_then(|cpu| cpu.node),
            llc: lowest(topology.llc_of(cpu)),
            core: lowest(topology.core_of(cpu)),
            cpu,
        }
    };
    let mut places: Vec<CpuPosition> = topology.online.iter().map(place).collect();
    places.sort_unstable();
    places
}

/// What happens to a queue's data in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The protocol runs here, and the data is read here.
    Together,
    /// The queue is polled here.
    Polled,
    /// RPS or a kthread runs the protocol here.
    Steered,
    /// The data is read under the last-level cache where the protocol ran.
    Near,
    /// The data is read in the node where the protocol ran.
    SameNode,
    /// The data is read on another node.
    Remote,
}

/// The marks of one queue.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Marks {
    /// By column: the mark, and the share of the queue's bytes that is read there.
    pub(crate) cells: Vec<Option<(Mark, f64)>>,
    /// Lines from a column where the protocol runs to one where data is read, and whether that is
    /// on another node.
    pub(crate) lines: Vec<(usize, usize, bool)>,
}

/// Marks where a queue is polled and read.
pub(crate) fn marks(silo: &Silo, grid: &Grid, topology: &Topology) -> Marks {
    let polled = silo.polling_cpus();
    let protocol: CpuSet = silo.protocol_cpus.keys().copied().collect();
    let home = if protocol.is_empty() { polled.clone() } else { protocol };
    let read = silo.read_on();
    let all: f64 = read.values().sum();
    let at_home: Vec<usize> =
        (0..grid.columns.len()).filter(|at| grid.columns[*at].cpus.intersects(&home)).collect();
    let mut marks = Marks::default();
    for (at, column) in grid.columns.iter().enumerate() {
        let readers = || read.iter().filter(|(cpu, _)| column.cpus.contains(**cpu));
        let share =
            if all > 0.0 { readers().map(|(_, bytes)| bytes).sum::<f64>() / all } else { 0.0 };
        let distance =
            readers().filter_map(|(cpu, _)| silo.distance_to_reader(*cpu, topology)).min();
        let mark = match (column.cpus.intersects(&home), column.cpus.intersects(&polled)) {
            (true, _) if share > 0.0 => Some(Mark::Together),
            (_, true) => Some(Mark::Polled),
            (true, false) => Some(Mark::Steered),
            (false, false) => distance.map(Mark::of_reader),
        };
        marks.cells.push(mark.map(|mark| (mark, share)));
        let nearest =
            at_home.iter().min_by_key(|home| home.abs_diff(at)).filter(|home| **home != at);
        if let (Some(home), true) = (nearest, share > 0.0) {
            marks.lines.push((*home, at, mark == Some(Mark::Remote)));
        }
    }
    marks
}

impl Mark {
    /// How it is drawn, by shape.
    pub(crate) fn glyph(self, palette: Palette) -> char {
        match self {
            Self::Together => palette.glyph('◉', '@'),
            Self::Polled => palette.glyph('●', 'P'),
            Self::Steered => palette.glyph('◆', 'S'),
            Self::Near => palette.glyph('○', 'o'),
            Self::SameNode => palette.glyph('◇', 'n'),
            Self::Remote => palette.glyph('×', 'X'),
        }
    }

    /// Whether this is good or bad.
    pub(crate) fn meaning(self) -> Meaning {
        match self {
            Self::Together | Self::Near => Meaning::Good,
            Self::Polled | Self::Steered => Meaning::Work,
            Self::SameNode => Meaning::Fair,
            Self::Remote => Meaning::Bad,
        }
    }

    /// The mark of a reader at this distance from the protocol.
    pub(crate) fn of_reader(distance: Distance) -> Self {
        match distance {
            Distance::SameCpu | Distance::Smt | Distance::L2 | Distance::Llc => Self::Near,
            Distance::Node => Self::SameNode,
            Distance::Remote => Self::Remote,
        }
    }
}

/// A row of the map.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Line<'a> {
    /// A netdev.
    Netdev(&'a NetdevLine),
    /// A queue with traffic.
    Queue(&'a Silo),
    /// The number of a netdev's queues without traffic.
    Quiet(usize),
}

impl Line<'_> {
    /// The key by which it can be selected.
    pub(crate) fn key(&self) -> Option<String> {
        match self {
            Self::Queue(silo) => Some(silo.label()),
            Self::Netdev(_) | Self::Quiet(_) => None,
        }
    }
}

/// The rows: queues that have or may have traffic, under their netdevs, that match the filter.
pub(crate) fn lines<'a>(window: &'a Window, filter: &str) -> Vec<Line<'a>> {
    let filter = filter.to_lowercase();
    let matches = |silo: &&Silo| {
        let readers = silo.consumers.iter().map(|it| it.comm.to_lowercase());
        readers.chain([silo.label().to_lowercase()]).any(|text| text.contains(&filter))
    };
    let mut lines = Vec::new();
    for netdev in &window.report.netdevs {
        let may_be_busy = |silo: &&Silo| silo.has_traffic() || silo.not_counted.is_some();
        let busy: Vec<&Silo> = netdev.queues.iter().filter(may_be_busy).collect();
        if busy.is_empty() {
            continue;
        }
        lines.push(Line::Netdev(netdev));
        lines.extend(busy.iter().copied().filter(matches).map(Line::Queue));
        if busy.len() < netdev.queues.len() && filter.is_empty() {
            lines.push(Line::Quiet(netdev.queues.len() - busy.len()));
        }
    }
    lines
}

/// The largest value of a column's CPUs; `None` if it is unknown for all of them.
pub(crate) fn hottest(
    column: &Column,
    cpus: &[CpuLine],
    share: impl Fn(&CpuLine) -> Option<f64>,
) -> Option<f64> {
    let here = cpus.iter().filter(|line| column.cpus.contains(line.cpu));
    here.filter_map(share).max_by(f64::total_cmp)
}

/// Share of a CPU's time in softirqs: measured if possible, else sampled at clock ticks.
pub(crate) fn softirq(line: &CpuLine) -> Option<f64> {
    line.softirq_share.or(line.shares.map(|shares| shares.softirq))
}

/// Share of a CPU's time in use.
pub(crate) fn busy(line: &CpuLine) -> Option<f64> {
    line.shares.map(|shares| shares.busy())
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::synthetic::grid::Grid as Machine;
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    fn machine(nodes: u32, llcs: u32, l2s: u32, threads: u32) -> Topology {
        Machine { nodes, llcs, l2s, cores: 1, threads, siblings_apart: true }.topology()
    }

    fn columns(topology: &Topology, width: usize) -> (Level, Vec<String>) {
        let grid = Grid::fitting(topology, width, None);
        assert!(grid.total <= width);
        (grid.level, grid.columns.iter().map(|column| column.cpus.to_string()).collect())
    }

    #[test]
    fn columns_are_in_the_order_of_cores_and_nodes_not_of_numbers() {
        let (level, cpus) = columns(&machine(2, 1, 2, 2), 40);
        assert_eq!(level, Level::Cpu);
        assert_eq!(cpus, ["0", "4", "1", "5", "2", "6", "3", "7"]);
    }

    #[test]
    fn a_narrow_terminal_shows_cores_caches_or_nodes() {
        let topology = machine(2, 2, 4, 2);
        let level = |width| columns(&topology, width).0;
        assert_eq!([80, 40, 20, 7].map(level), [Level::Cpu, Level::Core, Level::Llc, Level::Node]);
        assert_eq!(columns(&topology, 7).1, ["0-7,16-23", "8-15,24-31"]);
        let zoomed = Grid::fitting(&topology, 10, Some(Level::Core));
        assert!(zoomed.columns.len() == 16 && zoomed.total > 10);
    }

    #[test]
    fn gaps_are_widest_between_nodes() {
        let grid = Grid::fitting(&machine(2, 2, 2, 1), 40, None);
        let x: Vec<usize> = grid.columns.iter().map(|column| column.x).collect();
        assert_eq!(x, [0, 4, 9, 13, 19, 23, 28, 32]);
        assert_eq!(grid.runs(|place| place.node), [(0, 3), (4, 7)]);
        assert_eq!(grid.runs(|place| place.llc), [(0, 1), (2, 3), (4, 5), (6, 7)]);
    }

    fn window(queues: serde_json::Value) -> Window {
        let scene: Scene = serde_json::from_value(serde_json::json!({
            "grid": { "nodes": 2, "l2s": 2, "threads": 2 },
            "netdevs": [{ "name": "eth0", "driver": "igb", "queues": queues }],
        }))
        .unwrap();
        Window::new(scene.observation(), &Costs::default(), Err(String::new()))
    }

    fn marks_of(window: &Window, level: Level) -> Marks {
        let grid = Grid::fitting(window.topology(), 80, Some(level));
        marks(&window.report.netdevs[0].queues[0], &grid, window.topology())
    }

    fn reader(cpu: u32) -> serde_json::Value {
        serde_json::json!({ "comm": "redis", "cpu": cpu, "bytes_per_s": 100 })
    }

    #[test]
    fn a_reader_is_marked_by_its_distance_and_linked_to_the_polling_cpu() {
        let queue = serde_json::json!([{ "irq": 30, "cpus": "0", "packets_per_s": 100,
            "load": 0.1, "readers": [reader(0), reader(1), reader(2), reader(6)] }]);
        let window = window(queue);
        let Marks { cells, lines } = marks_of(&window, Level::Cpu);
        let marks: Vec<_> = cells.iter().map(|cell| cell.map(|(mark, _)| mark)).collect();
        let [together, near, remote] = [Mark::Together, Mark::Near, Mark::Remote].map(Some);
        assert_eq!(marks, [together, near, near, None, None, None, remote, None]);
        assert_eq!(lines, [(0, 1, false), (0, 2, false), (0, 6, true)]);
        assert_eq!(cells[6], Some((Mark::Remote, 0.25)));
        let nodes = marks_of(&window, Level::Node);
        assert_eq!(nodes.cells, [Some((Mark::Together, 0.75)), Some((Mark::Remote, 0.25))]);
    }

    #[test]
    fn rps_shows_where_the_protocol_runs() {
        let queue = serde_json::json!([{ "irq": 30, "cpus": "0", "packets_per_s": 100,
            "load": 0.1, "rps_cpus": "2", "readers": [reader(2), reader(4)] }]);
        let cells = marks_of(&window(queue), Level::Cpu).cells;
        let marks: Vec<_> = cells.iter().map(|cell| cell.map(|(mark, _)| mark)).collect();
        assert_eq!(
            marks[..5],
            [Some(Mark::Polled), None, Some(Mark::Together), None, Some(Mark::Remote)]
        );
    }

    #[test]
    fn quiet_queues_are_counted_and_a_filter_finds_readers() {
        let window = window(serde_json::json!([
            { "irq": 30, "cpus": "0", "packets_per_s": 100, "load": 0.1, "readers": [reader(0)] },
            { "irq": 31, "cpus": "0", "packets_per_s": 100, "load": 0.1 },
            { "irq": 32, "cpus": "0" },
        ]));
        let keys =
            |filter: &str| lines(&window, filter).iter().filter_map(Line::key).collect::<Vec<_>>();
        assert_eq!(keys(""), ["eth0 rx-0", "eth0 rx-1"]);
        assert_eq!(keys("RED"), ["eth0 rx-0"]);
        assert!(matches!(lines(&window, "")[3], Line::Quiet(1)));
    }
}
