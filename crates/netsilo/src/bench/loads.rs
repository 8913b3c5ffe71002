//! Request loads of an experiment: all combinations of test, size and number of instances.

use std::time::Duration;

use netsilo_trial::experiment::Load;
use netsilo_trial::traffic::{InstancesAs, Spec, Test};

use crate::args::named;
use crate::bench::experiment::ExperimentArgs;

/// Kinds of load that matrix and rps-guest accept.
const TESTS: [Test; 6] =
    [Test::TcpRr, Test::UdpRr, Test::TcpCrr, Test::TcpStream, Test::TcpSendfile, Test::UdpStream];

/// Arguments that list the loads.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LoadLists {
    /// Kinds of load, by netperf's names [default: TCP_RR; matrix: TCP_RR,UDP_RR]
    #[arg(
        short,
        long,
        value_name = "TEST,..",
        value_delimiter = ',',
        ignore_case = true,
        value_parser = named::tests(&TESTS)
    )]
    tests: Vec<Test>,
    /// Bytes of a request and of its response [default: 256; matrix: 1,256]
    #[arg(short, long, value_name = "BYTES,..", value_delimiter = ',')]
    requests: Vec<usize>,
    /// Numbers of concurrent instances [default: 64; matrix: 100,500,1500]
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',')]
    instances: Vec<usize>,
    /// How instances run [default: threads up to two per CPU, multiplexed above]
    #[arg(long, value_name = "WHAT", value_parser = named::instances_as())]
    instances_as: Option<InstancesAs>,
    /// Count a UDP request as lost after this time
    #[arg(
        long,
        value_name = "TIME",
        default_value = "200ms",
        value_parser = crate::args::parse::duration
    )]
    lost_after: Duration,
}

impl LoadLists {
    /// Returns all combinations; the parameters are the defaults of what the user left out.
    pub(super) fn loads(
        &self,
        experiment: &ExperimentArgs,
        tests: &[Test],
        requests: &[usize],
        instances: &[usize],
    ) -> Vec<Load> {
        fn or<'a, T>(given: &'a [T], default: &'a [T]) -> &'a [T] {
            if given.is_empty() { default } else { given }
        }
        let mut loads = Vec::new();
        for test in or(&self.tests, tests) {
            for bytes in or(&self.requests, requests) {
                for instances in or(&self.instances, instances) {
                    let spec = experiment.spec(*test, *instances, self.instances_as);
                    let (request_bytes, response_bytes) = (*bytes, *bytes);
                    // the size of a stream is the size of one send call
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
