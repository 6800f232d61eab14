"""What a target cell is made of, and how its health is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cell.targets import target_policy
from belljar.plan.network import StandInPlan, plan_network
from belljar.policy.limits import Tier
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy, with_tier

POLICY = """\
belljar: 1
risk: low
image: agents
user: agent
env: {SECRET: agent}
network:
  stand_ins:
    shop:
      kind: cell
      names: [shop.example]
      ports: [80]
      image: shops
      tier: gvisor
      env: {COLOUR: green}
      files: [{source: a.txt, target: /srv/a.txt}]
      resources: {memory: 128MiB}
    app: {kind: python, names: [app.example], ports: [80], app: "main:app", files: app}
    page: {kind: http, names: [page.example], routes: [{path: /, body: x}]}
"""


def loaded_of(folder: Path) -> tuple[LoadedPolicy, dict[str, StandInPlan]]:
    (folder / "a.txt").write_text("a")
    (folder / "app").mkdir(exist_ok=True)
    (folder / "policy.yaml").write_text(POLICY)
    loaded = load_policy(folder / "policy.yaml")
    if loaded.policy.network is None:
        raise ValueError("no network")
    return loaded, {item.id: item for item in plan_network(loaded.policy.network, folder).stand_ins}


@pytest.mark.promise("2.5")
def test_a_target_has_its_own_and_nothing_of_the_agents(tmp_path: Path) -> None:
    """Image, environment, files and limits are the stand-in's; the risk is the range's."""
    loaded, plans = loaded_of(tmp_path)
    policy = target_policy(loaded, plans["shop"]).policy
    assert (policy.image, policy.env, policy.user) == ("shops", {"COLOUR": "green"}, None)
    assert policy.risk is loaded.policy.risk
    assert policy.network is None
    assert policy.resources.memory_bytes == 128 << 20
    assert [file.target for file in policy.files] == ["/srv/a.txt"]


@pytest.mark.promise("2.5")
def test_the_tier_is_at_least_the_ranges(tmp_path: Path) -> None:
    """Raised by the stand-in; whoever raises the range's raises every target's."""
    loaded, plans = loaded_of(tmp_path)
    assert target_policy(loaded, plans["shop"]).policy.tier is Tier.GVISOR
    assert target_policy(loaded, plans["app"]).policy.tier is Tier.CONTAINER
    raised = with_tier(loaded, "microvm")
    assert {target_policy(raised, plans[name]).policy.tier for name in ("shop", "app")} == {
        Tier.MICROVM
    }
