//! Files that hold a set of CPUs (or of queues), as a list or as a mask.
//!
//! Some kernels end the lists and masks of nodes and caches with a NUL behind the newline (seen in a 5.15 on arm64).

use super::ParseError;
use crate::cpuset::CpuSet;

/// A list (`0-3,8`); the empty line is the empty set.
///
/// `/sys/devices/system/cpu/nohz_full` prints `(null)` where the boot parameter was not given.
pub fn list(text: &str) -> Result<CpuSet, ParseError> {
    let text = text.trim_end_matches('\0');
    if text.trim() == "(null)" {
        return Ok(CpuSet::new());
    }
    Ok(CpuSet::parse_list(text)?)
}

/// A comma-grouped hexadecimal mask.
pub fn mask(text: &str) -> Result<CpuSet, ParseError> {
    Ok(CpuSet::parse_mask(text.trim_end_matches('\0'))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_the_empty_set() {
        assert_eq!(list("  (null)\n"), Ok(CpuSet::new()));
        assert_eq!(list("\n"), Ok(CpuSet::new()));
        assert_eq!(list("0-1\n\0"), CpuSet::parse_list("0-1").map_err(Into::into));
    }

    #[test]
    fn the_column_of_a_bad_range_is_named() {
        assert_eq!(list("0-3,x\n").unwrap_err().to_string(), "line 1 column 5: unexpected 'x'");
        assert_eq!(mask("ff,zz\n").unwrap_err().to_string(), "line 1 column 4: unexpected 'z'");
    }
}
