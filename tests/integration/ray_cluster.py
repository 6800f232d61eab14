"""A Ray cluster of several nodes on this machine, each with a store of its own: a process that
prints its address, takes `kill N` on standard input, and ends with it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray._private.node import Node

CELLS, MEMORY_MIB = 2, 4096
AGENTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
    "dashboard_agent_listen_port",
)
CURRENT = Path("/tmp/ray/ray_current_cluster")


PORT_FILES: dict[str, int] = {}


def ports() -> dict[str, int]:
    """Free ports for a node's agents: for one that is not given, Ray waits 15 s and no longer,
    which a busy machine needs to import what they need."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in AGENTS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        found = {name: each.getsockname()[1] for name, each in zip(AGENTS, sockets, strict=True)}
    node = secrets.token_hex(28)
    os.environ["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = node
    PORT_FILES[f"dashboard_agent_listen_port_{node}"] = found["dashboard_agent_listen_port"]
    return found


def name_ports(folder: Path) -> None:
    """Write the one port down that Ray takes and still waits for."""
    while True:
        for session in folder.glob("session_2*"):
            for name, port in list(PORT_FILES.items()):
                if session.joinpath("sockets").is_dir() and not session.joinpath(name).exists():
                    session.joinpath(name).write_text(str(port))
        time.sleep(0.1)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, tasks.read_text().split())
    return found


def main(folder: str, *homes: str) -> None:
    from ray.cluster_utils import Cluster

    CURRENT.parent.mkdir(exist_ok=True)  # where Ray writes the address, whatever its own folder is
    threading.Thread(target=name_ports, args=(Path(folder),), daemon=True).start()
    quick = {
        "agent_register_timeout_ms": 120_000,
        "worker_register_timeout_seconds": 600,
        "health_check_period_ms": 3000,
        "health_check_initial_delay_ms": 1000,
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "temp_dir": folder,
            "_system_config": quick,
            **ports(),
        },
    )

    def add(number: int) -> Node:
        tiers = {"belljar_container": 1, "belljar_gvisor": 1, "belljar_microvm": 1}
        named = {"BELLJAR_HOME": homes[number - 1], "BELLJAR_FLEET_NODE": f"n{number}"}
        node: Node = cluster.add_node(
            wait=False,
            num_cpus=1,
            resources={"belljar_cells": CELLS, "belljar_memory_mib": MEMORY_MIB, **tiers},
            env_vars=named,
            node_ip_address="127.0.0.1",
            **ports(),
        )
        return node

    nodes = {number: add(number) for number in range(1, len(homes) + 1)}
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        _, chosen = line.split()
        node = nodes[int(chosen)]
        raylets = [each.process.pid for each in node.all_processes.get("raylet", ())]
        # The guards of its units, children of its workers, are to see that these are gone.
        for pid in [*raylets, *children(raylets[0])]:
            send(pid, signal.SIGKILL)
        cluster.remove_node(node, allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()  # type: ignore[no-untyped-call]
    with suppress(FileNotFoundError):
        CURRENT.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
