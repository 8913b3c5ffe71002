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

/// `voluntary_ctxt_switches`: how often the task gave up its CPU to sleep.
pub fn voluntary_switches(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
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
    fn voluntary_switches_are_not_mistaken_for_the_others() {
        let text = "Name:\tx\nvoluntary_ctxt_switches:\t20\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(voluntary_switches(text), Some(20));
    }

    #[test]
    fn the_position_of_a_bad_range_counts_from_the_line_start() {
        let message =
            cpus_allowed("Name:\tx\nCpus_allowed_list:\t0-3,x\n").unwrap_err().to_string();
        assert_eq!(message, "line 2 column 24: unexpected 'x'");
    }
}
