//! Tests of the configuration.

use netsilo_decide::plan::AlgorithmName;
use netsilo_model::machine::cpuset::CpuSet;

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    let mut config = Config::default();
    let file = file::parse(text, Path::new("netsilo.toml")).map_err(|bad| bad.to_string())?;
    config.take(file);
    config.check().map_err(|error| error.to_string())?;
    Ok(config)
}

fn refusal(text: &str) -> String {
    parse(text).unwrap_err()
}

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

fn eth0() -> Netdev {
    Netdev {
        name: "eth0".into(),
        driver: Some("virtio_net".into()),
        mac: Some("52:54:00:ab:cd:00".into()),
        device_path: Some("/devices/pci0000:00/0000:00:04.0/virtio1".into()),
        ..Netdev::default()
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_one() {
    insta::assert_snapshot!(
        refusal("\nintervall = \"1s\"\n"),
        @"netsilo.toml:2: unknown key intervall; did you mean interval?"
    );
    insta::assert_snapshot!(
        refusal("[goal]\nirqs = true\nalgoritm = \"spread\"\n"),
        @"netsilo.toml:3: unknown key algoritm; did you mean algorithm?"
    );
    insta::assert_snapshot!(
        refusal("[[netdev]]\nname = \"a\"\n[[netdev.queue]]\nqueues = \"1\"\ncpu = \"1\"\n"),
        @"netsilo.toml:5: unknown key cpu; did you mean cpus?"
    );
    insta::assert_snapshot!(
        refusal("[[netdev]]\nname = \"a\"\ncolour = 1\n"),
        @"netsilo.toml:3: unknown key colour; known are name, mac, driver, path, manage, \
         algorithm, cpus, queue"
    );
}

/// The keys of a section. They come from the message about a key that resembles none of them.
fn keys(section: &str) -> Vec<String> {
    let words = refusal(&format!("{section}\nqqqqqqqqqqqqqqqq = 1\n"));
    let (_, known) = words.split_once("; known are ").unwrap();
    known.split(", ").map(str::to_owned).collect()
}

/// All keys, with the names of the sections above them: `("goal.", "cpus")`.
fn all_keys() -> Vec<(&'static str, String)> {
    let queue = "[[netdev]]\nname = \"a\"\n[[netdev.queue]]\nqueues = \"1\"";
    let sections = [
        ("", ""),
        ("[goal]", "goal."),
        ("[controller]", "controller."),
        ("[[netdev]]", "netdev."),
        (queue, "netdev.queue."),
    ];
    let all = sections
        .into_iter()
        .flat_map(|(section, above)| keys(section).into_iter().map(move |key| (above, key)));
    all.filter(|(_, key)| !["goal", "controller", "netdev", "queue"].contains(&key.as_str()))
        .collect()
}

#[test]
fn the_page_of_the_daemon_has_each_key() {
    let page = include_str!("../../../../../docs/daemon.md");
    for (above, key) in all_keys() {
        // In a row of netdev keys, only the first one names its section.
        let names = [format!("`{above}{key}`"), format!("`.{key}`")];
        let has = page.lines().any(|line| {
            line.starts_with(&format!("| `{above}")) && names.iter().any(|it| line.contains(it))
        });
        assert!(has, "docs/daemon.md has no row for {above}{key}");
    }
}

#[test]
fn the_installed_file_has_each_key_with_a_valid_value() {
    let lines = include_str!("../../../../../dist/netsilo.toml").lines();
    // Examples are indented.
    let lines =
        lines.map(|line| line.strip_prefix("#   ").or(line.strip_prefix('#')).unwrap_or(line));
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with(' ')).collect();
    assert!(parse(&lines.join("\n")).is_ok(), "{:?}", parse(&lines.join("\n")));
    let (mut section, mut present) = (String::new(), Vec::new());
    for line in lines {
        if line.starts_with('[') {
            section = format!("{}.", line.trim_matches(['[', ']']));
        } else if let Some((key, _)) = line.split_once(" = ") {
            present.push(format!("{section}{key}"));
        }
    }
    let all = all_keys().into_iter().map(|(above, key)| format!("{above}{key}"));
    let missing: Vec<String> = all.filter(|key| !present.contains(key)).collect();
    assert!(
        missing.is_empty(),
        "write a line for each in dist/netsilo.toml, `#key = default` or `#   key = example`: \
         {missing:?}"
    );
}

#[test]
fn an_invalid_value_is_refused_with_its_line() {
    insta::assert_snapshot!(
        refusal("interval = \"10 parsecs\""),
        @"netsilo.toml:1: \"10 parsecs\": unknown time unit \"parsecs\", supported units: ns, \
         us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations)"
    );
    insta::assert_snapshot!(
        refusal("interval = \"1ms\""),
        @r#"netsilo.toml:1: "1ms": choose between 1s and 1h"#
    );
    insta::assert_snapshot!(
        refusal("interval = 10"),
        @"netsilo.toml:1: invalid type: integer `10`, expected a string"
    );
    insta::assert_snapshot!(
        refusal("bpf = 1"),
        @"netsilo.toml:1: invalid type: integer `1`, expected a boolean"
    );
    insta::assert_snapshot!(
        refusal("[goal]\n\ncpus = \"3-1\""),
        @r#"netsilo.toml:3: "3-1": range runs backwards at column 1 of "3-1""#
    );
    insta::assert_snapshot!(
        refusal("[goal]\nalgorithm = \"magic\"").split("known").next().unwrap(),
        @r#"netsilo.toml:2: "magic": "#
    );
    insta::assert_snapshot!(
        refusal("[goal]\nrfs = -1"),
        @r#"netsilo.toml:2: write a number of entries (32768) or "off""#
    );
    insta::assert_snapshot!(
        refusal("[goal]\nrps = \"on\""),
        @r#"netsilo.toml:2: "on": unexpected 'o' at column 1 of "on""#
    );
    insta::assert_snapshot!(
        refusal("[goal]\ncpus = \"\""),
        @r#"netsilo.toml:2: "": write at least one cpu, or omit the key"#
    );
    insta::assert_snapshot!(
        refusal("[goal]\n\nxps = \"far\""),
        @r#"netsilo.toml:3: "far": known are off, near"#
    );
    insta::assert_snapshot!(
        refusal("[goal]\noverrides = []"),
        @"netsilo.toml:2: unknown key overrides; write [[netdev]] rules instead"
    );
    insta::assert_snapshot!(
        refusal("[goal]\ncosts = {}"),
        @"netsilo.toml:2: unknown key `costs`; write it above [goal], or as a table, [costs]"
    );
    insta::assert_snapshot!(
        refusal("[goal]\nsteer = [\"443=2\"]"),
        @"netsilo.toml:2: `443=2`: write a port, its protocol and rx queues, like 443/tcp=2-3"
    );
    insta::assert_snapshot!(
        refusal("metrics = \"9798\""),
        @r#"netsilo.toml:1: "9798": write off, or an address like 127.0.0.1:9798"#
    );
    insta::assert_snapshot!(
        refusal("budget = \"0.3\""),
        @r#"netsilo.toml:1: "0.3": write off, or a share of the machine's CPU time from 0.01% to 100%, like 0.3%"#
    );
    insta::assert_snapshot!(
        refusal("[[netdev]]\nmac = \"52:54\""),
        @r#"netsilo.toml:2: "52:54": write a hardware address like 52:54:00:12:34:56"#
    );
    insta::assert_snapshot!(
        refusal("hints = true\n[[netdev]]\ncpus = \"1\""),
        @"netsilo.toml:2: a [[netdev]] needs a condition: name, mac, driver or path"
    );
    insta::assert_snapshot!(refusal("x"), @"netsilo.toml:1: key with no value, expected `=`");
    insta::assert_snapshot!(
        refusal("[[netdev]]\nname = \"a\"\n[[netdev.queue]]\ncpus = \"1\""),
        @"netsilo.toml:3: missing field `queues`"
    );
}

#[test]
fn contradictory_keys_are_refused() {
    insta::assert_snapshot!(
        refusal("interval = \"2s\"\nwindow = \"5s\""),
        @r#"window (5s) is longer than interval (2s): shorten it, or set it to "always""#
    );
    insta::assert_snapshot!(
        refusal("hints = false\nhints-only = true"),
        @"hints-only without hints writes nothing: set hints = true"
    );
}

/// Each key of a goal has the same meaning in a file and on the command line.
#[test]
fn a_file_and_the_command_line_make_the_same_goal() {
    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        keys: crate::args::goal_keys::GoalKeys,
    }
    let goal = |text: &str| parse(text).unwrap().policy.goal;
    let arguments = |line: &str| {
        let line = ["goal"].into_iter().chain(line.split_whitespace());
        <CommandLine as clap::Parser>::parse_from(line).keys.over(Goal::default())
    };
    assert_eq!(arguments(""), Goal::default());
    for (key, argument) in [
        ("netdevs = [\"eth0\", \"eth1\"]", "--netdev eth0,eth1"),
        ("cpus = \"0-3\"", "--cpus 0-3"),
        ("exclude = \"1\"", "--exclude 1"),
        ("algorithm = \"spread\"", "--algorithm spread"),
        ("irqs = false", "--no-irqs"),
        ("rps = \"off\"", "--rps off"),
        ("rfs = 4096", "--rfs 4096"),
        ("arfs = true", "--arfs on"),
        ("steer = [\"443/tcp=2-3\", \"53/udp=1\"]", "--steer 443/tcp=2-3 --steer 53/udp=1"),
        ("xps = \"near\"", "--xps near"),
        ("default-smp-affinity = \"0\"", "--default-smp-affinity 0"),
        ("rps-default-mask = \"f\"", "--rps-default-mask f"),
        ("even-if-owned = true", "--even-if-owned"),
    ] {
        let from_file = goal(&format!("[goal]\n{key}"));
        assert_ne!(from_file, Goal::default(), "{key}");
        assert_eq!(from_file, arguments(argument), "{key}");
    }
}

