"""Target cells: a stand-in of kind `cell` or `python` as a policy, and its program."""

from __future__ import annotations

import importlib.metadata
import io
import math
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread

from belljar.cell.base import spawn_task
from belljar.cell.cell import Cell
from belljar.cell.exec import RunningCommand
from belljar.cell.local_tree import list_source
from belljar.cell.task_data import not_taken, put_directory, reading_for
from belljar.channel import ExecOutput, FileTooLargeError
from belljar.compose.values import SETTLE_S
from belljar.errors import BelljarError, CellError, HostError, PolicyError
from belljar.image.config import image_health
from belljar.plan.network import StandInPlan
from belljar.plan.obstacles import NETWORK_EXTRA_HINT
from belljar.policy.limits import Tier, demanded_tier
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.model import Policy
from belljar.policy.reference import is_idle
from belljar.policy.stand_ins import PythonStandIn, TargetStandIn
from belljar.units import printable

Wait: TypeAlias = Callable[[], Awaitable[None]]
_OWN: Final = ("image", "user", "workdir", "env", "files", "resources", "rights")
# The first that the program's user can write has its output (native/guest/child.c).
LOGS: Final = ("/var/log/service.log", "/tmp/service.log")  # noqa: S108 - in the cell
# A program with a health check that ends badly within it is not asked for its health.
_EARLY_END_S: Final = 0.2
# With Docker's pauses of 100 ms, 200 ms, … a minute and a half of them.
_MAX_STARTS: Final = 11
# Docker's first pause before a restart; each next one is twice as long.
_FIRST_PAUSE_S: Final = 0.1
_MAX_LOG_BYTES: Final = 1 << 20
# The last try of a check gets at least this, however little of its time is left.
_MIN_TIMEOUT_S: Final = 1.0
# A check by HTTP, with whatever client the image has.
_FETCH: Final = """\
if command -v curl > /dev/null; then exec curl -fsS -o /dev/null "$1"; fi
if command -v wget > /dev/null; then exec wget -q -O /dev/null "$1"; fi
exec python3 -c "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])" "$1"
"""
# Of the log's end, in an error: it holds the traceback that explains it.
_LOG_BYTES: Final = 2000


def target_policy(parent: LoadedPolicy, stand_in: StandInPlan) -> LoadedPolicy:
    """Return a target cell's policy: the range's risk, all else its own."""
    policy = parent.policy
    written = policy.network.stand_ins.get(stand_in.id) if policy.network is not None else None
    if not isinstance(written, TargetStandIn):
        raise TypeError(f"the stand-in {stand_in.id} has no cell")
    tier = max(demanded_tier(policy.risk, policy.tier), written.tier or Tier.CONTAINER)
    # The risk is the whole range's; all else of a target is its own.
    fields = {"belljar": policy.belljar, "risk": policy.risk, "name": stand_in.id, "tier": tier}
    own = {name: value for name in _OWN if (value := getattr(written, name, None)) is not None}
    # Its `files` are a directory, which goes in as an archive
    if isinstance(written, PythonStandIn):
        del own["files"]
    try:
        made = Policy.model_validate({**own, **fields, "network": "none"}, strict=False)
    except ValueError as error:
        raise PolicyError(
            f"the target cell can't be meant: {printable(str(error), max_chars=600)}",
            where=f"network.stand_ins.{stand_in.id}",
            hint="correct the fields of the stand-in",
        ) from error
    data = parent.data.of(stand_in.id) if parent.data is not None else None
    return replace(parent, policy=made, data=data)


async def serve(cell: Cell, stand_in: StandInPlan) -> None:
    await (await start_serving(cell, stand_in))()


async def start_serving(cell: Cell, stand_in: StandInPlan) -> Wait:
    """Start the target's program, and run one that `completes` to its end.

    The result waits until it is healthy, or has run for `SETTLE_S`. Both raise `CellError`.
    """
    settings = stand_in.settings
    if stand_in.kind == "python":
        packed = await anyio.to_thread.run_sync(server_archive)
        await cell.write_file(SERVER, packed, mode=0o644, user="0", owner=cell.plan.user)
        await _copy_app(cell, stand_in)
        ports = [str(port.number) for port in stand_in.ports]
        command: Sequence[str] = ["python3", "-c", _BOOT, str(settings["app"]), *ports]
    else:
        command = words_to_run(settings, cell)
    health = health_of(cell, stand_in, command)
    for directory in settings.get("directories") or ():
        path, _, rest = directory.partition(":")
        named = dict(option.split("=") for option in rest.split(",")) if rest else {}
        mode = int(named.get("mode", "755"), 8) if named else None
        owner = f"{named.get('uid', 0)}:{named.get('gid', 0)}" if named else ""
        try:
            await cell.make_directory(path, mode=mode, owner=owner)
        except (OSError, TimeoutError) as error:
            raise _failed(stand_in, cell, f"its directory {path} can't be made: {error}") from error
    if not command and settings.get("completes"):
        raise _failed(stand_in, cell, "there is nothing to run to its end")
    if not command:
        return partial(_wait_healthy, stand_in, cell, health)
    program = Program(cell, stand_in, command)
    if settings.get("completes"):
        await program.complete()
        return partial(_wait_healthy, stand_in, cell, {})
    await program.start(_EARLY_END_S if health else SETTLE_S)
    return partial(program.wait_ready, health)


