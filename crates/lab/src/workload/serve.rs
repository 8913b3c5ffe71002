//! Starts the servers in the guest.

use std::net::Ipv4Addr;

use anyhow::Result;
use netsilo_lab::{Job, Lab, PeerJob, exact, iperf3, memcached, nginx, nsd, redis};

use crate::built;
use crate::workload::kind::Kind;

/// Running servers; dropping it ends them.
pub(crate) enum Servers {
    InGuest(#[expect(dead_code, reason = "held until it is dropped")] Job),
    AtPeer(#[expect(dead_code, reason = "held until it is dropped")] PeerJob),
}

/// Starts servers on these CPUs of the guest, or behind it.
pub(crate) fn start(kind: Kind, lab: &Lab, cpus: &[u32]) -> Result<Servers> {
    let job = match kind {
        Kind::Forward => return behind(lab).map(Servers::AtPeer),
        Kind::Stream => lab.spawn(&iperf3_servers(cpus)?)?,
        Kind::TcpRr | Kind::UdpRr => lab.spawn(&bench_server(address(), kind, cpus)?)?,
        Kind::Pipeline => lab.spawn(&pipelines(cpus)?)?,
        Kind::Redis => lab.spawn(&redis_servers(cpus)?)?,
        Kind::Memcached => lab.spawn(&memcached_servers(cpus)?)?,
        Kind::Nginx => lab.spawn(&nginx_server(cpus)?)?,
        Kind::Dns => lab.spawn(&nsd_server(cpus)?)?,
    };
    let ports = match kind {
        // Its client waits for it, because it has no TCP port.
        Kind::Pipeline => return Ok(Servers::InGuest(job)),
        Kind::TcpRr | Kind::UdpRr | Kind::Forward | Kind::Nginx | Kind::Dns => 1,
        Kind::Redis | Kind::Memcached | Kind::Stream => cpus.len() as u16,
    };
    lab.peer(0)?.until_open(address(), kind.port()..=kind.port() + ports - 1)?;
    Ok(Servers::InGuest(job))
}

/// Starts a server at the peer of eth1. The guest forwards to it what arrives from the peer of
/// eth0.
fn behind(lab: &Lab) -> Result<PeerJob> {
    lab.route()?;
    let (address, port) = (Lab::peer_address(1), Kind::Forward.port());
    let job = lab.peer(1)?.spawn(&bench_server(address, Kind::Forward, &[0])?)?;
    lab.peer(0)?.until_open(address, port..=port)?;
    Ok(job)
}

fn address() -> Ipv4Addr {
    Lab::guest_address(0)
}

/// CPUs with commas between them.
fn list(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A server with a thread on each CPU.
fn bench_server(address: Ipv4Addr, kind: Kind, cpus: &[u32]) -> Result<String> {
    let (bench, port, threads) = (built::netsilo_bench()?, kind.port(), cpus.len());
    Ok(format!(
        "exec '{}' serve --bind {address} --port {port} --workers {threads} --cpus {}",
        bench.display(),
        list(cpus)
    ))
}

/// One command for each CPU and port, run in parallel.
fn side_by_side(kind: Kind, cpus: &[u32], command: impl Fn(u32, u16) -> String) -> String {
    let commands = cpus.iter().zip(kind.port()..).map(|(cpu, port)| command(*cpu, port));
    commands.map(|command| format!("{command} & ")).chain(["wait".to_owned()]).collect()
}

/// CPUs 2i and 2i + 1 are threads of a core.
fn pipelines(cpus: &[u32]) -> Result<String> {
    let program = exact::program()?;
    Ok(side_by_side(Kind::Pipeline, cpus, |cpu, port| {
        format!(
            "'{}' exact pipeline --bind {} --port {port} --cpu {cpu} --second-cpu {}",
            program.display(),
            address(),
            cpu ^ 1
        )
    }))
}

fn redis_servers(cpus: &[u32]) -> Result<String> {
    let (server, address) = (redis()?.0.command(), address());
    Ok(side_by_side(Kind::Redis, cpus, |cpu, port| {
        format!(
            "env {server} --bind {address} --port {port} --protected-mode no --save '' \
             --server_cpulist {cpu} --logfile /tmp/redis-{port}.log"
        )
    }))
}

fn memcached_servers(cpus: &[u32]) -> Result<String> {
    let (server, address) = (memcached()?.command(), address());
    Ok(side_by_side(Kind::Memcached, cpus, |cpu, port| {
        format!(
            "taskset -c {cpu} env {server} -u root -l {address} -p {port} -U 0 -t 1 -m 16 \
             2>/tmp/memcached-{port}.log"
        )
    }))
}

fn iperf3_servers(cpus: &[u32]) -> Result<String> {
    let (server, address) = (iperf3()?.command(), address());
    Ok(side_by_side(Kind::Stream, cpus, |cpu, port| {
        format!("env {server} --server --bind {address} --port {port} --affinity {cpu} >/dev/null")
    }))
}

/// nginx with one worker per CPU.
fn nginx_server(cpus: &[u32]) -> Result<String> {
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path /tmp/nginx/{name};"))
        .join(" ");
    let masks = cpus.iter().map(|cpu| format!("{:b}", 1 << cpu)).collect::<Vec<_>>().join(" ");
    Ok(format!(
        "mkdir -p /tmp/nginx/www /tmp/nginx/logs; echo hello >/tmp/nginx/www/index.html
         cat >/tmp/nginx/conf <<'END'
         user root; daemon off; worker_processes {workers}; worker_cpu_affinity {masks};
         pid /tmp/nginx/pid; error_log /tmp/nginx/error.log; events {{ }}
         http {{ {folders} access_log off; server {{ listen {address}:80 reuseport; root /tmp/nginx/www; }} }}
END
         exec env {nginx} -p /tmp/nginx -c /tmp/nginx/conf",
        workers = cpus.len(),
        address = address(),
        nginx = nginx()?.command()
    ))
}

/// nsd with one process per CPU and its own zone, without its limit of equal responses.
fn nsd_server(cpus: &[u32]) -> Result<String> {
    let one = |(n, cpu): (usize, &u32)| format!("server-{}-cpu-affinity: {cpu}\n", n + 1);
    Ok(format!(
        "mkdir -p /tmp/nsd
         cat >/tmp/nsd/conf <<'END'
server:
server-count: {servers}
reuseport: yes
ip-address: {address}
username: \"\"
zonesdir: \"/tmp/nsd\"
database: \"\"
zonelistfile: \"/tmp/nsd/zone.list\"
xfrdfile: \"/tmp/nsd/xfrd.state\"
xfrdir: \"/tmp/nsd\"
pidfile: \"\"
logfile: \"/tmp/nsd/log\"
rrl-ratelimit: 0
cpu-affinity: {all}
{each}
remote-control:
control-enable: no
zone:
name: example.org
zonefile: zone
END
         cat >/tmp/nsd/zone <<'END'
$ORIGIN example.org.
@ 3600 IN SOA ns admin 1 3600 900 604800 60
@ 3600 IN NS ns
ns 3600 IN A {address}
www 3600 IN A 192.0.2.1
END
         exec env {nsd} -d -c /tmp/nsd/conf",
        servers = cpus.len(),
        address = address(),
        all = list(cpus).replace(',', " "),
        each = cpus.iter().enumerate().map(one).collect::<String>(),
        nsd = nsd()?.command()
    ))
}
