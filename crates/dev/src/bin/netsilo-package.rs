//! `netsilo-package DIR DATE`: writes `man` and `completions` of each program in a folder of `DIR`,
//! for `scripts/package`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use netsilo::cli::completions;
use netsilo_dev::package::manual;
use netsilo_dev::package::program::PROGRAMS;

fn write() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: netsilo-package DIR DATE, with the date of the sources (2026-11-23)";
    let dir = args.next().map(PathBuf::from).context(usage)?;
    let date = args.next().context(usage)?;
    for program in &PROGRAMS {
        let folder = dir.join(program.name);
        let pages = manual::pages(program, &date)?;
        let scripts = completions::scripts(program.name).into_iter();
        let scripts = scripts.map(|(path, text)| (format!("completions/{path}"), text));
        for (name, text) in pages.into_iter().chain(scripts) {
            let path = folder.join(name);
            let folder = path.parent().unwrap_or(&folder);
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            std::fs::write(&path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the program has no other output")]
fn main() -> ExitCode {
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netsilo-package: {error:#}");
            ExitCode::FAILURE
        }
    }
}
