//! `netsilo bench`: generates and answers network loads, and reports their rate and cost.

mod command_setting;
mod early_drop;
mod experiment;
pub(crate) mod folder;
mod forward;
mod loads;
mod matrix;
mod rps_guest;
mod runner;
mod settings;
mod silo;
mod stream;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_load as load;
use netsilo_load::{Bind, Event, Options, PORT, Server, Tick};
use netsilo_trial::traffic::{InstancesAs, Spec, Test};

use crate::tell::exit::Exit;
use crate::tell::out;
use crate::verbs::apply::count;
use crate::views;
use crate::views::units;

/// Verbs of `netsilo bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Answer the loads of bench run until interrupted
    Serve(ServeArgs),
    /// Generate a load against bench serve; report its rate and what it costs both machines
    Run(Box<RunArgs>),
    /// Compare settings of this machine under request loads from another machine (netperf's
    /// matrix), in rounds and random order
    Matrix(Box<matrix::Args>),
    /// Compare where one stream's interrupt runs: far from its reader, near to it, on its cpu
    Silo(Box<silo::Args>),
    /// Compare ways to send one stream at full speed: sizes, sendfile, offloads, socket buffers,
    /// one sender or two
    Stream(Box<stream::Args>),
    /// Compare RPS settings on a machine that is busy in user mode
    RpsGuest(Box<rps_guest::Args>),
    /// Measure what each stage costs when this machine forwards packets or drops them early
    Forward(Box<forward::Args>),
    #[command(hide = true)]
    Instance {
        /// Internal task of this process
        task: String,
    },
}

/// Arguments of `netsilo bench serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on; whoever reaches it can put load on this machine
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// Port of the control connection; 0 takes any free one. Data uses ports that the kernel
    /// chooses
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    /// Burn this much CPU time in user mode for each request and each read of a stream, as a real
    /// service does
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=1_000_000)
    )]
    work_usecs: u64,
    /// Number of threads for multiplexed instances [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Generate no loads; otherwise another netsilo may request a load against its own machine
    #[arg(long)]
    only_answer: bool,
    /// Also generate loads against this address, whoever requests them
    #[arg(long, value_name = "ADDRESS", conflicts_with = "only_answer")]
    may_load: Vec<IpAddr>,
}

/// Arguments of `netsilo bench run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Address of the machine where bench serve runs
    #[arg(value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    server: String,
    #[command(flatten)]
    load: LoadArgs,
    /// Measure interrupt times with eBPF on both machines, which costs a little CPU time
    #[arg(long)]
    bpf: bool,
    /// Print only the transactions, or bytes received, per second (for netsilo ab)
    #[arg(long, conflicts_with = "json")]
    rate_only: bool,
    /// Print the whole result as JSON
    #[arg(short, long)]
    json: bool,
}

/// Arguments that describe a load.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoadArgs {
    /// Kind of load: TCP_RR, UDP_RR, TCP_CRR, TCP_STREAM, TCP_SENDFILE, UDP_STREAM, FORWARD
    #[arg(short, long, value_name = "TEST", default_value = "TCP_RR", value_parser = test)]
    test: Test,
    /// Number of concurrent instances, each with one request outstanding [default: 1; FORWARD: 64]
    #[arg(short = 'n', long, value_name = "N")]
    instances: Option<usize>,
    /// How instances run: threads, processes, multiplexed [default: threads up to two per CPU,
    /// multiplexed above]
    #[arg(long, value_name = "WHAT", value_parser = instances_as)]
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
    /// Most bytes of a TCP stream that the server reads per call [default: 131072]
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
        value_parser = humantime::parse_duration
    )]
    lost_after: Duration,
    /// Send a lost UDP request again instead of the next one
    #[arg(long)]
    resend: bool,
    /// Time the load runs before it counts
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        value_parser = humantime::parse_duration
    )]
    warm_up: Duration,
    /// Time the load counts
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = humantime::parse_duration
    )]
    duration: Duration,
}

impl LoadArgs {
    /// Returns the load that the arguments describe.
    fn spec(&self) -> Spec {
        let usual = Spec::default_for(self.test, self.duration);
        let spec =
            filled(usual.clone(), self.instances.unwrap_or(usual.instances), self.instances_as);
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
            warm_up: self.warm_up,
            ..spec
        }
    }
}

