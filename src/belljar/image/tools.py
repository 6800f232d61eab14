"""Runs the host's tools, bounded in time and in size of their files."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Final, TypeVar

from belljar.errors import HostError
from belljar.store.home import HINT_SPACE
from belljar.subids import first_subordinate_id, grant_hint, user_name
from belljar.units import format_duration, format_size, printable

Report = Callable[[str], None]
Watch = Callable[[], None]
_T = TypeVar("_T")
_KEPT_STDERR_BYTES: Final = 4096
# How often `watch` looks, such as at the space that is left.
_POLL_S: Final = 0.2


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        hint = f"run `belljar setup`, or install the package that has {name}"
        raise HostError(f"the tool {name} is missing", hint=hint)
    return found


def plain_env(**extra: str) -> dict[str, str]:
    """Use the C locale, for messages that programs read."""
    return {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **extra}


def run_tool(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    watch: Watch = lambda: None,
) -> bytes:
    """Return standard output. Raises `HostError`; then the process group is killed."""
    with started(argv, env=env, cwd=cwd, stdout=subprocess.PIPE) as process:
        output, complaint = polled(
            lambda poll_s: process.communicate(timeout=poll_s), argv, timeout_s, watch
        )
    if process.returncode != 0:
        raise failed(argv, process.returncode, complaint)
    return output


def polled(
    wait: Callable[[float], _T], argv: Sequence[str], timeout_s: float, watch: Watch = lambda: None
) -> _T:
    """Raise `HostError` at `timeout_s`; call `watch` meanwhile."""
    give_up = time.monotonic() + timeout_s
    while True:
        with suppress(subprocess.TimeoutExpired):
            return wait(min(_POLL_S, timeout_s))
        watch()
        if time.monotonic() >= give_up:
            what = f"{_name(argv)} took longer than {format_duration(timeout_s)} and was stopped"
            raise HostError(what, where=_name(argv))


def run_logged(argv: Sequence[str], *, log: Path, timeout_s: float = 3600) -> None:
    """Wait for an installer's end, also when interrupted: half a package would be left."""
    log.touch(mode=0o600)
    joint = subprocess.STDOUT
    with log.open("wb") as file, started(argv, stdout=file, stderr=joint) as process:
        try:
            status = polled(process.wait, argv, timeout_s)
        except KeyboardInterrupt:
            process.wait(timeout_s)
            raise
    if status != 0:
        hint = "the log has the whole story; then run it again"
        raise HostError(failed(argv, status, log.read_bytes()).what, where=str(log), hint=hint)


