"""Target cells: what a stand-in of kind `cell` or `python` means as a policy of its own, and having
its program serve. The deciding is pure.
"""

from __future__ import annotations

import importlib.metadata
import io
import math
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread

from belljar.cell.cell import Cell
from belljar.cell.output import ExecOutput
from belljar.compose.values import SETTLE_S, is_idle
from belljar.errors import CellError, HostError, PolicyError
from belljar.plan.explain import NETWORK_EXTRA_HINT
from belljar.plan.network import StandInPlan
from belljar.policy import LoadedPolicy, Policy, demanded_tier
from belljar.policy.files import read_regular
from belljar.policy.stand_ins import PythonStandIn, TargetStandIn
from belljar.units import format_size, printable

Wait: TypeAlias = Callable[[], Awaitable[None]]
_INHERITED: Final = ("belljar", "risk")
_OWN: Final = ("image", "user", "workdir", "env", "files", "resources", "rights")
_LOGS: Final = ("/var/log/service.log", "/tmp/service.log")  # noqa: S108 - in the cell
_BEHIND: Final = """\
command -v "$1" > /dev/null || { echo "$1: not found" >&2; exit 127; }
log=%s; (: > $log) 2> /dev/null || log=%s
"$@" > $log 2>&1 < /dev/null &
echo $log; left=%d
while [ $left -gt 0 ] && kill -0 $! 2> /dev/null; do sleep 0.1; left=$((left - 1)); done
kill -0 $! 2> /dev/null || wait $!"""
"""Runs the program in the background, and prints the name of the file that has its output.

Ends after so many tenths of a second, or with the program and its status. In a subshell, since a
POSIX shell ends where its own `:` can't write.
"""
_EARLY_END_S: Final = 0.2
"""A program with a health check that ends with another status within it is not asked for its
health."""
_START_TIMEOUT_S: Final = 30.0
_MIN_TIMEOUT_S: Final = 1.0
_LOG_BYTES: Final = 2000


def target_policy(parent: LoadedPolicy, stand_in: StandInPlan) -> LoadedPolicy:
    """The policy of a target cell: the range's risk, its own image, files and limits, a tier at
    least the range's. Raises `PolicyError`.
    """
    policy = parent.policy
    written = policy.network.stand_ins.get(stand_in.id) if policy.network is not None else None
    if not isinstance(written, TargetStandIn):
        raise TypeError(f"the stand-in {stand_in.id} has no cell")
    own = {
        name: getattr(written, name) for name in _OWN if getattr(written, name, None) is not None
    }
    # Its `files` are a directory, which goes in as an archive
    if isinstance(written, PythonStandIn):
        del own["files"]
    fields = {name: getattr(policy, name) for name in _INHERITED}
    tier = demanded_tier(policy.risk, policy.tier)
    if written.tier is not None:
        tier = max(tier, written.tier)
    try:
        made = Policy.model_validate(
            {**fields, **own, "name": stand_in.id, "tier": tier, "network": "none"}, strict=False
        )
    except ValueError as error:
        raise PolicyError(
            f"the target cell can't be meant: {printable(str(error), max_chars=600)}",
            where=f"network.stand_ins.{stand_in.id}",
            hint="correct the fields of the stand-in",
        ) from error
    data = parent.data.of(stand_in.id) if parent.data is not None else None
    return replace(parent, policy=made, data=data)


async def serve(cell: Cell, stand_in: StandInPlan) -> None:
    """Start the target's program and wait until it is healthy.

    Raises as `start_serving` and what that returns.
    """
    await (await start_serving(cell, stand_in))()


async def start_serving(cell: Cell, stand_in: StandInPlan) -> Wait:
    """Start the target's program; one that `completes` has then ended.

    The result waits until it is healthy, and raises `CellError` if it is not so in time. Without a
    health check it is ready when it has run for `SETTLE_S`, or ended with status 0.

    Raises `CellError` with its last output when it can't be started or ends with another status,
    or when another service waits for its health and it has no check.
    """
    if stand_in.kind == "python":
        for path, pack in ((SERVER, server_archive), (APP, partial(app_archive, stand_in))):
            await cell.write_file(
                path,
                await anyio.to_thread.run_sync(pack),
                mode=0o644,
                user="0",
                owner=cell.plan.user,
            )
        command: Sequence[str] = serving_command(stand_in)
    else:
        command = words_to_run(stand_in.settings, cell)
    health = health_of(cell, stand_in, command)
    if directories := stand_in.settings.get("directories"):
        made = await cell.exec(
            ["mkdir", "-p", "--", *directories], user="0", cwd="/", timeout_s=_START_TIMEOUT_S
        )
        if not made.success:
            raise _failed(stand_in, cell, f"its directories can't be made: {_error_text(made)}")
    if stand_in.settings.get("completes"):
        # Run the program to its end, for at most the cell's `exec_timeout`
        output = await cell.exec(command) if command else None
        if output is None or not output.success:
            why = "there is nothing to run" if output is None else _error_text(output)
            raise _failed(stand_in, cell, f"its program did not end well: {why}")
        command, health = (), {}
    log = (
        await _start(cell, stand_in, command, _EARLY_END_S if health else SETTLE_S)
        if command
        else ""
    )
    return partial(_wait_healthy, cell, stand_in, health, log)


