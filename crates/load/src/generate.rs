//! The generating end of a load that another machine requests, and the check of the load's target.

use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::control::{Lines, Order, Reply};
use crate::event::Event;
use crate::run::{Options, run};

/// Maximum number of concurrent loads: two senders of one experiment.
const AT_ONCE: usize = 2;

/// Generates loads for other machines.
///
/// Sends only to the requesting address, unless other addresses were permitted.
#[derive(Debug)]
pub(super) struct Generator {
    also_against: Vec<IpAddr>,
    running: AtomicUsize,
}

impl Generator {
    pub(super) fn new(also_against: Vec<IpAddr>) -> Self {
        Self { also_against, running: AtomicUsize::new(0) }
    }

    /// Generates a checked load and reports its progress. Ends early if the client is gone or the
    /// server stops.
    pub(super) fn generate(
        &self,
        order: &Order,
        from: IpAddr,
        lines: &mut Lines,
        stop: &AtomicBool,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Result<(), String> {
        let to = SocketAddr::new(self.allowed(order.to, from)?, order.port);
        let _turn = self.turn()?;
        tell(Event::Making(to, Box::new(order.spec.clone())));
        let made = run(&order.spec, to, Options { bpf: order.bpf }, &mut |tick| {
            let gone = lines.send(&Reply::Tick(tick)).is_err();
            if gone || stop.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let run = made.map_err(|error| error.to_string())?;
        tell(Event::Made(to, run.totals));
        lines.send(&Reply::Made(Box::new(run))).map_err(|error| error.to_string())
    }

    /// The address to load: the requesting machine's, or one that is permitted.
    fn allowed(&self, to: Option<IpAddr>, from: IpAddr) -> Result<IpAddr, String> {
        match to {
            None => Ok(from),
            Some(to) if to == from || self.also_against.contains(&to) => Ok(to),
            Some(to) => {
                Err(format!("this server may not load {to}: start it with --may-load {to}"))
            }
        }
    }

    fn turn(&self) -> Result<Turn<'_>, String> {
        let turn = Turn(&self.running);
        if self.running.fetch_add(1, Ordering::Relaxed) >= AT_ONCE {
            return Err(format!("{AT_ONCE} loads are running: try again later"));
        }
        Ok(turn)
    }
}

/// One of the running loads.
struct Turn<'a>(&'a AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_party_is_loaded_only_with_may_load() {
        let [me, named, other] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|it| it.parse::<IpAddr>().unwrap());
        let generator = Generator::new(vec![named]);
        assert_eq!(generator.allowed(None, me), Ok(me));
        assert_eq!(
            (generator.allowed(Some(me), me), generator.allowed(Some(named), me)),
            (Ok(me), Ok(named))
        );
        let refused = generator.allowed(Some(other), me).unwrap_err();
        assert_eq!(
            refused,
            "this server may not load 192.0.2.3: start it with --may-load 192.0.2.3"
        );
    }

    #[test]
    fn at_most_two_loads_run_at_once() {
        let generator = Generator::new(Vec::new());
        let two = [generator.turn().unwrap(), generator.turn().unwrap()];
        assert!(generator.turn().is_err());
        drop(two);
        assert!(generator.turn().is_ok());
    }
}
