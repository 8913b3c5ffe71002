//! `netsilo keep`: what it stores, and what it refuses. `lab_keep` has what happens at the next
//! boot.

use netsilo_lab::output_of;

use super::conforms::conforming;
use super::host::Host;

/// The refusal of `keep`; it stores nothing.
fn refused(host: &Host) -> String {
    let folder = host.root().join("etc");
    let (code, text) = output_of(&host.run("keep", &["--config-dir", folder.to_str().unwrap()]));
    assert_eq!((code, folder.exists()), (Some(1), false), "{text}");
    assert!(text.ends_with("nothing was stored\n"), "{text}");
    text
}

#[test]
fn only_the_confirmed_goal_of_an_apply_is_kept() {
    let host = Host::new();
    assert!(refused(&host).contains("no apply since boot is in effect"));
    host.run("apply", &["--yes", "--confirm-within", "1h"]);
    assert!(refused(&host).contains("transaction 1 cannot be kept: it awaits `netsilo confirm`"));
    host.run("confirm", &[]);
    let text = refused(&host);
    let why = format!("it wrote the values of the plan in {}", host.root().display());
    assert!(text.contains(&why), "{text}");
    host.run("undo", &[]);
    host.run("apply", &["--yes"]);
    assert!(refused(&host).contains("nobody has confirmed it: run `netsilo undo`"));
}

/// Rewrites the command line that the journal has.
fn written_by(host: &Host, words: &[&str]) {
    let journal = host.state().join("journal");
    let text = std::fs::read_to_string(&journal).unwrap();
    let lines = text.lines().map(|line| {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        if record["record"] == "begin" {
            record["request"]["words"] = words.into();
            record["request"]["verb"] = words[0].into();
        }
        format!("{record}\n")
    });
    let text: String = lines.collect();
    std::fs::write(journal, text).unwrap();
}

#[test]
fn a_goal_is_stored_as_configuration_for_the_unit_that_can_keep_it() {
    let host = Host::new();
    host.run("apply", &["--yes", "--confirm-within", "1h"]);
    host.run("confirm", &[]);
    let folder = host.root().join("etc");
    let dry = ["--config-dir", folder.to_str().unwrap(), "--dry-run", "--json"];
    let kept = |words: &[&str]| {
        written_by(&host, words);
        let output = host.run("keep", &dry);
        assert_eq!(output.status.code(), Some(0), "{}", output_of(&output).1);
        let json = conforming("keep", &output.stdout);
        assert!(!folder.exists());
        (json["goal"].as_str().unwrap().to_owned(), json["units"][0].as_str().unwrap().to_owned())
    };
    let words = ["apply", "-n", "eth0", "--no-irqs", "--rps", "0-1", "--yes", "-i", "100ms"];
    let goal = "[goal]\nnetdevs = [\"eth0\"]\nirqs = false\nrps = \"0-1\"\n";
    assert_eq!(kept(&words), (goal.to_owned(), "netsilo-keep.service".to_owned()));
    let (goal, unit) = kept(&["apply", "--confirm-within", "60s"]);
    assert_eq!((goal.as_str(), unit.as_str()), ("[goal]\n", "netsilo.service"));
    for (words, why) in [
        (&["apply", "--fix", "nic-drops"][..], "netsilo export"),
        (&["apply", "--costs", "costs.json"], "costs in netsilo.toml"),
        (&["apply", "--rps", "0", "--force"], "it was forced"),
        (&["apply", "--rps", "0", "--receiving-within", "9s"], "nobody has confirmed it"),
        (&["apply", "--config", "keep.toml"], "its goal is stored already"),
        (&["tune", "--yes"], "tune wrote it"),
    ] {
        written_by(&host, words);
        assert!(refused(&host).contains(why), "{why}");
    }
}

#[test]
fn where_nothing_is_kept_off_changes_nothing() {
    let host = Host::new();
    let folder = host.root().join("etc");
    let off = ["--off", "--config-dir", folder.to_str().unwrap()];
    assert_eq!(output_of(&host.run("keep", &off)), (Some(0), "nothing was kept\n".into()));
}