class Program:
    """A service's program, restarted by its `restart` until ready."""

    def __init__(self, cell: Cell, stand_in: StandInPlan, command: Sequence[str]) -> None:
        self._cell, self._stand_in, self._command = cell, stand_in, command
        policy, _, times = str(stand_in.settings.get("restart") or "no").partition(":")
        self._always = policy not in ("no", "on-failure")
        most = min(int(times) + 1, _MAX_STARTS) if int(times or 0) else _MAX_STARTS
        self._most_starts = 1 if policy == "no" else most
        self._starts = 0
        self._running: RunningCommand | None = None
        self._output: ExecOutput | None = None
        self._error: BelljarError | None = None
        self._is_wanted = True
        self._ended = anyio.Event()

    async def complete(self) -> None:
        """Run it to its end. Raise `CellError`."""
        self._always = False
        await self._run(self._cell.plan.limits.exec_timeout_s)
        await self.check_runs()

    async def start(self, watched_s: float) -> None:
        """Start it. Raise `CellError` if it fails within this time."""
        spawn_task(self._run)
        with anyio.move_on_after(watched_s):
            await self._ended.wait()
        await self.check_runs()

    async def wait_ready(self, health: Mapping[str, Any]) -> None:
        """Wait until it is healthy or settled. Raise `CellError`."""
        seen = 1  # the first start was watched
        try:
            if health:
                await _wait_healthy(self._stand_in, self._cell, health, self)
            while not health and not self._ended.is_set():
                running = self._running
                if self._starts == seen and running is not None and running.running:
                    break
                seen = self._starts
                with anyio.move_on_after(SETTLE_S):
                    await self._ended.wait()
            if not health:
                await self.check_runs()
        finally:
            self._is_wanted = False
        if self._running is not None:
            await self._running.leave()

    async def _run(self, timeout_s: float | None = None) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while self._is_wanted:
                self._starts += 1
                self._running = await self._cell.start(
                    self._command, timeout_s=timeout_s, service=True
                )
                output = self._output = await self._running.wait()
                is_over = output.timed_out or output.not_started_errno is not None
                is_done = is_over or self._starts == self._most_starts
                if is_done or (output.success and not self._always):
                    return
                await anyio.sleep(pause_s)
                pause_s *= 2
        except BelljarError as error:  # a breach, too: this task has nobody who hears of it
            self._error = error
        except (OSError, ValueError) as error:  # the image's command has a NUL, or is too long
            what = f"its program can't be started: {printable(str(error), max_chars=300)}"
            self._error = _failed(self._stand_in, self._cell, what)
        finally:
            self._ended.set()

    async def check_runs(self) -> None:
        """Raise `CellError` if it has failed for good."""
        if self._error is not None:
            raise self._error
        output = self._output
        if not self._ended.is_set() or output is None or output.success:
            return
        what = "took too long" if output.timed_out else f"ended with status {output.returncode}"
        if output.not_started_errno is not None:
            what = f"can't be started: {printable(output.why_not_started, max_chars=300)}"
        starts = f" at start {self._starts}" if self._starts > 1 else ""
        tail = await log_tail(self._cell)
        raise _failed(self._stand_in, self._cell, f"its program {what}{starts}{tail}")


def health_of(cell: Cell, stand_in: StandInPlan, command: Sequence[str]) -> Mapping[str, Any]:
    """Return its health check, written or the image's. Raise `CellError`."""
    written = stand_in.settings.get("health") or {}
    wants_image = written.get("image")
    if wants_image and not cell.image_health:
        raise _failed(stand_in, cell, "neither the file nor its image has a check")
    if written.get("times"):
        return image_health(cell.image, written["times"]) or {}
    if written and wants_image is None:
        return dict(written)
    has_none = wants_image is False or (is_idle(command) and not wants_image)
    return {} if has_none else cell.image_health


def words_to_run(settings: Mapping[str, Any], cell: Cell) -> Sequence[str]:
    if settings.get("command") is not None:
        return tuple(settings["command"])
    arguments = settings.get("arguments")
    return cell.image_command if arguments is None else (*cell.image_entrypoint, *arguments)