#[test]
fn later_files_win_key_by_key_and_rules_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "netsilo.toml",
        "interval = \"20s\"\n[goal]\ncpus = \"0-3\"\nrfs = 4096\n\
         [[netdev]]\nname = \"eth*\"\ncpus = \"1\"",
    );
    write("conf.d/20-late.toml", "[goal]\ncpus = \"4\"\n[[netdev]]\nname = \"eth0\"\ncpus = \"2\"");
    write("conf.d/10-early.toml", "interval = \"30s\"\n[goal]\ncpus = \"5\"");
    write("conf.d/README", "no toml");
    let config = load(dir.path()).unwrap();
    let names: Vec<_> =
        config.files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["netsilo.toml", "10-early.toml", "20-late.toml"]);
    assert_eq!(
        (config.interval, &config.policy.goal.cpus, config.policy.goal.rfs),
        (Duration::from_secs(30), &Some(set("4")), Some(4096))
    );
    assert_eq!(config.overrides(&eth0())[0].cpus, Some(set("2")));
    write("conf.d/30-bad.toml", "interval = \"1s\"\n\nwindo = \"1s\"");
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("30-bad.toml:3: unknown key windo; did you mean window?"), "{error}");
    assert!(load(&dir.path().join("nowhere")).is_err());
    assert_eq!(load_if_there(&dir.path().join("nowhere")).unwrap(), Config::default());
}

