//! `/proc/<pid>/status` (`fs/proc/array.c:proc_pid_status`), as far as needed.

use super::ParseError;
use crate::cpuset::CpuSet;

/// `Cpus_allowed_list`: the CPUs that the task may run on.
pub fn cpus_allowed(text: &str) -> Result<CpuSet, ParseError> {
    for (line, number) in text.lines().zip(1..) {
        if let Some(list) = line.strip_prefix("Cpus_allowed_list:") {
            let error = |e: ParseError| ParseError { line: number, ..e };
            return super::cpu_lists::list(list).map_err(error);
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
}