async def _wait_healthy(
    stand_in: StandInPlan, cell: Cell, health: Mapping[str, Any], program: Program | None = None
) -> None:
    if not health:
        return
    argv = [str(word) for word in health.get("command") or ()]
    if not argv:
        url = f"http://127.0.0.1:{int(health['port'])}{health['http']}"
        argv = ["/bin/sh", "-c", _FETCH, "sh", url]
    retries, timeout_s = int(health["retries"]), float(health["timeout"])
    until_s = anyio.current_time() + float(health.get("within") or math.inf)
    last, tries = "", 0
    while tries < retries and (tries == 0 or anyio.current_time() < until_s):
        left_s = max(until_s - anyio.current_time(), _MIN_TIMEOUT_S)
        output = await cell.exec(argv, timeout_s=min(timeout_s, left_s))
        if output.success:
            return
        last, tries = _last_line(output), tries + 1
        if program is not None:
            await program.check_runs()
        await anyio.sleep(float(health["interval"]))
    tail = await log_tail(cell) if program is not None else ""
    what = f"it did not become healthy in {tries} tries: {last}{tail}"
    raise _failed(stand_in, cell, what)


async def log_tail(cell: Cell) -> str:
    for path in LOGS:
        try:
            written = await cell.read_file(path, max_bytes=_MAX_LOG_BYTES)
        except FileTooLargeError:
            return f"; its output is in {path}"
        except (OSError, TimeoutError):
            continue
        if shown := written[-_LOG_BYTES:].decode("utf-8", "replace").strip():
            return f"; its output ends with: {printable(shown, max_chars=_LOG_BYTES)}"
    return ""


def _last_line(output: ExecOutput) -> str:
    """Return the last line; HTTP clients print progress before it."""
    said = output.why_not_started or output.stderr_text.strip() or output.stdout_text.strip()
    last = "it took too long" if output.timed_out else (said or "the check failed").splitlines()[-1]
    return printable(last.strip(), max_chars=300)


def _failed(stand_in: StandInPlan, cell: Cell, what: str) -> CellError:
    hint = "fix its `command` or its `health`; `belljar exec` with its image shows what happens"
    name = f"the target cell {stand_in.id}" if stand_in.id else "the image's program"
    return CellError(f"{name} is not ready: {what}", where=f"cell {cell.id}", hint=hint)


# An author's app; more is a mistake in its `files`, as a virtual environment would be.
MAX_APP_BYTES: Final = 64 << 20
MAX_APP_FILES: Final = 10_000
SERVER: Final = "/opt/server.zip"
APP_DIRECTORY: Final = "/srv/app"
# uvicorn, and what it imports with the settings below.
_PACKAGES: Final = ("uvicorn", "click", "h11", "wsproto")
_BOOT: Final = f"""\
import socket, sys
sys.path[:0] = ["{SERVER}", "{APP_DIRECTORY}"]
import uvicorn
app, *ports = sys.argv[1:]
socks = []
for port in map(int, ports):
    socks.append(socket.create_server(("0.0.0.0", port), backlog=1024))
    print("serving at port", socks[-1].getsockname()[1], flush=True)
config = uvicorn.Config(app, http="h11", ws="wsproto", loop="asyncio", log_level="info")
uvicorn.Server(config).run(socks)
"""


def server_archive() -> bytes:
    """Return the server with its imports. Raise `HostError`."""
    try:
        files = [file for name in _PACKAGES for file in importlib.metadata.files(name) or ()]
    except importlib.metadata.PackageNotFoundError as error:
        what = f"the package {error.name} is missing"
        where = "stand-ins of kind `python`"
        raise HostError(what, where=where, hint=NETWORK_EXTRA_HINT) from error
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            if file.suffix == ".py" and ".." not in file.parts:
                archive.write(str(file.locate()), str(file))
    return packed.getvalue()


async def _copy_app(cell: Cell, stand_in: StandInPlan) -> None:
    """Put the author's directory in place. Raise `PolicyError`."""
    if stand_in.directory is None:
        raise TypeError(f"the stand-in {stand_in.id} has no directory")
    bounded = partial(list_source, max_files=MAX_APP_FILES, max_bytes=MAX_APP_BYTES)
    where = f"network.stand_ins.{stand_in.id}.files"
    with reading_for(where):
        source = await anyio.to_thread.run_sync(bounded, stand_in.directory)
    try:
        await put_directory(cell, source, APP_DIRECTORY, user=None, where=where)
    except (OSError, TimeoutError) as error:
        raise not_taken(cell, str(error)) from error
