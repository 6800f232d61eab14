"""Gathering."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from belljar.host.facts import core_fact, parse_routes


@pytest.mark.parametrize(
    ("pattern", "state"),
    [
        ("core\n", "file"),
        *(("|/usr/lib/keep %P\n", "program"), ("@/run/keep.sock\n", "server")),
        (None, "program"),
    ],
)
def test_where_core_dumps_go_is_read(pattern: str | None, state: str, tmp_path: Path) -> None:
    """By the first character, as the kernel does."""
    if pattern is not None:
        (tmp_path / "core_pattern").write_text(pattern)
    cores = core_fact(tmp_path / "core_pattern")
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
