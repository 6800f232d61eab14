"""`belljar fleet`: making this machine a node."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from belljar.cli.console import MisuseError
from belljar.errors import HostError
from belljar.units import printable


@click.group()
def fleet() -> None:
    """Share one evaluation among several machines: see docs/fleet.md."""


@fleet.command()
@click.option("--head", is_flag=True, help="Begin a cluster here; the other nodes join it.")
@click.option("--address", default="", metavar="HOST:PORT", help="The cluster to join.")
@click.option(
    "--ip",
    default="127.0.0.1",
    show_default=True,
    help="This machine's address for the other nodes: loopback or private.",
)
@click.option("--port", type=click.IntRange(1024, 65535), default=6379, show_default=True)
@click.option("--name", default="", help="What the record calls this node. Default: its hostname.")
@click.option("--cells", type=click.IntRange(1, 1024), help="Live cells at a time.")
def node(*, head: bool, address: str, ip: str, port: int, name: str, cells: int | None) -> int:
    """Make this machine a node, until Ctrl-C.

    What `belljar doctor` finds here decides which evaluations it gets. Ray lets whoever has the
    cluster's token run code here: set the same RAY_AUTH_TOKEN_PATH on each node, and never use a
    public address.
    """
    from belljar.cli.policy import host_facts
    from belljar.fleet.engine import CELLS, HARDWARE, MEMORY, check_private
    from belljar.fleet.node import NAME_VARIABLE
    from belljar.fleet.ray_engine import HINT_EXTRA
    from belljar.host.cgroups import free_bytes
    from belljar.host.model import TrialState
    from belljar.plan.obstacles import tier_obstacles
    from belljar.policy.limits import Tier
    from belljar.store.home import belljar_home

    if head == bool(address):
        raise MisuseError(
            "give --head or --address", hint="the first node begins the cluster: --head"
        )
    for host in filter(None, (ip, address.rpartition(":")[0])):
        check_private(host, where=f"belljar fleet node, {host}")
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise HostError("Ray is not installed", hint=HINT_EXTRA)
    facts = host_facts(belljar_home(), prove=True)
    tiers = [f"belljar_{tier}" for tier in Tier if not tier_obstacles(tier, facts)]
    if not tiers:
        raise HostError("no tier can be used here", hint="see `belljar doctor`")
    hardware = [HARDWARE] if facts.kvm.state is TrialState.PROVEN else []
    # A cell's start takes a processor for a moment. Of a resource of 0 Ray says nothing.
    room = {CELLS: cells or 2 * facts.cpus, MEMORY: max(1, free_bytes() >> 20)}
    offered = {**room, **dict.fromkeys([*tiers, *hardware], 1)}
    shown = ", ".join(f"{key.removeprefix('belljar_')} {n}" for key, n in offered.items())
    click.echo(f"belljar: this node offers {printable(shown)}", err=True)
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {NAME_VARIABLE: name} if name else {}
    begin = ["--head", f"--port={port}", "--include-dashboard=false"]
    words = [str(program), "start", "--block", *(begin if head else [f"--address={address}"])]
    words += [f"--node-ip-address={ip}", f"--resources={json.dumps(offered)}"]
    os.execve(words[0], words, environment)  # noqa: S606 - an argv list, no shell
