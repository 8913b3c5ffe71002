//! What makes other programs leave netsilo's settings alone.
//!
//! netsilo itself asks an irqbalance that answers on its socket. Each other program has a line of
//! configuration that an operator writes.

/// The start of a program's name, as a snapshot has it, and the line of configuration.
///
/// Sources: irqbalance(1); tuned's plugins `scheduler` (after 2.20) and `irq`; systemd.link(5);
/// NetworkManager's `nm-settings-keyfile(5)`; bpftune(8), bpftune-sysctl(8); `scx_layered --help`;
/// OpenWrt's `/etc/config/network`; the guest agent's `instance_configs.cfg`.
const LINES: &[(&str, &str)] = &[
    ("irqbalance", "use netsilo export irqbalance-policy"),
    (
        "tuned",
        "in its profile, section [scheduler]: irq_process=false (up to 2.20: no isolated_cores), \
         and no section with type=irq",
    ),
    ("systemd-udevd", "delete its line with this setting from that file"),
    (
        "NetworkManager",
        "delete the lines that begin with channels-, coalesce-, feature- and ring- from section \
         [ethtool] of that file",
    ),
    (
        "bpftune",
        "in its unit: ExecStart=/usr/sbin/bpftune with -a for each tuner that may run, without \
         net_buffer_tuner.so, tcp_buffer_tuner.so and udp_buffer_tuner.so",
    ),
    ("scx_layered", "in /etc/default/scx: SCX_FLAGS without --netdev-irq-balance"),
    (
        "google",
        "in /etc/default/instance_configs.cfg, section [InstanceSetup]: set_multiqueue = false",
    ),
    ("packet-steering.uc", "in /etc/config/network, section globals: option packet_steering 0"),
    ("netifd", "in /etc/config/network, section globals: option packet_steering 0"),
];

/// The line of configuration that makes a program leave settings alone, or what to do without one.
pub(crate) fn line_for(program: &str) -> &'static str {
    let known = LINES.iter().find(|(name, _)| program.starts_with(name));
    known.map_or("exclude these settings in its configuration", |(_, line)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_files_is_known_by_the_start_of_its_name() {
        let file = "NetworkManager (/etc/NetworkManager/system-connections/a.nmconnection)";
        assert!(line_for(file).contains("[ethtool]"));
        assert!(line_for("tuned").contains("irq_process=false"));
        assert_eq!(line_for("perftune.py"), "exclude these settings in its configuration");
    }
}
