//! Lets the linker make builds of the profile `dist` smaller, if it can: lld can, and Rust links
//! x86-64 Linux by it since 1.90; mold and gold can fold; GNU ld can drop.

#![allow(clippy::print_stdout, reason = "build scripts talk to cargo on stdout")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

/// Functions with identical code become one.
const FOLD: &str = "-Wl,--icf=all";

/// Nothing unwinds in a program that aborts on panic, so these tables only serve backtraces, and
/// symbols are stripped.
const DROP: &str = "SECTIONS { /DISCARD/ : { *(.eh_frame) *(.eh_frame.*) } } INSERT AFTER .rodata;";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // no other profile optimizes for size and aborts
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|it| it == value);
    let is_dist = is("OPT_LEVEL", "z") && is("CARGO_CFG_PANIC", "abort");
    if !is_dist || env::var_os("TARGET") != env::var_os("HOST") {
        return;
    }
    let mut arguments = Vec::new();
    for more in [Some(vec![FOLD.to_owned()]), without_tables()].into_iter().flatten() {
        let with_more = [arguments.clone(), more].concat();
        if links(&with_more).unwrap_or(false) {
            arguments = with_more;
        }
    }
    for argument in arguments {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}

fn without_tables() -> Option<Vec<String>> {
    let script = Path::new(&env::var_os("OUT_DIR")?).join("drop.ld");
    fs::write(&script, DROP).ok()?;
    Some(vec!["-Wl,--no-eh-frame-hdr".into(), format!("-Wl,-T,{}", script.to_str()?)])
}

/// Whether a program that is linked in this way, with the flags of this build, runs.
fn links(arguments: &[String]) -> Option<bool> {
    let mut rustc = Command::new(env::var_os("RUSTC")?);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    for argument in arguments {
        rustc.arg("-C").arg(format!("link-arg={argument}"));
    }
    let probe = Path::new(&env::var_os("OUT_DIR")?).join("probe");
    rustc.args(["--crate-name", "probe", "-C", "panic=abort", "-o"]).arg(&probe).arg("-");
    rustc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut rustc = rustc.spawn().ok()?;
    rustc.stdin.take()?.write_all(b"fn main() {}").ok()?;
    Some(rustc.wait().ok()?.success() && Command::new(probe).status().ok()?.success())
}
