"""What a plan says of crashes on its host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from belljar.host import CoreFact, CoreState, HostFacts
from belljar.plan.cores import cores_warning
from belljar.plan.layers import isolation_of
from belljar.policy import Resources, Tier


@pytest.mark.parametrize("tier", list(Tier))
def test_where_crashes_go_is_said_when_a_limit_is_all_that_keeps_them(tier: Tier, facts: HostFacts) -> None:
    """A program that the host's kernel starts as root, a server it asks no limit for: in the tier whose crashes are this host's; in each where 1 can't be given."""

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
            word in sentence and "/usr/lib/keep" in sentence and "core_pattern=core" in sentence for sentence in said
        )


def test_a_pattern_can_not_act_on_a_terminal() -> None:
    """It is the host's, and still shown with what is hidden in it made visible, and cut."""
    pattern = "|/usr/lib/keep \x1b[2J" + "x" * 200
    said = cores_warning(Tier.CONTAINER, CoreFact(state=CoreState.PROGRAM, pattern=pattern))
    assert said is not None
    assert "\x1b" not in said.what
    assert "x" * 100 not in said.what
