//! Arguments that describe a load, their parsers, and the command that generates the load.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo::args::named::Named;
use netsilo_load::PORT;
use netsilo_trial::traffic::{InstancesAs, Spec, Test};

/// How long a load runs.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TimeArgs {
    /// Time during which the load counts, in each trial of an experiment
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = netsilo::args::parse::duration
    )]
    duration: Duration,
    /// Time during which the load runs before it counts
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        value_parser = netsilo::args::parse::duration
    )]
    warm_up: Duration,
}

impl TimeArgs {
    /// The default load of a kind, for this time.
    pub(crate) fn spec(&self, test: Test) -> Spec {
        Spec { warm_up: self.warm_up, ..Spec::default_for(test, self.duration) }
    }
}

/// Arguments that describe a load.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoadArgs {
    /// Kind of load, by netperf's name
    #[arg(
        short,
        long,
        value_name = "TEST",
        default_value = "TCP_RR",
        ignore_case = true,
        value_parser = Named::new(&Test::ALL, Test::as_str)
    )]
    test: Test,
    /// Number of concurrent instances, each with one request outstanding [default: 1; FORWARD: 64]
    #[arg(short = 'n', long, value_name = "N")]
    instances: Option<usize>,
    /// How instances run [default: threads up to two per CPU, multiplexed above]
    #[arg(
        long,
        value_name = "WHAT",
        value_parser = Named::new(&InstancesAs::ALL, InstancesAs::as_str)
    )]
    instances_as: Option<InstancesAs>,
    /// Number of client threads for multiplexed instances [default: one per CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Bytes of a request; after a comma, bytes of its response if different
    #[arg(short, long, value_name = "BYTES[,BYTES]", default_value = "1", value_parser = sizes)]
    request: (usize, usize),
    /// Bytes of a stream per send call [default: 131072; UDP_STREAM: 1472; FORWARD: 18]
    #[arg(short = 'm', long, value_name = "BYTES")]
    send_bytes: Option<usize>,
    /// Maximum bytes that the server reads from a TCP stream per call [default: 131072]
    #[arg(short = 'M', long, value_name = "BYTES")]
    recv_bytes: Option<usize>,
    /// Send TCP_STREAM or UDP_STREAM without copying (MSG_ZEROCOPY)
    #[arg(long)]
    zero_copy: bool,
    /// Datagrams per second of UDP_STREAM or FORWARD, all instances together [default: as fast as
    /// possible]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Count a UDP request as lost after this time
    #[arg(
        long,
        value_name = "TIME",
        default_value = "200ms",
        value_parser = netsilo::args::parse::duration
    )]
    lost_after: Duration,
    /// Send a lost UDP request again instead of continuing with the next one
    #[arg(long)]
    resend: bool,
    #[command(flatten)]
    times: TimeArgs,
}

impl LoadArgs {
    /// Returns the load that the arguments describe.
    pub(crate) fn spec(&self) -> Spec {
        let usual = self.times.spec(self.test);
        let spec = with_instances(
            usual.clone(),
            self.instances.unwrap_or(usual.instances),
            self.instances_as,
        );
        Spec {
            workers: self.workers.unwrap_or(spec.workers),
            request_bytes: self.request.0,
            response_bytes: self.request.1,
            send_bytes: self.send_bytes.unwrap_or(spec.send_bytes),
            recv_bytes: self.recv_bytes.unwrap_or(spec.recv_bytes),
            zero_copy: self.zero_copy,
            rate_per_s: self.rate,
            lost_after: self.lost_after,
            resend: self.resend,
            ..spec
        }
    }
}

/// Fills in `instances_as` if the user did not choose it, and one worker per CPU.
pub(crate) fn with_instances(
    spec: Spec,
    instances: usize,
    instances_as: Option<InstancesAs>,
) -> Spec {
    let cpus = cpus();
    let few = instances <= 2 * cpus;
    let guessed = if few && spec.test != Test::Forward {
        InstancesAs::Threads
    } else {
        InstancesAs::Multiplexed
    };
    Spec { instances, instances_as: instances_as.unwrap_or(guessed), workers: cpus, ..spec }
}

/// Returns the command that generates this load.
pub(crate) fn run_command(spec: &Spec, to: &str, bpf: bool) -> String {
    let Spec { test, instances, instances_as, workers, lost_after, warm_up, duration, .. } = spec;
    let mut words =
        format!("netsilo-bench run {to} -t {test} -n {instances} --instances-as {instances_as}");
    if *instances_as == InstancesAs::Multiplexed {
        words += &format!(" --workers {workers}");
    }
    if test.has_responses() {
        words += &format!(" -r {},{}", spec.request_bytes, spec.response_bytes);
    } else {
        words += &format!(" -m {}", spec.send_bytes);
    }
    if *test == Test::UdpRr {
        words += &format!(" --lost-after {}", humantime::format_duration(*lost_after));
    }
    let mut append_if = |wanted: bool, word: &str| {
        if wanted {
            words += word;
        }
    };
    append_if(
        spec.rate_per_s.is_some(),
        &spec.rate_per_s.map_or_else(String::new, |rate| format!(" --rate {rate}")),
    );
    append_if(
        spec.recv_bytes != Spec::default_for(*test, *duration).recv_bytes,
        &format!(" -M {}", spec.recv_bytes),
    );
    append_if(spec.resend, " --resend");
    append_if(spec.zero_copy, " --zero-copy");
    append_if(bpf, " --bpf");
    let (warm_up, duration) =
        (humantime::format_duration(*warm_up), humantime::format_duration(*duration));
    format!(
        "{words} --warm-up {} -d {} --json",
        warm_up.to_string().replace(' ', ""),
        duration.to_string().replace(' ', "")
    )
}

pub(crate) fn cpus() -> usize {
    available_parallelism().map_or(1, usize::from)
}

pub(crate) fn sizes(text: &str) -> Result<(usize, usize), String> {
    let (request, response) = text.split_once(',').unwrap_or((text, text));
    let bytes =
        |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is not a number of bytes"));
    Ok((bytes(request)?, bytes(response)?))
}

/// Resolves `host`, `host:port` or an address to its first socket address.
pub(crate) fn address(text: &str) -> Result<SocketAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let found =
        if text.contains(':') { text.to_socket_addrs() } else { (text, PORT).to_socket_addrs() };
    found
        .ok()
        .and_then(|mut all| all.next())
        .with_context(|| format!("{text} is not a known host or host:port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_sizes_parse_in_each_notation() {
        assert_eq!(address("192.0.2.1").unwrap().to_string(), format!("192.0.2.1:{PORT}"));
        assert_eq!(address("192.0.2.1:99").unwrap().to_string(), "192.0.2.1:99");
        assert_eq!(address("::1").unwrap().to_string(), format!("[::1]:{PORT}"));
        assert!(
            address("no such host").unwrap_err().to_string().starts_with("no such host is not")
        );
        assert_eq!((sizes("256"), sizes("1, 1024")), (Ok((256, 256)), Ok((1, 1024))));
        assert_eq!(sizes("x").unwrap_err(), "\"x\" is not a number of bytes");
    }
}
