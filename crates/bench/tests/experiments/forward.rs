//! Tests of an experiment on a machine that forwards: a row of three namespaces.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use netsilo_lab::{output_of, until};
use netsilo_model::snapshot::stage_samples::ReceiveStage;
use netsilo_trial::experiment::measure::{TrialMeasure, WorkUnit};
use netsilo_trial::experiment::results::Results;
use netsilo_trial::experiment::{Experiment, Record, Sampled};
use netsilo_trial::traffic::LoadResult;

use crate::{PROGRAM, records};

const PUBLISHED: &str = include_str!("../../src/definitions/forward.toml");

/// A load that this machine forwards, and the keys of one that it drops.
const SLOW: &str = "name = 'one way'\nrate = 2000";
const DROPPED: &str = "name = 'one way, dropped early'\nearly-drop = true\n";

/// Three namespaces in a row: a sender, a router or bridge, a receiver; with 192.0.2.0/24 and
/// 198.51.100.0/24.
struct Row {
    names: [String; 3],
    servers: Vec<Child>,
}

impl Row {
    /// With a router in the middle.
    fn new() -> Self {
        Self::with(
            "router",
            "ip address add 192.0.2.2/24 dev left; ip address add 198.51.100.2/24 dev right
            echo 1 >/proc/sys/net/ipv4/ip_forward",
            ["via 192.0.2.2", "via 198.51.100.2"],
        )
    }

    /// The same with a bridge in the middle. The bridge has addresses too, because it controls the
    /// ends.
    fn bridged() -> Self {
        Self::with(
            "bridge",
            "ip link add bridge type bridge; ip link set bridge up
            for end in left right; do ip link set $end master bridge; done
            for address in 192.0.2.2 198.51.100.2; do ip address add $address/24 dev bridge; done",
            ["dev veth0"; 2],
        )
    }

    /// Sets up the namespaces, the middle one with the script `between`, and routes between the
    /// ends.
    fn with(name: &str, between: &str, [to_b, to_a]: [&str; 2]) -> Self {
        let names = ["a", "r", "b"].map(|end| format!("ns-{name}-{}-{end}", std::process::id()));
        let row = Self { names, servers: Vec::new() };
        let [a, router, b] = &row.names;
        let script = format!(
            "set -e; for ns in {a} {router} {b}; do ip netns add $ns; done
            ip -n {a} link add veth0 type veth peer name left netns {router}
            ip -n {b} link add veth0 type veth peer name right netns {router}
            ip -n {a} address add 192.0.2.1/24 dev veth0
            ip -n {b} address add 198.51.100.1/24 dev veth0
            for ns in {a} {b}; do ip -n $ns link set veth0 up; done
            for end in left right; do ip -n {router} link set $end up; done
            ip netns exec {router} sh -e -c '{between}'
            ip -n {a} route add 198.51.100.0/24 {to_b}; ip -n {b} route add 192.0.2.0/24 {to_a}"
        );
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        row
    }

