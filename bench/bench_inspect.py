"""A small evaluation in each tier against Inspect's own Docker provider, in one run: `python bench/bench_inspect.py [--tiers …] [--rounds N] [--json]`.

Twelve samples, four at a time, each with a file in, four commands and a file out; no model is asked. Wall time from `eval` to its log, everything made and unmade in
between; medians. One evaluation of each kind goes first and isn't counted. The peer needs root, `docker.io` and Docker's compose plugin (2.21 or newer).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from inspect_ai import Task, eval  # noqa: A004 - Inspect's name for it
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import SandboxEnvironmentSpec, sandbox
from peer import IMAGE, docker

from belljar.harness.session import Session, session_scope
from belljar.image.store import Store
from belljar.store.home import belljar_home

SAMPLES = 12
AT_ONCE = 4
TIERS = ("container", "gvisor", "microvm")
POLICY = "belljar: 1\nrisk: low\ntier: {tier}\nresources: {{memory: 512MiB, disk: 128MiB}}\n"
COMPOSE = f"""\
services:
  default:
    image: {IMAGE}
    command: tail -f /dev/null
    init: true
    network_mode: none
    x-local: true
"""


@solver
def work() -> Solver:
    """What a small agent does."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001 - the signature is an interface's
        box = sandbox()
        await box.write_file("in.txt", "3\n1\n2\n")
        for argv in (["id"], ["sh", "-c", "sort in.txt >out.txt"], ["python3", "-c", "print(6*7)"], ["ls", "-la"]):
            result = await box.exec(argv)
            if not result.success:
                raise RuntimeError(f"{argv}: {result}")
        state.metadata["answer"] = await box.read_file("out.txt")
        return state

    return solve


@scorer(metrics=[accuracy()])
def sorted_right() -> Scorer:
    """Whether the file came back sorted."""

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001 - as above
        return Score(value=state.metadata.get("answer") == "1\n2\n3\n")

    return score


def evaluate(spec: SandboxEnvironmentSpec, folder: str) -> float:
    """One evaluation; seconds."""
    dataset = MemoryDataset([Sample(id=number, input="sort") for number in range(SAMPLES)])
    task = Task(dataset=dataset, solver=work(), scorer=sorted_right(), sandbox=spec)
    began = time.perf_counter()
    log = eval(task, model="mockllm/model", display="none", log_dir=folder, max_samples=AT_ONCE, max_sandboxes=AT_ONCE)[
        0
    ]
    took_s = time.perf_counter() - began
    if log.status != "success" or log.results is None or log.results.scores[0].metrics["accuracy"].value != 1:
        raise SystemExit(f"{spec.type}: the evaluation ended as {log.status}: {log.error}")
    return took_s


def of_tier(tier: str, rounds: int) -> list[float]:
    """Belljar's provider."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.yaml"
        policy.write_text(POLICY.format(tier=tier))
        spec = SandboxEnvironmentSpec("belljar", str(policy))
        for _ in range(rounds + 1):
            began = time.perf_counter()
            session = Session(home=belljar_home())
            with session_scope(session), session.source.start_run("bench", []) as session.run:
                evaluate(spec, folder)
                times.append(time.perf_counter() - began)
            if session.breaches:
                raise SystemExit(f"{tier}: {session.breaches}")
    return times[1:]


def of_docker(rounds: int) -> list[float]:
    """Inspect's."""
    with docker(Store(belljar_home()).find("default").rootfs) as peer, tempfile.TemporaryDirectory() as folder:
        os.environ["DOCKER_HOST"] = f"unix://{peer.socket}"
        if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
            raise SystemExit("the peer is missing: Docker's compose plugin")
        compose = Path(folder) / "compose.yaml"
        compose.write_text(COMPOSE)
        spec = SandboxEnvironmentSpec("docker", str(compose))
        return [evaluate(spec, folder) for _ in range(rounds + 1)][1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiers", nargs="+", default=list(TIERS), choices=TIERS)
    parser.add_argument("--without-docker", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    peer_s = None if arguments.without_docker else statistics.median(of_docker(arguments.rounds))
    found = {} if peer_s is None else {"docker_s": round(peer_s, 2)}
    for tier in arguments.tiers:
        took_s = statistics.median(of_tier(tier, arguments.rounds))
        found[f"{tier}_s"] = round(took_s, 2)
        if peer_s is not None:
            found[f"{tier}_ratio"] = round(took_s / peer_s, 2)
    print(
        json.dumps(found, indent=2)
        if arguments.json
        else "\n".join(f"{key:18}{value:>8}" for key, value in found.items())
    )


if __name__ == "__main__":
    main()
