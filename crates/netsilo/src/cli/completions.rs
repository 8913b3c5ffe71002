//! What a shell offers while a command line is typed: besides verbs and options, the values that
//! this machine or netsilo has.

use std::collections::BTreeSet;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Fish, Zsh};
use netsilo_decide::judge::findings::FindingId;
use netsilo_sys::consumer;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::{entrance, netdev, topology};

use crate::args::named::algorithm_names;
use crate::cli::topics::TOPICS;
use crate::verbs::predict;

/// The variable by which the script of a shell asks the program; its value is the shell.
const VARIABLE: &str = "NETSILO_COMPLETE";

/// Answers the script of a shell, and ends the process; returns if none asks. `command` is the
/// command line. No other thread may run yet.
pub fn answer(command: fn() -> Command) {
    CompleteEnv::with_factory(|| with_values(command())).var(VARIABLE).complete();
}

/// The scripts that ask a program, by their paths below the folder of completions.
pub fn scripts(program: &str) -> Vec<(String, Vec<u8>)> {
    let shells: [(&dyn EnvCompleter, String); 3] = [
        (&Bash, format!("bash/{program}")),
        (&Zsh, format!("zsh/_{program}")),
        (&Fish, format!("fish/{program}.fish")),
    ];
    let script = |(shell, path): (&dyn EnvCompleter, String)| {
        let mut text = Vec::new();
        // Writing to memory cannot fail.
        let _ = shell.write_registration(VARIABLE, program, program, program, &mut text);
        (path, text)
    };
    shells.into_iter().map(script).collect()
}

/// Adds to each argument what it may be, by the name of its value.
fn with_values(command: Command) -> Command {
    let command = command.mut_args(|arg| match values_of(&arg) {
        Some(values) => arg.add(ArgValueCandidates::new(move || {
            values().into_iter().map(CompletionCandidate::new).collect()
        })),
        None => arg,
    });
    command.mut_subcommands(with_values)
}

fn values_of(arg: &Arg) -> Option<fn() -> Vec<String>> {
    Some(match arg.get_value_names()?.first()?.as_str() {
        "DEV" | "DEV,.." => netdevs,
        "NETNS" => || entrance::names(&Root::live()),
        "CPUS" | "CPUS|off" => cpus,
        "PROCESS" => processes,
        "ID[:SUBJECT],.." => findings,
        "SUBJECT" => || [findings(), cpu_names(), netdevs(), processes()].concat(),
        "NAME|KEY=VALUE" => predict::completions,
        "SETTING" => || {
            let of_plan = algorithm_names().into_iter().map(|name| format!("plan:{name}"));
            ["none", "plan"].map(str::to_owned).into_iter().chain(of_plan).collect()
        },
        "VERB|TOPIC" => || {
            let command = super::bare_command();
            let verbs = command.get_subcommands().filter(|it| !it.is_hide_set());
            let verbs = verbs.map(|it| it.get_name().to_owned());
            verbs.chain(TOPICS.iter().map(|it| it.name.to_owned())).collect()
        },
        _ => return None,
    })
}

fn netdevs() -> Vec<String> {
    netdev::names(&Root::live())
}

fn processes() -> Vec<String> {
    consumer::names(&Root::live()).into_iter().collect()
}

fn findings() -> Vec<String> {
    FindingId::ALL.iter().map(|id| id.as_str().to_owned()).collect()
}

fn cpu_names() -> Vec<String> {
    let online = topology::topology(&Root::live()).map(|it| it.online).unwrap_or_default();
    online.iter().map(|cpu| format!("cpu{cpu}")).collect()
}

/// All CPUs, those of each node and each last-level cache, and each one.
fn cpus() -> Vec<String> {
    let Ok(topology) = topology::topology(&Root::live()) else { return Vec::new() };
    let nodes = topology.nodes_with_cpus().map(|(node, _)| topology.node_cpus(node).to_string());
    let llcs = topology.llc_groups().into_iter().map(|llc| llc.to_string());
    let groups = [topology.online.to_string()].into_iter().chain(nodes).chain(llcs);
    let all = groups.chain(topology.online.iter().map(|cpu| cpu.to_string()));
    all.collect::<BTreeSet<String>>().into_iter().collect()
}
