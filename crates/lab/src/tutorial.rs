//! Runs the commands of `docs/tutorial.md` in a guest. Checks what the page claims about their
//! output; with `--write`, puts their output on the page.
//!
//! A block of the page that begins with "```console" has a command after a prompt, and its output.
//! A line `<!-- expect: TEXT -->` after it claims that TEXT is in the output. `<!-- exit: N or M
//! -->` claims that the command ends with one of these statuses instead of 0.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use netsilo_lab::{Kernel, Lab, NicModel, Spec, Threads};

use crate::built;
use crate::say::{progress, say};
use crate::workload::{Kind, Workload, while_busy};

/// The CPUs of nginx's workers, on two cores of socket 1.
const NGINX_CPUS: [u32; 2] = [5, 6];

/// Puts the interrupts of queue N of the NIC on CPU N: the first socket.
const PLACED: &str = "sed -nE 's/^ *([0-9]+):.* virtio[0-9]+-(in|out)put.([0-9]+)$/\\1 \\3/p' \
    /proc/interrupts | \
    while read irq queue; do echo $queue >/proc/irq/$irq/smp_affinity_list; done";

const FENCE: &str = "```";
const BLOCK: &str = "```console";
const SERVER: &str = "server# ";

/// Arguments of the tutorial.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Tutorial {
    /// Write the output of its commands to the page
    #[arg(long)]
    write: bool,
    /// The page
    #[arg(long, value_name = "FILE", default_value = "docs/tutorial.md")]
    page: PathBuf,
}

/// A part of the page.
#[derive(Debug, PartialEq)]
enum Part {
    /// Lines that stay as they are.
    Text(Vec<String>),
    /// A command with its output, and what the page claims about it.
    Command { line: usize, command: String, output: Vec<String>, claims: Vec<Claim> },
}

#[derive(Debug, PartialEq)]
enum Claim {
    /// The output has this text.
    Expect(String),
    /// The command ends with one of these statuses.
    Exit(Vec<i32>),
}

