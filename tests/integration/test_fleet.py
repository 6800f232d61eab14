"""`belljar run --fleet ray`: a real Ray cluster of two nodes on this machine, of three when
thorough."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import read_eval_log
from tests.conftest import copy_store
from tests.integration.fleets import Fleet, failures, keys_of, lines_until, nothing_runs, placed
from tests.integration.processes import wait_for
from tests.machine import PATIENCE_S

from belljar.events import Kind
from belljar.image.store import Store
from belljar.ledger.keys import local_fingerprint
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify

# To import it takes seconds, and here it would at each collection
has_ray = importlib.util.find_spec("ray") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(not has_ray, reason="the extra `fleet` is not installed"),
]


class Nodes(Fleet):
    def __init__(self, folder: Path, prepared: Path, count: int) -> None:
        homes = [copy_store(prepared, folder / f"n{number + 1}") for number in range(count)]
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
        head = copy_store(prepared, folder / "head")
        super().__init__(folder, homes, head, environment, address="")
        self._process: subprocess.Popen[str] | None = None
        # A short name: the paths of Ray's sockets below it have at most 107 bytes.
        self._ray = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")

    def serve(self) -> bool:
        """Start the cluster; False when Ray did not start within its half a minute."""
        program = Path(__file__).with_name("ray_cluster.py")
        words = [sys.executable, str(program), self._ray.name, *map(str, self.homes)]
        pipe = subprocess.PIPE
        with (self.folder / "cluster.log").open("w") as log:
            self._process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=log, text=True, env=self.environment
            )
        if not (line := self._line()):
            self.stop()
            return False
        self.address = f"ray://{json.loads(line)['address']}"
        return True

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return next((line for line in self._process.stdout if line.startswith(("{", "done"))), "")

    def tell(self, command: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._line() == "done\n"

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=120)

    def close(self) -> None:
        self.stop()
        self._ray.cleanup()


@pytest.fixture(scope="module")
def nodes(
    prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Nodes]:
    count = 3 if pytestconfig.getoption("thorough") else 2
    made = Nodes(tmp_path_factory.mktemp("fleet"), prepared_home, count)
    try:
        if not any(made.serve() for _ in range(5)):
            pytest.fail((made.folder / "cluster.log").read_text()[-2000:])
        yield made
    finally:
        made.close()


def test_a_fleet_gives_what_one_machine_gives_though_a_node_is_killed(nodes: Nodes) -> None:
    """A sample on each node, of which one is killed in the middle: its cells end without it, its
    sample runs elsewhere, and samples, scores, epochs, metrics and verdict are those that one
    machine gives; the failure and both attempts are on record. A node that lacks the image gets it
    from the head, once, by its digest. Each signs with its own key, which the head's ledger names;
    no node has the head's; the offline verdict is the same."""
    count = len(nodes.homes)
    nodes.belljar("image", "rm", "default", home=nodes.homes[0])
    words = ("-T", f"count={count}", "--epochs", "2")
    with held_run(nodes, *words) as (process, run, _, node):
        number = int(node.removeprefix("n"))
        nodes.tell(f"kill {number}")
        home = nodes.homes[number - 1]
        wait_for(lambda: nothing_runs(nodes, home), "the end of its cells", within_s=PATIENCE_S)
        said = assert_ran_elsewhere(process, run, node)
    rows = [(s["sample"], s["epoch"], s["scores"], s["verdict"]) for s in said["samples"]]
    assert rows == [
        (f"s{number}", epoch, {"points": str(number * epoch)}, "contained")
        for number in range(count)
        for epoch in (1, 2)
    ]
    log = read_eval_log(str(next(run.glob("inspect/*.eval"))))
    assert log.results is not None
    assert (log.status, log.eval.config.epochs) == ("success", 2)
    # Of the means of both epochs: 0, 1.5, 3, …
    assert log.results.scores[0].metrics["mean"].value == 0.75 * (count - 1)
    assert verify(run, expected_key=local_fingerprint(nodes.head)).ok(strict=True)
    assert '"exit_code": 0' in nodes.belljar("verdict", "--json", str(run))
    sent = [line.data for line in read_events(run) if line.kind is Kind.FLEET_IMAGE_SENT]
    assert [(each["node"], each["image"]) for each in sent] == [("n1", "default")]
    digests = [Store(home).find("default").digest for home in (nodes.head, nodes.homes[0])]
    assert digests[0] == digests[1]
    named = {f"n{n}": local_fingerprint(home) for n, home in enumerate(nodes.homes, 1)}
    assert keys_of(run) == {each: named[each] for each in named if each != node}
    told = [line.data for line in read_events(run) if line.kind is Kind.FLEET_NODE]
    lost = [each["node"] for each in told if each["state"] == "lost"]  # a later run clears them
    secret = (nodes.head / "keys" / "ledger-ed25519.pem").read_bytes()
    for name, home in zip(named, nodes.homes, strict=True):
        files = (path for path in home.rglob("*") if path.is_file())
        small = (path for path in files if path.stat().st_size < 1 << 20)
        assert not [path for path in small if secret in path.read_bytes()]
        assert name in {node, *lost} or not list((home / "fleet").rglob("*"))
    assert nothing_runs(nodes)


@pytest.mark.thorough
def test_ctrl_c_ends_every_unit_with_its_record(nodes: Nodes) -> None:
    """130; what ran is there, what was interrupted is destroyed with proof, no cell is left."""
    process = nodes.start_run("-T", "seconds=600")
    lines_until(process, "came back", 2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    said = json.loads(out)
    rows = {each["sample"]: each for each in said["samples"]}
    assert {each["verdict"] for each in rows.values()} == {"contained"}
    assert rows.keys() >= {"s2", "s3"}
    assert nothing_runs(nodes)


@contextmanager
def held_run(nodes: Nodes, *words: str) -> Iterator[tuple[subprocess.Popen[str], Path, int, str]]:
    """A run whose one sample goes on until its node ends: process, directory, attempt, node."""
    hold = nodes.folder / "hold.once"
    hold.touch()
    given = ("-T", "seconds=600", "-T", f"hold={hold.with_suffix('')}")
    process = nodes.start_run(*given, *words)
    with process:
        lines_until(process, "came back", len(nodes.homes) - 1)
        wait_for(lambda: not hold.exists(), "the held sample", within_s=300)
        run = max((nodes.head / "runs").iterdir())
        yield process, run, *placed(run, "s1")[-1][1:]


def assert_ran_elsewhere(process: subprocess.Popen[str], run: Path, node: str) -> dict[str, Any]:
    """All samples count; the failure there and both attempts are on record. What the run said."""
    out, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors
    said: dict[str, Any] = json.loads(out)
    assert {each["verdict"] for each in said["samples"]} == {"contained"}
    assert "infrastructure failures: 0" not in said["fleet"][0]
    assert failures(run, node)
    attempts = placed(run, "s1")
    assert [each[1] for each in attempts] == [*range(1, len(attempts) + 1)]
    assert (attempts[-2][2], attempts[-1][2] != node) == (node, True)
    return said
