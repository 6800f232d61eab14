"""The command line as a user runs it, and what it may leave behind: nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.processes import end_preloaded, quick_command
from tests.machine import Templates

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.fakes.gateway import Gateway
    from tests.integration.as_user import UsersBelljar


@pytest.fixture
def chromium() -> Iterator[Callable[..., Browser]]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (path := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started, contextlib.ExitStack() as stack:

        def launch(*args: str) -> Browser:
            options = ["--no-sandbox", *args]
            launched: Browser = started.chromium.launch(executable_path=path, args=options)
            stack.callback(launched.close)
            return launched

        yield launch


@pytest.fixture
def browser(chromium: Callable[..., Browser]) -> Browser:
    return chromium()


@dataclass(frozen=True)
class Belljar:
    """Runs `belljar` with a store. `started` is what was left running; the fixtures end it, so that
    a test that fails leaves no cell."""

    home: Path
    started: list[subprocess.Popen[bytes]] = field(
        default_factory=list, kw_only=True, compare=False
    )

    def environment(self, **extra: str) -> dict[str, str]:
        return {
            **os.environ,
            "BELLJAR_HOME": str(self.home),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            **extra,
        }

    def argv(self, *args: str) -> list[str]:
        return (
            quick_command(*args)
            if args[0] in {"run", "report", "verdict"}  # what imports Inspect
            else [sys.executable, "-m", "belljar", *args]
        )

    def __call__(
        self,
        *args: str,
        input: bytes = b"",  # noqa: A002 - as `subprocess.run` calls it
        timeout_s: float = 300,
        **extra: str,
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.argv(*args),
            input=input,
            env=self.environment(**extra),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *args: str, **extra: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            self.argv(*args),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env=self.environment(**extra),
            start_new_session=True,
        )
        self.started.append(process)
        return process

    @contextlib.contextmanager
    def ending_what_it_started(self) -> Iterator[None]:
        """Whatever of it still runs at the end of the block is killed, and its cells with it; what
        then is left is reaped."""
        try:
            yield
        finally:
            running = [process for process in self.started if process.poll() is None]
            self.started.clear()
            for process in running:
                with process:
                    os.killpg(process.pid, signal.SIGKILL)
            if running:
                self("reap")

    def runs(self) -> list[Path]:
        folder = self.home / "runs"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def events(self, run: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (run / "ledger.jsonl").read_bytes().splitlines()]

    def leftovers(self) -> list[str]:
        folder = self.home / "journal"
        return sorted(path.name for path in folder.glob("*.json")) if folder.is_dir() else []


@pytest.fixture(scope="session", autouse=True)
def _preloaded_ends(_nothing_left_behind: None) -> Iterator[None]:
    yield
    end_preloaded()


@pytest.fixture
def belljar(home: Path) -> Iterator[Belljar]:
    made = Belljar(home)
    with made.ending_what_it_started():
        yield made


@pytest.fixture
def clean_after(belljar: Belljar) -> Iterator[Callable[[], Path]]:
    """Gives the newest run directory; at the end its ledger must verify and the journal must be
    empty."""
    before = set(belljar.runs())

    def newest() -> Path:
        new = [run for run in belljar.runs() if run not in before]
        if not new:
            pytest.fail("no run directory was made")
        return new[-1]

    yield newest
    for run in set(belljar.runs()) - before:
        verified = belljar("ledger", "verify", str(run))
        assert verified.returncode == 0, verified.stdout + verified.stderr
    assert belljar.leftovers() == []


@pytest.fixture(scope="session")
def installed(
    prepared_home: Path, ordinary_user: tuple[int, int], templates: Templates
) -> Iterator[UsersBelljar]:
    from tests.integration.as_user import installed_for

    with (
        installed_for(prepared_home, *ordinary_user) as made,
        templates.serving(made.home, ordinary_user),
    ):
        yield made


@pytest.fixture(scope="session")
def installed_with_groups(installed: UsersBelljar) -> Iterator[UsersBelljar]:
    """The same, whose programs run in control groups handed to the user."""
    from tests.integration.handed_groups import handed_groups

    with handed_groups(f"u{installed.uid}-{os.getpid()}", installed.uid, installed.gid) as groups:
        yield replace(installed, groups=groups)


@pytest.fixture
def user(installed: UsersBelljar) -> Iterator[UsersBelljar]:
    """The user's command line. After each test the record of every new run verifies and nothing is
    left."""
    from tests.integration.as_user import leaves_nothing

    with leaves_nothing(installed), installed.ending_what_it_started():
        yield installed


@pytest.fixture
def grouped(installed_with_groups: UsersBelljar) -> Iterator[UsersBelljar]:
    from tests.integration.as_user import leaves_nothing

    with leaves_nothing(installed_with_groups), installed_with_groups.ending_what_it_started():
        yield installed_with_groups


@pytest.fixture(scope="module")
def module_gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway's process for all of a module, with the bounds in the module's `GATEWAY`."""
    from tests.fakes.gateway import running

    bounds = getattr(request.module, "GATEWAY", {})
    with running(tmp_path_factory.mktemp("gateway"), **bounds) as found:
        yield found


@pytest.fixture
def gateway(module_gateway: Gateway) -> Gateway:
    module_gateway.owner.events.clear()
    return module_gateway