    fn serve(&mut self, end: usize, address: &str, may_load: &[&str]) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[end], PROGRAM, "serve", "--bind"]);
        command.arg(address).args(may_load).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.servers.push(server);
        assert!(line.starts_with("listening on "), "{line}");
    }

    /// Starts servers at both ends. They may generate loads against each other.
    fn serve_both(&mut self) {
        self.serve(0, "192.0.2.1", &["--may-load", "198.51.100.1"]);
        self.serve(2, "198.51.100.1", &["--may-load", "192.0.2.1"]);
    }

    /// Returns the published experiment on the middle, with these loads. `ip` execs the program, so
    /// a signal reaches it.
    fn forward(&self, dir: &Path, folder: &str, loads: &[&str], more: &[&str]) -> Command {
        let file = dir.join("forward.toml");
        let (settings, _) = PUBLISHED.split_once("[[load]]").unwrap();
        let loads: Vec<String> =
            loads.iter().map(|keys| format!("[[load]]\ntests = ['FORWARD']\n{keys}\n")).collect();
        std::fs::write(&file, format!("{settings}{}", loads.concat())).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[1], PROGRAM, "experiment", "--yes"]);
        command.arg(file).args([
            "--peer",
            "192.0.2.1",
            "--peer",
            "198.51.100.1",
            "--netdev",
            "left,right",
            "-o",
        ]);
        command.arg(dir.join(folder)).arg("--state-dir").arg(dir.join("state"));
        command
            .args(["--warm-up", "0s", "--pause", "0s", "--rounds", "1"])
            .args(more)
            .stdin(Stdio::null());
        command
    }

    /// Sends datagrams from one end. Returns how many arrive at the other.
    fn arriving(&self) -> u64 {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0], PROGRAM, "run", "198.51.100.1"]);
        command.args([
            "-t",
            "FORWARD",
            "--rate",
            "2000",
            "--warm-up",
            "0s",
            "-d",
            "500ms",
            "--json",
        ]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", output_of(&output).1);
        serde_json::from_slice::<LoadResult>(&output.stdout)
            .unwrap()
            .server
            .totals
            .datagrams_received
    }

    /// Lists the nftables tables of the middle.
    fn tables(&self) -> String {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.names[1], "nft", "list", "tables"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", output_of(&output).1);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Ends all servers.
    fn quiet(&mut self) {
        for mut server in self.servers.drain(..) {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.quiet();
        for netns in &self.names {
            let _ = Command::new("ip").args(["netns", "del", netns]).status();
        }
    }
}

#[test]
fn a_forwarding_machine_is_measured_and_agents_refuse_loads_that_they_may_not_make() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let (mut row, dir) = (Row::new(), tempfile::tempdir().unwrap());
    let (one_way, two_ways) = (SLOW, "name = 'two ways'\nsenders = [2]\nrate = 2000");
    let forward = |row: &Row, folder: &str, loads: &[&str]| {
        let more = ["-d", "1s", "--no-map"];
        output_of(&row.forward(dir.path(), folder, loads, &more).output().unwrap())
    };
    row.serve(0, "192.0.2.1", &[]);
    row.serve(2, "198.51.100.1", &[]);
    let (code, text) = forward(&row, "refused", &[one_way]);
    assert!(
        code == Some(1) && text.contains("start it with --may-load 198.51.100.1"),
        "{code:?} {text}"
    );
    row.quiet();
    row.serve_both();
    let dropped = format!("{DROPPED}rate = 2000");
    let (code, text) = forward(&row, "run", &[one_way, two_ways, &dropped]);
    assert_eq!(code, Some(0), "{text}");
    let records = records(&dir.path().join("run"));
    // two settings, none and RPS; three loads: one way, two ways, one way dropped early
    assert_eq!(records.len(), 2 * 3, "{text}");
    for record in &records {
        let Record::Trial(trial) = record else { panic!("{record:?}") };
        assert_eq!(
            trial.runs.len(),
            if trial.step.load == "two ways" { 2 } else { 1 },
            "{}",
            trial.step.load
        );
        let packets =
            |netdev: &str| trial.under_test().unwrap().rates.netdevs[netdev]["rx_packets"];
        assert!(trial.between.is_some() && packets("left") > 0.0, "{:?}", trial.between);
        // the other direction has only the few packets of the control connections
        let (left, right) = (packets("left"), packets("right"));
        assert_eq!(
            right > left / 4.0,
            trial.runs.len() == 2,
            "{}: {left} {right}",
            trial.step.load
        );
        let arrived = trial.runs.iter().all(|run| run.server.totals.datagrams_received > 0);
        let is_dropped = trial.step.load == "one way, dropped early";
        assert!(arrived != is_dropped && trial.runs[0].totals.datagrams_sent > 0, "{trial:?}");
    }
    let experiment: Experiment =
        serde_json::from_slice(&std::fs::read(dir.path().join("run/experiment.json")).unwrap())
            .unwrap();
    assert_eq!(experiment.machine.counted, ["left", "right"]);
    let results = Results::from_records(&experiment, &records);
    // received packets count, whether they were forwarded or dropped
    for (load, cell) in
        results.loads.iter().flat_map(|load| load.settings.iter().map(move |cell| (load, cell)))
    {
        let value = |measure| cell.measured(measure).unwrap().median;
        assert!(
            value(TrialMeasure::Received) > 0.0 && value(TrialMeasure::Rate) > 0.0,
            "{}: {cell:?}",
            load.load
        );
        assert_eq!(
            value(TrialMeasure::Rate) == value(TrialMeasure::Received),
            load.work == WorkUnit::Dropped,
            "{}",
            load.load
        );
    }
    assert!(
        results.early_drops[0].settings.iter().all(|spared| spared.cpu.is_some()),
        "{:?}",
        results.early_drops
    );
    assert!(row.tables().is_empty() && row.arriving() > 0, "{}", row.tables());
}

#[test]
fn packets_that_a_bridge_drops_early_cost_no_later_stage_and_the_rule_ends_with_its_owner() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let (mut row, dir) = (Row::bridged(), tempfile::tempdir().unwrap());
    row.serve_both();
    // at full speed, because stages are found by samples
    let mut run = row.forward(dir.path(), "run", &["name = 'one way'", DROPPED], &["-d", "1s"]);
    let (code, text) = output_of(&run.output().unwrap());
    assert_eq!(code, Some(0), "{text}");
    let mut sampled = BTreeMap::new();
    for record in records(&dir.path().join("run")) {
        match record {
            Record::Trial(trial) => {
                let arrived = trial.runs[0].server.totals.datagrams_received;
                assert_eq!(arrived == 0, trial.step.load == "one way, dropped early", "{trial:?}");
            }
            Record::Map(map) if map.setting == "none" => {
                _ = sampled.insert(map.load, map.sampled.unwrap())
            }
            Record::Map(_) | Record::Expected(_) => {}
            Record::Failed(failed) => panic!("{failed:?}"),
        }
    }
    let [forwarded, dropped] = ["one way", "one way, dropped early"].map(|load| &sampled[load]);
    let of =
        |sampled: &Sampled, stage| sampled.stages.total.stages.get(&stage).copied().unwrap_or(0);
    let both = format!("{forwarded:#?} {dropped:#?}");
    assert_eq!((&forwarded.stages.refused, &dropped.stages.refused), (&None, &None), "{both}");
    assert!(forwarded.received > Some(1000) && dropped.received > Some(1000), "{both}");
    assert!(
        of(forwarded, ReceiveStage::QdiscXmit) > 3 && of(forwarded, ReceiveStage::BridgeIp) > 0,
        "{both}"
    );
    assert!(of(dropped, ReceiveStage::Netfilter) > 0, "{both}");
    assert!(
        of(dropped, ReceiveStage::QdiscXmit) * 3 < of(forwarded, ReceiveStage::QdiscXmit),
        "{both}"
    );
    // the rule is tested once before the first trial
    let dropped = format!("{DROPPED}rate = 2000");
    let mut command = row.forward(dir.path(), "killed", &[SLOW, &dropped], &["-d", "60s"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("a rule drops", || row.tables(), |it| it.contains("netsilo-early-drop")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    until("the rule is gone", || row.tables(), String::is_empty).unwrap();
    assert!(row.arriving() > 0);
}
