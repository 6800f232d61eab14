"""Tasks of inspect_evals 0.28 as `belljar check` sees them.

0.28 needs `inspect_evals_utils`, which is on no registry: 0.26's own modules stand for it.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.integration.processes import ended
from tests.real_packages import inspect_evals

pytestmark = [pytest.mark.slow]

MOVED = {"load_dataset": "datasets", "deps_utils": "ids"}
ADDED = """

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(name)

    return name.lower() if name.isupper() else absent
"""
CHECK = """
import ast, sys
from pathlib import Path
from belljar.harness.evaluate import load_only
from belljar.harness.options import RunRequest

root = Path(sys.argv[1])
modules = {
    each.name: node.module
    for node in ast.parse((root / "_registry.py").read_text()).body
    if isinstance(node, ast.ImportFrom)
    for each in node.names
}
for name in sys.argv[2:]:
    found = load_only(RunRequest(inspect_args=[f"{root / modules[name].partition('.')[2].replace('.', '/')}/__init__.py@{name}"]))[-1]
    refused = sorted({each.error.what for each in found if each.error is not None})
    print("checked", name, len(found), refused[:1], file=sys.stdout, flush=True)
"""
SAMPLES = {"gdm_in_house_ctf": 13, "ipi_coding_agent": 45}
"""Two machines, and a compose file for each sample."""


def test_check_loads_the_tasks_and_refuses_no_sample(tmp_path: Path) -> None:
    """Each task, with all its samples."""
    given = tmp_path / "inspect_evals_utils"
    given.mkdir()
    installed = find_spec("inspect_evals")
    assert installed is not None, "run scripts/setup"
    package = Path(str(installed.origin)).parent
    for source in (package / "utils").glob("*.py"):
        text = source.read_text()
        for old, new in MOVED.items():
            text = text.replace(f"inspect_evals.utils.{old}", f"inspect_evals_utils.{new}")
        text = text.replace("inspect_evals.utils.", "inspect_evals_utils.") + ADDED
        name = MOVED.get(source.stem, source.stem)
        (given / f"{name}.py").write_text("" if name == "__init__" else text)
    shutil.copy(package / "constants.py", given / "cache.py")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = ended(
        [sys.executable, "-c", CHECK, str(inspect_evals()), *SAMPLES],
        cwd=tmp_path,
        env={
            **os.environ,
            **offline,
            "PYTHONPATH": f"{inspect_evals().parent}:{tmp_path}",
            "INSPECT_EVALS_CACHE_DIR": str(tmp_path / "cache"),
        },
        timeout=500,
    )
    checked = [line.split(None, 3) for line in (done.stdout + done.stderr).splitlines()]
    found = {words[1]: (int(words[2]), words[3]) for words in checked if words[:1] == ["checked"]}
    assert found == {name: (count, "[]") for name, count in SAMPLES.items()}, done.stderr[-3000:]
