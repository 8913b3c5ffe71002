//! `netsilo help`: the help of a verb, or a page on a topic.

use anyhow::{Error, Result};
use clap::Command;

use crate::cli::topics::TOPICS;
use crate::tell::exit::Exit;
use crate::tell::out;

/// Arguments of `netsilo help`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A verb (rss show), a topic, or "topics" to list the topics; without it, all verbs
    #[arg(value_name = "VERB|TOPIC")]
    words: Vec<String>,
}

/// Prints the page.
pub(crate) fn run(args: &Args, command: Command) -> Result<Exit> {
    let one = args.words.first().filter(|_| args.words.len() == 1);
    if one.is_some_and(|word| word == "topics") {
        out::text(&list());
    } else if let Some(topic) = TOPICS.iter().find(|topic| one.is_some_and(|it| it == topic.name)) {
        out::text(topic.page);
    } else {
        return verb(&args.words, command);
    }
    Ok(Exit::Printed)
}

/// Lists the topics.
fn list() -> String {
    let width = TOPICS.iter().map(|topic| topic.name.len()).max().unwrap_or(0);
    let line = |name: &str, title: &str| format!("{name:width$}  {title}\n");
    TOPICS.iter().map(|topic| line(topic.name, topic.title())).collect()
}

/// Prints what `netsilo VERB --help` prints.
fn verb(words: &[String], command: Command) -> Result<Exit> {
    let line = ["netsilo"].into_iter().chain(words.iter().map(String::as_str)).chain(["--help"]);
    match command.try_get_matches_from(line) {
        Err(error) => Ok(shown(&error)),
        Ok(_) => Err(Error::msg("--help is not read")),
    }
}

/// Prints a help text on stdout, or an error of the command line on stderr.
pub fn shown(error: &clap::Error) -> Exit {
    if error.use_stderr() {
        let _ = error.print();
        return Exit::Usage;
    }
    out::write(|_| error.print());
    Exit::Printed
}
