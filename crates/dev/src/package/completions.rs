//! Completions for shells.

use std::collections::BTreeMap;

use clap_complete::{Shell, generate};

use crate::package::program::Program;

/// The scripts of a program by their path below `completions/`, under the names by which the shells
/// find them.
pub fn scripts(program: &Program) -> BTreeMap<String, Vec<u8>> {
    let name = program.name;
    let script = |(shell, path)| {
        let mut text = Vec::new();
        generate(shell, &mut (program.command)(), name, &mut text);
        (format!("completions/{path}"), text)
    };
    let scripts = [
        (Shell::Bash, format!("bash/{name}")),
        (Shell::Zsh, format!("zsh/_{name}")),
        (Shell::Fish, format!("fish/{name}.fish")),
    ];
    scripts.into_iter().map(script).collect()
}
