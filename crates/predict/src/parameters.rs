//! The parameters of the model. `parameters.toml` has the prior value of each, its uncertainty and
//! its source; `fitted.csv` has the values that were fitted to published experiments.
//!
//! CPU costs are in cycles of a 2.6.38 kernel; [`Values::ns_per_cycle`] converts them into
//! nanoseconds of a machine by its clock and its kernel's age. `docs/parameters.md` lists them.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::scenario::{Kernel, Machine};

macro_rules! parameters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// One value of each parameter.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct Values {
            $($(#[doc = $doc])* pub $name: f64,)*
        }

        impl Values {
            /// The parameters' names, in the order of [`Self::to_array`].
            pub const NAMES: [&'static str; [$(stringify!($name)),*].len()] =
                [$(stringify!($name)),*];

            /// What each of them is, with its unit at the end.
            pub const MEANINGS: [&'static str; Self::NAMES.len()] = [$(concat!($($doc),*)),*];

            /// The values in the order of [`Self::NAMES`].
            pub fn to_array(self) -> [f64; Self::NAMES.len()] {
                [$(self.$name),*]
            }

            /// The inverse of [`Self::to_array`].
            pub fn from_array(values: [f64; Self::NAMES.len()]) -> Self {
                let [$($name),*] = values;
                Self { $($name),* }
            }
        }
    };
}

parameters! {
    /// Hardware interrupt with the scheduling of NAPI, per interrupt (cycles).
    interrupt,
    /// The driver's poll with GRO, per packet: descriptor, buffer, `napi_gro_receive` (cycles).
    poll,
    /// The same, per byte of payload: reading the lines that the device wrote (cycles).
    poll_byte,
    /// Added for each frame that the driver does not copy into a small buffer: a new large buffer
    /// for the ring, mapped for the device (cycles).
    new_buffer,
    /// IP and TCP input of a small segment up to the socket's queue, per packet (cycles).
    tcp,
    /// IP and UDP input up to the socket's queue, per packet (cycles).
    udp,
    /// `try_to_wake_up` of the reader, on the CPU that wakes it (cycles).
    wakeup,
    /// The interrupt that wakes an idle CPU for a woken thread, on the CPU that sends it (cycles).
    reschedule,
    /// A call-function interrupt, as RPS sends, on the CPU that sends it (cycles).
    ipi_send,
    /// Added if that CPU sleeps: the sender waits until the CPU accepts the interrupt and releases
    /// the lock of its call queue (cycles).
    ipi_sleeper,
    /// Any inter-processor interrupt, on the CPU that receives it (cycles).
    ipi_receive,
    /// RPS: flow hash, table and enqueue to another CPU's backlog, per packet (cycles).
    rps_enqueue,
    /// RPS: dequeue on the other CPU, `process_backlog`, per packet (cycles).
    backlog,
    /// Completion of a sent packet: unmap and free, per packet (cycles).
    completion,
    /// The same for a datagram: the completion frees the whole buffer, and returns its memory to
    /// the socket (cycles).
    completion_udp,
    /// Added for a received packet if its CPU completes no sent packets: this CPU allocates buffers
    /// that another frees, and a third CPU writes the socket's counters (cycles).
    far_buffer,
    /// Share of `far_buffer` in the poll; the rest is in the protocol.
    far_buffer_poll,
    /// System calls of one TCP transaction: wait, receive, send, two context switches (cycles).
    syscall_tcp,
    /// The same for UDP (cycles).
    syscall_udp,
    /// The benchmark's own work in user mode for each transaction (cycles).
    user,
    /// Copy between kernel and user, per byte of payload (cycles).
    copy_byte,
    /// Cache lines of packet, socket and thread if protocol and reader run on different cores: cost
    /// to each of the two, per packet (cycles).
    lines,
    /// Leaving and entering idle, with the tick, for one woken thread (cycles).
    idle_switch,
    /// Work that both threads of a core do together, in units of what one thread does alone.
    smt,
    /// Share of the CPUs' time that the scheduler fills with ready threads.
    balance,
    /// Time from an interrupt to the first instruction on an idle CPU (us).
    idle_exit,
    /// Round trip through wire, switch and bus, without CPU time (us).
    round_trip,
    /// CPU time of the client per transaction, divided by that of the server.
    client,
    /// Factor from these cycles to those of a later kernel (4.0 on) and CPU.
    recent,
    /// The same factor for cycles per byte.
    recent_byte,
    /// Factor on the cost of an inter-processor interrupt in a virtual machine.
    virtual_ipi,
    /// Forwarding through a bridge or a route, with the transmit call, per packet (cycles).
    forward,
    /// From the poll to a rule in `raw` PREROUTING that drops the packet (cycles).
    drop,
    /// Netfilter with connection tracking, per packet (cycles).
    conntrack,
    /// One send call (cycles).
    send_call,
    /// Work of a sender for each segment: header, checksum descriptor, driver, completion,
    /// acknowledgement, per packet (cycles).
    send_packet,
    /// Work of a sender per byte besides copies: pages, memory bandwidth of the device (cycles).
    send_byte,
    /// Copy of sent data into the kernel, per byte (cycles).
    send_copy,
}

impl Values {
    /// Returns the nanoseconds that one cycle of the table takes on `machine`.
    pub fn ns_per_cycle(&self, machine: &Machine) -> f64 {
        let age = if machine.kernel == Kernel::Old { 1.0 } else { self.recent };
        age / machine.ghz
    }

    /// The same for a cycle that is spent on a byte.
    pub fn ns_per_byte_cycle(&self, machine: &Machine) -> f64 {
        let age = if machine.kernel == Kernel::Old { 1.0 } else { self.recent_byte };
        age / machine.ghz
    }

    /// Returns the factor on inter-processor interrupts of `machine`.
    pub fn ipi_factor(&self, machine: &Machine) -> f64 {
        if machine.is_virtual { self.virtual_ipi } else { 1.0 }
    }
}

/// A row of `parameters.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The name in [`Values::NAMES`].
    pub name: String,
    /// `cycles`, `cycles/B`, `us` or `ratio`.
    pub unit: String,
    /// The value before any fit, from its source.
    pub prior: f64,
    /// Standard deviation of the logarithm of `prior`.
    pub uncertainty: f64,
    /// Where `prior` is from.
    pub source: String,
}

