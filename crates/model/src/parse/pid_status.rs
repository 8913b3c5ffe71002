//! `/proc/<pid>/status` (`fs/proc/array.c:proc_pid_status`): the fields that netsilo uses.

use crate::machine::cpuset::CpuSet;
use crate::parse::error::ParseError;

/// `Cpus_allowed_list`: the CPUs that the task may run on.
pub fn cpus_allowed(text: &str) -> Result<CpuSet, ParseError> {
    for (line, number) in text.lines().zip(1..) {
        const KEY: &str = "Cpus_allowed_list:";
        if let Some(list) = line.strip_prefix(KEY) {
            let error =
                |e: ParseError| ParseError { line: number, column: KEY.len() + e.column, ..e };
            return crate::parse::cpu_lists::list(list).map_err(error);
        }
    }
    Err(ParseError::new(text.lines().count() + 1, 1, "no line \"Cpus_allowed_list:\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_found_among_the_lines() {
        let cpus = cpus_allowed("Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n").unwrap();
        assert_eq!(cpus.to_string(), "0-3");
        assert!(cpus_allowed("Name:\tx\n").is_err());
    }

    #[test]
    fn the_position_of_a_bad_range_counts_from_the_line_start() {
        let message =
            cpus_allowed("Name:\tx\nCpus_allowed_list:\t0-3,x\n").unwrap_err().to_string();
        assert_eq!(message, "line 2 column 24: unexpected 'x'");
    }
}
