//! [`Assumptions`]: one way to fill in what is not known of a machine.

/// The value of an unknown quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The one that is worst for a setting that moves work.
    Worst,
    /// The likely one.
    Likely,
    /// The best one.
    Best,
}

impl End {
    /// The value at this end of three.
    pub(crate) fn of<T>(self, [worst, likely, best]: [T; 3]) -> T {
        match self {
            Self::Worst => worst,
            Self::Likely => likely,
            Self::Best => best,
        }
    }
}

/// One way to fill in what is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Assumptions {
    /// Factor on the cost of a packet that crosses to another CPU.
    pub(crate) crossing: f64,
    /// Factor on the cost of a poll before its first packet.
    pub(crate) polls: f64,
    /// The share of a packet's time after driver and GRO: the least, or the most.
    pub(crate) division: End,
    /// How even the flows of RPS are, and how many packets gather before an interrupt.
    pub(crate) arrivals: End,
    /// What the threads of a core do together, one thread's work being 1; `None`: as fitted.
    pub(crate) smt: Option<f64>,
    /// Share of the tasks' time on CPUs with receive work that stays there when they fill.
    pub(crate) tasks_stay: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            crossing: 1.0,
            polls: 1.0,
            division: End::Likely,
            arrivals: End::Likely,
            smt: None,
            tasks_stay: 0.0,
        }
    }
}
