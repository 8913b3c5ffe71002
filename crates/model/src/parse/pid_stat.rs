//! `/proc/<pid>/stat` (`fs/proc/array.c:do_task_stat`): the fields that netsilo uses.

use crate::parse::error::ParseError;
use crate::parse::words::{decimal, words};

/// `PF_KTHREAD` of `include/linux/sched.h`.
const PF_KTHREAD: u32 = 0x0020_0000;

/// `PF_NO_SETAFFINITY`: the kernel refuses to change the task's affinity.
const PF_NO_SETAFFINITY: u32 = 0x0400_0000;

/// The identity of a process and two of its flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PidStat {
    /// Name; may contain spaces and parentheses.
    pub comm: String,
    /// Whether it is a kernel thread.
    pub kthread: bool,
    /// Whether its affinity cannot be changed (`PF_NO_SETAFFINITY`).
    pub fixed_affinity: bool,
    /// Start time, in clock ticks after boot.
    pub start_time: u64,
}

/// Parses the line.
pub fn pid_stat(text: &str) -> Result<PidStat, ParseError> {
    let open = text.find('(').ok_or_else(|| ParseError::new(1, 1, "no '(' before the name"))?;
    let close =
        text.rfind(')').ok_or_else(|| ParseError::new(1, open + 1, "no ')' after the name"))?;
    let comm = text
        .get(open + 1..close)
        .ok_or_else(|| ParseError::new(1, open + 1, "no ')' after the name"))?;
    let rest = &text[close + 1..];
    let field = |number: usize, name: &str| {
        // the state is field 3, the first after the name
        words(rest).nth(number - 3).map(|(at, word)| (close + 1 + at, word)).ok_or_else(|| {
            ParseError::new(1, text.trim_end().len() + 1, format!("no field {number} ({name})"))
        })
    };
    let flags: u32 = decimal(1, field(9, "flags")?)?;
    Ok(PidStat {
        comm: comm.to_owned(),
        kthread: flags & PF_KTHREAD != 0,
        fixed_affinity: flags & PF_NO_SETAFFINITY != 0,
        start_time: decimal(1, field(22, "starttime")?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_parentheses() {
        let read = pid_stat("17 (a) (b) ) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 345 0 0\n")
            .unwrap();
        assert_eq!((read.comm.as_str(), read.kthread, read.start_time), ("a) (b) ", true, 345));
        let user =
            pid_stat("17 (sh) S 2 0 0 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 345 0 0\n").unwrap();
        assert!(!user.kthread && !user.fixed_affinity);
        let bound =
            pid_stat("17 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 20 0 1 0 345 0 0\n")
                .unwrap();
        assert!(bound.kthread && bound.fixed_affinity);
    }

    #[test]
    fn a_missing_field_is_named() {
        assert_eq!(
            pid_stat("1 (x) S 1\n").unwrap_err().to_string(),
            "line 1 column 10: no field 9 (flags)"
        );
        assert!(pid_stat("1 )x( S").is_err());
    }
}
