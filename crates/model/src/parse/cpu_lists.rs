//! Files that hold a set of CPUs or queues, as a list or as a mask.
//!
//! Some kernels append a NUL: after the newline of the lists and masks of nodes and caches (seen on
//! 5.15, arm64), or before the newline of an empty `nohz_full` (3.10 of CentOS 7).

use crate::machine::cpuset::{CpuSet, CpuSetError};
use crate::parse::error::ParseError;

/// Parses a list (`0-3,8`); an empty line is the empty set.
///
/// `/sys/devices/system/cpu/nohz_full` prints `(null)` without the boot parameter.
pub fn list(text: &str) -> Result<CpuSet, ParseError> {
    let text = without_nuls(text);
    if text.trim() == "(null)" {
        return Ok(CpuSet::new());
    }
    CpuSet::parse_list(text).map_err(|error| at(text, error))
}

/// Parses a comma-grouped hexadecimal mask.
pub fn mask(text: &str) -> Result<CpuSet, ParseError> {
    CpuSet::parse_mask(without_nuls(text)).map_err(|error| at(text, error))
}

fn without_nuls(text: &str) -> &str {
    text.trim_end_matches(|c: char| c == '\0' || c.is_whitespace())
}

/// Converts the error's offset, which starts after leading white space, to a file position.
fn at(text: &str, error: CpuSetError) -> ParseError {
    let offset = text.len() - text.trim_start().len() + error.at;
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    ParseError::new(
        before.matches('\n').count() + 1,
        offset - line_start + 1,
        error.kind.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_the_empty_set() {
        assert_eq!(list("  (null)\n"), Ok(CpuSet::new()));
        assert_eq!(list("\n"), Ok(CpuSet::new()));
        assert_eq!(list("\0\n"), Ok(CpuSet::new()));
        assert_eq!(list("0-1\n\0").unwrap().to_string(), "0-1");
    }

    #[test]
    fn the_column_of_a_bad_range_is_named() {
        assert_eq!(list("0-3,x\n").unwrap_err().to_string(), "line 1 column 5: unexpected 'x'");
        assert_eq!(list("\n  0-3,x\n").unwrap_err().to_string(), "line 2 column 7: unexpected 'x'");
        assert_eq!(mask("ff,zz\n").unwrap_err().to_string(), "line 1 column 4: unexpected 'z'");
    }
}