/// Fills in `instances_as` when the user did not choose, and one worker per CPU.
fn filled(spec: Spec, instances: usize, instances_as: Option<InstancesAs>) -> Spec {
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
fn run_command(spec: &Spec, to: &str, bpf: bool) -> String {
    let Spec { test, instances, instances_as, workers, lost_after, warm_up, duration, .. } = spec;
    let mut words =
        format!("netsilo bench run {to} -t {test} -n {instances} --instances-as {instances_as}");
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

fn cpus() -> usize {
    available_parallelism().map_or(1, usize::from)
}

fn test(text: &str) -> Result<Test, String> {
    let known = Test::ALL.into_iter().find(|test| test.as_str().eq_ignore_ascii_case(text));
    known.ok_or_else(|| format!("known are {}", Test::ALL.map(Test::as_str).join(", ")))
}

fn instances_as(text: &str) -> Result<InstancesAs, String> {
    let all = [InstancesAs::Threads, InstancesAs::Processes, InstancesAs::Multiplexed];
    let known = all.into_iter().find(|kind| kind.to_string() == text);
    known.ok_or_else(|| "write threads, processes or multiplexed".into())
}

fn sizes(text: &str) -> Result<(usize, usize), String> {
    let (request, response) = text.split_once(',').unwrap_or((text, text));
    let bytes =
        |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is not a number of bytes"));
    Ok((bytes(request)?, bytes(response)?))
}

/// Runs a verb of `netsilo bench`.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    match args {
        Args::Serve(args) => serve(args)?,
        Args::Run(args) => make(args)?,
        Args::Matrix(args) => return matrix::run(args),
        Args::Silo(args) => return silo::run(args),
        Args::Stream(args) => return stream::run(args),
        Args::RpsGuest(args) => return rps_guest::run(args),
        Args::Forward(args) => return forward::run(args),
        Args::Instance { task } => load::instance(task)?,
    }
    Ok(Exit::Ok)
}

fn serve(args: &ServeArgs) -> Result<()> {
    let bind = Bind {
        address: SocketAddr::new(args.bind, args.port),
        work_usecs: args.work_usecs,
        workers: args.workers.map_or_else(cpus, usize::from),
        pinned: None,
    };
    let server = Server::bind(bind)?;
    let server = if args.only_answer { server } else { server.making(args.may_load.clone()) };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot await signals")?;
    }
    let address = server.address().context("cannot read the listening address")?;
    let who = if address.ip().is_loopback() {
        "reachable from this machine only; use --bind 0.0.0.0 for others"
    } else {
        "reachable from other machines"
    };
    out::text(&format!("listening on {address}, {who}\n"))?;
    server.serve(&stop, &|event| match event {
        Event::Began(from, spec) => {
            out::note(&format!("{from}: {} of {}", count(spec.instances, "instance"), spec.test));
        }
        Event::Served(from, totals) => {
            let (requests, bytes) =
                (units::count(totals.requests as f64), units::count(totals.received_bytes as f64));
            out::note(&format!("{from}: done, {requests} requests, {bytes} bytes received"));
        }
        Event::Making(to, spec) => {
            out::note(&format!(
                "generating a load against {to}: {} of {}",
                count(spec.instances, "instance"),
                spec.test
            ));
        }
        Event::Made(to, totals) => {
            let (requests, bytes) =
                (units::count(totals.requests as f64), units::count(totals.sent_bytes as f64));
            out::note(&format!(
                "generated a load against {to}: {requests} requests, {bytes} bytes sent"
            ));
        }
        Event::Ended(from, why) => out::note(&format!("{from}: {why}")),
    })?;
    Ok(())
}

fn make(args: &RunArgs) -> Result<()> {
    let server = address(&args.server)?;
    let spec = args.load.spec();
    let bar = progress(&spec);
    let made = load::run(&spec, server, Options { bpf: args.bpf }, &mut |tick| {
        tell(&bar, &spec, tick);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let made = made?;
    if args.rate_only {
        let figures = made.figures();
        return out::text(&format!(
            "{:.1}\n",
            figures.transactions_per_s.unwrap_or(figures.bytes_per_s)
        ));
    }
    if args.json { out::json(&made) } else { out::text(&views::bench::render(&made)) }
}

/// Resolves `host`, `host:port` or an address to its first socket address.
fn address(text: &str) -> Result<SocketAddr> {
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

/// A progress bar on stderr; hidden for loads of at most two seconds.
fn progress(spec: &Spec) -> ProgressBar {
    if spec.duration + spec.warm_up <= Duration::from_secs(2) {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(spec.duration.as_millis() as u64).with_style(style)
}

fn tell(bar: &ProgressBar, spec: &Spec, tick: Tick) {
    let Some(counted) = tick.counted else { return bar.set_message("warming up") };
    bar.set_position(counted.as_millis() as u64);
    let rate = tick.last_second as f64;
    bar.set_message(if spec.test.has_responses() {
        format!("{}/s", units::count(rate))
    } else {
        units::bytes_per_s(rate)
    });
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
        assert_eq!((test("udp_rr"), test("TCP_MAERTS").is_err()), (Ok(Test::UdpRr), true));
    }
}
