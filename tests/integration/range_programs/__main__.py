"""Opens ranges as the user that runs it, does one thing with them, and prints what it saw as JSON:
the tests run it as root and as an ordinary user.

`python -m tests.integration.range_programs SCENARIO HOME`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
from tests.integration.range_programs import between, blows, ends, floods, groups, ordinary, record

if __name__ == "__main__":
    scenario, home = sys.argv[1:]
    scenarios = {
        name: run
        for part in (between, ordinary, blows, ends, floods, groups, record)
        for name, run in part.SCENARIOS.items()
    }
    print(json.dumps(anyio.run(scenarios[scenario], Path(home))))
