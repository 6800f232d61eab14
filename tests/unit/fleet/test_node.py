"""What a node takes over from the head."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.images import put_image

from belljar.fleet import node, nodes
from belljar.fleet.engine import Engine
from belljar.fleet.node import settings_of
from belljar.image.store import Store

DYING = """#!{python}
import os, signal, sys
from pathlib import Path
from belljar.ledger.rundir import RunDirectory
with RunDirectory(Path(os.environ["BELLJAR_HOME"]), "run", []) as run:
    Path(os.environ["BELLJAR_RUN_NOTED_IN"]).write_text(str(run.path))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_record_of_a_process_that_died_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints nothing at its end, and its directory goes to the head all the same."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    (tmp_path / "fleet" / "f" / "task").mkdir(parents=True)
    program = tmp_path / "program"
    program.write_text(DYING.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    *pieces, end = node.run_unit("f", "00001-1", [], dict(os.environ))
    assert isinstance(end, dict)
    (run,) = (tmp_path / "runs").iterdir()
    assert (end["run_id"], end["exit_code"]) == (run.name, -9)
    archive = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    assert b"ledger.jsonl" in archive


def test_settings_go_along_and_secrets_and_choices_of_samples_do_not() -> None:
    """Options go along, but neither keys of the head nor which samples it selects."""
    kept = {"INSPECT_EVAL_MAX_RETRIES": "3", "BELLJAR_POLICY": "low"}
    choices = ("LIMIT", "SAMPLE_ID", "SAMPLE_SHUFFLE")
    others = [*(f"INSPECT_EVAL_{each}" for each in choices), "OPENAI_API_KEY", "RAY_AUTH_TOKEN"]
    assert settings_of({**kept, **dict.fromkeys(others, "5")}) == kept


def test_a_sign_of_life_while_a_node_clears_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head gives them until it leaves, and so while a run's files are removed."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    (tmp_path / "fleet" / "f" / "task").mkdir(parents=True)
    rmdir, watch = os.rmdir, node.HeadWatch("f")

    def late(*words: Any, **options: Any) -> None:  # noqa: ANN401 - as `os.rmdir` takes them
        watch.beat(1, stop=False)
        rmdir(*words, **options)

    monkeypatch.setattr(os, "rmdir", late)
    node.clear("f")
    assert not list((tmp_path / "fleet").iterdir())


class Here:
    """An engine whose one node is this process; `change` is done to each piece on its way."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self.change, self.pieces = change, 0

    def on_each(self, nodes: Sequence[str], call: partial[Any], **_: float) -> dict[str, object]:
        arguments = call.args
        if call.func is node.take_piece:
            self.pieces += 1
            arguments = (*arguments[:-1], self.change(arguments[-1]))
        return dict.fromkeys(nodes, call.func(*arguments))


def flipped(piece: bytes) -> bytes:
    return bytes([piece[0] ^ 1]) + piece[1:]


def test_an_image_comes_in_pieces_and_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without it gets it, under the name and the digests that the head's has, and what these
    named there before they still name; bytes that changed on the way, and one for which there is no
    room, are refused, and leave nothing."""
    monkeypatch.setattr(nodes, "PIECE_BYTES", 1000)
    head = Store(tmp_path / "head")
    shared, own = (f"sha256:{digit * 64}" for digit in "12")
    made = put_image(head.home, "tools", os.urandom(3000), origins=[shared, own])
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "node"))
    other = put_image(tmp_path / "node", "other", os.urandom(3000), origins=[shared])
    store, lacking = Store(tmp_path / "node"), {"n1": ["tools"]}
    workspace = tmp_path / "node" / "fleet" / "f"

    def send(change: Callable[[bytes], bytes]) -> tuple[list[nodes.Sent], dict[str, str]]:
        workspace.mkdir(parents=True, exist_ok=True)
        return nodes.send_images(cast("Engine", Here(change)), head, "f", lacking)

    sent, failed = send(flipped)
    assert (sent, "not those of its digest" in failed["n1"]) == ([], True)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2000))
        sent, failed = send(bytes)
    assert (sent, "free" in failed["n1"]) == ([], True)
    assert (store.list(), workspace.exists()) == ((other,), False)
    sent, failed = send(bytes)
    assert ([about["digest"] for _, about in sent], failed) == ([made.digest], {})
    assert store.find("tools").rootfs.read_bytes() == made.rootfs.read_bytes()
    assert (store.find(own).digest, store.find(shared)) == (made.digest, other)
