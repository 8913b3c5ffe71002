//! The end of each verb's help: two examples, and the exit codes that only this verb has.

use clap::Command;

use crate::tell::exit::Exit;

/// The end of one verb's help.
#[derive(Debug)]
pub struct Ending {
    /// The verb, with the verbs above it.
    pub verb: &'static str,
    /// Command lines, each with a description.
    pub examples: [(&'static str, &'static str); 2],
    /// Exit codes in addition to those that every verb has.
    exits: &'static [Exit],
}

/// The end of a verb's help, with the exit codes that every verb has.
pub const fn ending(verb: &'static str, examples: [(&'static str, &'static str); 2]) -> Ending {
    Ending { verb, examples, exits: &[] }
}

impl Ending {
    /// Adds exit codes.
    pub const fn with_exits(self, exits: &'static [Exit]) -> Self {
        Self { exits, ..self }
    }

    /// The exit codes of the verb with their meanings.
    pub fn exits(&self) -> impl Iterator<Item = (u8, &'static str)> {
        let common = [Exit::Done, Exit::Refused, Exit::Usage];
        common.into_iter().chain(self.exits.iter().copied()).map(|it| (it.code(), it.meaning()))
    }
}

/// Exit codes that each verb has that writes settings.
pub const WRITES: &[Exit] =
    &[Exit::FailedAndRestored, Exit::RestoreIncomplete, Exit::OtherOwner, Exit::NoPermission];

/// The end of each verb's help.
pub const ENDINGS: &[Ending] = &[
    ending(
        "show",
        [
            ("netsilo show --watch", "each second, until interrupted"),
            ("netsilo show --against before.tar.zst", "what differs from that bundle"),
        ],
    ),
    ending(
        "top",
        [
            ("netsilo top", "this machine; ? shows the keys"),
            ("netsilo top --from host.tar.zst", "the machine of a bundle"),
        ],
    ),
    ending(
        "check",
        [
            ("netsilo check", "what is wrong, the most worthwhile first"),
            ("netsilo check --interval 30s --fail-on critical", "for a monitoring system"),
        ],
    )
    .with_exits(&[Exit::Findings, Exit::UnusableLines]),
    ending(
        "explain",
        [
            ("netsilo explain udp-one-queue", "the page of one finding"),
            ("netsilo explain eth0 rx-3", "why this queue is processed where it is"),
        ],
    ),
    ending(
        "predict",
        [
            (
                "netsilo predict --setting spread --setting rps=0-7",
                "what these would do to this machine under its load",
            ),
            (
                "netsilo predict --scenario server.toml --sweep load.instances=1..2000",
                "the best setting by load",
            ),
        ],
    ),
    ending(
        "rss",
        [
            ("netsilo rss show", "hash, key and table of each netdev"),
            ("netsilo rss where 10.0.0.1:40000-10.0.0.2:443/tcp", "the rx queue of a flow"),
        ],
    ),
    ending(
        "plan",
        [
            ("netsilo plan", "the best placement, with reasons"),
            ("netsilo plan --fix udp-one-queue:eth0", "only the remedy of one finding"),
        ],
    )
    .with_exits(&[Exit::ChangesPending, Exit::UnusableLines, Exit::OtherOwner]),
    ending(
        "apply",
        [
            ("netsilo apply --confirm-within 60s", "restored unless confirmed"),
            ("netsilo apply --fix listen-overflow --yes", "the fix of a finding, no question"),
        ],
    )
    .with_exits(WRITES),
    ending(
        "pin",
        [
            ("netsilo pin --comm nginx --cpus 2-5", "all processes of a name"),
            ("netsilo pin --cgroup system.slice/redis.service --cpus 1", "a service"),
        ],
    )
    .with_exits(WRITES),
    ending(
        "isolate",
        [
            ("netsilo isolate --cpus 8-15 --dry-run", "what would be written, and what stays"),
            ("netsilo isolate --cpus 8-15", "write it, and count what still arrives for 5s"),
        ],
    )
    .with_exits(WRITES),
    ending(
        "confirm",
        [
            ("netsilo confirm", "accept what apply wrote"),
            ("netsilo confirm --json", "its number as JSON"),
        ],
    )
    .with_exits(&[Exit::RestoreIncomplete, Exit::NoPermission]),
    ending(
        "keep",
        [
            ("netsilo keep --dry-run", "what would be stored and enabled"),
            ("netsilo keep --off", "nothing is kept any more"),
        ],
    )
    .with_exits(&[Exit::NoPermission]),
    ending(
        "undo",
        [
            ("netsilo undo --list", "what netsilo wrote since boot"),
            ("netsilo undo", "restore all of it"),
        ],
    )
    .with_exits(&[Exit::RestoreIncomplete, Exit::NoPermission]),
    ending(
        "capture",
        [
            ("netsilo capture -o host.tar.zst", "observe for a second and save"),
            ("netsilo capture --interval 10s --with-addresses", "longer, with real addresses"),
        ],
    ),
    ending(
        "export",
        [
            ("netsilo export script", "print a shell script"),
            ("netsilo export tuned --dir profile", "write the files of a tuned profile"),
        ],
    )
    .with_exits(&[Exit::OtherOwner]),
    ending(
        "calibrate",
        [
            ("netsilo calibrate", "measure and store"),
            ("netsilo calibrate --time 30s", "more precisely"),
        ],
    )
    .with_exits(&[Exit::NoPermission]),
    ending(
        "ab",
        [
            ("netsilo ab --a none --b plan -- ./load.sh", "with and without the plan"),
            ("netsilo ab --measure runqueue-latency", "measured on the live workload"),
        ],
    )
    .with_exits(WRITES),
    ending(
        "tune",
        [
            ("netsilo tune --for 10m", "try, and keep the best"),
            ("netsilo tune --dry-run", "only list what would be tried"),
        ],
    )
    .with_exits(WRITES),
    ending(
        "report",
        [
            ("netsilo report --incident -o page.html", "this machine now"),
            ("netsilo report --incident -o page.html --from host.tar.zst", "a bundle"),
        ],
    ),
    ending(
        "run",
        [
            ("netsilo run", "with /etc/netsilo"),
            ("netsilo run --check-config --config netsilo.toml", "only check a configuration"),
        ],
    )
    .with_exits(&[Exit::NoPermission, Exit::BadConfiguration]),
    ending(
        "status",
        [
            ("netsilo status", "what the daemon does, and why"),
            ("netsilo status --json", "the same as JSON"),
        ],
    )
    .with_exits(&[Exit::NotRunning, Exit::NoPermission]),
    ending(
        "doctor",
        [
            ("netsilo doctor", "what limits netsilo here"),
            ("netsilo doctor --json --fail-on warning", "for a monitoring system"),
        ],
    )
    .with_exits(&[Exit::Findings]),
    ending(
        "help",
        [("netsilo help topics", "list the pages"), ("netsilo help cpus", "print one of them")],
    ),
];

