"""A host that lacks something, as tests of faults make it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.integration.conftest import Belljar
from tests.integration.remains import Remains, cells_of, within

from belljar.ledger.verification import Status, verify

SITE = (
    "    site: {kind: http, names: [shop.example], ports: [80], routes: [{path: /, body: hello}]}\n"
)
FETCH = ("curl", "-s", "http://shop.example/")
PATIENCE_S = 300  # only against a hang


@dataclass(frozen=True)
class Host:
    """Runs commands on a store, on a host that lacks something, and looks at what they leave."""

    belljar: Belljar
    scratch: Path

    def run(
        self, *args: str, mounts: Sequence[str] = (), **extra: str
    ) -> subprocess.CompletedProcess[bytes]:
        """A command line in a mount namespace of its own, after these shell commands."""
        words = [sys.executable, "-m", "belljar", *args]
        return subprocess.run(
            ["unshare", "--mount", "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *words],
            env=self.belljar.environment(TMPDIR=str(self.scratch), **extra),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def refusal(
        self,
        *policy: str,
        mounts: Sequence[str] = (),
        code: int = 3,
        command: Sequence[str] = ("true",),
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """What `exec` under the policy (and options) says when it can't."""
        before = self.belljar.runs()
        ran = self.run("exec", *policy, "--", *command, mounts=mounts, **env)
        said = ran.stderr.decode()
        assert (ran.returncode, ran.stdout) == (code, b""), said
        self.told_and_gone(said, before)
        if code == 3:  # a target that fails is its own event, with 5
            assert {"policy.refused", "cell.failed"} & set(self.kinds(before))
        return said

    def told_and_gone(self, said: str, before: Collection[Path]) -> None:
        """Once, with a hint, on record, and of the new run nothing but its record is left."""
        assert "Traceback" not in said
        assert "\n  hint: " in said
        (run,) = (run for run in self.belljar.runs() if run not in before)
        self.check(run)

    def kinds(self, before: Collection[Path]) -> list[str]:
        """The events of the runs that are new, as far as they are written."""
        with suppress(OSError, ValueError):
            return [
                str(event["kind"])
                for run in self.belljar.runs()
                if run not in before
                for event in self.belljar.events(run)
            ]
        return []

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """`belljar` that heeds SIGINT, whoever started the tests; `belljar` ends it."""
        argv = ["env", "--default-signal=INT", sys.executable, "-m", "belljar", *args]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.belljar.environment(TMPDIR=str(self.scratch)),
            start_new_session=True,
        )
        self.belljar.started.append(process)
        return process

    def check(self, run: Path) -> None:
        """Nothing is left of a run's cells; its record verifies."""
        remains = Remains(self.belljar.home, os.getpid(), self.scratch)
        assert within(60, lambda: remains.of(cells_of(run), ())) == []
        found = verify(run)
        assert found.status is Status.VERIFIED, found.problem


@pytest.fixture
def host(belljar: Belljar, tmp_path: Path) -> Host:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Host(belljar, scratch)


@pytest.fixture
def policy(tmp_path: Path) -> Callable[..., str]:
    """Writes a policy with these stand-ins, and files beside it."""

    def write(stand_ins: str = SITE, **files: str) -> str:
        (tmp_path / "own").mkdir(exist_ok=True)
        for name, text in files.items():
            (tmp_path / "own" / name.replace("_", ".")).write_text(text)
        head = "belljar: 1\nrisk: low\nuser: root\nnetwork:\n  stand_ins:\n"
        (tmp_path / "p.yaml").write_text(head + stand_ins)
        return str(tmp_path / "p.yaml")

    return write


@contextmanager
def mounted(path: Path, options: str) -> Iterator[Path]:
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def read_only(path: Path) -> tuple[str, str, str]:
    return f"mkdir -p {path}", f"mount --bind {path} {path}", f"mount -o remount,bind,ro {path}"


def hide(*programs: str) -> list[str]:
    """Each is found no more: an empty file that nobody may run lies in its place."""
    paths = {Path(folder, name).resolve() for name in programs for folder in os.get_exec_path()}
    return [f"mount --bind /dev/null {path}" for path in sorted(paths) if path.is_file()]
