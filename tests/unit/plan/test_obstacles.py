"""What stands in a tier's way on this host, and where its crashes go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from belljar.host.model import HostFacts, IdsFact, UsernsFact
from belljar.plan import obstacles
from belljar.plan.model import ObstacleCode
from belljar.policy.limits import Tier


@pytest.mark.parametrize("user", ["1:65536", "9" * 5000, "65535", "root"])
def test_only_ids_that_a_container_has_will_do(user: str) -> None:
    """Up to 65,535, also of a number that is too long to be read; a microVM has them all."""
    refused = user not in {"65535", "root"}
    for tier in (Tier.CONTAINER, Tier.GVISOR):
        assert any(obstacles.policy_obstacles(tier, None, user, ())) == refused
    assert not any(obstacles.policy_obstacles(Tier.MICROVM, None, user, ()))


def test_what_a_network_lacks_is_named_with_its_hint(facts: HostFacts) -> None:
    """nft, modules, namespaces, and an ordinary user's ids."""
    assert obstacles.network_obstacles(facts) == ()

    def with_nft(**changed: Any) -> HostFacts:  # noqa: ANN401 - facts
        nft = {tool.name: tool for tool in facts.tools}["nft"]
        return replace(facts, tools=(replace(nft, ok=False, **changed),))

    refused = UsernsFact(available=False, reason="a switch", hint="switch it")
    no_ids = IdsFact(available=False, reason="none", hint="add some")
    for host, code in [
        (replace(facts, tools=()), ObstacleCode.TOOL_MISSING),
        (with_nft(version="0.9", needed_min="1.0.6", hint="get it"), ObstacleCode.TOOL_TOO_OLD),
        (replace(facts, modules_missing=("dns", "h11")), ObstacleCode.MODULES_MISSING),
        (replace(facts, network_namespaces=False), ObstacleCode.NO_NETWORK_NAMESPACES),
        (replace(facts, network_namespaces_max=0), ObstacleCode.NETWORK_NAMESPACES_OFF),
        (replace(facts, open_files_max=300), ObstacleCode.TOO_FEW_OPEN_FILES),
        (replace(facts, is_root=False, ids=no_ids), ObstacleCode.NO_IDS),
        (replace(facts, is_root=False, userns=refused), ObstacleCode.NO_USER_NAMESPACES),
    ]:
        (obstacle,) = obstacles.network_obstacles(host)
        assert (obstacle.code, obstacle.where) == (code, "network")
        assert obstacle.what
        assert obstacle.hint.endswith("; or write `network: none`")
    assert obstacles.network_obstacles(replace(facts, userns=refused)) == ()
