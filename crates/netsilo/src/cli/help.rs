//! `netsilo help`: the help of a verb, or a page on a topic.

use anyhow::{Error, Result};
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use netsilo_decide::plan::selection::nearest;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::netdev;

use crate::args::parse::counting_time;
use crate::cli::topics::TOPICS;
use crate::tell::exit::{self, Exit};
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

/// What was meant by a word that the command line does not have; `None` if clap has said it.
fn tip(error: &clap::Error) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let word = word(ContextKind::InvalidArg)?;
            if word == "--dry-run" {
                return Some("netsilo plan shows what apply would write".to_owned());
            }
            if netdev::is_here(&Root::live(), word) {
                return Some(format!(
                    "--netdev {word} chooses it, in show, plan, apply, tune, ab, export and top"
                ));
            }
            counting_time(word).ok().map(|_| format!("to observe so long, write --interval {word}"))
        }
        ErrorKind::InvalidSubcommand => {
            let word = word(ContextKind::InvalidSubcommand)?;
            let topics: Vec<&str> = TOPICS.iter().map(|topic| topic.name).collect();
            let nearest = nearest(word, &[&topics[..], &["topics"]].concat());
            nearest.map(|it| format!("netsilo help {it}"))
        }
        _ => None,
    }
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
        exit::report_usage(error, tip(error));
        return Exit::Usage;
    }
    out::write(|_| error.print());
    Exit::Printed
}
