//! A CPU of the simulation: what it does now, and what waits for it.

use std::collections::VecDeque;

use crate::simulate::events::Time;
use crate::simulate::timeline::Use;
use crate::simulate::vector::Packet;

/// Packets that one `net_rx_action` handles at most (`net.core.netdev_budget`).
pub(crate) const BUDGET: u32 = 300;

/// Packets of one poll at most (`NAPI_POLL_WEIGHT`, `dev_rx_weight`).
pub(crate) const WEIGHT: u32 = 64;

/// Packets that wait for a CPU after RPS at most (`net.core.netdev_max_backlog`).
pub(crate) const MAX_BACKLOG: usize = 1000;

/// After this many `net_rx_action` without a pause `ksoftirqd` takes over (`MAX_SOFTIRQ_RESTART`).
pub(crate) const MAX_RESTART: u32 = 10;

/// The same as a time (`MAX_SOFTIRQ_TIME`, 2 ms).
pub(crate) const MAX_SOFTIRQ_TIME: Time = 2_000_000_000;

/// Time that a thread runs while others wait (3 ms: `sched_base_slice` from 8 CPUs on).
pub(crate) const SLICE: Time = 3_000_000_000;

/// What raised an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The vector of a queue.
    Queue(usize),
    /// An inter-processor interrupt of RPS.
    Rps,
}

/// What `net_rx_action` polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Napi {
    Queue(usize),
    Backlog,
}

/// What a CPU does; [`Self::Between`] only while the next piece is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Piece {
    Between,
    Idle,
    /// Leaves the idle state.
    Exit,
    /// Could run a thread, but the scheduler has not given it one.
    Gap,
    Interrupt(Cause),
    /// Sends interrupts to other CPUs.
    Send,
    /// Polls a packet.
    Poll(Packet),
    /// Frees sent frames.
    Complete,
    /// Takes a packet of the backlog through the protocol.
    Backlog(Packet),
    /// Runs the current thread.
    Task,
}

/// A thread that can run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Thread {
    Ksoftirqd,
    Reader(Job),
}

/// The work of a reader for one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Job {
    /// The instance.
    pub(crate) flow: u32,
    /// Whether an inter-processor interrupt woke the CPU up for it.
    pub(crate) by_ipi: bool,
    /// Work that is left (ps of a CPU whose core does nothing else); `None`: not begun.
    pub(crate) left: Option<f64>,
    /// Share of it in user mode.
    pub(crate) usr: f64,
}

/// The thread that has the CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) thread: Thread,
    /// Time that it has used of its slice.
    pub(crate) used: Time,
}

/// A CPU.
#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) piece: Piece,
    /// Start of the piece.
    pub(crate) since: Time,
    /// How much slower this piece is because of the core's other threads (1 is not at all).
    pub(crate) slow: f64,
    /// Number of the piece: the end of an interrupted one is void.
    pub(crate) number: u32,
    /// Interrupts that it has not taken yet.
    pub(crate) causes: VecDeque<Cause>,
    pub(crate) poll_list: VecDeque<Napi>,
    /// Packets that the poll under way, and this `net_rx_action`, may still handle.
    pub(crate) weight: u32,
    pub(crate) budget: u32,
    /// `net_rx_action` that used up their budgets, one after the other.
    pub(crate) restarts: u32,
    /// Start of the first of them.
    pub(crate) busy_since: Time,
    /// Packets that RPS gave to it.
    pub(crate) backlog: VecDeque<Packet>,
    pub(crate) is_backlog_scheduled: bool,
    /// CPUs that get an interrupt at the end of this `net_rx_action`.
    pub(crate) ipi_targets: Vec<usize>,
    /// Work for interrupts that it has sent (ps).
    pub(crate) owed: f64,
    /// Softirqs wait for `ksoftirqd`.
    pub(crate) is_deferred: bool,
    /// It came from idle and has run no thread since, so its tick is stopped.
    pub(crate) is_tickless: bool,
    pub(crate) current: Option<Running>,
    pub(crate) ready: VecDeque<Thread>,
    /// Until then the scheduler gives it no further reader.
    pub(crate) gap_until: Time,
    /// Time of readers for which no gap followed yet (ps).
    pub(crate) gap: f64,
}

impl Cpu {
    pub(crate) fn new() -> Self {
        Self {
            piece: Piece::Idle,
            since: 0,
            slow: 1.0,
            number: 0,
            causes: VecDeque::new(),
            poll_list: VecDeque::new(),
            weight: WEIGHT,
            budget: BUDGET,
            restarts: 0,
            busy_since: 0,
            backlog: VecDeque::new(),
            is_backlog_scheduled: false,
            ipi_targets: Vec::new(),
            owed: 0.0,
            is_deferred: false,
            is_tickless: true,
            current: None,
            ready: VecDeque::new(),
            gap_until: 0,
            gap: 0.0,
        }
    }

    /// Whether it does any work.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.piece, Piece::Idle | Piece::Exit | Piece::Gap)
    }

    /// Whether the scheduler takes it as idle. A CPU in a softirq that interrupted the idle task
    /// is idle to it (`available_idle_cpu`).
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none() && self.ready.is_empty()
    }

    /// Threads that run or can run (`nr_running`).
    pub(crate) fn thread_count(&self) -> usize {
        usize::from(self.current.is_some()) + self.ready.len()
    }

    /// Whether `ksoftirqd` has the CPU.
    pub(crate) fn runs_ksoftirqd(&self) -> bool {
        matches!(self.current, Some(Running { thread: Thread::Ksoftirqd, .. }))
    }

    /// What the time of the present piece is used for.
    pub(crate) fn used_for(&self) -> Use {
        match (self.piece, self.current) {
            (Piece::Between | Piece::Idle | Piece::Exit | Piece::Gap, _) => Use::Idle,
            (Piece::Task, Some(Running { thread: Thread::Reader(job), .. })) => {
                Use::Task { usr: job.usr }
            }
            _ => Use::Softirq { booked: !self.is_tickless },
        }
    }
}
