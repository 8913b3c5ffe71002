//! The command lines of the programs: a snapshot of their values (verbs, options, defaults), and
//! checks of every help text. Better wording of a help text changes no snapshot.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};
use netsilo_dev::package::program::{PROGRAMS, Program};

/// The widest line of a help text. `max_term_width` wraps everything except usage and examples.
const WIDTH: usize = 120;

/// Calls a function with each verb that help shows, and with the words that name it.
fn for_each_verb(program: &Program, mut call: impl FnMut(&str, &Command)) {
    let mut command = (program.command)();
    command.build();
    let mut waiting = vec![(program.name.to_owned(), &command)];
    while let Some((path, command)) = waiting.pop() {
        call(&path, command);
        let below = command.get_subcommands().filter(|it| !it.is_hide_set());
        let below = below.map(|it| (format!("{path} {}", it.get_name()), it));
        waiting.extend(below.collect::<Vec<_>>().into_iter().rev());
    }
}

fn is_of_its_own(arg: &&Arg) -> bool {
    !matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpLong | ArgAction::Version)
}

/// An argument as one line: its names, its value, its defaults, and what it excludes.
fn values(command: &Command, arg: &Arg) -> String {
    let mut line = arg.get_short().map_or(String::new(), |short| format!("-{short} "));
    line += arg.to_string().trim_end_matches("...");
    for alias in arg.get_all_aliases().unwrap_or_default() {
        let _ = write!(line, ", --{alias}");
    }
    let repeats = matches!(arg.get_action(), ArgAction::Append | ArgAction::Count);
    let flags = [
        (arg.is_required_set(), "required"),
        (repeats, "repeats"),
        (arg.is_global_set(), "global"),
        (arg.is_hide_set(), "hidden"),
    ];
    for (_, flag) in flags.into_iter().filter(|(is_set, _)| *is_set) {
        let _ = write!(line, ", {flag}");
    }
    let mut list = |title: &str, values: Vec<String>| {
        if !values.is_empty() {
            let _ = write!(line, ", {title} {}", values.join(" "));
        }
    };
    let defaults = arg.get_default_values().iter().filter(|_| arg.get_action().takes_values());
    let defaults = defaults.map(|it| it.to_string_lossy().into_owned());
    list("default", defaults.chain(described_default(arg)).collect());
    let possible = arg.get_possible_values();
    list("of", possible.iter().map(|it| it.get_name().to_owned()).collect());
    let conflicts = command.get_arg_conflicts_with(arg);
    list("without", conflicts.iter().map(|it| it.get_id().to_string()).collect());
    line
}

/// The default that a help text states for an option that has none in clap.
fn described_default(arg: &Arg) -> Option<String> {
    let help = arg.get_help()?.to_string();
    let (default, _) = help.split_once("[default: ")?.1.split_once(']')?;
    Some(default.to_owned())
}

#[test]
fn the_command_lines_have_the_recorded_values() {
    for program in &PROGRAMS {
        let mut text = String::new();
        for_each_verb(program, |path, command| {
            let _ = writeln!(text, "{path}");
            for arg in command.get_arguments().filter(is_of_its_own) {
                let _ = writeln!(text, "  {}", values(command, arg));
            }
            let verb = path.strip_prefix(program.name).unwrap().trim_start();
            if let Some(ending) = program.endings.iter().find(|it| it.verb == verb) {
                let codes = ending.exits().map(|(code, _)| code.to_string());
                let _ = writeln!(text, "  exits {}", codes.collect::<Vec<_>>().join(" "));
            }
        });
        let recorded = std::panic::catch_unwind(|| {
            insta::with_settings!({
                omit_expression => true,
                prepend_module_to_snapshot => false,
                description => "written by `make generate`",
            }, {
                insta::assert_snapshot!(program.name, text);
            });
        });
        let name = program.name;
        assert!(recorded.is_ok(), "{name} has another command line: `make generate` records it");
    }
}

#[test]
fn every_verb_and_every_option_has_a_help_sentence() {
    for program in &PROGRAMS {
        for_each_verb(program, |path, command| {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.starts_with(char::is_uppercase) && !about.contains('\n'), "{path}");
            for arg in command.get_arguments().filter(|it| !it.is_hide_set()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.trim().len() > 3, "{path} {arg}: {help:?}");
            }
        });
    }
}

#[test]
fn every_help_text_shows_each_option_in_lines_that_are_not_too_long() {
    for program in &PROGRAMS {
        for_each_verb(program, |path, command| {
            let help = command.clone().render_help().to_string();
            let long = help.lines().find(|line| line.chars().count() > WIDTH);
            assert_eq!(long, None, "{path}");
            for arg in command.get_arguments().filter(|it| !it.is_hide_set()) {
                assert!(help.contains(arg.to_string().trim_end_matches("...")), "{path}: {arg}");
            }
        });
    }
}

/// The words that give an argument to a command line.
fn given(arg: &Arg) -> Vec<String> {
    let mut words: Vec<String> =
        arg.get_long().map(|long| format!("--{long}")).into_iter().collect();
    if arg.get_action().takes_values() {
        let value = arg.get_possible_values().first().map(|it| it.get_name().to_owned());
        words.push(value.unwrap_or_else(|| "1".to_owned()));
    }
    words
}

/// clap does not demand what an argument requires if a given argument excludes it.
#[test]
fn an_option_of_another_one_is_refused_with_what_excludes_that() {
    let (mut ignored, mut tried) = (Vec::new(), 0);
    for program in PROGRAMS {
        for_each_verb(&program, |path, command| {
            for arg in command.get_arguments() {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let Some((of, _)) =
                    help.strip_prefix("With --").and_then(|it| it.split_once([':', ',']))
                else {
                    continue;
                };
                let other = command.get_arguments().find(|it| it.get_long() == Some(of)).unwrap();
                let excludes = |it: &&Arg| {
                    let names = |a, b: &Arg| {
                        command.get_arg_conflicts_with(a).iter().any(|it| it.get_id() == b.get_id())
                    };
                    names(other, it) || names(it, other)
                };
                for excluded in command.get_arguments().filter(excludes) {
                    let verb = path.split(' ').map(str::to_owned);
                    let line = verb.chain(given(arg)).chain(given(excluded)).collect::<Vec<_>>();
                    tried += 1;
                    if (program.command)().try_get_matches_from(&line).is_ok() {
                        ignored.push(line.join(" "));
                    }
                }
            }
        });
    }
    assert!(ignored.is_empty(), "an option has no effect:\n{}", ignored.join("\n"));
    assert!(tried > 0);
}

#[test]
fn tune_takes_no_option_of_a_search_to_list_or_remove_outcomes() {
    let program = PROGRAMS.iter().find(|it| it.name == "netsilo").unwrap();
    let line = |words: &[String]| {
        let words = words.iter().map(String::as_str);
        (program.command)()
            .try_get_matches_from(["netsilo", "tune"].into_iter().chain(words))
            .is_ok()
    };
    let mut command = (program.command)();
    command.build();
    let tune = command.find_subcommand("tune").unwrap();
    let taken: Vec<&str> = tune
        .get_arguments()
        .filter(|arg| arg.get_long().is_some() && is_of_its_own(arg))
        .filter(|arg| line(&[vec!["--outcomes".to_owned()], given(arg)].concat()))
        .map(|arg| arg.get_long().unwrap())
        .collect();
    assert_eq!(taken, ["json", "state-dir", "root", "outcomes-dir", "netns"]);
}
