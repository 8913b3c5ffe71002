//! The scheduling policy, nice value and priority of a thread (`sched_getattr`, `sched_setattr`).

use std::io;

/// `struct sched_attr` of `include/uapi/linux/sched/types.h`, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// These three are for `SCHED_DEADLINE`. Since 6.12 `runtime` also sets the slice of other
    /// policies.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;

/// `SCHED_DEADLINE`: it has more parameters than the text can hold.
const DEADLINE: u32 = 6;

/// The attributes of a thread, as `policy=0 nice=-5 priority=0`.
pub(crate) fn get(tid: u32) -> io::Result<String> {
    let mut now = Attributes::default();
    // SAFETY: the kernel writes at most `SIZE` bytes, which `now` holds.
    #[allow(unsafe_code)]
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut now, SIZE, 0_u32) };
    match result {
        ..0 => Err(io::Error::last_os_error()),
        _ if now.policy == DEADLINE => Err(io::ErrorKind::Unsupported.into()),
        _ => Ok(format!("policy={} nice={} priority={}\n", now.policy, now.nice, now.priority)),
    }
}

/// Sets the attributes of a thread from the text that [`get`] returns.
pub(crate) fn set(tid: u32, text: &str) -> io::Result<()> {
    let attributes = parse(text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no scheduling attributes"))?;
    // SAFETY: the kernel reads `SIZE` bytes, which `attributes` holds, and keeps no reference.
    #[allow(unsafe_code)]
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0_u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn parse(text: &str) -> Option<Attributes> {
    let mut words = text.split_whitespace();
    let mut number = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
    let policy = number("policy")?.parse().ok()?;
    let nice = number("nice")?.parse().ok()?;
    let priority = number("priority")?.parse().ok()?;
    Some(Attributes { size: SIZE, policy, nice, priority, ..Attributes::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_our_own_becomes_nicer_and_keeps_its_policy() {
        // A separate thread, because only root may lower a nice value again.
        let thread = std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let before = get(tid).unwrap();
            let nicer = "policy=0 nice=19 priority=0\n";
            set(tid, nicer).unwrap();
            (before, get(tid).unwrap(), nicer)
        });
        let (before, after, nicer) = thread.join().unwrap();
        assert!(before.starts_with("policy=0 nice="), "{before}");
        assert_eq!(after, nicer);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "policy=0", "policy=0 nice=x priority=0", "nice=0 policy=0 priority=0"] {
            assert!(set(1, text).is_err(), "{text}");
        }
    }
}
