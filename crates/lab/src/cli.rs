//! The verbs of the lab's command line.

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::demo;
use crate::demo::Demo;
use crate::experiment;
use crate::experiment::Experiment;
use crate::tutorial;
use crate::tutorial::Tutorial;
use netsilo_lab::exact::{self, Exact};
use netsilo_lab::{Arch, Init, Kernel, Lab, Nic, NicModel, Output, Spec, Threads};
use std::io::{BufRead, IsTerminal, Write, stderr, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Boot real kernels with real NIC queues in small virtual machines
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Boot a guest, run one command in it, and exit with its status
    Run {
        #[command(flatten)]
        machine: Machine,
        /// Kill the command after this many seconds
        #[arg(long, default_value_t = 600)]
        timeout: u64,
        /// Shell command; several words are joined by spaces
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<String>,
    },
    /// Boot a guest and run commands from standard input in it, one per line; `peer COMMAND` runs
    /// one at the other end of eth0
    Shell {
        #[command(flatten)]
        machine: Machine,
        /// For scripts: end what each command prints with a line of ASCII 4 and its exit status
        #[arg(long)]
        status: bool,
    },
    /// Fetch all kernels and list them
    Kernels,
    /// Unpack Debian 12's irqbalance and print its path, the same in a guest
    Irqbalance,
    /// Show netsilo's main task on real traffic: show, plan, apply, verify, undo
    Demo(Demo),
    /// Measure settings under loads in rounds, and check netsilo against the measurements
    #[command(subcommand)]
    Experiment(Experiment),
    /// Run the commands of docs/tutorial.md in a guest, and check what the page claims about them
    Tutorial(Tutorial),
    /// Send and receive with exact counts, in guests, peers or anywhere else
    #[command(subcommand)]
    Exact(Exact),
}

#[derive(Debug, Args)]
struct Machine {
    /// Kernel to boot
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
    /// Architecture of the guest
    #[arg(long, value_enum, default_value_t)]
    arch: Arch,
    /// Sends the DMA of PCI devices through an emulated IOMMU
    #[arg(long)]
    iommu: bool,
    /// Network cards, eth0 first: MODEL or MODEL@NODE, for example igb@1
    #[arg(
        long = "nic",
        value_name = "MODEL[@NODE]",
        default_value = "virtio-net",
        value_parser = nic
    )]
    nics: Vec<Nic>,
    /// Number of queue pairs of each virtio-net
    #[arg(long, default_value_t = 4)]
    queues: u32,
    /// Number of logical CPUs: even, 2 to 32, on two sockets
    #[arg(long, default_value_t = 8)]
    cpus: u32,
    /// How the emulator runs the CPUs
    #[arg(long, value_enum, default_value_t)]
    threads: Threads,
    /// First process of the guest
    #[arg(long, value_enum, default_value_t)]
    init: Init,
    /// File with the guest's /etc and /var, which survive its reboot; made if it is not there
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
    /// Adds an NVMe disk with nothing on it: modprobe nvme
    #[arg(long)]
    nvme: bool,
    /// Memory of the guest in MiB
    #[arg(long, default_value_t = 1024)]
    memory: u32,
    /// Append to the kernel's command line, for example isolcpus=2,3
    #[arg(long = "append", value_name = "ARG")]
    kernel_args: Vec<String>,
}

impl Machine {
    fn spec(&self) -> Spec {
        Spec {
            kernel: self.kernel,
            arch: self.arch,
            iommu: self.iommu,
            cpus: self.cpus,
            nics: self.nics.iter().map(|nic| Nic { queues: self.queues, ..*nic }).collect(),
            memory_mib: self.memory,
            threads: self.threads,
            init: self.init,
            disk: self.disk.clone(),
            nvme: self.nvme,
            kernel_args: self.kernel_args.clone(),
            shares: Vec::new(),
        }
    }
}

fn nic(text: &str) -> Result<Nic, String> {
    let (model, node) =
        text.split_once('@').map_or((text, None), |(model, node)| (model, Some(node)));
    let model: NicModel = clap::ValueEnum::from_str(model, true)?;
    let node = node
        .map(|node| node.parse().map_err(|_| format!("node {node:?} is not a number")))
        .transpose()?;
    Ok(Nic { node, ..Nic::from(model) })
}

/// Runs the verb of the command line.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    match cli.verb {
        Verb::Run { machine, timeout, command } => {
            let lab = Lab::boot(&machine.spec())?;
            let output = lab.run_for(&command.join(" "), Duration::from_secs(timeout))?;
            drop(lab);
            show(&output)?;
            Ok(ExitCode::from(u8::try_from(output.status).unwrap_or(u8::MAX)))
        }
        Verb::Shell { machine, status } => shell(&Lab::boot(&machine.spec())?, status),
        Verb::Kernels => kernels(),
        Verb::Irqbalance => {
            writeln!(stdout(), "{}", netsilo_lab::irqbalance()?.display())?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Demo(demo) => demo::run(&demo).map(|()| ExitCode::SUCCESS),
        Verb::Experiment(verb) => experiment::run(&verb).map(|()| ExitCode::SUCCESS),
        Verb::Tutorial(args) => tutorial::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Exact(verb) => exact::run(&verb).map(|()| ExitCode::SUCCESS),
    }
}

fn kernels() -> Result<ExitCode> {
    for kernel in Kernel::ALL {
        let image = kernel.fetch()?;
        writeln!(
            stdout(),
            "{kernel}\t{}\t{}\t{}",
            image.release,
            image.version,
            image.root.display()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn shell(lab: &Lab, status: bool) -> Result<ExitCode> {
    let prompt = || -> Result<()> {
        if stdin().is_terminal() {
            write!(stderr(), "lab# ")?;
        }
        Ok(())
    };
    prompt()?;
    for line in stdin().lock().lines() {
        let line = line?;
        let timeout = Duration::from_secs(600);
        let output = match line.trim().split_once(' ') {
            _ if line.trim().is_empty() => None,
            _ if line.trim() == "exit" => break,
            Some(("peer", command)) => {
                Some(lab.peer(0).and_then(|peer| peer.run_for(command, timeout)))
            }
            _ => Some(lab.run_for(&line, timeout)),
        };
        match output {
            None => {}
            Some(Ok(output)) => {
                show(&output)?;
                if status {
                    writeln!(stdout(), "\x04{}", output.status)?;
                } else if output.status != 0 {
                    writeln!(stderr(), "exit status {}", output.status)?;
                }
            }
            Some(Err(error)) => {
                writeln!(stderr(), "{error:#}")?;
                if status {
                    writeln!(stdout(), "\x04255")?;
                }
            }
        }
        if let Err(error) = lab.run("true") {
            bail!("{error:#}; the end of its console:\n{}", lab.console());
        }
        prompt()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(output: &Output) -> Result<()> {
    stdout().write_all(&output.stdout)?;
    stderr().write_all(&output.stderr)?;
    Ok(())
}
