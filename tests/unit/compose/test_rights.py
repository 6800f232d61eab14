"""Which keys of a compose file are rights inside a machine, and which rights no tier grants."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.compose.test_keys import facts
from tests.unit.compose.test_translate import shop, two

from belljar.compose.translate import read_compose
from belljar.compose.values import CannotKeepError
from belljar.differences import DifferenceKind


@pytest.mark.promise("2.4")
def test_rights_inside_the_machine_are_granted() -> None:
    """In a policy's words, of the service alone, and reported as granted."""
    rows: list[tuple[str, Any, dict[str, Any]]] = [
        ("cap_add", ["cap_sys_ptrace", "CHOWN"], {"capabilities": ["SYS_PTRACE"]}),
        ("cap_add", ["DAC_READ_SEARCH"], {"capabilities": ["DAC_READ_SEARCH"]}),
        ("cap_add", ["ALL"], {"privileged": True}),
        *(("privileged", yes, {"privileged": True}) for yes in (True, "true")),
        *(("security_opt", [f"seccomp{c}unconfined"], {"seccomp": "unconfined"}) for c in "=:"),
    ]
    for key, value, rights in rows:
        assert shop(**{key: value})["rights"] == rights
        assert facts(**{key: value}) == {(DifferenceKind.GRANTED, key)}


def test_what_root_has_anyway_is_no_right() -> None:
    """The usual capabilities are not asked for again; no device is made, whoever may."""
    assert facts(cap_add=["CHOWN"], privileged=False) == set()
    assert facts(cap_add=["NET_RAW"]) == {(DifferenceKind.CHANGED, "cap_add")}
    assert facts(cap_add=["NET_RAW", "NET_ADMIN"]) == {(DifferenceKind.GRANTED, "cap_add")}
    assert facts(cap_add=["MKNOD"]) == {(DifferenceKind.DROPPED, "cap_add")}
    assert "rights" not in shop(cap_add=["CHOWN", "MKNOD"])


@pytest.mark.promise("2.4")
def test_each_capability_that_no_tier_grants_is_named() -> None:
    """Of several, all of them."""
    with pytest.raises(CannotKeepError) as caught:
        read_compose(two(cap_add=["SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE"]))
    assert [fact.detail.split(":")[0] for fact in caught.value.differences] == [
        "SYS_ADMIN",
        "SYS_MODULE",
    ]
