"""What stands in a tier's way on this host, and where its crashes go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from belljar.host import CoreFact, CoreState, HostFacts, IdsFact, KvmFact, KvmState, UsernsFact
from belljar.host.facts import APPARMOR_SWITCH
from belljar.host.runtimes import REFUTED_FOR_S, RUNC_MIN, RUNSC_MIN, RUNTIME_VARIABLE
from belljar.host.tools import QEMU_MIN
from belljar.plan import hardware_obstacle, network_obstacles, tier_obstacles
from belljar.plan.make import isolation_of
from belljar.plan.obstacles import MIN_KERNEL, cores_warning
from belljar.policy import Resources, Tier


def test_a_good_host_has_none(facts: HostFacts) -> None:
    """A tool that only building images needs is no obstacle."""
    assert tier_obstacles(Tier.MICROVM, facts) == ()
    assert hardware_obstacle(facts) is None


@pytest.mark.parametrize(
    ("path", "version", "told"),
    [
        ("", "", "is missing"),
        ("/q", "8.1", "too old: 8.2 is needed"),
        ("/q", "", "doesn't say its version"),
    ],
)
def test_a_vmm_that_will_not_do_is_named(
    path: str, version: str, told: str, facts: HostFacts
) -> None:
    """Missing, too old, or of unknown age."""
    tool = replace(facts.tools[0], path=path, version=version, ok=False, hint="run `belljar setup`")
    (obstacle,) = tier_obstacles(Tier.MICROVM, replace(facts, tools=(tool,)))
    assert told in obstacle.what
    assert obstacle.hint == "run `belljar setup`"


def test_all_obstacles_are_told(facts: HostFacts) -> None:
    """`belljar doctor` shows them together; each is an error with its hint."""
    host = replace(
        facts, arch="aarch64", userns=UsernsFact(available=False, reason="a switch is off")
    )
    found = tier_obstacles(Tier.MICROVM, host)
    assert ["x86_64" in found[0].what, "a switch is off" in found[1].what] == [True, True]
    assert all(obstacle.error().hint for obstacle in found)


@pytest.mark.parametrize("state", [KvmState.ABSENT, KvmState.REFUTED, KvmState.UNPROVEN])
def test_each_way_of_lacking_hardware_has_its_own_hint(state: KvmState, facts: HostFacts) -> None:
    """Only an unproven one is fixed by a proof."""
    obstacle = hardware_obstacle(replace(facts, kvm=KvmFact(state=state, reason="why")))
    assert obstacle is not None
    assert ("belljar doctor`, which boots" in obstacle.hint) is (state is KvmState.UNPROVEN)
    assert "why" in obstacle.what


@pytest.mark.parametrize("tier", [Tier.CONTAINER, Tier.GVISOR])
@pytest.mark.parametrize("release", ["6.5.13-generic", "5.15.0", "strange"])
def test_a_kernel_that_is_too_old_for_a_writable_layer(
    tier: Tier, release: str, facts: HostFacts
) -> None:
    """Named with the one that is needed; the microVM tier does not need it."""
    old = replace(facts, kernel_release=release)
    (obstacle,) = tier_obstacles(tier, old)
    assert "needs Linux 6.6" in obstacle.what
    assert (release if release == "strange" else release.rpartition(".")[0]) in obstacle.what
    assert "microvm" in obstacle.hint
    assert tier_obstacles(Tier.MICROVM, old) == ()


@pytest.mark.parametrize("tier", [Tier.CONTAINER, Tier.GVISOR])
def test_a_runtime_that_can_have_no_port(tier: Tier, facts: HostFacts) -> None:
    """It stands in the way of a cell on a network, and of no other."""
    unable = replace(
        facts, runtimes=tuple(replace(item, no_port="it said: no") for item in facts.runtimes)
    )
    assert tier_obstacles(tier, unable) == tier_obstacles(tier, facts, has_port=True) == ()
    (obstacle,) = tier_obstacles(tier, unable, has_port=True)
    assert "with a network port here: it said: no" in obstacle.what
    assert "network: none" in obstacle.hint


def test_what_the_page_on_tiers_says_is_needed() -> None:
    """The same versions, variable and switch as are checked."""
    page = (Path(__file__).parents[3] / "docs/tiers.md").read_text()
    needed = (
        f"`runc` {RUNC_MIN} or",
        f"`runsc` {RUNSC_MIN} or",
        f"QEMU {QEMU_MIN} or",
        "Linux {}.{} or".format(*MIN_KERNEL),
    )
    said = (
        *needed,
        RUNTIME_VARIABLE,
        f"{APPARMOR_SWITCH} is 1",
        "half a minute" if REFUTED_FOR_S == 30 else "?",
    )
    assert [words for words in said if words not in page] == []


def test_what_a_network_lacks_is_named_with_its_hint(facts: HostFacts) -> None:
    """A missing or old nft, missing modules, no namespaces, an ordinary user without user
    namespaces or ids."""
    assert network_obstacles(facts) == ()
    old = tuple(replace(tool, ok=False, version="0.9", needed_min="1.0.6", hint="get it") if tool.name == "nft" else tool for tool in facts.tools)  # fmt: skip
    gone = tuple(
        replace(tool, ok=False, path="") if tool.name == "nft" else tool for tool in facts.tools
    )
    refused = UsernsFact(available=False, reason="a switch", hint="switch it")
    for host, what, hint in [
        (replace(facts, tools=()), "nft was not looked for", "install nftables"),
        (replace(facts, tools=old), "nft 0.9 is too old: 1.0.6 is needed", "get it"),
        (replace(facts, tools=gone), "nft is missing", "install nftables"),
        (
            replace(facts, modules_missing=("dns", "h11")),
            "the Python modules dns, h11, which",
            "belljar-sandbox[network]",
        ),
        (
            replace(facts, network_namespaces_max=0),
            "user.max_net_namespaces is 0",
            "sysctl -w user.max_net_namespaces=",
        ),
        (
            replace(
                facts, is_root=False, ids=IdsFact(available=False, reason="none", hint="add some")
            ),
            "none",
            "add some; or",
        ),
        (replace(facts, network_namespaces=False), "needs network namespaces", "CONFIG_NET_NS"),
        (replace(facts, is_root=False, userns=refused), "a switch", "switch it"),
    ]:
        found = network_obstacles(host)
        assert what in found[0].what
        assert hint in found[0].hint
        assert found[0].error().where == "network"
    assert network_obstacles(replace(facts, userns=refused)) == ()


def test_a_module_that_one_kind_needs_is_missed_by_that_kind_alone(facts: HostFacts) -> None:
    """And by `belljar doctor`, which asks for all kinds."""
    without = replace(facts, modules_missing=("dulwich",))
    assert network_obstacles(without, {"http", "smtp"}) == ()
    (obstacle,) = network_obstacles(without, {"http", "git"})
    assert "dulwich" in obstacle.what
    assert network_obstacles(without) == (obstacle,)


@pytest.mark.parametrize("tier", list(Tier))
def test_where_crashes_go_is_said_when_a_limit_is_all_that_keeps_them(
    tier: Tier, facts: HostFacts
) -> None:
    """A program that the host's kernel starts as root, a server it asks no limit for: in the tier
    whose crashes are this host's; in each where 1 can't be given."""

    def more(cores: CoreFact) -> set[str]:
        plain = set(isolation_of(tier, Resources(), facts).warnings)
        return set(isolation_of(tier, Resources(), replace(facts, cores=cores)).warnings) - plain

    program = CoreFact(state=CoreState.PROGRAM, pattern="|/usr/lib/keep %P")
    unlimited = replace(program, can_limit=False)
    assert more(CoreFact(state=CoreState.FILE, pattern="/var/core.%p", can_limit=False)) == set()
    assert len(more(unlimited)) == 1
    assert "ulimit -Hc" in more(unlimited).pop()
    for cores, word in (
        (program, "only its system call profile"),
        (replace(program, state=CoreState.SERVER), "no limit"),
    ):
        said = more(cores)
        assert len(said) == (tier is Tier.CONTAINER)
        assert all(
            word in sentence and "/usr/lib/keep" in sentence and "core_pattern=core" in sentence
            for sentence in said
        )


def test_a_pattern_can_not_act_on_a_terminal() -> None:
    """It is the host's, and still shown with what is hidden in it made visible, and cut."""
    pattern = "|/usr/lib/keep \x1b[2J" + "x" * 200
    said = cores_warning(Tier.CONTAINER, CoreFact(state=CoreState.PROGRAM, pattern=pattern))
    assert said is not None
    assert "\x1b" not in said.what
    assert "x" * 100 not in said.what
