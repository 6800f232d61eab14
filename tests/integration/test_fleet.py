"""`belljar run --fleet ray`: a real Ray cluster of three nodes on this machine."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.conftest import copy_store
from tests.integration.fleets import (
    Fleet,
    failures,
    lines_until,
    log_of,
    metrics,
    nothing_runs,
    placed,
)
from tests.integration.processes import wait_for

from belljar.events import Kind
from belljar.image.store import Store
from belljar.ledger.keys import local_fingerprint
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify

pytest.importorskip("ray", reason="the extra `fleet` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.root]


class Nodes(Fleet):
    """A cluster of Ray with three nodes."""

    def __init__(self, folder: Path, prepared: Path) -> None:
        homes = [copy_store(prepared, folder / f"n{number}") for number in (1, 2, 3)]
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
        """`kill N`, `start N`, `freeze N` or `thaw N`."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._line() == "done\n"

    def stop(self) -> None:
        """End the cluster."""
        if self._process is not None:
            self._process.communicate(timeout=120)

    def close(self) -> None:
        """End the cluster, and remove its files."""
        self.stop()
        self._ray.cleanup()


@pytest.fixture(scope="module")
def nodes(prepared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes, one task."""
    made = Nodes(tmp_path_factory.mktemp("fleet"), prepared_home)
    try:
        if not any(made.serve() for _ in range(5)):
            pytest.fail((made.folder / "cluster.log").read_text()[-2000:])
        yield made
    finally:
        made.close()


def test_a_fleet_gives_what_one_machine_gives(nodes: Nodes) -> None:
    """Four samples on three nodes: the same samples, scores, epochs, metrics and verdict as on
    one; each node signs with its own key, which the head's ledger names; the offline verdict is
    the same, and no node has the head's key."""
    code, said, errors = nodes.run("--epochs", "2")
    assert code == 0, errors
    alone, single, errors = nodes.run("--epochs", "2", fleet=False)
    assert alone == 0, errors
    assert [(s["sample"], s["epoch"], s["scores"], s["verdict"]) for s in said["samples"]] == [
        (s["sample"], s["epoch"], s["scores"], s["verdict"]) for s in single["samples"]
    ]
    ours, theirs = log_of(said["run_dir"]), log_of(single["run_dir"])
    assert metrics(ours) == metrics(theirs)
    assert (ours.status, ours.eval.config.epochs) == (theirs.status, theirs.eval.config.epochs)
    assert ours.eval.dataset.sample_ids == theirs.eval.dataset.sample_ids
    for mine, other in zip(ours.samples or [], theirs.samples or [], strict=True):
        assert (mine.id, mine.epoch, mine.error) == (other.id, other.epoch, other.error)
        assert {n: s.value for n, s in (mine.scores or {}).items()} == {
            n: s.value for n, s in (other.scores or {}).items()
        }
    run = Path(said["run_dir"])
    assert verify(run, expected_key=local_fingerprint(nodes.head)).ok(strict=True)
    assert '"exit_code": 0' in nodes.belljar("verdict", "--json", str(run))
    finished = [line for line in read_events(run) if line.kind is Kind.FLEET_UNIT_FINISHED]
    keys = {line.data["node"]: line.data["key"] for line in finished}
    assert len(keys) > 1
    assert (
        keys.items()
        <= {f"n{n}": local_fingerprint(home) for n, home in enumerate(nodes.homes, 1)}.items()
    )
    secret = (nodes.head / "keys" / "ledger-ed25519.pem").read_bytes()
    for home in nodes.homes:
        assert not [
            path
            for path in home.rglob("*")
            if path.is_file() and path.stat().st_size < 1 << 20 and secret in path.read_bytes()
        ]
        assert nodes.belljar("ps", home=home) == "no cells\n"
        assert not list((home / "fleet").iterdir())


def sent_images(run_dir: str) -> list[tuple[str, str]]:
    """What was sent to a node: its name, and the image's."""
    return [
        (line.data["node"], line.data["image"])
        for line in read_events(Path(run_dir))
        if line.kind is Kind.FLEET_IMAGE_SENT
    ]


def test_an_image_goes_to_a_node_that_lacks_it_once(nodes: Nodes) -> None:
    """A node without the image gets it from the head, by its digest, and runs units. The next run
    sends nothing; its cells are of 2 GiB and more, and each node of 4 GiB has one at a time."""
    nodes.belljar("image", "rm", "default", home=nodes.homes[0])
    code, said, errors = nodes.run("-T", "count=6")
    assert code == 0, errors
    assert sent_images(said["run_dir"]) == [("n1", "default")]
    ran = [e for e in read_events(Path(said["run_dir"])) if e.kind is Kind.FLEET_UNIT_FINISHED]
    assert "n1" in {each.data["node"] for each in ran}
    stores = [Store(home).find("default").digest for home in (nodes.head, nodes.homes[0])]
    assert stores[0] == stores[1]
    policy = "belljar: 1\nrisk: low\nresources: {memory: 2GiB}\n"
    (nodes.folder / "task" / "large.yaml").write_text(policy)
    code, said, errors = nodes.run("-T", "count=3", "--policy", "large.yaml")
    assert (code, sent_images(said["run_dir"])) == (0, []), errors
    offered = [e for e in read_events(Path(said["run_dir"])) if e.kind is Kind.FLEET_NODE]
    assert [each.data["cells"] for each in offered] == [1, 1, 1]


@pytest.mark.thorough
def test_ctrl_c_ends_every_unit_with_its_record(nodes: Nodes) -> None:
    """Exit code 130; what ran is there, what was interrupted is destroyed with proof, what did not
    begin has no row, and no node keeps a cell."""
    process = nodes.start_run("-T", "seconds=600")
    lines_until(process, "came back", 2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    said = json.loads(out)
    rows = {each["sample"]: each for each in said["samples"]}
    assert {each["verdict"] for each in rows.values()} == {"contained"}
    assert rows.keys() >= {"s0", "s1", "s2"}
    assert nothing_runs(nodes)


@pytest.mark.thorough
def test_a_dead_head_leaves_nothing_and_its_run_is_resumed(nodes: Nodes) -> None:
    """Its units end by themselves; a new run takes over what had come back, verified again, and
    runs the rest; the first attempt stays on record."""
    process = nodes.start_run("-T", "seconds=60")
    with process:
        lines_until(process, "came back", 2)
        old = max((nodes.head / "runs").iterdir())
        wait_for(lambda: bool(placed(old, "s3")), "the last sample's unit", within_s=180)
        process.kill()
    wait_for(lambda: nothing_runs(nodes), "the end of all units", within_s=180)
    again = nodes.start("run", "--json", "--resume", old.name)
    out, errors = again.communicate(timeout=1500)
    assert again.returncode == 0, errors
    run = Path(json.loads(out)["run_dir"])
    events = list(read_events(run))
    finished = [line.data for line in events if line.kind is Kind.FLEET_UNIT_FINISHED]
    assert [each.get("from_run", "") for each in finished] == [*[old.name] * 2, ""]
    (failed,) = [line.data for line in events if line.kind is Kind.FLEET_UNIT_FAILED]
    assert "when the head ended" in failed["reason"]
    assert log_of(str(run)).status == "success"
    refused = nodes.belljar("run", "--resume", run.name, "tasks.py")
    assert "--resume takes no task" in refused


def test_kill_reaches_every_node(nodes: Nodes) -> None:
    """A running unit's cells are halted with proof, its samples are not tried again, and the run
    says so."""
    process = nodes.start_run("-T", "seconds=600")
    with process:
        lines_until(process, "came back", 2)
        wait_for(
            lambda: any(nodes.belljar("ps", home=home) != "no cells\n" for home in nodes.homes),
            "the last sample's cell",
            within_s=180,
        )
        killed = nodes.belljar("kill", "--all", "--fleet", nodes.address)
        assert [f"n{number}: killed" in killed for number in (1, 2, 3)] == [True] * 3, killed
        out, errors = process.communicate(timeout=600)
    assert process.returncode == 2, errors
    rows = {each["sample"]: each["verdict"] for each in json.loads(out)["samples"]}
    assert rows.get("s3") != "contained"
    assert nothing_runs(nodes)


@pytest.mark.thorough
def test_a_task_that_no_node_can_run_is_refused_with_each_reason(nodes: Nodes) -> None:
    """Before a run exists: a risk that needs hardware, which these machines lack."""
    before = set((nodes.head / "runs").iterdir())
    (nodes.folder / "task" / "hard.yaml").write_text("belljar: 1\nrisk: low\nimage: not-there\n")
    process = nodes.start_run("--policy", "hard.yaml", "--override")
    out, errors = process.communicate(timeout=900)
    assert process.returncode == 3, errors
    assert all(f"n{number}: " in out for number in (1, 2, 3))
    assert set((nodes.head / "runs").iterdir()) == before


def last_unit(nodes: Nodes, process: subprocess.Popen[str]) -> tuple[Path, int, str]:
    """The run, and the attempt and node of the long sample, once two others came back."""
    lines_until(process, "came back", 2)
    run = max((nodes.head / "runs").iterdir())
    wait_for(lambda: bool(placed(run, "s3")), "the last sample's unit", within_s=180)
    return run, *placed(run, "s3")[-1][1:]


@pytest.mark.alone  # a node that is slow for twelve seconds counts as dead
def test_a_node_that_is_killed_loses_no_sample(nodes: Nodes) -> None:
    """Of sixty samples all count, though a node is killed in the middle: by the ledger it is seen
    within 15 s, both attempts are on record, and its cells end without it."""
    process = nodes.start_run("-T", "count=60", "-T", "seconds=60")
    with process:
        run, attempt, node = last_unit(nodes, process)
        number = int(node.removeprefix("n"))
        home = nodes.homes[number - 1]
        wait_for(lambda: nodes.belljar("ps", home=home) != "no cells\n", "its cell", within_s=180)
        killed_ns = time.monotonic_ns()
        nodes.tell(f"kill {number}")
        wait_for(lambda: nothing_runs(nodes, home), "the end of its cells", within_s=180)
        out, errors = process.communicate(timeout=1500)
    nodes.tell(f"start {number}")
    assert process.returncode == 0, errors
    said = json.loads(out)
    assert [each["verdict"] for each in said["samples"]] == ["contained"] * 60
    assert "infrastructure failures: 0" not in said["fleet"][0]
    (lost,) = [
        line
        for line in read_events(run)
        if line.kind is Kind.FLEET_NODE
        and (line.data["node"], line.data["state"]) == (node, "lost")
    ]
    assert (int(lost.mono_ns) - killed_ns) / 1e9 < 15
    assert failures(run, node)
    assert [each[1] for each in placed(run, "s3")] == [*range(1, attempt + 2)]
    assert placed(run, "s3")[-1][2] != node


@pytest.mark.alone
@pytest.mark.thorough
def test_a_node_that_hangs_is_seen_and_ends_its_cells_when_it_wakes(nodes: Nodes) -> None:
    """Of sixty samples none is lost, though a node stops in the middle: it is seen within 15 s, its
    samples run elsewhere, and what it says later counts no more."""
    process = nodes.start_run("-T", "count=60", "-T", "seconds=20")
    with process:
        _, _, node = last_unit(nodes, process)
        nodes.tell(f"freeze {node.removeprefix('n')}")
        began = time.monotonic()
        lines_until(process, "is lost", 1)
        seen_s = time.monotonic() - began
        time.sleep(max(0.0, 40.0 - seen_s))  # longer than its guards wait for the head
        nodes.tell(f"thaw {node.removeprefix('n')}")
        out, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors
    assert [each["verdict"] for each in json.loads(out)["samples"]] == ["contained"] * 60
    assert seen_s < 15
    wait_for(lambda: nothing_runs(nodes), "the end of its cells", within_s=120)


@contextmanager
def small_disk(folder: Path, size_kib: int) -> Iterator[None]:
    """Give a node's records a disk of their own."""
    folder.mkdir(exist_ok=True)
    options = f"size={size_kib}k,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "belljar-test", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> None:
    """Write until the disk takes no more."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.mark.thorough
def test_a_disk_too_small_for_a_record_is_named_and_the_unit_runs_elsewhere(nodes: Nodes) -> None:
    """Nothing is scored without a record: the node's unit fails, and another node has it."""
    with small_disk(nodes.homes[0] / "runs", 16):
        code, said, errors = nodes.run()
        assert code == 0, errors
        assert [each["verdict"] for each in said["samples"]] == ["contained"] * 4
        (why,) = failures(Path(said["run_dir"]), "n1")
        assert "No space left on device" in why
        assert "infrastructure failures: 1 of 4" in said["fleet"][0]
        assert nothing_runs(nodes)


@pytest.mark.thorough
def test_a_disk_that_fills_while_a_unit_runs_is_named_and_its_sample_runs_elsewhere(
    nodes: Nodes,
) -> None:
    """Both attempts are on record with the disk as the reason; the second one counts."""
    with ExitStack() as stack:
        for home in nodes.homes:
            stack.enter_context(small_disk(home / "runs", 4096))
        process = nodes.start_run("-T", "seconds=30")
        with process:
            run, attempt, node = last_unit(nodes, process)
            home = nodes.homes[int(node.removeprefix("n")) - 1]
            wait_for(
                lambda: nodes.belljar("ps", home=home) != "no cells\n", "its cell", within_s=180
            )
            fill(home / "runs")
            out, errors = process.communicate(timeout=1500)
        assert process.returncode == 0, errors
        said = json.loads(out)
        assert [each["verdict"] for each in said["samples"]] == ["contained"] * 4
        _, again, other = placed(run, "s3")[-1]
        assert (again, other != node) == (attempt + 1, True)
        assert any("No space left on device" in why for why in failures(run, node))
        (home / "runs" / "filler").unlink()
        assert nothing_runs(nodes)
