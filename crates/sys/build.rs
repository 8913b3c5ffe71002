//! Compiles the eBPF programs of `src/bpf/` with clang and compresses the object;
//! `src/bpf/load.rs` embeds it.
#![allow(clippy::print_stdout, reason = "build scripts talk to cargo on stdout")]

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

#[path = "src/bpf/layout.rs"]
mod layout;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = env::var("OUT_DIR")?;
    let include = env::var("DEP_BPF_INCLUDE")?; // libbpf's own headers, from libbpf-sys
    let arch = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" | "x86" => "x86".to_owned(),
        "aarch64" => "arm64".to_owned(),
        "riscv64" => "riscv".to_owned(),
        "s390x" => "s390".to_owned(),
        "powerpc64" => "powerpc".to_owned(),
        other => other.to_owned(),
    };
    let target = if env::var("CARGO_CFG_TARGET_ENDIAN")? == "big" { "bpfeb" } else { "bpfel" };
    // Paths in BTF and DWARF are relative to this crate and to libbpf's headers, wherever both are.
    // clang opens `./src/bpf/..` here for the source lines in BTF.
    let here = env::var("CARGO_MANIFEST_DIR")?;
    let maps = [(&here, "."), (&include, "include")];
    let object = Path::new(&out).join("programs.o");
    let status = Command::new(&clang)
        .args(["-g", "-O2", "-Wall", "-Werror", "-target", target, "-mcpu=v3"])
        .args(["-I", &include, &format!("-D__TARGET_ARCH_{arch}"), "-c", "src/bpf/programs.c"])
        .args(maps.map(|(path, name)| format!("-ffile-prefix-map={path}={name}")))
        .args(layout::DEFINES.iter().map(|(name, value)| format!("-DLAYOUT_{name}={value}")))
        .arg("-o")
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {
            // a quarter of the size, because most of it is text
            let packed = object.with_extension("o.zst");
            fs::write(packed, zstd::encode_all(File::open(object)?, 19)?)?;
            Ok(())
        }
        Ok(_) => {
            Err(format!("{clang} could not compile the eBPF programs: see its errors above").into())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "{clang} is missing: install clang 14 or newer (Debian: apt install clang llvm), \
             or set CLANG to its path"
        )
        .into()),
        Err(error) => Err(format!("cannot run {clang}: {error}").into()),
    }
}
