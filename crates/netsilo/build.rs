//! Lets the linker make builds of the profile `dist` smaller, if it can: lld can, and Rust links
//! x86-64 Linux by it since 1.90; so can mold and gold.

#![allow(clippy::print_stdout, reason = "build scripts talk to cargo on stdout")]

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Functions with identical code become one.
const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // no other profile optimizes for size and aborts
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|it| it == value);
    let is_dist = is("OPT_LEVEL", "z") && is("CARGO_CFG_PANIC", "abort");
    if !is_dist || env::var_os("TARGET") != env::var_os("HOST") {
        return;
    }
    if links(FOLD).unwrap_or(false) {
        println!("cargo::rustc-link-arg-bins={FOLD}");
    }
}

/// Whether a program that is linked in this way, with the flags of this build, runs.
fn links(argument: &str) -> Option<bool> {
    let mut rustc = Command::new(env::var_os("RUSTC")?);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    rustc.arg("-C").arg(format!("link-arg={argument}"));
    let probe = Path::new(&env::var_os("OUT_DIR")?).join("probe");
    rustc.args(["--crate-name", "probe", "-C", "panic=abort", "-o"]).arg(&probe).arg("-");
    rustc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut rustc = rustc.spawn().ok()?;
    rustc.stdin.take()?.write_all(b"fn main() {}").ok()?;
    Some(rustc.wait().ok()?.success() && Command::new(probe).status().ok()?.success())
}