/// Errors of the model apart from its parameters: the residuals of gains and softirq times
/// (root mean square); of rates, the error of published ones.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelError {
    /// Standard deviation of the logarithm of a rate.
    pub rate: f64,
    /// Standard deviation of the logarithm of a ratio of rates.
    pub gain: f64,
    /// Standard deviation of a CPU's share of time in softirqs.
    pub softirq: f64,
    /// Standard deviation of the logarithm of a ratio of rates, for an observed machine and a
    /// setting that moves all polls to other CPUs: the residuals of forecasts of recorded
    /// placements (`evidence/outcomes.md`).
    pub polls: f64,
    /// The same for steering that gains, and moves work of one CPU's whole time.
    pub steering: f64,
    /// How many times the expected loss steering may cost: what 30 measured settings of RPS on
    /// veths did (`evidence/verdicts.md`).
    pub loss: f64,
}

/// A parameter after the fit to the published experiments.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// The value, in the unit of its row.
    pub value: f64,
    /// Its row of the Cholesky factor of the covariance of the values' logarithms, up to the
    /// diagonal.
    pub spread: Vec<f64>,
}

/// What `parameters.toml` holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "parameter")]
    rows: Vec<Row>,
    error: ModelError,
}

/// The table.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// The parameters, in the order of [`Values::NAMES`].
    pub rows: Vec<Row>,
    /// What the model is off by beyond its parameters.
    pub error: ModelError,
    /// A fitted value for each row.
    pub fitted: Vec<Fitted>,
}

impl Table {
    /// What the threads of a core do together at least, one thread's work being 1: 1.25, as of work
    /// that computes, which is the value before the fit less its uncertainty. The fit knows the
    /// machines of one study only.
    pub fn least_smt(&self) -> f64 {
        let row = self.rows.iter().find(|row| row.name == "smt");
        row.map_or(1.0, |row| row.prior / (1.0 + row.uncertainty))
    }

    /// The table that is built in, parsed once; a test checks that it parses.
    pub fn shipped() -> &'static Self {
        static TABLE: LazyLock<Table> = LazyLock::new(|| Table::built_in().unwrap_or_default());
        &TABLE
    }

    /// Reads the table that is built in: `parameters.toml` with `fitted.csv`.
    ///
    /// # Errors
    /// What is wrong with these files; a test keeps them right.
    pub fn built_in() -> Result<Self, String> {
        let File { rows, error } = toml::from_str(include_str!("../parameters.toml"))
            .map_err(|why| format!("parameters.toml: {why}"))?;
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        if names != Values::NAMES {
            return Err(format!("parameters.toml: the names are {names:?}"));
        }
        let fitted = fitted(include_str!("../fitted.csv"), &names)
            .ok_or("fitted.csv: not as `make predict-score` writes it")?;
        Ok(Self { rows, error, fitted })
    }

    /// Returns the fitted values.
    pub fn values(&self) -> Values {
        let mut values = [1.0; Values::NAMES.len()];
        for (value, fitted) in values.iter_mut().zip(&self.fitted) {
            *value = fitted.value;
        }
        Values::from_array(values)
    }

    /// Returns one draw of values that are as uncertain as the table says, from standard normal
    /// numbers.
    pub fn draw(&self, mut normal: impl FnMut() -> f64) -> Values {
        let numbers: Vec<f64> = self.rows.iter().map(|_| normal()).collect();
        let mut values = self.values().to_array();
        for (value, fitted) in values.iter_mut().zip(&self.fitted) {
            let shift: f64 = fitted.spread.iter().zip(&numbers).map(|(a, b)| a * b).sum();
            *value *= shift.exp();
        }
        Values::from_array(values)
    }

    /// Returns `fitted.csv`: for each parameter its name, its value and its spread.
    pub fn fitted_csv(&self) -> String {
        let line = |(row, fitted): (&Row, &Fitted)| {
            let spread: Vec<String> = fitted.spread.iter().map(|it| format!("{it:.4}")).collect();
            format!("{},{:.4},{}\n", row.name, fitted.value, spread.join(","))
        };
        self.rows.iter().zip(&self.fitted).map(line).collect()
    }
}

/// Reads `fitted.csv`; `None` unless it has a line for each name, with numbers.
fn fitted(text: &str, names: &[&str]) -> Option<Vec<Fitted>> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() != names.len() {
        return None;
    }
    let read = |(line, name): (&&str, &&str)| {
        let mut fields = line.split(',');
        (fields.next() == Some(name)).then_some(())?;
        let value = fields.next()?.parse().ok()?;
        let spread = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Fitted { value, spread })
    };
    lines.iter().zip(names).map(read).collect()
}
