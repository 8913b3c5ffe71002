//! Why the kernel refused an eBPF program or map.

use std::fs;
use std::path::Path;

/// Explains the kernel's refusal without errno numbers.
pub(crate) fn reason(error: &libbpf_rs::Error) -> String {
    let text = format!("{error:#}");
    let words = if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
    } else {
        match errno(&text) {
            Some(1) if may_load() => {
                "this kernel forbids this kind of hook, although netsilo has the privilege"
            }
            Some(1) => "no privilege: run as root or with CAP_BPF and CAP_PERFMON",
            Some(13) => "the kernel's verifier refused the program",
            Some(2 | 3) => "this kernel lacks the hook, or a symbol that the program reads",
            Some(22 | 95 | 524) => "this kernel does not allow this kind of hook here",
            Some(16) => "the hook is busy: another tracer holds it exclusively",
            Some(12) => "out of memory",
            _ => "refused by the kernel",
        }
    };
    format!("{words} [{text}]")
}

/// Whether CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON (`include/uapi/linux/capability.h`), are
/// effective.
fn may_load() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective =
        effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let has = |capability: u32| effective >> capability & 1 == 1;
    has(21) || (has(39) && has(38))
}

/// The errno. libbpf-rs keeps it only in its text: `... (os error 22)`.
fn errno(text: &str) -> Option<i32> {
    let (_, after) = text.rsplit_once("(os error ")?;
    after.split(')').next()?.parse().ok()
}
