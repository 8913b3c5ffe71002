//! What shells offer while a command line is typed.

use std::path::Path;
use std::process::{Command, Stdio};

use super::netsilo;

/// What is offered for the last of these words.
fn offered(words: &[&str]) -> Vec<String> {
    let mut command = netsilo(&[&["--", "netsilo"], words].concat());
    command.env("NETSILO_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    let output = command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn each_kind_of_value_is_offered() {
    for (words, all) in [
        (&["che"][..], &["check"][..]),
        (&["plan", "--xps", "n"], &["near"]),
        (&["show", "l"], &["lo"]),
        (&["plan", "--netdev", "eth9,l"], &["eth9,lo"]),
        (&["plan", "--cpus", "0"], &["0"]),
        (&["explain", "nic-d"], &["nic-drops"]),
        (&["explain", "cpu0"], &["cpu0"]),
        (&["plan", "--fix", "nic-drops,budget-s"], &["nic-drops,budget-squeeze"]),
        (&["predict", "--setting", "rp"], &["rps="]),
        (&["ab", "--b", "plan:spr"], &["plan:spread"]),
        (&["help", "exit"], &["exit-codes"]),
        (&["help", "che"], &["check"]),
    ] {
        let found = offered(words);
        assert!(
            all.iter().all(|it| found.iter().any(|one| one.trim() == *it)),
            "{words:?}: {found:?}"
        );
    }
    let sleep = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
    let mut sleep = sleep.unwrap();
    let found = [offered(&["pin", "slee"]), offered(&["explain", "slee"])];
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert!(found.iter().all(|it| it.iter().any(|name| name == "sleep")), "{found:?}");
}

/// The standard output of a script of a shell that finds this netsilo.
fn in_shell(shell: &str, options: &[&str], script: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_netsilo"));
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in netsilo::cli::completions::scripts("netsilo") {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let path =
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(shell);
    command.args(options).arg("-c").arg(script).env("PATH", path).current_dir(dir.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_asks_the_program() {
    let script = "source bash/netsilo && COMP_WORDS=(netsilo show l) COMP_CWORD=2 && \
                  _clap_complete_netsilo netsilo l show && echo ${COMPREPLY[*]}";
    assert_eq!(in_shell("bash", &["--norc"], script).trim(), "lo");
}

#[test]
#[ignore = "its programs are installed by scripts/setup --package-tests: make test-long"]
fn zsh_and_fish_ask_the_program() {
    let zsh = "fpath=($PWD/zsh $fpath); autoload -Uz compinit && compinit -u -d $PWD/dump && \
               autoload +X -Uz _netsilo && print ${_comps[netsilo]}";
    assert_eq!(in_shell("zsh", &["-f"], zsh).trim(), "_netsilo");
    let fish = "source fish/netsilo.fish; complete -C 'netsilo show l'";
    assert_eq!(in_shell("fish", &["--no-config"], fish).trim(), "lo");
}
