"""Which nodes may take part: asked, compared, prepared, and known by their keys."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from belljar.dataclass import replace
from belljar.errors import HostError
from belljar.fleet.engine import CELLS, Engine, joined
from belljar.fleet.node import describe, kill_all, prepare, settings_of
from belljar.fleet.units import Node, refused
from belljar.harness.selected import SelectedTask
from belljar.ledger import local_fingerprint
from belljar.package import __version__
from belljar.policy import Tier
from belljar.units import printable

NODES: Final = "fleet/nodes.json"


def describe_nodes(engine: Engine, home: Path, tier: Tier) -> list[Node]:
    """Each node as it describes itself, or refused: another version, another key, no such tier."""
    offers, pinned, nodes = engine.offers(), pinned_keys(home), list[Node]()
    head = local_fingerprint(home)
    for node_id, said in engine.on_each([*offers], describe).items():
        if isinstance(said, Exception):
            why = f"it can't be asked: {printable(str(said), max_chars=300)}"
            nodes.append(Node(node_id=node_id, name=node_id[:12], refusal=why))
            continue
        key = str(said["key"])
        owners = {"the head": head} if not engine.is_alone else {}
        owners |= {node.name: node.key for node in nodes if not node.refusal}
        shared = next((name for name, owned in owners.items() if owned == key), "")
        is_lacking = not offers[node_id].get(f"belljar_{tier}")
        # The record tells nodes apart by their names.
        pinned |= {node.name: node.key for node in nodes if not node.refusal}
        node = Node(
            node_id=node_id,
            name=printable(str(said["name"]), max_chars=64),
            key=key,
            version=str(said["version"]),
            inspect=str(said["inspect"]),
            cells=int(offers[node_id][CELLS]),
            has_token=said["has_token"] is True,
            refusal=f"it has no cells of the tier {tier}" if is_lacking else "",
        )
        if shared:  # a signature would not say whose record it is
            why = f"it has the key of {shared}: set BELLJAR_HOME to a store of its own"
            node = replace(node, refusal=why)
        inspect = version("inspect-ai")
        nodes.append(refused(node, version=__version__, inspect=inspect, pinned=pinned))
    return nodes


def prepare_nodes(
    engine: Engine,
    nodes: Sequence[Node],
    fleet: str,
    archive: bytes,
    sha256: str,
    task: SelectedTask,
) -> list[Node]:
    """The nodes, each with the task's files, and refused if `belljar check` there says so."""
    usable = [node.node_id for node in nodes if not node.refusal]
    settings = settings_of(os.environ)
    said = engine.on_each(usable, prepare, fleet, archive, sha256, task.check_words, settings)
    made: list[Node] = []
    for node in nodes:
        result = said.get(node.node_id)
        why = node.refusal
        if isinstance(result, Exception):
            why = f"the task can't be prepared: {printable(str(result), max_chars=300)}"
        elif result is not None and result["exit_code"]:
            why = printable(str(result["why"]), max_chars=400)
        made.append(replace(node, refusal=why))
    return made


def check_any(nodes: Sequence[Node]) -> None:
    """Raise `HostError` with each node's reason when none can run the task."""
    if any(not node.refusal for node in nodes):
        return
    if not nodes:
        raise HostError(
            "the cluster has no node for cells", hint="run `belljar fleet node` on each machine"
        )
    reasons = "; ".join(f"{node.name}: {node.refusal}" for node in nodes)
    raise HostError(
        f"no node can run this task as planned: {reasons}",
        hint="`belljar check TASK` on a node says more",
    )


def pinned_keys(home: Path) -> dict[str, str]:
    """The keys of known nodes, by name."""
    with suppress(FileNotFoundError):
        try:
            known = json.loads((home / NODES).read_bytes())
            return {str(name): str(key) for name, key in known.items()}
        except (ValueError, AttributeError) as error:
            raise HostError(
                "the list of nodes' keys can't be read",
                where=str(home / NODES),
                hint="correct it, or remove it: nodes are then met for the first time",
            ) from error
    return {}


def kill_fleet(fleet: str, *, hold_too: bool, reason: str) -> dict[str, tuple[bool, str]]:
    """Halt every cell of each live node of a cluster: success and words, by the node's name.

    Raises `HostError`.
    """
    found: dict[str, tuple[bool, str]] = {}
    if fleet == "ray" and not os.environ.get("RAY_ADDRESS"):
        raise HostError("which cluster?", hint="give --fleet ray://HOST:PORT, or set RAY_ADDRESS")
    with joined(fleet) as engine:
        nodes, more = [*engine.offers()], ["--hold"] if hold_too else []
        for node_id, said in engine.on_each(nodes, kill_all, reason, more).items():
            if isinstance(said, Exception):
                found[node_id] = (False, printable(str(said)[-300:]))
            else:
                found[printable(said[0])] = (said[1] == 0, printable(said[2]))
    return found


def pin_keys(home: Path, nodes: Sequence[Node]) -> None:
    """Remember the keys of nodes that take part."""
    known = pinned_keys(home) | {node.name: node.key for node in nodes if not node.refusal}
    (home / NODES).parent.mkdir(mode=0o700, exist_ok=True)
    fresh = home / f"{NODES}.new"
    fresh.write_text(json.dumps(known, indent=1))
    fresh.rename(home / NODES)
