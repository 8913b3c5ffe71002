"""Plays of contrib/ansible on an inventory of a test."""
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
VENV = ROOT / "target/contrib/venv/bin"
NETSILO = Path(os.environ.get("NETSILO", ROOT / "target/release/netsilo"))


def write_inventory(folder, hosts, common):
    common = {
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "netsilo_program": str(NETSILO),
        **common,
    }
    inventory = {"all": {"hosts": hosts, "vars": common}}
    (folder / "inventory.json").write_text(json.dumps(inventory))


def play(folder, book, *options, remote_tmp, seconds, **variables):
    """The exit code, the recap by host, and the output; fails after these seconds."""
    environment = os.environ | {
        "ANSIBLE_CONNECTION_PLUGINS": str(HERE / "connection_plugins"),
        "ANSIBLE_ROLES_PATH": str(HERE.parent / "roles"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(remote_tmp),
        "ANSIBLE_FORKS": "4",
        "ANSIBLE_GATHERING": "explicit",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "1",
    }
    command = [VENV / "ansible-playbook", "-i", folder / "inventory.json"]
    command += [HERE.parent / book, "-e", json.dumps(variables), *options]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds)
    text = done.stdout + done.stderr
    recap = re.findall(r"^(\w+) +: (.*)$", text.split("PLAY RECAP")[-1], re.M)
    counts = {
        host: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}
        for host, line in recap
    }
    return done.returncode, counts, text


def expect(what, found, wanted, text=""):
    if found != wanted:
        print(text)
        sys.exit(f"FAIL: {what}: {found}, expected {wanted}")


def restored_by(journal):
    """What restored the newest transaction that is undone: undo, or the guard at its time."""
    return re.findall(r'"by":"(\w+)"', journal)[-1]


def run_all(fleet, tests, short=()):
    """All of them, those that the command line names, or with --short these."""
    names = [test.__name__ for test in short] if sys.argv[1:] == ["--short"] else sys.argv[1:]
    for test in tests:
        if names and test.__name__ not in names:
            continue
        started = time.monotonic()
        test(fleet)
        print(f"ok {test.__name__} ({time.monotonic() - started:.0f} s)", flush=True)