impl Claim {
    /// Parses a claim from its line; `None` for other lines.
    fn parse(line: &str) -> Option<Self> {
        let inner = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        match inner.split_once(": ")? {
            ("expect", text) => Some(Self::Expect(text.into())),
            ("exit", statuses) => {
                let statuses = statuses.split(" or ").map(|status| status.parse().ok());
                Some(Self::Exit(statuses.collect::<Option<_>>()?))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Expect(text) => write!(f, "<!-- expect: {text} -->"),
            Self::Exit(statuses) => {
                let statuses: Vec<String> = statuses.iter().map(i32::to_string).collect();
                write!(f, "<!-- exit: {} -->", statuses.join(" or "))
            }
        }
    }
}

/// Runs the tutorial.
pub(crate) fn run(tutorial: &Tutorial) -> Result<()> {
    let page = std::fs::read_to_string(&tutorial.page)
        .with_context(|| format!("cannot read {}", tutorial.page.display()))?;
    let mut parts = parts(&page)?;
    let spec = Spec { threads: Threads::Multi, ..Spec::new(Kernel::V6_1, NicModel::VirtioNet) };
    let lab = Lab::boot(&spec)?;
    lab.sh(PLACED)?;
    let nginx = Workload::start(Kind::Nginx, &lab, &NGINX_CPUS)?;
    let netsilo = built::netsilo()?.display().to_string();
    // The same connections all the time: each belongs to one worker, and arrives on one queue.
    let wrong = while_busy(&[&nginx], || {
        let mut wrong = Vec::new();
        for part in &mut parts {
            let Part::Command { line, command, output, claims } = part else { continue };
            progress(command);
            let command = command.strip_prefix(SERVER).unwrap_or(command);
            let result = lab.run(&format!("{} 2>&1", replaced(command, "netsilo", &netsilo)))?;
            let text = result.text();
            *output = text.lines().map(|line| line.trim_end().to_owned()).collect();
            for why in differences(claims, result.status, &text) {
                let page = tutorial.page.display();
                wrong.push(format!("{page}:{line}: {command}: {why}\n{text}"));
            }
        }
        Ok(wrong)
    })?;
    if tutorial.write {
        std::fs::write(&tutorial.page, text(&parts))
            .with_context(|| format!("cannot write {}", tutorial.page.display()))?;
    }
    if !wrong.is_empty() {
        bail!("the page is wrong:\n{}", wrong.join("\n"));
    }
    let commands = parts.iter().filter(|part| matches!(part, Part::Command { .. })).count();
    say(&format!("{}: {commands} commands do what it says", tutorial.page.display()))
}

/// The claims of a page about a command that are wrong.
fn differences(claims: &[Claim], status: i32, text: &str) -> Vec<String> {
    let statuses = claims.iter().find_map(|claim| match claim {
        Claim::Exit(statuses) => Some(statuses.as_slice()),
        Claim::Expect(_) => None,
    });
    let mut wrong = Vec::new();
    if !statuses.unwrap_or(&[0]).contains(&status) {
        wrong.push(format!("it ended with {status}"));
    }
    for claim in claims {
        if let Claim::Expect(expected) = claim
            && !text.contains(expected)
        {
            wrong.push(format!("{expected:?} is not in its output"));
        }
    }
    wrong
}

/// A command whose first word is replaced by the path of a program that is elsewhere.
fn replaced(command: &str, name: &str, path: &str) -> String {
    match command.strip_prefix(name) {
        Some(arguments) if arguments.starts_with(' ') => format!("{path}{arguments}"),
        _ => command.to_owned(),
    }
}

/// Splits a page into its parts.
fn parts(page: &str) -> Result<Vec<Part>> {
    let mut parts = vec![Part::Text(Vec::new())];
    let mut lines = page.lines().zip(1..);
    while let Some((text, line)) = lines.next() {
        if text == BLOCK {
            let (command, _) = lines.next().context("the page ends in a block")?;
            ensure!(
                command.starts_with(SERVER),
                "line {}: a block begins with {SERVER:?}",
                line + 1
            );
            let output = lines.by_ref().take_while(|(line, _)| *line != FENCE);
            let output = output.map(|(line, _)| line.to_owned()).collect();
            let (command, claims) = (command.to_owned(), Vec::new());
            parts.push(Part::Command { line, command, output, claims });
            continue;
        }
        match (parts.last_mut(), Claim::parse(text)) {
            (Some(Part::Command { claims, .. }), Some(claim)) => claims.push(claim),
            (Some(Part::Text(lines)), None) => lines.push(text.to_owned()),
            (_, Some(_)) => bail!("line {line}: a claim stands directly after its block"),
            (_, None) => parts.push(Part::Text(vec![text.to_owned()])),
        }
    }
    Ok(parts)
}

/// Joins the parts of a page.
fn text(parts: &[Part]) -> String {
    let mut lines = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => lines.extend(text.iter().cloned()),
            Part::Command { command, output, claims, .. } => {
                lines.extend([BLOCK.to_owned(), command.clone()]);
                lines.extend(output.iter().cloned());
                lines.push(FENCE.to_owned());
                lines.extend(claims.iter().map(ToString::to_string));
            }
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page\n```console\nserver# netsilo check\nold\n```\n\
                        <!-- exit: 0 or 11 -->\n<!-- expect: [far] -->\n\nMore.\n";

    #[test]
    fn a_page_is_taken_apart_and_put_together_again() {
        let parts = parts(PAGE).unwrap();
        assert_eq!(text(&parts), PAGE);
        let Part::Command { command, output, claims, line } = &parts[1] else {
            panic!("{parts:?}")
        };
        assert_eq!(
            (command.as_str(), output.as_slice()),
            ("server# netsilo check", &["old".into()][..])
        );
        assert_eq!(
            (claims, line),
            (&vec![Claim::Exit(vec![0, 11]), Claim::Expect("[far]".into())], &2)
        );
    }

    #[test]
    fn each_claim_that_is_not_so_is_told() {
        let claims = [Claim::Exit(vec![0, 11]), Claim::Expect("far".into())];
        assert!(differences(&claims, 11, "too far away").is_empty());
        let wrong = ["it ended with 10", "\"far\" is not in its output"];
        assert_eq!(differences(&claims, 10, "near"), wrong);
        assert_eq!(differences(&[], 1, ""), ["it ended with 1"]);
    }

    #[test]
    fn what_is_no_command_or_claim_of_one_is_refused() {
        let error = |page: &str| parts(page).unwrap_err().to_string();
        assert!(error("```console\nls\n```\n").starts_with("line 2: a block begins with"));
        assert!(error("a\n<!-- expect: b -->\n").starts_with("line 2: a claim stands"));
    }

    #[test]
    fn the_page_of_the_documentation_can_be_run() {
        let page = include_str!("../../../docs/tutorial.md");
        let parts = parts(page).unwrap();
        let claims =
            |part: &Part| matches!(part, Part::Command { claims, .. } if !claims.is_empty());
        assert!(parts.iter().filter(|part| claims(part)).count() >= 6);
        assert_eq!(text(&parts), page);
    }
}
