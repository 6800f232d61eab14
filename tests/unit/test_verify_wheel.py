"""`belljar-verify`: the wheel of its own that checks a run where Belljar is not installed."""

from __future__ import annotations

import email
import importlib.metadata
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.unit.ledger.conftest import make_run

from belljar.ledger.verification import verify

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(argv, cwd=ROOT / "packages/verify", check=True, capture_output=True)
    return next(target.iterdir())


def required(name: str) -> Iterator[str]:
    """A distribution that is installed here and what it requires."""
    yield name
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from required(requirement.name)


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`belljar-verify` of a fresh environment: the wheel, and what it requires from this one."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place, symlinks=True)
    python = place / "bin/python"
    argv = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "-q"]
    subprocess.run([*argv, "--python", str(python), str(wheel)], check=True, timeout=120)
    packages = next(place.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        needed = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    for each in {one for text in needed for one in required(Requirement(text).name)}:
        for file in importlib.metadata.files(each) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), packages / file)
    gone = subprocess.run([python, "-c", "import belljar"], check=False, capture_output=True)
    assert gone.returncode == 1
    return place / "bin/belljar-verify"


def call(program: Path, *words: object) -> tuple[int, str, str]:
    ran = subprocess.run(
        [program, *map(str, words)], check=False, capture_output=True, text=True, timeout=60
    )
    return ran.returncode, ran.stdout, ran.stderr


def test_it_checks_a_run_and_names_what_was_changed(program: Path, tmp_path: Path) -> None:
    """A good run passes with its key, and no changed one does, nor another key's."""
    run = make_run(tmp_path)
    key = verify(run).key
    code, shown, _ = call(program, "--strict", "--json", "--key", key, run)
    assert code == 0
    assert json.loads(shown)["status"] == "verified"
    assert call(program, "--key", "1" * 64, run)[0] == 1
    assert call(program, "--strict", run)[0] == 1
    (run / "policy.yaml").write_text("belljar: 2\n")
    code, shown, _ = call(program, "--key", key, run)
    assert code == 1
    assert "policy.yaml" in shown
