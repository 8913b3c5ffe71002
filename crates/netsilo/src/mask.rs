//! `netsilo mask`: a set of CPUs in each of the kernel's spellings, for people who write these files by hand.

use anyhow::Result;

use crate::exit::Exit;

/// Arguments of `netsilo mask`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// CPU list (0-3,40) or mask (f, 0x0f, 0100,0000000f).
    cpus: Option<String>,
}

/// Prints the set.
pub(crate) fn run(_args: &Args) -> Result<Exit> {
    Ok(Exit::Ok)
}
