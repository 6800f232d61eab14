"""`belljar model add`, interrupted or without room, and what a cell's weights cost."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.integration.conftest import Belljar

from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.model.serve import load_model
from belljar.model.weights import add_weights

pytestmark = pytest.mark.vm


def entries(belljar: Belljar) -> list[str]:
    """All that lies in the store of weights."""
    return [path.name for path in (Path(belljar.home) / "weights").iterdir()]


def test_a_killed_add_leaves_nothing_for_long(belljar: Belljar, tmp_path: Path) -> None:
    """Killed while it reads: no entry, and the next `add`, or `reap`, removes its half."""
    large, small = tmp_path / "large", tmp_path / "small"
    small.write_bytes(b"weights")
    with large.open("wb") as file:
        file.truncate(20 << 30)
    for clean in (("model", "add", str(small)), ("reap",)):
        process = belljar.start("model", "add", str(large))
        deadline = time.monotonic() + 60
        while not list((Path(belljar.home) / "weights").glob(".making-*/data/large")):
            assert time.monotonic() < deadline
            assert process.poll() is None
        process.kill()
        process.communicate()
        assert any(name.startswith(".making-") for name in entries(belljar))
        assert "large" not in belljar("model", "ls").stdout.decode()
        assert belljar(*clean).returncode == 0
        assert not any(name.startswith(".making-") for name in entries(belljar))


@pytest.mark.root
def test_a_full_disk_is_named_and_nothing_is_left(belljar: Belljar, tmp_path: Path) -> None:
    """One message with what to do, exit 3, and room for what fits."""
    mount = tmp_path / "small"
    mount.mkdir()
    (tmp_path / "large").write_bytes(os.urandom(16 << 20))
    (tmp_path / "fits").write_bytes(os.urandom(1 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)], check=True)
    try:
        full = Belljar(mount / "store")
        ran = full("model", "add", str(tmp_path / "large"))
        assert ran.returncode == 3
        assert b"larger disk" in ran.stderr
        assert entries(full) == []
        assert full("model", "add", str(tmp_path / "fits")).returncode == 0
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.anyio
async def test_a_cells_weights_are_the_stores_own_bytes(belljar: Belljar, tmp_path: Path) -> None:
    """No copy for a cell: the same file of the same device, however many cells see it."""
    (tmp_path / "weights.bin").write_bytes(os.urandom(1 << 20))
    added = add_weights(tmp_path / "weights.bin", home=belljar.home)
    stored = (added.path / "data" / "weights.bin").stat()
    policy = {"belljar": 1, "risk": "low", "model": {"weights": {"sha256": added.digest}}}
    policy["image"] = "default"
    loaded = load_model(policy, home=belljar.home)
    with start_run("test", None, [], home=belljar.home) as run:
        for _ in range(2):
            async with open_cell(loaded, run=run, home=belljar.home) as cell:
                seen = await cell.exec(["stat", "-c", "[%d,%i]", "/weights/weights.bin"])
                assert json.loads(seen.stdout) == [stored.st_dev, stored.st_ino]
