//! `--netns`: the network namespace that a command works in.

use std::sync::OnceLock;

use anyhow::{Result, anyhow, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;
use netsilo_model::change::shell_word;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::entrance::Entrance;
use netsilo_sys::read::netns::NetnsId;

use crate::tell::exit::{Exit, ExitError};

/// Options by which a command reads something else than the running kernel.
const READ_ELSEWHERE: [&str; 3] = ["from", "ndjson", "root"];

/// What was entered, as it was given.
static ENTERED: OnceLock<String> = OnceLock::new();

/// Refuses `--netns` beside an option that makes it void.
pub(crate) fn check(given: &str, matches: &ArgMatches) -> Result<()> {
    let verb = matches.subcommand().map(|(_, verb)| verb);
    let is_given = |id: &str| {
        let of = verb.filter(|verb| verb.try_contains_id(id).is_ok());
        of.is_some_and(|verb| verb.value_source(id) == Some(ValueSource::CommandLine))
    };
    match READ_ELSEWHERE.into_iter().find(|id| is_given(id)) {
        Some(id) => Err(usage(format!(
            "--netns {given} cannot be used with --{id}: it is a part of the running kernel"
        ))),
        None => Ok(()),
    }
}

/// Moves this thread into a network namespace. No other thread may run yet: the files of a process
/// are those of its first thread.
pub(crate) fn enter(given: &str) -> Result<()> {
    let root = Root::live();
    let entrance =
        Entrance::named(&root, given).map_err(|why| usage(format!("--netns {given}: {why}")))?;
    if let Some(entrance) = entrance {
        entrance.enter(&root).map_err(|why| anyhow!("--netns {given}: {why}"))?;
        if NetnsId::own(&root).is_none() {
            bail!("--netns needs Linux 5.14 (SO_NETNS_COOKIE): undo could not find {given} again");
        }
    }
    _ = ENTERED.set(given.to_owned());
    Ok(())
}

/// The option as it was given, with a space before it; else nothing.
pub(crate) fn given() -> String {
    ENTERED.get().map(|it| format!(" --netns {}", shell_word(it))).unwrap_or_default()
}

fn usage(why: String) -> anyhow::Error {
    ExitError(Exit::Usage, why).into()
}
