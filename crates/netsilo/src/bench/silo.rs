//! `netsilo bench silo`: compares one stream with its interrupt far from the CPU that reads it,
//! near to it, and on it.

use std::cmp::Reverse;

use anyhow::{Context as _, Result, ensure};
use netsilo_decide::plan::AlgorithmName;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_trial::experiment::{Kind, Load};
use netsilo_trial::traffic::{Spec, Test};

use crate::args::named;
use crate::bench::defined::{Definition, Setup};
use crate::bench::experiment::PeerArgs;
use crate::bench::settings;
use crate::tell::exit::Exit;

/// Kinds of load that silo accepts.
const TESTS: [Test; 6] =
    [Test::TcpStream, Test::TcpSendfile, Test::UdpStream, Test::TcpRr, Test::UdpRr, Test::TcpCrr];

/// Arguments of `netsilo bench silo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    peer: PeerArgs,
    /// CPU that reads the stream [default: the highest that is not isolated or nohz_full]
    #[arg(long, value_name = "CPU")]
    reader: Option<u32>,
    /// Kinds of load, by netperf's names
    #[arg(
        short,
        long,
        value_name = "TEST,..",
        value_delimiter = ',',
        default_values_t = [Test::TcpStream],
        ignore_case = true,
        value_parser = named::tests(&TESTS)
    )]
    tests: Vec<Test>,
    /// Bytes of a stream per send call [default: 131072; UDP_STREAM: 1472]
    #[arg(short = 'm', long, value_name = "BYTES")]
    send_bytes: Option<usize>,
}

/// Runs or resumes the experiment.
pub(super) fn run(args: &Args) -> Result<Exit> {
    args.peer.run(Kind::Silo, |setup| define(args, setup))
}

fn define(args: &Args, setup: &mut Setup<'_>) -> Result<Definition> {
    let topology = &setup.observation.after.topology;
    let pool = topology.housekeeping();
    let reader =
        args.reader.map(CpuId).or_else(|| pool.highest()).context("no cpu is available to read")?;
    ensure!(
        topology.online.contains(reader),
        "cpu {reader} is not online; online are {}",
        topology.online
    );
    let farthest = pool.iter().max_by_key(|cpu| (topology.distance(*cpu, reader), Reverse(*cpu)));
    let farthest = farthest.context("no cpu is available for the interrupt")?;
    let distance = topology.distance(farthest, reader).label();
    setup.options.pinned = Some(reader);
    let loads: Vec<Load> = args.tests.iter().map(|test| load(*test, args)).collect();
    let first = loads.first().context("no load is given")?;
    let seen = setup.observe_under(first)?;
    let mut all = vec![settings::none("static")];
    let worst = format!(
        "its interrupt on cpu {farthest}, the farthest from its reader on cpu {reader} ({distance})"
    );
    all.extend(settings::from_goal("worst", &worst, &args.peer.tuning.on(farthest), &seen)?);
    for (algorithm, what) in [
        (AlgorithmName::SameCpu, format!("its interrupt on its reader's cpu {reader}")),
        (
            AlgorithmName::NearConsumer,
            format!("its interrupt near its reader on cpu {reader}, on another core"),
        ),
    ] {
        let goal = args.peer.tuning.by(algorithm, crate::args::costs::costs_for(false)?);
        all.extend(settings::from_goal(algorithm.as_str(), &what, &goal, &seen)?);
    }
    Ok(Definition { settings: all, loads })
}

fn load(test: Test, args: &Args) -> Load {
    let spec = args.peer.experiment.spec(test, 1, None);
    let spec = Spec { send_bytes: args.send_bytes.unwrap_or(spec.send_bytes), ..spec };
    Load { name: format!("{test} x 1"), spec, senders: 1, early_drop: false }
}
