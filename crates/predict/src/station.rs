//! Residence times at stations of a closed network, by approximate mean value analysis.
//!
//! A new arrival sees the queue of a network with one customer less. Schweitzer's approximation
//! (1979) takes it as the share (n - 1) / n of the present queue, so one round of the fixed point
//! costs one step per station instead of one per customer. Stations with several servers are split
//! into a fast single server and a delay (Seidmann, Schweitzer and Shalev-Oren, 1987).

/// A station with one server, or several that share a queue.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Station {
    /// Mean number of customers that wait or are served.
    pub queue: f64,
    /// Share of the servers' time that is used.
    pub busy: f64,
}

impl Station {
    /// Returns the time that a customer spends here, if its service takes `demand` on one of
    /// `servers`, and `customers` are in the network.
    pub fn residence(&self, demand: f64, servers: f64, customers: f64) -> f64 {
        let seen = self.queue * (customers - 1.0).max(0.0) / customers;
        let fast = demand / servers.max(1.0);
        fast * (1.0 + seen) + (demand - fast)
    }

    /// The same for one server whose service always takes the same time: the customer in service is
    /// half done on average.
    pub fn residence_of_constant(&self, demand: f64, customers: f64) -> f64 {
        let seen = self.queue * (customers - 1.0).max(0.0) / customers;
        demand * (1.0 + (seen - self.busy / 2.0).max(0.0))
    }

    /// Goes the share `step` of the way to what a throughput of `rate` means, by Little's law.
    pub fn update(&mut self, rate: f64, demand: f64, servers: f64, residence: f64, step: f64) {
        // Customers in the delay part of a split station wait for nobody.
        let fast = demand / servers.max(1.0);
        self.queue += step * (rate * (residence - (demand - fast)).max(0.0) - self.queue);
        self.busy += step * ((rate * fast).min(1.0) - self.busy);
    }
}