/// The command with examples and exit codes at the end of each verb's help.
pub fn with_endings(command: Command, endings: &[Ending]) -> Command {
    endings.iter().fold(command, |command, ending| {
        let path: Vec<&str> = ending.verb.split(' ').collect();
        with_ending(command, &path, ending)
    })
}

fn with_ending(command: Command, path: &[&str], ending: &Ending) -> Command {
    match path {
        [] => command.after_help(text(ending)),
        [verb, rest @ ..] => {
            command.mut_subcommand(verb, |command| with_ending(command, rest, ending))
        }
    }
}

fn text(ending: &Ending) -> String {
    let width = ending.examples.iter().map(|(line, _)| line.len()).max().unwrap_or(0);
    let examples = ending.examples.map(|(line, what)| format!("  {line:width$}  {what}\n"));
    let exits: Vec<String> =
        ending.exits().map(|(code, meaning)| format!("  {code:<2}  {meaning}")).collect();
    format!("Examples:\n{}\nExit codes:\n{}", examples.concat(), exits.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cli::command;

    /// Adds the path of each verb that is listed in a help text.
    fn verbs(command: &Command, above: &str, found: &mut BTreeSet<String>) {
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let path = format!("{above} {}", verb.get_name()).trim().to_owned();
            verbs(verb, &path, found);
            found.insert(path);
        }
    }

    #[test]
    fn each_verb_has_examples() {
        let mut all = BTreeSet::new();
        verbs(&command(), "", &mut all);
        // the help of rss has an example for each of its verbs
        all.retain(|verb| !verb.starts_with("rss "));
        let named: BTreeSet<String> = ENDINGS.iter().map(|it| it.verb.to_owned()).collect();
        assert_eq!(named, all);
    }

    #[test]
    fn each_example_is_a_command_line_of_its_verb() {
        for Ending { verb, examples, .. } in ENDINGS {
            for (line, _) in examples {
                assert!(line.starts_with(&format!("netsilo {verb}")), "{line}");
                let parsed = command().try_get_matches_from(line.split(' '));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }
}
