//! The kinds of workloads.

/// A well-known server, and the load on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A request and its response of one byte on TCP connections, one per server
    TcpRr,
    /// The same in datagrams
    UdpRr,
    /// redis with redis-benchmark: GET
    Redis,
    /// memcached: get, by a client of the lab
    Memcached,
    /// nginx with wrk: a small file
    Nginx,
    /// nsd with dnsperf: one name, over UDP
    Dns,
    /// iperf3: TCP streams to the guest; a transaction is 64 KiB
    Stream,
    /// Requests and responses of one byte as datagrams: one process reads, and another one answers
    /// on the other thread of its core
    #[value(skip)]
    Pipeline,
    /// Requests and responses of one byte on TCP connections that the guest forwards between two
    /// hosts. From then on the guest forwards, so this is the last kind
    Forward,
}

impl Kind {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TcpRr => "tcp-rr",
            Self::UdpRr => "udp-rr",
            Self::Redis => "redis",
            Self::Memcached => "memcached",
            Self::Nginx => "nginx",
            Self::Dns => "dns",
            Self::Stream => "stream",
            Self::Pipeline => "pipeline",
            Self::Forward => "forward",
        }
    }

    /// Port of the first server. The others follow it, except that those of nginx and nsd share one
    /// port.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::TcpRr => 7100,
            Self::UdpRr => 7200,
            Self::Redis => 6379,
            Self::Memcached => 11211,
            Self::Nginx => 80,
            Self::Dns => 53,
            Self::Stream => 5201,
            Self::Pipeline => 7400,
            Self::Forward => 7300,
        }
    }

    /// Number of connections of a light load to all servers together. The processes of nginx and
    /// nsd share a port. With four connections, each process gets one in 9% of all cases; with 16,
    /// in 96%. If a process has none, its queue has no traffic.
    pub(crate) fn light_connections(self) -> usize {
        match self {
            Self::Nginx | Self::Dns => 16,
            _ => 4,
        }
    }

    /// Connections of a full load, to all servers together.
    pub(crate) fn connections(self, servers: usize) -> usize {
        match self {
            Self::TcpRr | Self::UdpRr | Self::Stream | Self::Pipeline => servers,
            _ => 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn names_are_those_of_the_command_line() {
        for kind in Kind::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
        }
    }
}
