"""Running the host's tools: argv lists only, bounded in time, output and size of their files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from belljar.errors import HostError
from belljar.units import format_duration, printable

_KEPT_STDERR_BYTES: Final = 4096
_WATCH_S: Final = 0.2
_PACKAGES: Final = {
    **dict.fromkeys(("prlimit", "setpriv", "unshare", "nsenter", "choom"), "util-linux"),
    **dict.fromkeys(("sqfstar", "unsquashfs"), "squashfs-tools"),
    **dict.fromkeys(("newuidmap", "newgidmap"), "uidmap"),
    **dict.fromkeys(("apt-get", "apt-cache"), "apt"),
    "dpkg-deb": "dpkg",
    "xz": "xz-utils",
}
"""Of tools that are not called like their package."""


def tool(name: str) -> str:
    """The absolute path of a host tool. Raises `HostError` that says which package has it."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin")
    if found is None:
        raise HostError(
            f"the tool {name} is missing",
            hint=f"run `belljar setup`, or install {_PACKAGES.get(name, name)}",
        )
    return found


def limited(argv: Sequence[str], *, max_file_bytes: int, cpu_s: int) -> list[str]:
    """The command under limits: largest file, seconds of CPU, no core dumps."""
    return [tool("prlimit"), f"--fsize={max_file_bytes}", f"--cpu={cpu_s}", "--core=0", "--", *argv]


def plain_env(**extra: str) -> dict[str, str]:
    """This process's environment in the C locale, so that messages can be read by a program."""
    return {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **extra}


def run_tool(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: IO[bytes] | None = None,
    watch: Callable[[], None] | None = None,
) -> bytes:
    """Run a tool to its end and return its standard output.

    Its process group is killed at `timeout_s`, on interruption and when `watch` (called about
    every 0.2 s) raises. Standard error also goes to `log`.
    Raises `HostError` with the last lines of standard error when the tool fails.
    """
    with started(argv, env=env, cwd=cwd, stdout=subprocess.PIPE) as process:
        waited_s = 0.0
        while True:
            try:
                output, complaint = process.communicate(timeout=min(_WATCH_S, timeout_s))
                break
            except subprocess.TimeoutExpired:
                waited_s += _WATCH_S
            if watch is not None:
                watch()
            if waited_s >= timeout_s:
                what = (
                    f"{_name(argv)} took longer than {format_duration(timeout_s)} and was stopped"
                )
                raise HostError(what, where=_name(argv))
    if log is not None:
        log.write(complaint)
    if process.returncode != 0:
        raise failed(argv, process.returncode, complaint)
    return output


def run_logged(
    argv: Sequence[str],
    *,
    log: Path,
    on_line: Callable[[str], None] = lambda _line: None,
    timeout_s: float = 3600,
    finish_when_interrupted: bool = False,
) -> None:
    """Run a tool to its end, its output appended to `log`; `on_line` runs in another thread.

    `finish_when_interrupted`: raise an interruption only after it has ended.
    Raises `HostError` with its last words when it fails.
    """
    with log.open("ab") as file:
        file.write(f"\n$ {' '.join(argv)}\n".encode())
        file.flush()

        def keep(line: str) -> None:
            file.write(line.encode("utf-8", "replace") + b"\n")
            on_line(line)

        with (
            started(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
            drained(process, on_line=keep) as said,
        ):
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise HostError(
                    f"{argv[0]} took longer than {format_duration(timeout_s)}", where=str(log)
                ) from None
            except KeyboardInterrupt:
                if finish_when_interrupted:
                    process.wait(timeout_s)
                raise
    if status != 0:
        raise HostError(
            str(failed(argv, status, bytes(said))),
            where=str(log),
            hint="the log has the whole story; then run it again",
        )


@contextmanager
def drained(
    process: subprocess.Popen[bytes], *, on_line: Callable[[str], None] | None = None
) -> Iterator[bytearray]:
    """Read standard error (or a joint output) so that it never blocks; the last 16 KiB.

    `on_line` runs in another thread; lines longer than 4 KiB come in pieces.
    """
    kept, stream = bytearray(), process.stderr or process.stdout

    def read() -> None:
        while stream is not None and (line := stream.readline(_KEPT_STDERR_BYTES)):
            kept.extend(line)
            del kept[:-16384]
            if on_line is not None:
                on_line(line.decode("utf-8", "replace").rstrip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield kept
    finally:
        kill_group(process)
        reader.join(timeout=5)


@contextmanager
def started(
    argv: Sequence[str],
    *,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.PIPE,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A running tool in its own process group, which is killed if it outlives the block."""
    process = subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=plain_env() if env is None else dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes], *, grace_s: float = 0) -> None:
    """Kill the tool's process group and reap it; with `grace_s`, ask it to end first."""
    if grace_s and process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    # The group may outlive its leader, whose number is free again once it is reaped.
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()


def failed(argv: Sequence[str], status: int, complaint: bytes) -> HostError:
    """The error for a tool that ended badly, with its last words, escaped."""
    name = _name(argv)
    how = (
        f"was killed by {signal.Signals(-status).name}"
        if status < 0
        else f"failed with status {status}"
    )
    words = printable(complaint[-_KEPT_STDERR_BYTES:].decode("utf-8", "replace").strip()[-800:])
    return HostError(f"{name} {how}: {words}" if words else f"{name} {how}", where=name)


def _name(argv: Sequence[str]) -> str:
    """The tool that a command is about: what comes after the last wrapper's `--`."""
    ends = [index for index, word in enumerate(argv[:-1]) if word == "--"]
    return Path(argv[ends[-1] + 1] if ends else argv[0]).name


def give_tree(tree: Path, uid: int) -> None:
    """As root, make `uid` own a tree, no link followed; as another user, do nothing."""
    if os.geteuid() != 0:
        return
    os.chown(tree, uid, uid, follow_symlinks=False)
    for folder, folders, files in os.walk(tree):
        for name in (*folders, *files):
            os.chown(Path(folder, name), uid, uid, follow_symlinks=False)
