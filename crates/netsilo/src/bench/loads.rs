//! The loads of an experiment: every test with every size and every number of instances.

use std::time::Duration;

use netsilo_trial::experiment::Load;
use netsilo_trial::traffic::{InstancesAs, Spec, Test};

use crate::bench::experiment::Common;

/// Lists of what to send.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Requests {
    /// What to send: TCP_RR, UDP_RR, TCP_CRR [default: TCP_RR, of matrix TCP_RR,UDP_RR]
    #[arg(short, long, value_name = "TEST,..", value_delimiter = ',', value_parser = crate::bench::test)]
    tests: Vec<Test>,
    /// Lengths of requests and of their responses [default: 256, of matrix 1,256]
    #[arg(short, long, value_name = "BYTES,..", value_delimiter = ',')]
    requests: Vec<usize>,
    /// How many at once [default: 64, of matrix 100,500,1500]
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',')]
    instances: Vec<usize>,
    /// What they are: threads, processes, multiplexed [default: threads up to two per CPU, beyond
    /// that multiplexed]
    #[arg(long, value_name = "WHAT", value_parser = crate::bench::instances_as)]
    instances_as: Option<InstancesAs>,
    /// Take a UDP request for lost after this time
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = humantime::parse_duration)]
    lost_after: Duration,
}

impl Requests {
    /// All of them, with these where nothing is said.
    pub(super) fn loads(
        &self,
        common: &Common,
        tests: &[Test],
        requests: &[usize],
        instances: &[usize],
    ) -> Vec<Load> {
        fn or<'a, T>(said: &'a [T], usual: &'a [T]) -> &'a [T] {
            if said.is_empty() { usual } else { said }
        }
        let mut loads = Vec::new();
        for test in or(&self.tests, tests) {
            for bytes in or(&self.requests, requests) {
                for instances in or(&self.instances, instances) {
                    let spec = common.spec(*test, *instances, self.instances_as);
                    let (request_bytes, response_bytes) = (*bytes, *bytes);
                    // of a stream it is what is sent in one call
                    let send_bytes = if test.has_responses() { spec.send_bytes } else { *bytes };
                    let spec = Spec {
                        request_bytes,
                        response_bytes,
                        send_bytes,
                        lost_after: self.lost_after,
                        ..spec
                    };
                    let name = format!("{test} {bytes} B x {instances}");
                    loads.push(Load { name, spec, senders: 1, early_drop: false });
                }
            }
        }
        loads
    }
}
