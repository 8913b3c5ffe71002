//! Manual pages: section 8 for each verb, section 5 for the configuration.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use netsilo::cli::examples::Ending;

use crate::package::markdown::{self, Level};
use crate::package::program::Program;

/// Where the daemon's configuration is described.
const DAEMON: &str = include_str!("../../../../docs/daemon.md");

/// The pages of a program by their path. `date` is the date of the sources, like `2026-11-23`.
///
/// # Errors
/// A page cannot be written, or `docs/daemon.md` has no section on the configuration.
pub fn pages(program: &Program, date: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut root = (program.command)()
        .after_help("")
        .mut_subcommands(|verb| verb.disable_help_subcommand(true));
    root.build();
    let mut pages = BTreeMap::new();
    verbs(program, &root, "", date, &mut pages)?;
    if program.name == "netsilo" {
        pages.insert("man/man5/netsilo.toml.5".to_owned(), configuration(date)?);
    }
    Ok(pages)
}

/// The name of a verb's page without the section.
pub fn page_name(program: &Program, verb: &str) -> String {
    format!("{} {verb}", program.name).trim_end().replace(' ', "-")
}

/// Adds the pages of a command and of all verbs below it.
fn verbs(
    program: &Program,
    command: &Command,
    verb: &str,
    date: &str,
    pages: &mut BTreeMap<String, Vec<u8>>,
) -> Result<()> {
    let name = page_name(program, verb);
    pages.insert(format!("man/man8/{name}.8"), page(program, command, verb, date)?);
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        verbs(program, below, format!("{verb} {}", below.get_name()).trim_start(), date, pages)?;
    }
    Ok(())
}

/// The page of one verb, or of the program itself if `verb` is empty.
fn page(program: &Program, command: &Command, verb: &str, date: &str) -> Result<Vec<u8>> {
    let man = man(command.clone(), &page_name(program, verb), "8", date);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|it| !it.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    if verb.is_empty() {
        for topic in program.topics {
            roff.control("SH", [topic.title().to_uppercase().as_str()]);
            markdown::write(&mut roff, topic.body(), Level::Subsection);
        }
    } else if let Some(ending) = program.endings.iter().find(|it| it.verb == verb) {
        examples(&mut roff, ending);
    }
    see_also(&mut roff, program, command, verb);
    finished(&text, &roff)
}

/// The page of the configuration.
fn configuration(date: &str) -> Result<Vec<u8>> {
    let (_, section) = DAEMON.split_once("\n## Configuration\n").context("no such section")?;
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let command = Command::new("netsilo.toml").about("configuration of netsilo's daemon");
    let man = man(command, "netsilo.toml", "5", date);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman("/etc/netsilo/netsilo.toml, /etc/netsilo/conf.d/*.toml")]);
    roff.control("SH", ["DESCRIPTION"]);
    markdown::write(&mut roff, section, Level::Section);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("netsilo-run(8), netsilo(8)")]);
    finished(&text, &roff)
}

fn man(command: Command, name: &str, section: &str, date: &str) -> Man {
    let source = concat!("netsilo ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).title(name.to_uppercase()).section(section);
    man.source(source).date(date).manual("netsilo")
}

/// The page without justified lines, because troff warns about a justified line of one word, and
/// without breaks next to empty lines, which clap_mangen writes around lists of values.
fn finished(text: &[u8], roff: &Roff) -> Result<Vec<u8>> {
    let mut text = String::from_utf8(text.to_vec())? + &roff.render();
    text = text.replace(".br\n\n.br\n", ".sp\n");
    if let Some(at) = text.find("\n.SH ") {
        text.insert_str(at, "\n.ad l");
    }
    Ok(text.into_bytes())
}

fn examples(roff: &mut Roff, ending: &Ending) {
    roff.control("SH", ["EXAMPLES"]);
    for (line, what) in ending.examples {
        tagged(roff, line, what);
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in ending.exits() {
        tagged(roff, &code.to_string(), meaning);
    }
}

fn tagged(roff: &mut Roff, tag: &str, text: &str) {
    roff.control("TP", []).text([bold(tag)]).text([roman(text)]);
}

fn see_also(roff: &mut Roff, program: &Program, command: &Command, verb: &str) {
    let page = |verb: &str| format!("{}(8)", page_name(program, verb));
    let mut pages: Vec<String> = Vec::new();
    if let Some((above, _)) = verb.rsplit_once(' ') {
        pages.push(page(above));
    }
    let below = command.get_subcommands().filter(|it| !it.is_hide_set());
    pages.extend(below.map(|it| page(format!("{verb} {}", it.get_name()).trim_start())));
    if !verb.is_empty() {
        pages.push(page(""));
    }
    match (program.name, verb) {
        ("netsilo", "" | "run") => pages.push("netsilo.toml(5)".to_owned()),
        ("netsilo", _) => {}
        _ => pages.push("netsilo(8)".to_owned()),
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
}
