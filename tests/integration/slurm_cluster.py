"""Slurm on this machine: munge, a controller and nodes, as processes of the test, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration.processes import wait_for

TOOLS = ("munged", "slurmctld", "slurmd", "srun")
CONF = """
ClusterName=belljar
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=300
TaskProlog={folder}/prolog
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def slurm(folder: Path, homes: Sequence[Path]) -> Iterator[dict[str, str]]:
    """A cluster with one node for each store; yields the environment of its clients."""
    names = [f"n{number}" for number in range(1, len(homes) + 1)]
    controller, *ports = free_ports(1 + len(names))
    (folder / "munge").mkdir(parents=True)
    (folder / "state").mkdir()
    nodes = [
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 "
        "RealMemory=8192"
        for name, port in zip(names, ports, strict=True)
    ]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(folder=folder, controller=controller, nodes="\n".join(nodes)))
    stores = [
        f'{name}) echo "export BELLJAR_HOME={home}";;'
        for name, home in zip(names, homes, strict=True)
    ]
    prolog = folder / "prolog"
    prolog.write_text("\n".join(["#!/bin/sh", 'case "$SLURMD_NODENAME" in', *stores, "esac", ""]))
    prolog.chmod(0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    munge = [
        f"--{name}={folder}/munge/{name.removesuffix('-file')}"
        for name in ("socket", "pid-file", "log-file", "seed-file")
    ]
    programs = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *munge],
        ["slurmctld", "-D", "-c"],
        *(["slurmd", "-D", "-N", name] for name in names),
    ]
    started: list[subprocess.Popen[bytes]] = []
    with (folder / "printed").open("wb") as printed:
        try:
            for words in programs:
                program = subprocess.Popen(
                    words, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed
                )
                started.append(program)
                if words[0] == "munged":
                    wait_for((folder / "munge" / "socket").exists, "munge", within_s=60)
            words = ["sinfo", "--noheader", "--Node", "--format=%T"]

            def is_up() -> bool:
                done = subprocess.run(
                    words, env=environment, capture_output=True, text=True, check=False
                )
                return done.stdout.split() == ["idle"] * len(names)

            wait_for(is_up, "the nodes of Slurm", within_s=120)
            yield environment
        finally:
            for program in reversed(started):
                program.terminate()
            for program in started:
                program.wait(60)
