"""The distribution: what the wheel has, what its build refuses, and what it requires."""

from __future__ import annotations

import email
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import belljar

ROOT = Path(__file__).parents[2]


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    return next(target.glob("belljar_sandbox-*.whl"))


def of_dist_info(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"belljar_sandbox-{belljar.__version__}.dist-info/{name}")


def test_the_bill_of_materials_is_valid_and_whole(wheel: Path) -> None:
    """Each program by its digest, what is linked into it, and each required package."""
    text = of_dist_info(wheel, "sboms/belljar-sandbox.cdx.json").decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    parts = {
        one["name"].replace(".", "-") if one["type"] == "library" else one["name"]: one
        for one in bill["components"]
    }
    with zipfile.ZipFile(wheel) as archive:
        programs = [name for name in archive.namelist() if "/_bin/" in name]
        assert len(programs) == 8
        for name in programs:
            assert (
                parts[name]["hashes"][0]["content"]
                == hashlib.sha256(archive.read(name)).hexdigest()
            )
    metadata = email.message_from_bytes(of_dist_info(wheel, "METADATA"))
    needed = {
        canonicalize_name(Requirement(text).name) for text in metadata.get_all("Requires-Dist", [])
    }
    assert needed | {"musl", "zig-compiler-rt"} <= set(parts)


def test_a_build_without_a_source_or_with_another_licence_fails(
    tmp_path: Path, hook: ModuleType
) -> None:
    """No program is lacking, no licence or library of others is another one."""
    for name in ("native", "licenses"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.md"))
    for place in hook.VENDORED:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)
    hook.check_compiler(tmp_path, project())
    with pytest.raises(SystemExit, match="not the version"):
        hook.check_compiler(tmp_path, {"build-system": {"requires": ["ziglang==0.1.0"]}})
    (tmp_path / "src/belljar/live/uplot.js").write_text("another")
    with pytest.raises(SystemExit, match=r"uplot\.js"):
        hook.check_compiler(tmp_path, project())
    (tmp_path / "licenses/musl.txt").write_text("another")
    with pytest.raises(SystemExit, match=r"musl\.txt"):
        hook.check_compiler(tmp_path, project())
    shutil.rmtree(tmp_path / "native/guest")
    with pytest.raises(SystemExit, match="sources of `agent` are missing"):
        list(hook.build_all(tmp_path))


_HIDING = """\
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = ("asyncssh", "dulwich", "uvicorn", "wsproto")
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""
_LOW = "belljar: 1\nrisk: low\n"
_RANGE = f"""{_LOW}network:
  stand_ins:
    code: {{kind: git, names: [code.example], repositories: git}}
"""


@pytest.mark.promise("1.3")
def test_a_range_without_the_extra_names_what_installs_it(tmp_path: Path) -> None:
    """Also where a stand-in's settings need a library to be read."""
    (tmp_path / "sitecustomize.py").write_text(_HIDING)
    (tmp_path / "policy.yaml").write_text(_RANGE)
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "git/a"], check=True)
    ran = subprocess.run(
        [sys.executable, "-m", "belljar", "policy", "check", "policy.yaml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}",
            "BELLJAR_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 3, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "pip install 'belljar-sandbox[network,stand-ins]'" in ran.stderr