@contextmanager
def drained(
    process: subprocess.Popen[bytes], *, on_line: Report = lambda _line: None
) -> Iterator[bytearray]:
    """Keep the last 16 KiB; `on_line` runs in another thread, with at most 4 KiB."""
    kept, stream = bytearray(), process.stderr or process.stdout

    def read() -> None:
        while stream is not None and (line := stream.readline(_KEPT_STDERR_BYTES)):
            kept.extend(line)
            del kept[:-16384]
            with suppress(OSError, ValueError):  # the reader of lines has gone, or a disk is full
                on_line(line.decode("utf-8", "replace").rstrip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield kept
    finally:
        kill_group(process)
        reader.join(timeout=5)
        if reader.is_alive():  # a child that outlived the tool has the pipe
            # Closing it would wait for that child
            process.stdout = process.stderr = None


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
    how = f"failed with status {status}"
    if status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
    words = printable(complaint[-_KEPT_STDERR_BYTES:].decode("utf-8", "replace").strip()[-800:])
    what = f"{_name(argv)} {how}: {words}" if words else f"{_name(argv)} {how}"
    return HostError(what, where=_name(argv))


def _name(argv: Sequence[str]) -> str:
    """Return the command's own tool, after the last wrapper's `--`."""
    ends = [index for index, word in enumerate(argv[:-1]) if word == "--"]
    return Path(argv[ends[-1] + 1] if ends else argv[0]).name


def give_tree(tree: Path, uid: int) -> None:
    """Give it away if this is root; links' targets stay."""
    if os.geteuid() != 0:
        return
    os.chown(tree, uid, uid, follow_symlinks=False)
    for folder, folders, files in os.walk(tree):
        for name in (*folders, *files):
            os.chown(Path(folder, name), uid, uid, follow_symlinks=False)


IDS: Final = 1 << 16  # Of a namespace; 65534 (`nobody`) is among them
# Above the ids of cells (`isolation.identity`), below those of unpacked images.
_ROOTS_FIRST_ID: Final = 0xB000_0000
_ROOTS_SLOTS: Final = 1 << 12  # Up to 0xC000_0000
# Of one process; the kernel's out-of-memory killer takes these processes first.
_MAX_DATA_BYTES: Final = 8 << 30
_MAX_FILE_BYTES: Final = 64 << 30
# Of one tool: a build that compiles takes its time, one that waits for ever ends.
_TOOL_TIMEOUT_S: Final = 3600.0
# Of a failing step: what fits on a screen beside the error.
_TAIL_LINES: Final = 12
MIN_FREE_BYTES: Final = 256 << 20
# For the kernel to end all processes of a namespace whose first one is gone.
_END_TIMEOUT_S: Final = 10.0
# The working directory, whose host path may be closed.
WORK: Final = Path("/tmp")  # noqa: S108 - a mount of the namespace's own
# Directories below are seen read-only, or the namespace is not made.
SHOWN: Final = Path("/bases")
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix")
# `fuse`: for fuse-overlayfs, where the kernel gives a user no overlay.
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
# It makes the mounts, as root of the outer namespace. First it leaves this host's files behind: a
# root of its own holds the system's programs, a few devices, the directories that are its arguments
# (each with its target), and the working directory, the only one that is not read-only. Paths are
# relative to the store: those above it may be closed to this root, or hidden by the mount on /tmp.
# Then it makes the inner namespace, in which the tools run: these mounts are locked there (see
# mount_namespaces(7)), so its root can neither remount nor unmount them. At last the root itself is
# made read-only: the tools that enter the inner namespace run with the outer one's rights, on this
# host's network, and must read nothing (such as /etc/ld.so.preload) that an earlier run wrote.
_INIT: Final = f"""
set -e
mount -t tmpfs -o mode=755,size=16m,nosuid root /tmp
mkdir -p /tmp/dev/pts /tmp/dev/shm /tmp/etc/ssl
mkdir /tmp/proc /tmp/run /tmp/sys /tmp/tmp /tmp/var /tmp/old
for name in {" ".join(_SYSTEM)}; do
  if [ -L /$name ]; then cp -P /$name /tmp/$name
  elif [ -d /$name ]; then mkdir /tmp/$name; mount --rbind /$name /tmp/$name
  fi
done
mount --rbind /sys /tmp/sys
echo root:x:0:0::/:/bin/sh > /tmp/etc/passwd
echo root:x:0: > /tmp/etc/group
echo 127.0.0.1 localhost > /tmp/etc/hosts
[ ! -f /etc/ld.so.cache ] || cp -L /etc/ld.so.cache /tmp/etc
if [ "$1" = network ]; then
  for name in resolv.conf hosts nsswitch.conf; do
    [ ! -f /etc/$name ] || cp -L /etc/$name /tmp/etc
  done
  [ ! -d /etc/ssl ] || mount --rbind /etc/ssl /tmp/etc/ssl
fi
work=$2
shift 2
while [ $# -gt 0 ]; do
  mkdir -p "/tmp$2"
  mount --no-canonicalize --rbind "$1" "/tmp$2"
  shift 2
done
findmnt -n -r -o VFS-OPTIONS,TARGET -R /tmp | tail -n +2 | while read -r options path; do
  path=$(printf %b "$path")
  mount -o "remount,bind,$options,ro" "$path" || [ ! -x "$path" ]
done
for path in /tmp{SHOWN}/*; do [ ! -d "$path" ] || [ ! -w "$path" ]; done
ln -s /tmp/tmp /tmp/var/tmp
ln -s /proc/self/fd /tmp/dev/fd
for name in {" ".join(_DEVICES)}; do
  [ ! -c /dev/$name ] || {{ : > /tmp/dev/$name; mount --bind /dev/$name /tmp/dev/$name; }}
done
mount --rbind /proc /tmp/proc
mount --no-canonicalize --bind "$work" /tmp/tmp
cd /tmp
pivot_root . old
umount -l /old
rmdir /old
cd /
unshare --user -- sleep 60 & child=$!
while [ "$(readlink /proc/$child/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do :; done
for map in uid_map gid_map; do
  same=$(while read -r first _ count; do echo "$first $first $count"; done < /proc/self/$map)
  echo "$same" > /proc/$child/$map
done
: > /run/inner
mount --bind /proc/$child/ns/user /run/inner
kill $child
mount -o remount,bind,ro,nosuid /
[ ! -w /etc ] && [ ! -w /run ] && [ ! -w /dev ]
echo
read -r _ || :
"""
# Process 1 of a tool's namespaces, which end when it ends. It ends when standard input is closed.
_RUN: Final = """
mount --bind /proc /proc
cd /tmp
exec 3<&0 </dev/null
"$@" 3<&- & tool=$!
{ cat <&3 >/dev/null; kill -KILL $tool; } &
wait $tool
"""


class NoSpaceError(HostError):
    """The tool was stopped on a nearly full disk."""


@dataclass(slots=True, kw_only=True)
class Inside:
    """`tail` holds the last lines of its tools."""

    first_uid: int
    work: Path
    user_fd: int
    mounts_fd: int
    report: Report
    tail: list[str] = field(default_factory=list)

    def run(
        self, name: str, *words: str, has_network: bool = False, may_fill: bool = True
    ) -> bytes:
        """Run a tool as the inner root, to its end on a full disk unless it `may_fill` that."""
        limits = [f"--fsize={_MAX_FILE_BYTES}", f"--data={_MAX_DATA_BYTES}", "--core=0"]
        fds = f"/proc/{os.getpid()}/fd"
        outer = [f"--user={fds}/{self.user_fd}", f"--mount={fds}/{self.mounts_fd}"]
        apart = ["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--mount-proc"]
        argv = [
            *(tool("choom"), "-n", "1000", "--", tool("prlimit"), *limits, "--"),
            *(tool("nsenter"), *outer, *_AS_ROOT),
            *(tool("nsenter"), "--user=/run/inner", *_AS_ROOT),
            *(tool("unshare"), *apart, *([] if has_network else ["--net"])),
            *("--", "/bin/sh", "-c", _RUN, "init", tool(name), *words),
        ]
        env = {"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8", "TMPDIR": str(WORK / "tmp")}
        env |= dict.fromkeys(("HOME", "XDG_RUNTIME_DIR"), f"{WORK}/home")
        pipe, joint = subprocess.PIPE, subprocess.STDOUT
        watch: Watch = self._check_space if may_fill else lambda: None
        with (
            started(argv, stdin=pipe, stdout=pipe, stderr=joint, env=env) as process,
            drained(process, on_line=self._say) as output,
        ):
            try:
                polled(process.wait, [name], _TOOL_TIMEOUT_S, watch)
            except BaseException:
                # Process 1 ends, and is gone only after all others: then their files are too.
                if process.stdin is not None:
                    process.stdin.close()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_TIMEOUT_S)
                raise
        if process.returncode != 0:
            raise failed([name], process.returncode, bytes(output))
        return bytes(output)

    def _say(self, line: str) -> None:
        shown = printable(line, max_chars=400)
        self.tail = [*self.tail[1 - _TAIL_LINES :], shown]
        self.report(shown)

    def _check_space(self) -> None:
        free = shutil.disk_usage(self.work).free
        if free < MIN_FREE_BYTES // 4:
            what = f"no space is left to build the image: {format_size(free)} are free"
            raise NoSpaceError(what, where=str(self.work.parents[2]), hint=HINT_SPACE)