def health_of(cell: Cell, stand_in: StandInPlan, command: Sequence[str]) -> Mapping[str, Any]:
    """Its health check: as written, else the image's; {}: none.

    A program that only waits has none: the image's check is another program's. Raises `CellError`
    where the image ought to have a check and has none.
    """
    written = stand_in.settings.get("health") or {}
    wants_image = written.get("image")
    if wants_image and not cell.image_health:
        raise _failed(
            stand_in,
            cell,
            "neither the file nor its image has a check",
        )
    if written.get("times"):
        return cell.image_health_with(written["times"]) or {}
    if written and wants_image is None:
        return dict(written)
    return (
        {} if wants_image is False or (is_idle(command) and not wants_image) else cell.image_health
    )


def words_to_run(settings: Mapping[str, Any], cell: Cell) -> Sequence[str]:
    """A target's command: its own, the image's entrypoint with its own arguments, or all of the
    image's; often nothing.
    """
    if settings.get("command") is not None:
        return tuple(settings["command"])
    arguments = settings.get("arguments")
    return cell.image_command if arguments is None else (*cell.image_entrypoint, *arguments)


async def _start(
    cell: Cell, stand_in: StandInPlan, command: Sequence[str], watched_s: float
) -> str:
    """Start it, wait `watched_s` for its end; its log file's name."""
    script = _BEHIND % (*_LOGS, round(watched_s * 10))
    output = await cell.exec(["/bin/sh", "-c", script, "sh", *command], timeout_s=_START_TIMEOUT_S)
    log = output.stdout.decode("utf-8", "replace").strip()
    if output.success:
        return log
    if log not in _LOGS:
        raise _failed(stand_in, cell, f"its program can't be started: {_error_text(output)}")
    tail = await _log_tail(cell, log)
    raise _failed(stand_in, cell, f"its program ended with status {output.returncode}{tail}")


async def _wait_healthy(
    cell: Cell, stand_in: StandInPlan, health: Mapping[str, Any], log: str
) -> None:
    if not health:
        return
    argv = health_command(health)
    retries, timeout_s = int(health["retries"]), float(health["timeout"])
    until_s = anyio.current_time() + float(health.get("within") or math.inf)
    last, tries = "", 0
    while tries < retries and (tries == 0 or anyio.current_time() < until_s):
        left_s = max(until_s - anyio.current_time(), _MIN_TIMEOUT_S)
        output = await cell.exec(argv, timeout_s=min(timeout_s, left_s))
        if output.success:
            return
        last, tries = _last_line(output), tries + 1
        await anyio.sleep(float(health["interval"]))
    tail = await _log_tail(cell, log)
    raise _failed(
        stand_in,
        cell,
        f"it did not become healthy in {tries} tries: {last or 'the check failed'}{tail}",
    )


def health_command(health: Mapping[str, Any]) -> list[str]:
    """What is run in the target cell to see whether it is healthy.

    For HTTP whatever client the image has. Pure.
    """
    if health.get("command"):
        return [str(word) for word in health["command"]]
    url = f"http://127.0.0.1:{int(health['port'])}{health['http']}"
    fetch = (
        'if command -v curl > /dev/null; then exec curl -fsS -o /dev/null "$1"; fi; '
        'if command -v wget > /dev/null; then exec wget -q -O /dev/null "$1"; fi; '
        'exec python3 -c "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])" "$1"'
    )
    return ["/bin/sh", "-c", fetch, "sh", url]


async def _log_tail(cell: Cell, log: str) -> str:
    if not log:
        return ""
    output = await cell.exec(["tail", "-c", str(_LOG_BYTES), log], timeout_s=_START_TIMEOUT_S)
    return (
        f"; its output ends with: "
        f"{printable(output.stdout.decode('utf-8', 'replace').strip(), max_chars=_LOG_BYTES)}"
    )


