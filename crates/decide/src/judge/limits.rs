//! Sysctls that limit receive work, and how far a remedy raises each of them.

/// The kernel's default of each limit (6.12, x86-64).
const DEFAULTS: [(&str, u64); 5] = [
    ("net.core.netdev_budget", 300),
    // two ticks of the fastest clock (`CONFIG_HZ=1000`); slower clocks have more
    ("net.core.netdev_budget_usecs", 2000),
    ("net.core.netdev_max_backlog", 1000),
    ("net.core.rmem_default", 212_992),
    // since 5.4
    ("net.core.somaxconn", 4096),
];

/// Twice the value, and at least the kernel's default: if somebody set a value far too low, twice
/// that value is still too low.
pub(super) fn raised(name: &str, value: u64) -> u64 {
    value.saturating_mul(2).max(default(name))
}

/// Whether the value is lower than the kernel's default.
pub(super) fn is_below_default(name: &str, value: u64) -> bool {
    value < default(name)
}

fn default(name: &str) -> u64 {
    DEFAULTS.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_doubled_and_never_left_below_its_default() {
        assert_eq!(raised("net.core.netdev_budget", 300), 600);
        assert_eq!(raised("net.core.netdev_budget", 1), 300);
        assert_eq!(raised("net.core.unknown", 1), 2);
        assert_eq!(raised("net.core.somaxconn", u64::MAX), u64::MAX);
    }
}
