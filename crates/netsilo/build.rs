//! Lets the linker make builds of the profile `dist` smaller, if the linker can: lld can, and Rust
//! has used it for x86-64 Linux since 1.90. evidence/size.md shows what each measure saves.

#![allow(clippy::print_stdout, reason = "build scripts talk to cargo on stdout")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// Merges functions with identical code.
const FOLD: &str = "-Wl,--icf=all";

/// Drops the tables for unwinding, because nothing unwinds if panics abort. glibc and the panic
/// handler work without them; only backtraces are empty.
const NO_TABLES: &str = "SECTIONS {
    /DISCARD/ : { *(.eh_frame) *(.eh_frame_hdr) *(.gcc_except_table .gcc_except_table.*) }
}
INSERT AFTER .data;
";

/// Starts a thread, panics, and aborts.
const PROBE: &str = r#"fn main() {
    let sum = std::thread::spawn(|| std::env::args().count()).join();
    panic!("probe {:?}", sum);
}"#;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if !is_dist().unwrap_or(false) || env::var_os("TARGET") != env::var_os("HOST") {
        return;
    }
    let no_tables = script().map(|path| ["-Wl,--no-eh-frame-hdr".to_owned(), path]);
    for arguments in [Some(vec![FOLD.to_owned()]), no_tables.map(Vec::from)].into_iter().flatten() {
        if links(&arguments).unwrap_or(false) {
            arguments.iter().for_each(|it| println!("cargo::rustc-link-arg-bins={it}"));
        }
    }
}

/// Whether this is a build of the profile `dist`, the only one that aborts. Cargo gives build
/// scripts neither a profile's name nor its panic strategy, only a folder below the profile's.
fn is_dist() -> Option<bool> {
    let out = PathBuf::from(env::var_os("OUT_DIR")?);
    Some(out.ancestors().nth(3)?.ends_with("dist"))
}

/// Writes the linker script without the tables, and returns its path.
fn script() -> Option<String> {
    let path = PathBuf::from(env::var_os("OUT_DIR")?).join("no-tables.ld");
    fs::write(&path, NO_TABLES).ok()?;
    path.into_os_string().into_string().ok()
}

/// Whether a program that is linked with these arguments and the flags of this build runs, and
/// reports its panic before it aborts.
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
    rustc.stdin.take()?.write_all(PROBE.as_bytes()).ok()?;
    if !rustc.wait().ok()?.success() {
        return Some(false);
    }
    // without a core
    let mut run = Command::new("sh");
    run.args(["-c", "ulimit -c 0; exec \"$0\""]).arg(probe).env("RUST_BACKTRACE", "1");
    let output = run.output().ok()?;
    let reported = String::from_utf8_lossy(&output.stderr);
    let is_whole = reported.contains("<anon>:3:") && reported.contains("probe Ok(1)");
    Some(is_whole && is_abort(output.status))
}

/// Whether SIGABRT ended a program.
#[cfg(unix)]
fn is_abort(status: std::process::ExitStatus) -> bool {
    const SIGABRT: i32 = 6;
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(SIGABRT)
}