def _error_text(output: ExecOutput) -> str:
    if output.timed_out:
        return "it took too long"
    text = (
        output.why_not_started
        or (output.stderr or output.stdout).decode("utf-8", "replace").strip()
    )
    return printable(text, max_chars=300) or f"status {output.returncode}"


def _last_line(output: ExecOutput) -> str:
    """A check's last line: an HTTP client prints its progress before."""
    text = (output.stderr.strip() or output.stdout.strip()).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        printable(lines[-1], max_chars=300)
        if lines and not output.timed_out
        else _error_text(output)
    )


def _failed(stand_in: StandInPlan, cell: Cell, what: str) -> CellError:
    return CellError(
        f"the target cell {stand_in.id} does not serve: {what}"
        if stand_in.id
        else f"the image's program is not ready: {what}",
        where=f"network.stand_ins.{stand_in.id} (cell {cell.id})"
        if stand_in.id
        else f"cell {cell.id}",
        hint="fix its `command` or its `health`; `belljar exec` with its image shows what happens",
    )


MAX_APP_BYTES: Final = 64 << 20
MAX_APP_FILES: Final = 10_000
SERVER: Final = "/opt/server.zip"
APP: Final = "/opt/app.zip"
APP_DIRECTORY: Final = "/srv/app"
_PACKAGES: Final = ("hypercorn", "h11", "h2", "hpack", "hyperframe", "priority", "wsproto")
_BOOT: Final = f"""\
import sys, zipfile
zipfile.ZipFile("{APP}").extractall("{APP_DIRECTORY}")
sys.path[:0] = ["{SERVER}", "{APP_DIRECTORY}"]
from hypercorn.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def serving_command(stand_in: StandInPlan) -> list[str]:
    """What runs in the target cell. Pure."""
    binds = [word for port in stand_in.ports for word in ("--bind", f"0.0.0.0:{port.number}")]
    return ["python3", "-c", _BOOT, str(stand_in.settings["app"]), *binds]


def server_archive() -> bytes:
    """The server and what it needs, as an archive that Python imports from.

    Raises `HostError` when it is not installed here.
    """
    try:
        files = [file for name in _PACKAGES for file in importlib.metadata.files(name) or ()]
    except importlib.metadata.PackageNotFoundError as error:
        raise HostError(
            f"the package {error.name} is missing",
            where="stand-ins of kind `python`",
            hint=NETWORK_EXTRA_HINT,
        ) from error
    sources = [file for file in files if file.suffix == ".py" and ".." not in file.parts]
    return _archive((str(file), Path(str(file.locate())).read_bytes()) for file in sources)


def app_archive(stand_in: StandInPlan) -> bytes:
    """The author's directory, at most `MAX_APP_BYTES` in `MAX_APP_FILES` files; links are left out.

    Raises `PolicyError`.
    """
    directory = stand_in.directory
    if directory is None:
        raise _refused(stand_in, "it names no directory")
    found = sorted(
        path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()
    )
    found = [path for path in found if path.resolve().is_relative_to(directory.resolve())]
    total_bytes = sum(path.stat().st_size for path in found)
    if len(found) > MAX_APP_FILES or total_bytes > MAX_APP_BYTES:
        most = f"{MAX_APP_FILES:,} files with {format_size(MAX_APP_BYTES)}"
        raise _refused(
            stand_in, f"{len(found):,} files with {format_size(total_bytes)}; at most {most}"
        )
    try:
        names = [str(path.relative_to(directory)) for path in found]
        return _archive([(name, read_regular(directory, name, MAX_APP_BYTES)) for name in names])
    except (OSError, ValueError) as error:
        reason = error.strerror or "an error" if isinstance(error, OSError) else str(error)
        raise _refused(stand_in, f"a file of it can't be read: {reason.lower()}") from error


def _archive(files: Iterator[tuple[str, bytes]] | Sequence[tuple[str, bytes]]) -> bytes:
    """Equal files give equal bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(
                zipfile.ZipInfo(name, date_time=_EPOCH), content, compress_type=zipfile.ZIP_DEFLATED
            )
    return packed.getvalue()


def _refused(stand_in: StandInPlan, what: str) -> PolicyError:
    return PolicyError(
        f"the app can't be copied in: {printable(what)}",
        where=f"network.stand_ins.{stand_in.id}.files",
        hint="name a directory with the app's modules, and put much data into an image",
    )