#[test]
fn a_rule_matches_by_name_mac_driver_and_path_and_all_must_match() {
    let fits =
        |rule: &str| !parse(&format!("[[netdev]]\n{rule}")).unwrap().overrides(&eth0()).is_empty();
    for rule in [
        "name = \"eth*\"",
        "mac = \"52:54:00:AB:CD:00\"",
        "driver = \"virtio_*\"",
        "path = \"*/0000:00:04.0/*\"",
    ] {
        assert!(fits(rule), "{rule}");
        assert!(
            !fits(&format!("{rule}\nname = \"ens5\"").replacen("name = \"eth*\"\n", "", 1)),
            "{rule}"
        );
    }
    assert!(
        !fits("driver = \"igb\"")
            && !fits("mac = \"52:54:00:ab:cd:01\"")
            && !fits("path = \"/devices/platform/*\"")
    );
}

#[test]
fn a_queue_rule_overrides_its_netdev_and_the_last_rule_counts() {
    let config = parse(
        "[[netdev]]\nname = \"eth0\"\nmanage = false\n\
         [[netdev]]\nname = \"e*\"\nalgorithm = \"spread\"\ncpus = \"0-3\"\n\
         [[netdev.queue]]\nqueues = \"0-1\"\ncpus = \"7\"\n\
         [[netdev.queue]]\nqueues = \"2\"\nmanage = false",
    );
    let overrides = config.unwrap().overrides(&eth0());
    let rules = overrides.iter().map(|it| {
        (
            it.queues.as_ref().map(CpuSet::to_string),
            it.algorithm,
            it.cpus.as_ref().map(CpuSet::to_string),
            it.leave,
        )
    });
    let spread = Some(AlgorithmName::Spread);
    assert_eq!(
        rules.collect::<Vec<_>>(),
        [
            (Some("2".into()), spread, Some("0-3".into()), true),
            (Some("0-1".into()), spread, Some("7".into()), false),
            (None, spread, Some("0-3".into()), false),
        ]
    );
}

#[test]
fn unmanaged_netdevs_are_left_alone() {
    let leaves = |text: &str| {
        parse(text).unwrap().overrides(&eth0()).iter().map(|it| it.leave).collect::<Vec<_>>()
    };
    assert_eq!(leaves("[goal]\nmanage = false"), [true]);
    assert_eq!(leaves("[goal]\nmanage = false\n[[netdev]]\ndriver = \"virtio_net\""), [false]);
    assert_eq!(leaves("[[netdev]]\nname = \"eth0\"\nmanage = false"), [true]);
}

