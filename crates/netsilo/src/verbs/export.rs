//! `netsilo export`: the current plan in the format of other programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use netsilo_decide::plan::Plan;
use netsilo_decide::plan::export::{self, ExportedFile};
use netsilo_sys::files::output;

use crate::args::plan::{PlanArgs, load};
use crate::tell::exit::Exit;
use crate::tell::out;

/// Arguments of `netsilo export`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Format to export
    #[arg(value_enum, value_name = "FORMAT")]
    format: Format,
    /// With irqbalance-policy: let irqbalance balance on the nodes in netsilo's hints instead of
    /// leaving interrupts alone
    #[arg(long)]
    suggest: bool,
    /// Export the plan in this file, as printed by `netsilo plan --json`, instead of making a plan
    #[arg(long, value_name = "FILE", conflicts_with_all = ["GoalArgs", "GoalKeys", "ObserveArgs"])]
    plan: Option<PathBuf>,
    /// Write the files to this folder instead of printing them
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    make: PlanArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Policy script for irqbalance --policyscript
    IrqbalancePolicy,
    /// Files for /etc/systemd/network
    SystemdLink,
    /// Profile for tuned
    Tuned,
    /// Shell script that writes only values that differ
    Script,
}

/// Makes or reads a plan and exports it.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.suggest && args.format != Format::IrqbalancePolicy {
        let why = "--suggest needs the format irqbalance-policy";
        return Err(crate::tell::exit::ExitError(Exit::Usage, why.into()).into());
    }
    // The --suggest script reads the hints, so it needs no plan.
    let files = if args.suggest {
        vec![export::irqbalance_suggest()]
    } else {
        render(args.format, &plan(args)?)
    };
    match &args.dir {
        Some(dir) => {
            write(dir, &files)?;
            Ok(Exit::Done)
        }
        None => {
            out::text(&joined(&files));
            Ok(Exit::Printed)
        }
    }
}

fn plan(args: &Args) -> Result<Plan> {
    match &args.plan {
        Some(path) => load(path),
        None => args.make.observe_and_plan(),
    }
}

impl Format {
    /// The files of a plan, and what the format cannot express, unless a file mentions it.
    pub(crate) fn export(self, plan: &Plan) -> (Vec<ExportedFile>, Vec<String>) {
        match self {
            Self::IrqbalancePolicy => (vec![export::irqbalance_policy(plan)], Vec::new()),
            Self::SystemdLink => export::systemd_link(plan),
            Self::Tuned => (vec![export::tuned(plan)], Vec::new()),
            Self::Script => (vec![export::script(plan)], Vec::new()),
        }
    }
}

fn render(format: Format, plan: &Plan) -> Vec<ExportedFile> {
    let (files, beyond) = format.export(plan);
    beyond.iter().for_each(|what| out::note(&format!("not possible in .link files: {what}")));
    files
}

/// Joins the files. If there is more than one, adds their names.
fn joined(files: &[ExportedFile]) -> String {
    match files {
        [] => "# the plan has no change that .link files can express\n".into(),
        [only] => only.text.clone(),
        all => all.iter().map(|file| format!("# ---- {}\n{}\n", file.name, file.text)).collect(),
    }
}

fn write(dir: &Path, files: &[ExportedFile]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for file in files {
        let path = dir.join(&file.name);
        let context = || format!("cannot write {}", path.display());
        let mode = if file.executable { 0o755 } else { 0o644 };
        output::write_with_mode(&path, mode, file.text.as_bytes()).with_context(context)?;
        out::note(&format!("wrote {}", path.display()));
    }
    Ok(())
}
