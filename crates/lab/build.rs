//! Builds the guest's agent as a static binary, which `initrd.rs` embeds.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=agent");
    println!("cargo::rerun-if-changed=src/frame.rs");
    let agent = PathBuf::from(std::env::var("OUT_DIR")?).join("agent");
    // That of another architecture, if cargo has one.
    let linker = std::env::var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}"));
    let status = Command::new(std::env::var("RUSTC")?)
        .args(linker)
        .args(["--edition=2024", "--crate-name=agent", "--crate-type=bin", "agent/main.rs"])
        .args(["--target", &std::env::var("TARGET")?])
        .args(["-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "-Ctarget-feature=+crt-static"])
        .arg("-o")
        .arg(&agent)
        .status()?;
    if !status.success() {
        return Err(
            "cannot build the lab's agent: see rustc's message above (is libc6-dev installed?)"
                .into(),
        );
    }
    Ok(())
}
