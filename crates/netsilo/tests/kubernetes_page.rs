//! The commands of the page about Kubernetes nodes, in network namespaces like those of a node and
//! of a pod.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests too")]

use std::path::Path;
use std::process::Command;

use netsilo_lab::output_of;

const PAGE: &str = include_str!("../../../docs/howto/kubernetes-node.md");

/// The namespace of a node and that of its pod, which end with this value.
struct Node([String; 2]);

impl Node {
    fn new() -> Self {
        let name = |end: &str| format!("netsilo-{end}-{}", std::process::id());
        let node = Self(["node", "pod"].map(name));
        let [of_node, of_pod] = &node.0;
        for name in &node.0 {
            sh(&format!("ip netns add {name}"));
        }
        sh(&format!("ip -n {of_node} link add eni0 type veth peer name eth0 netns {of_pod}"));
        sh(&format!("ip -n {of_node} link set eni0 up && ip -n {of_pod} link set eth0 up"));
        node
    }

    /// Runs words in the node's namespace; returns what they print.
    fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new("ip");
        let (code, text) =
            output_of(&command.args(["netns", "exec", &self.0[0]]).args(words).output().unwrap());
        // 11: findings
        let is_done = code == Some(0) || words.contains(&"check") && code == Some(11);
        assert!(is_done, "{words:?}: {code:?} {text}");
        text
    }

    fn rps_of(&self, netdev: &str) -> String {
        let file = format!("/sys/class/net/{netdev}/queues/rx-0/rps_cpus");
        self.run(&["cat", &file]).trim().trim_matches([',', '0']).to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for name in &self.0 {
            _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn sh(script: &str) {
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success(), "{script}");
}

#[test]
fn the_pages_commands_turn_rps_off_on_veths_and_for_new_pods() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let node = Node::new();
    let set = "echo 3 >/sys/class/net/eni0/queues/rx-0/rps_cpus
               echo 3 >/proc/sys/net/core/rps_default_mask";
    node.run(&["sh", "-c", set]);
    let sections =
        PAGE.split("\n## ").filter(|it| it.starts_with("Look") || it.starts_with("What"));
    let lines = sections.flat_map(str::lines).filter(|line| line.starts_with("    "));
    let commands = lines.filter_map(|line| line.trim().strip_prefix("netsilo "));
    let commands: Vec<Vec<&str>> =
        commands.map(|it| it.split('#').next().unwrap().split_whitespace().collect()).collect();
    let first: Vec<&str> = commands.iter().map(|words| words[0]).collect();
    assert_eq!(first, ["check", "show", "plan", "plan"]);
    let program = env!("CARGO_BIN_EXE_netsilo");
    let printed: Vec<String> =
        commands.iter().map(|words| node.run(&[&[program], &words[..]].concat())).collect();
    assert!(printed[3].contains("eni0 rx-0"), "{}", printed[3]);
    assert_eq!(node.rps_of("eni0"), "3", "plan writes nothing");

    let dir = tempfile::tempdir().unwrap();
    let state = |dir: &Path| dir.display().to_string();
    let state = ["--state-dir", &state(dir.path())];
    let options = &commands[3][1..];
    node.run(&[&[program, "apply", "--yes"], options, &state].concat());
    let [of_node, of_pod] = &node.0;
    sh(&format!("ip -n {of_node} link add eni1 type veth peer name eth1 netns {of_pod}"));
    assert_eq!(["eni0", "eni1"].map(|it| node.rps_of(it)), ["", ""]);
    node.run(&[&[program, "undo"], &state[..]].concat());
    assert_eq!(["eni0", "eni1"].map(|it| node.rps_of(it)), ["3", ""]);
}
