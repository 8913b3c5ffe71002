//! Whether the netdevs that received packets before a transaction still do after it: a confirmation
//! that nobody needs to watch.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crate::transaction::kernel::Kernel;

/// Windows before the writes in which packets are counted. What receives in each of them has steady
/// traffic; a container that has just started need not receive again.
const WINDOWS: usize = 4;

/// Length of a window.
const WINDOW: Duration = Duration::from_millis(500);

/// Time after the writes in which counters prove nothing: some drivers fetch them from the device
/// only each second.
const LATE: Duration = Duration::from_secs(2);

/// Time between two looks at the counters after that.
const STEP: Duration = Duration::from_millis(200);

/// The packets that each netdev has received since it exists, by name.
type Received = BTreeMap<String, u64>;

/// The netdevs that receive packets all the time.
#[derive(Debug)]
pub struct Receiving {
    /// Their names.
    pub netdevs: Vec<String>,
}

impl Receiving {
    /// Counts for two seconds.
    pub fn now(kernel: &dyn Kernel) -> io::Result<Self> {
        let mut before = received(kernel)?;
        let mut netdevs: Vec<String> = before.keys().cloned().collect();
        for _ in 0..WINDOWS {
            kernel.pause(WINDOW);
            let now = received(kernel)?;
            netdevs.retain(|name| now.get(name) > before.get(name));
            before = now;
        }
        Ok(Self { netdevs })
    }

    /// Waits until each of them has received a packet again. Returns those that have not within
    /// this time. A netdev that is gone is none of them: no setting removes one. A driver that
    /// resets its netdev may count from 0 again.
    pub fn still(&self, kernel: &dyn Kernel, within: Duration) -> io::Result<Vec<String>> {
        let until = kernel.now() + within;
        kernel.pause(LATE.min(within / 2));
        let from = received(kernel)?;
        loop {
            let now = received(kernel)?;
            let silent = |name: &&String| match (from.get(*name), now.get(*name)) {
                (Some(from), Some(now)) => now == from || *now == 0,
                _ => false,
            };
            let silent: Vec<String> = self.netdevs.iter().filter(silent).cloned().collect();
            if silent.is_empty() || kernel.now() >= until {
                return Ok(silent);
            }
            kernel.pause(STEP);
        }
    }
}

/// Reads `/proc/net/dev`, without `lo`: two lines of titles, then `NAME: BYTES PACKETS ...`
/// (`net/core/net-procfs.c:dev_seq_printf_stats`).
fn received(kernel: &dyn Kernel) -> io::Result<Received> {
    let text = kernel.read("/proc/net/dev")?;
    let line = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let packets = counters.split_whitespace().nth(1)?.parse().ok()?;
        Some((name.trim().to_owned(), packets))
    };
    Ok(text.lines().skip(2).filter_map(line).filter(|(name, _)| name != "lo").collect())
}
