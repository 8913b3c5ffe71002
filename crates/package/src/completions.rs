//! Completions for shells.

use std::collections::BTreeMap;

use clap_complete::{Shell, generate};
use netsilo::cli;

/// The name below `completions/` of each shell's script: the one under which the shell finds it.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash/netsilo"),
    (Shell::Zsh, "zsh/_netsilo"),
    (Shell::Fish, "fish/netsilo.fish"),
];

/// All scripts by their path.
pub fn scripts() -> BTreeMap<String, Vec<u8>> {
    let script = |(shell, name)| {
        let mut text = Vec::new();
        generate(shell, &mut cli::bare_command(), "netsilo", &mut text);
        (format!("completions/{name}"), text)
    };
    SHELLS.into_iter().map(script).collect()
}
