"""Facts as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.host import (
    CgroupFact,
    CgroupVersion,
    HostFacts,
    KvmFact,
    KvmState,
    ToolFact,
    UsernsFact,
)

FACTS = HostFacts(
    arch="x86_64",
    distro_id="debian",
    distro_version="12",
    kernel_release="6.1.0-1-amd64",
    is_root=False,
    uid=1000,
    cpu_model="A Processor",
    cpus=4,
    memory_total_mib=16_000,
    memory_available_mib=12_000,
    disk_free_mib=50_000,
    home="/home/u/.local/share/belljar",
    kvm=KvmFact(state=KvmState.REFUTED, reason="the guest never spoke", proved_for="kernel 6.1"),
    userns=UsernsFact(available=True, max_user_namespaces=100),
    cgroup=CgroupFact(
        version=CgroupVersion.V2,
        parents={"pids": "/sys/fs/cgroup/u", "memory": "/sys/fs/cgroup/u"},
        delegated=True,
    ),
    tools=(ToolFact(name="qemu", use="the microVM", needed=True, version="10.0.2", ok=True),),
)


def test_facts_survive_json() -> None:
    """What a run directory keeps is what was known."""
    assert HostFacts.from_json(json.loads(json.dumps(FACTS.to_json()))) == FACTS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpus", "4"),
        ("cpus", True),
        ("is_root", 1),
        ("kvm", {"state": "maybe"}),
        ("kvm", []),
        ("tools", [{"name": 1}]),
        ("tools", 5),
        ("surprise", 1),
        ("cgroup", {"version": "v2", "parents": []}),
    ],
)
def test_what_is_no_facts_is_refused(field: str, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Types are checked, nothing unknown is taken."""
    with pytest.raises(ValueError, match=r".+"):
        HostFacts.from_json({**FACTS.to_json(), field: value})


@given(
    st.dictionaries(
        st.sampled_from([*FACTS.to_json(), "x"]),
        st.one_of(st.none(), st.integers(), st.text(), st.lists(st.none())),
    )
)
def test_any_object_is_facts_or_a_value_error(changes: dict[str, Any]) -> None:
    """Never another error."""
    for data in (changes, {**FACTS.to_json(), **changes}):
        try:
            HostFacts.from_json(data)
        except ValueError:
            continue


def test_tools_and_controllers_are_found_by_name() -> None:
    """The small questions the plan asks."""
    assert FACTS.cgroup.controllers == ("memory", "pids")
    assert FACTS.tool("qemu") == FACTS.tools[0]
    assert replace(FACTS, tools=()).tool("qemu") is None
