"""Gathering."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from belljar.host.facts import gather_facts, parse_routes
from belljar.package import program_path


def test_switches_that_forbid_user_namespaces_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ubuntu's AppArmor switch and a count of 0, with what an administrator can do."""
    from belljar.host import facts

    (tmp_path / "sys/user").mkdir(parents=True)
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/user/max_user_namespaces").write_text("10\n")
    (tmp_path / "sys/kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    monkeypatch.setattr(facts, "try_namespaces", lambda: "making one failed: denied")
    userns = partial(facts.userns_fact, tmp_path)
    restricted = userns(is_root=False)
    assert (restricted.available, facts.APPARMOR_SWITCH in restricted.reason) == (False, True)
    launcher = str(program_path("jail"))
    profile = (
        f"""'abi <abi/4.0>, profile belljar-jail "{launcher}" flags=(unconfined) {{ userns, }}'"""
    )
    assert profile in restricted.hint
    unnamed = userns(is_root=True)
    assert ("denied" in unnamed.reason, "seccomp" in unnamed.hint) == (True, True)
    (tmp_path / "sys/user/max_user_namespaces").write_text("0\n")
    none = userns(is_root=True)
    assert ("max_user_namespaces is 0" in none.reason, "sysctl -w" in none.hint) == (True, True)


@pytest.mark.parametrize(
    ("pattern", "state"),
    [
        ("core\n", "file"),
        *(("|/usr/lib/keep %P\n", "program"), ("@/run/keep.sock\n", "server")),
        (None, "program"),
    ],
)
def test_where_core_dumps_go_is_read(pattern: str | None, state: str, tmp_path: Path) -> None:
    """By the first character, as the kernel does. A pattern that can't be read counts as one that
    names a program, and what is warned of says that nobody knows."""
    proc = tmp_path / "proc"
    if pattern is not None:
        (proc / "sys/kernel").mkdir(parents=True)
        (proc / "sys/kernel/core_pattern").write_text(pattern)
    cores = gather_facts(tmp_path / "store", proc=proc).cores
    assert cores.state == state
    said = "can't be read" if pattern is None else pattern.strip()
    assert said in cores.pattern


ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0
tun0\t0101000A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
"""


@pytest.mark.skipif(
    sys.byteorder != "little", reason="the kernel writes words in its own byte order"
)
def test_routes_are_read_without_the_default() -> None:
    """Each network once, sorted."""
    assert parse_routes(ROUTES) == ("10.0.1.1/32", "172.17.0.0/16", "192.0.2.0/24")
    assert parse_routes("") == ()
