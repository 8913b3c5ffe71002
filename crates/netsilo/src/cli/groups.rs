//! The verbs grouped by the task of the operator, for `netsilo --help`.

use std::fmt::Write as _;

use clap::Command;

/// A task of the operator, and the verbs for it.
const GROUPS: [(&str, &[&str]); 6] = [
    ("See", &["show", "top", "check", "explain", "rss", "doctor"]),
    ("Decide", &["plan", "predict", "calibrate", "export"]),
    ("Write and undo", &["apply", "pin", "isolate", "confirm", "undo"]),
    ("Prove", &["ab", "tune"]),
    ("Keep", &["keep", "run", "status"]),
    ("Share, look up", &["capture", "report", "help"]),
];

/// Lists the verbs in groups instead of one column.
pub(super) fn with_groups(command: Command) -> Command {
    let mut text = String::new();
    for (group, verbs) in GROUPS {
        let _ = writeln!(text, "{group}:");
        for verb in verbs {
            let about = command.find_subcommand(verb).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {verb:13} {about}");
        }
        text.push('\n');
    }
    command.before_help(text.trim_end().to_owned()).help_template(
        "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}\
         {after-help}",
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cli::bare_command;

    #[test]
    fn each_verb_is_in_one_group_on_a_line_of_80_columns() {
        let command = bare_command();
        let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let all: BTreeSet<&str> = visible.map(Command::get_name).collect();
        let grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(grouped.len(), all.len());
        for verb in command.get_subcommands() {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.len() <= 64, "{}: {about}", verb.get_name());
        }
    }
}
