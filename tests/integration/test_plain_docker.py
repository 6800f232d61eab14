"""Tasks that ask for plain Docker, in the image that stands for Inspect's own."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tests.integration.processes import ended, quick_command
from tests.real_packages import inspect_evals

from belljar import sync
from belljar.image.store import Store
from belljar.policy.load import parse_policy
from belljar.store.home import belljar_home

pytestmark = [pytest.mark.slow]

TASKS = '''
from importlib.util import find_spec

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

PROMPT, TEST = 'def add(a, b):\\n    """sum"""\\n', "def check(candidate):\\n    assert candidate(1,2)==3\\n"
CHECK = "test $(id -u):$(pwd) = 0:/ && grep hello /root/data.txt && grep mark /etc/marker && test -d /opt/x"
HUMANEVAL = {"prompt": PROMPT, "test": TEST, "entry_point": "add"}

@solver
def answers():
    async def solve(state, generate):
        state.output.completion = "```python\\ndef add(a, b):\\n    return a + b\\n```"
        return state
    return solve

@scorer(metrics=[accuracy()])
def its_own():
    async def score(state, target):
        if "cmd" not in state.metadata:
            from inspect_evals.humaneval.humaneval import verify

            return await verify()(state, target)
        done = await sandbox().exec(["nosuch"])
        done = await sandbox().exec(state.metadata["cmd"])
        return Score(value=CORRECT if done.success else INCORRECT, explanation=done.stderr)
    return score

@task
def plain():
    setup = "#!/bin/sh\\nset -e\\necho mark > /etc/marker; mkdir /opt/x"
    samples = [
        Sample(id="as_root", input="x", files={"/root/data.txt": "hello\\n"}, setup=setup, metadata={"cmd": ["sh", "-ec", CHECK]}),
        Sample(id="by_name", input="x", sandbox=("docker", "files/compose.yaml"), metadata={"cmd": ["python", "-m", "pip", "--version"]}),
    ]
    if find_spec("inspect_evals"):
        samples.append(Sample(id="humaneval", input=PROMPT, metadata=HUMANEVAL))
    return Task(dataset=samples, solver=answers(), scorer=its_own(), sandbox="docker")
'''
COMPOSE = "services: {default: {image: 'aisiuk/inspect-tool-support:latest'}}\n"


def test_right_answers_are_correct(tmp_path: Path) -> None:
    """Of a scorer that runs `python`, one that needs what root was given, and one by its image's
    name."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/compose.yaml").write_text(COMPOSE)
    done = ended(
        quick_command("run", "--json", "--model", "mockllm/model", "tasks.py", "--policy", "low"),
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    samples = json.loads(done.stdout)["samples"]
    assert len(samples) >= 2
    for sample in samples:
        assert list(sample["scores"].values()) == ["C"], sample
        assert sample["verdict"] == "contained"
        # Never "runs as written": another image than the task's is always a difference
        facts = {(fact["kind"], fact["key"]) for fact in sample["differences"]}
        assert ("changed", "image") in facts
        missing = any("`nosuch` was not found" in each for each in sample["remarks"])
        assert missing is (sample["sample"] != "humaneval")


_ASKS = re.compile(r"""\bsandbox(?:: [^=\n]+)?\s*=\s*["']docker["']\s*[,)]""")
_RUNS = re.compile(r"""\.exec\(\s*(?:cmd=)?\[\s*["']([^"']+)["']""")


def plain_docker_programs(root: Path) -> dict[str, set[str]]:
    """For each package below `root` with a task for plain Docker: what its code has sandboxes
    run, as far as it is written out."""
    found: dict[str, set[str]] = {}
    texts = {path: path.read_text() for path in root.rglob("*.py")}
    asking = {path.relative_to(root).parts[0] for path, text in texts.items() if _ASKS.search(text)}
    for path, text in texts.items():
        if (package := path.relative_to(root).parts[0]) in asking:
            found.setdefault(package, set()).update(_RUNS.findall(text))
    return found


def test_the_image_has_what_tasks_for_plain_docker_run() -> None:
    """Each program that inspect_evals' code names, except those that it makes itself in /tmp."""
    found = plain_docker_programs(inspect_evals())
    assert {"apps", "humaneval", "mbpp", "usaco"} <= set(found)
    wanted = sorted({name for names in found.values() for name in names if "/tmp/" not in name})
    assert "python" in wanted
    image = Store(belljar_home()).find("inspect")
    assert (image.user, image.workdir) == ("root", "/")
    policy = parse_policy(b"belljar: 1\nrisk: low\nimage: inspect\n", source="a test", base=None)
    with sync.open_cell(policy) as cell:
        for name in (*wanted, "python3", "pip", "git", "gcc", "make", "wget"):
            assert cell.exec(["sh", "-c", 'command -v "$0"', name]).returncode == 0, name
