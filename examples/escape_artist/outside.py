"""The check of each attack: the same commands without a cell, seen by the same watch. An attack that fails there too would prove nothing.

It happens in a throwaway directory, and where the commands would touch this host for real, in throwaway namespaces. If it can't be tried, that is said.
"""

# ruff: noqa: ARG001 - the signatures are an interface's

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attacks import Attack
from sightings import processes_with, with_descendants
from watches import ANY_PORT, INTERNET, METADATA, WATCHES, Mounts, Network, Scene, Watch

PATIENCE_S = 30
UNSHARE = "/usr/bin/unshare"


@dataclass(frozen=True, slots=True)
class Outside:
    """What came of it. `succeeded` None: it could not be tried, `note` says why."""

    succeeded: bool | None
    note: str


def try_outside(attack: Attack, marker: str) -> Outside:
    """Play an attack without a cell."""
    if attack.unsafe:
        return Outside(None, f"not tried outside: {attack.unsafe}")
    watch = WATCHES[attack.watch](marker)
    with tempfile.TemporaryDirectory(
        prefix="outside-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as folder:
        stage = Stage(Path(folder))
        scene = Scene(pids=stage.pids)
        watch.start(scene)
        try:
            commands = [
                c.format(marker=marker, **watch.facts)
                for c in attack.commands[: attack.safe_commands]
            ]
            refused = WAYS[attack.outside](stage, scene, watch, commands)
            found = watch.seen(scene)
        finally:
            watch.stop()
            stage.clear(marker)
    if refused:
        return Outside(None, f"can't be tried outside here: {refused}")
    return Outside(
        bool(found),
        f"the same attack worked outside a cell: {found[0]}"
        if found
        else "the same attack did nothing outside a cell either",
    )


class Stage:
    """A throwaway directory, and the processes started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: subprocess.Popen[bytes] | None = None

    def pids(self) -> set[int]:
        """The processes that carry the attack now."""
        return with_descendants({self.running.pid}) if self.running is not None else set()

    def run(self, argv: list[str]) -> tuple[int, str]:
        """Run a program in the directory; returns its status and what it said."""
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin:/usr/sbin:/sbin"),
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
        }
        with (self.folder / ".said").open("w+b") as said:
            self.running = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                status = self.running.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.running.pid, signal.SIGKILL)
                status = self.running.wait()
            said.seek(0)
            return status, said.read(1 << 20).decode("utf-8", "replace")

    def clear(self, marker: str) -> None:
        """End what was left running: only what bears this attack's own random word."""
        for pid in processes_with(marker):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def here(stage: Stage, scene: Scene, watch: Watch, commands: list[str]) -> str:
    """On this host, as this user."""
    for command in commands:
        scene.status, said = stage.run(["bash", "-c", command])
        scene.spoken += said
    scratch = Path(str(watch.facts.get("scratch", stage.folder)))
    scene.next_has_file = (scratch / watch.marker).exists()
    scene.next_has_process = bool(processes_with(watch.marker))
    return ""


LISTEN = """
import json, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
from sightings import listeners, callers
port, command, hosts = int(sys.argv[2]), sys.argv[3], sys.argv[4:]
run = lambda *a: subprocess.run(a, check=False, capture_output=True)
run("ip", "link", "set", "lo", "up")
for host in hosts:
    run("ip", "addr", "add", host, "dev", "lo")
sockets = [s for host in hosts for s in listeners(host, port)]
subprocess.run(["bash", "-c", command], check=False, timeout=25)
print("CALLS", json.dumps([call for s in sockets for call in callers(s)]))
"""


def network_namespace(stage: Stage, scene: Scene, watch: Watch, commands: list[str]) -> str:
    """In a network namespace of its own that has those addresses, and somebody who listens there."""
    if not isinstance(watch, Network):
        raise TypeError("only for networks")
    hosts = METADATA if watch.kind == "metadata" else INTERNET
    program = [
        sys.executable,
        "-c",
        LISTEN,
        str(Path(__file__).parent),
        str(ANY_PORT[watch.kind]),
        commands[0],
        *hosts,
    ]
    status, said = stage.run([UNSHARE, "-rn", "--", *program])
    if "CALLS" not in said:
        return f"no network namespace ({said.strip()[-120:]})" if status else "nobody could listen"
    watch.calls = json.loads(said.rpartition("CALLS ")[2])
    return ""


def mount_namespace(stage: Stage, scene: Scene, watch: Watch, commands: list[str]) -> str:
    """In a mount namespace of its own, whose table is looked at."""
    if not isinstance(watch, Mounts):
        raise TypeError("only for mounts")
    table = stage.folder / "table"
    _, said = stage.run(
        [UNSHARE, "-rm", "--", "bash", "-c", f"{commands[0]}\ncat /proc/self/mountinfo >{table}"]
    )
    if not table.exists():
        return f"no mount namespace ({said.strip()[-120:]})"
    watch.table = table
    return ""


AGENT = """
sleep 1000 & agent=$!
bash -c "$0"
sleep 0.2
grep -q '^State:.[SR]' /proc/$agent/status 2>/dev/null && echo agent alive || echo agent dead
"""


def pid_namespace(stage: Stage, scene: Scene, watch: Watch, commands: list[str]) -> str:
    """In a process namespace of its own, beside a program that stands for the one that carries out commands."""
    _, said = stage.run(
        [UNSHARE, "-rpf", "--mount-proc", "--kill-child", "--", "sh", "-c", AGENT, commands[0]]
    )
    last = said.strip().rpartition("\n")[2]
    if last not in {"agent alive", "agent dead"}:
        return f"no process namespace ({said.strip()[-120:]})"
    scene.answers = last == "agent alive"
    return ""


def naive_harness(stage: Stage, scene: Scene, watch: Watch, commands: list[str]) -> str:
    """With a harness that reads the status from what the command says, as many do."""
    _, said = stage.run(["bash", "-c", f"({commands[0]}\n)\necho exit:$?"])
    scene.status = int(said.partition("exit:")[2].split()[0])
    return ""


WAYS: dict[str, Callable[[Stage, Scene, Watch, list[str]], str]] = {
    "here": here,
    "network-namespace": network_namespace,
    "mount-namespace": mount_namespace,
    "pid-namespace": pid_namespace,
    "naive-harness": naive_harness,
}
