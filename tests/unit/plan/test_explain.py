"""What the plan says in words: the blast radius, bounds, decoys' sensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from belljar.compose.values import SETTLE_S
from belljar.host.model import HostFacts
from belljar.plan.explain import ObstacleError, render_plan
from belljar.plan.make import isolation_of, make_plan
from belljar.plan.model import ImageFacts, ObstacleCode, OciPlan
from belljar.policy.limits import Resources, Tier
from belljar.policy.load import load_preset, policy_of


@pytest.mark.promise("1.6")
def test_an_images_program_and_when_it_is_ready(facts: HostFacts, image: ImageFacts) -> None:
    """What runs before a sample starts, and what is waited for; nothing of an image that has no
    program."""

    def text(image: ImageFacts) -> str:
        return " ".join(
            " ".join(render_plan(make_plan(load_preset("high").policy, facts, image))).split()
        )

    assert "runs " not in text(image)
    assert (
        f"runs /enter serve — before a sample starts, until it has run for {SETTLE_S:g} s"
        in text(replace(image, program="/enter serve"))
    )
    assert "until the image's health check passes" in text(
        replace(image, program="/enter serve", has_check=True)
    )


@pytest.mark.parametrize("tier", [Tier.CONTAINER, Tier.GVISOR])
def test_every_resource_is_bounded_by_the_host(tier: Tier, facts: HostFacts) -> None:
    """Each of the policy's, by a means of the host; the agent alone holds nothing but what the host
    looks after too."""
    held = {
        bound.what: bound
        for bound in isolation_of(tier, Resources(cpus=3, processes=77), facts).bounds
    }
    assert held["processors"].most == "3"
    assert held["processes"].most.startswith("77;")
    grouped = ("processors", "memory", "files it writes", "processes")
    assert all("control group" in " ".join(held[what].enforced_by) for what in grouped)
    assert any("host" in means for means in held["time"].enforced_by)


@pytest.mark.parametrize("tier", list(Tier))
def test_a_model_cells_plan_has_its_server_and_weights(
    tier: Tier, facts: HostFacts, image: ImageFacts
) -> None:
    """Where it listens, which weights it reads and how, and that it has no network."""
    digest = "ab" * 32
    fields = {"belljar": 1, "risk": "low", "tier": tier.value}

    def text(**model: object) -> str:
        policy = policy_of({**fields, "model": {"weights": {"sha256": digest}, **model}}).policy
        return " ".join(" ".join(render_plan(make_plan(policy, facts, image))).split())

    plain = text(port=1234, server=["serve", "a b"])
    assert "serves a model by serve 'a b' on its own loopback, port 1234" in plain
    assert f"the weights sha256:{digest[:12]}, as /weights, read-only" in plain
    assert "no network: " in plain
    assert ("two disks, read-only" in plain) == (tier is Tier.MICROVM)
    assert "graphics driver" not in plain
    assert "GPU" not in plain


def test_a_plan_says_what_a_gpu_opens(facts: HostFacts, image: ImageFacts) -> None:
    """The driver by name of each device file, its ioctls without a filter, the GPU's memory, and
    the author's reason."""
    gpu = {"devices": ["/dev/nvidia0"], "reason": "too slow without"}
    model = {"weights": {"sha256": "ab" * 32}, "gpu": gpu}
    policy = policy_of({"belljar": 1, "risk": "low", "tier": "container", "model": model}).policy
    plan = make_plan(policy, facts, image)
    assert isinstance(plan, OciPlan)
    assert plan.oci.devices == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
    (driver,) = [line for line in plan.blast_radius.reach if "graphics driver" in line]
    assert all(device in driver for device in plan.oci.devices)
    assert "ioctl" in driver
    assert "too slow without" in driver
    assert any("memory of its GPUs" in line for line in plan.blast_radius.read)
    assert any("GPUs" in line for line in plan.blast_radius.consume)
    assert "six devices and the GPUs" in " ".join(layer.what for layer in plan.layers)


@pytest.mark.parametrize(("risk", "tier"), [("low", "gvisor"), ("medium", None), ("high", None)])
def test_no_other_tier_passes_a_gpu_through(
    risk: str, tier: str | None, facts: HostFacts, image: ImageFacts
) -> None:
    """Whatever the reason: each tier is refused by name, and none is used in its place."""
    gpu = {"devices": ["/dev/nvidia0"], "reason": "measured"}
    model = {"weights": {"sha256": "ab" * 32}, "gpu": gpu}
    fields = {"belljar": 1, "risk": risk, "model": model}
    policy = policy_of({**fields, "tier": tier} if tier else fields).policy
    with pytest.raises(ObstacleError) as refused:
        make_plan(policy, facts, image)
    assert {each.code for each in refused.value.obstacles} == {ObstacleCode.GPU_NEEDS_CONTAINER}
