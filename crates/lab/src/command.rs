//! Runs commands on the host. An error contains the command and its standard error.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a command and returns its standard output. Fails if its status is not 0.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output().with_context(|| {
        format!("cannot run {program}: is it installed? scripts/setup installs what the lab needs")
    })?;
    if !done.status.success() {
        let arguments: Vec<_> = arguments_shown(command).collect();
        let stderr = String::from_utf8_lossy(&done.stderr);
        bail!("{program} {} failed ({}): {}", arguments.join(" "), done.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Returns the arguments without apt's many `-o NAME=VALUE`.
fn arguments_shown(command: &Command) -> impl Iterator<Item = String> {
    let mut value = false;
    command.get_args().map(|arg| arg.to_string_lossy().into_owned()).filter(move |arg| {
        let skip = value || arg == "-o";
        value = !value && arg == "-o";
        !skip
    })
}

/// Converts a path to text for arguments and messages.
pub(crate) trait Shown {
    fn shown(&self) -> String;
}

impl<P: AsRef<Path>> Shown for P {
    fn shown(&self) -> String {
        self.as_ref().to_string_lossy().into_owned()
    }
}
