"""Which nodes may take part."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest

from belljar.fleet.engine import CELLS, Engine
from belljar.fleet.nodes import describe_nodes
from belljar.ledger import load_or_make_key
from belljar.package import __version__
from belljar.policy import Tier


class Offering:
    """A cluster whose nodes have these keys."""

    def __init__(self, keys: Sequence[str], *, is_alone: bool) -> None:
        self.keys, self.is_alone = keys, is_alone

    def offers(self) -> dict[str, dict[str, float]]:
        """Each has a cell of each tier."""
        tiers = {f"belljar_{tier}": 1.0 for tier in Tier}
        return {f"n{number}": {CELLS: 1.0, **tiers} for number in range(len(self.keys))}

    def on_each(self, nodes: Sequence[str], _: object) -> dict[str, Any]:
        """Each describes itself."""
        about = {"version": __version__, "inspect": version("inspect-ai"), "has_token": True}
        named = zip(nodes, self.keys, strict=True)
        return {node: {"name": node, "key": key, **about} for node, key in named}


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_node_has_a_key_of_its_own(tmp_path: Path, *, is_alone: bool) -> None:
    """One with the head's key (a home directory that is shared), or another node's, is refused:
    its signature would not say whose record it is. A fleet of this machine alone has one store."""
    head = load_or_make_key(tmp_path).fingerprint
    engine = Offering([head, "a" * 64, "a" * 64, "b" * 64], is_alone=is_alone)
    nodes = describe_nodes(cast("Engine", engine), tmp_path, Tier.CONTAINER)
    assert [bool(node.refusal) for node in nodes] == [not is_alone, False, True, False]