_AS_ROOT: Final = ("--setuid=0", "--setgid=0", "--")


@contextmanager
def user_namespace(
    home: Path,
    work: Path,
    *,
    first_uid: int,
    shown: Sequence[Path] = (),
    has_network: bool = False,
    report: Report = lambda _line: None,
) -> Iterator[Inside]:
    """Let tools see `/usr`, `work` and, read-only, `shown`. Raises `HostError`."""
    with _holder([tool("unshare"), "--user", "--", "/bin/sh", "-c", "echo; cat"]) as outer:
        _map_ids(outer, first_uid)
        shows = [(str(path.relative_to(home)), str(SHOWN / path.name)) for path in shown]
        argv = [
            *(tool("nsenter"), f"--user=/proc/{outer}/ns/user", *_AS_ROOT),
            *(tool("unshare"), "--mount", "--pid", "--fork", "--mount-proc", "--"),
            *("/bin/sh", "-c", _INIT, "init", "network" if has_network else "apart"),
            *(str(work.relative_to(home)), *chain.from_iterable(shows)),
        ]
        with ExitStack() as opened:
            with _holder(argv, cwd=home) as init:
                places = [f"/proc/{init}/ns/{name}" for name in ("user", "mnt")]
                fds = [os.open(place, os.O_RDONLY | os.O_CLOEXEC) for place in places]
                for fd in fds:
                    opened.callback(os.close, fd)
            yield Inside(
                first_uid=first_uid, work=work, user_fd=fds[0], mounts_fd=fds[1], report=report
            )


@contextmanager
def _holder(argv: Sequence[str], *, cwd: Path | None = None) -> Iterator[int]:
    env = {"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8"}
    with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd, env=env) as holder:
        if holder.stdin is None or holder.stdout is None or holder.stderr is None:
            raise ValueError("the holder was started without pipes")
        if holder.stdout.readline() != b"\n":
            raise failed(argv[:1], holder.wait(), holder.stderr.read(1000))
        yield holder.pid
        holder.stdin.close()


def first_id_of(home: Path) -> int:
    if os.geteuid() != 0:
        return os.geteuid()
    number = int.from_bytes(hashlib.sha256(os.fsencode(home.resolve())).digest()[:8], "big")
    return _ROOTS_FIRST_ID + number % _ROOTS_SLOTS * IDS


def _map_ids(pid: int, first_uid: int) -> None:
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {first_uid} {IDS}\n")
        return
    # Root is this user, the others are its subordinate ids.
    helpers = {"newuidmap": (os.geteuid(), "subuid"), "newgidmap": (os.getegid(), "subgid")}
    for helper, (own, file) in helpers.items():
        others = first_subordinate_id(Path("/etc", file))
        if others is None:
            what, hint = f"this user has no {IDS:,} subordinate ids", grant_hint(user_name())
            raise HostError(what, where=f"/etc/{file}", hint=hint)
        lines = (0, own, 1, 1, others, IDS - 1)
        run_tool([tool(helper), str(pid), *map(str, lines)], timeout_s=20)
