"""What a range's owner asks of its host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from belljar.errors import HostError
from belljar.network.owner import processes


@pytest.mark.parametrize(
    ("program", "problem"),
    [("/bin/sleep", "timed out"), ("/bin/false", "exit status"), ("/etc/passwd/no", "Not a dir")],
)
def test_a_mapper_that_does_not_map_is_the_hosts_fault(
    monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    """Whatever it does instead."""
    monkeypatch.setattr(processes, "_MAP_TIMEOUT_S", 0.05 if "timed" in problem else 60.0)
    child = cast("Any", SimpleNamespace(process=SimpleNamespace(pid=600)))
    mapper = Path(program)
    ids: Any = SimpleNamespace(newgidmap=mapper, newuidmap=mapper, gid_map=(), uid_map=())
    with pytest.raises(HostError, match=problem) as raised:
        processes.map_ids(child, ids)
    assert raised.value.where == program
