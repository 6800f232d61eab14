"""Opens ranges as the user that runs it, does one thing after the other with them, and prints what
it saw as JSON: the tests run it as root and as an ordinary user.

`python -m tests.integration.range_programs HOME SCENARIO…`.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import anyio
from tests.integration.range_programs import between, blows, ends, floods, groups, ordinary, scene

from belljar.network.owner.processes import started_fork_server

PARTS = (between, ordinary, blows, ends, floods, groups)
SCENARIOS: dict[str, Any] = {name: run for part in PARTS for name, run in part.SCENARIOS.items()}


def play(home: Path, *names: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name in names:
        try:
            seen[name] = anyio.run(SCENARIOS[name], home)
        except Exception:  # noqa: BLE001 - its test fails
            seen[name] = {"failed": traceback.format_exc()}
    return seen


if __name__ == "__main__":
    store = Path(sys.argv[1])
    with started_fork_server(store, scene.PLAIN):
        print(json.dumps(play(store, *sys.argv[2:])))