proptest::proptest! {
    #[test]
    fn no_text_panics_and_every_error_names_an_existing_line(
        lines in proptest::collection::vec(
            concat!(
                "(interval|window|bpf|metrics|\\[goal\\]|\\[\\[netdev\\]\\]|cpus|rfs|name|x)",
                "( = (\"[0-9a-z\\-,:]{0,6}\"|[0-9]{1,12}|true))?",
            ),
            0..6,
        )
    ) {
        let text = lines.join("\n");
        if let Err(bad) = file::parse(&text, Path::new("f")) {
            assert!(bad.line.is_none_or(|line| line <= lines.len().max(1)), "{bad} in {text}");
        }
    }
}

#[test]
fn measured_outcomes_are_followed_where_the_configuration_only_limits_what_is_placed() {
    let follows = |text: &str| {
        let config = parse(text).unwrap();
        config.follows_outcomes(&config.goal(&[eth0()], &Costs::default()))
    };
    for text in [
        "",
        "[goal]\noutcomes = true\nmanage = false\ncpus = \"0-3\"\nirqs = true",
        "[[netdev]]\nname = \"eth0\"\nmanage = false",
        "[[netdev]]\nname = \"eth1\"\nalgorithm = \"spread\"",
    ] {
        assert!(follows(text), "{text}");
    }
    for text in [
        "[goal]\noutcomes = false",
        "[goal]\nalgorithm = \"auto\"",
        "[goal]\nrps = \"off\"",
        "[[netdev]]\nname = \"eth0\"\nalgorithm = \"spread\"",
        "[[netdev]]\nname = \"eth0\"\n[[netdev.queue]]\nqueues = \"0\"\nalgorithm = \"spread\"",
    ] {
        assert!(!follows(text), "{text}");
    }
    insta::assert_snapshot!(
        refusal("[goal]\noutcomes = \"off\""),
        @r#"netsilo.toml:2: invalid type: string "off", expected a boolean"#
    );
}

#[test]
fn configured_weights_override_measured_ones() {
    let six = |remote: &str| {
        format!("same_cpu = 0\nsmt = 1\nl2 = 2\nllc = 3\nnode = 4\nremote = {remote}\n")
    };
    let config = parse(&format!("[costs.line_ns]\n{}", six("500"))).unwrap();
    let costs = config.goal(&[], &Costs::for_virtual_machine()).costs;
    assert_eq!((costs.line_ns.remote, costs.ipi_ns), (500.0, Costs::default().ipi_ns));
    assert_eq!(costs.source, CostSource::Configured);
    assert_eq!(
        Config::default().goal(&[], &Costs::for_virtual_machine()).costs,
        Costs::for_virtual_machine()
    );
    insta::assert_snapshot!(
        refusal(&format!("[costs.line_ns]\n{}", six("-5"))),
        @"costs: line_ns of remote is -5: give a number from 0 to 1000000000"
    );
    insta::assert_snapshot!(
        refusal("[costs.line_ns]\nremotte = 5"),
        @"netsilo.toml:2: unknown key remotte; did you mean remote?"
    );
}

#[test]
fn only_regular_files_are_read_and_for_root_only_those_that_nobody_else_can_change() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("netsilo.toml");
    let refusal = || format!("{:#}", load(dir.path()).unwrap_err());
    let fifo = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(fifo.success() && refusal().contains("name a regular file"), "{}", refusal());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    assert!(refusal().contains("more than 1 MiB"), "{}", refusal());
    std::fs::write(&path, "hints = true").unwrap();
    load(dir.path()).unwrap();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&path, 0o664);
    assert!(refusal().contains("netsilo.toml can be written by others"), "{}", refusal());
    mode(&path, 0o644);
    mode(dir.path(), 0o777);
    assert!(refusal().contains("can be written by others"), "{}", refusal());
    mode(dir.path(), 0o1777);
    load(dir.path()).unwrap();
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    assert!(refusal().contains("netsilo.toml can be written by others"), "{}", refusal());
}

#[test]
fn the_packaged_file_names_each_default() {
    const PACKAGED: &str = include_str!("../../../../../dist/netsilo.toml");
    let is_key = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase());
    let keys = |text: &str| text.lines().filter(|line| is_key(line)).count();
    let all: String = PACKAGED
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| is_key(rest)).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!((keys(PACKAGED), keys(&all)), (0, 23), "{all}");
    assert_eq!(parse(PACKAGED), Ok(Config::default()));
    // a key that chooses how to place, even with its default value, ends the following of outcomes
    let all = parse(&all).map(|config| Config { only_limits: true, ..config });
    assert_eq!(all, Ok(Config::default()));
}
