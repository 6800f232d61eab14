"""A user namespace with 65,536 ids of its own, for tools that want to be root.

What runs in it has no rights on the host. Files, mounts, processes, IPC and (unless asked
otherwise) the network are its own; all of it ends with the block, or with its owner.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.image.tools import drained, failed, run_tool, started, tool
from belljar.subids import first_subordinate_id, grant_hint, user_name
from belljar.units import format_duration

IDS: Final = 1 << 16
_ROOTS_FIRST_ID: Final = 0xB000_0000
"""Above the ids of cells (`isolation.identity`), below those of unpacked images."""
_ROOTS_SLOTS: Final = 1 << 12
_POLL_S: Final = 0.2
_MAX_DATA_BYTES: Final = 8 << 30
"""Of one process; the kernel's out-of-memory killer takes these processes first."""
WORK: Final = Path("/tmp")  # noqa: S108 - a mount of the namespace's own
"""Where the tool finds its working directory: directories above it may be closed to the namespace.
"""
_SYSTEM: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
# Process 1 of the namespace. It first leaves this host's files behind: a root of its own holds the
# system's programs, a few devices, the directories named before `--`, and the working directory.
# It ends, and everything in the namespace with it, when standard input is closed.
_INIT: Final = f"""
set -e
mount -t tmpfs -o mode=755,size=16m,nosuid root /tmp
for name in {" ".join(_SYSTEM)}; do
  if [ -L /$name ]; then cp -P /$name /tmp/$name
  elif [ -d /$name ]; then mkdir /tmp/$name; mount --rbind /$name /tmp/$name
  fi
done
mkdir /tmp/sys
mount --rbind /sys /tmp/sys
findmnt -n -r -o TARGET -R /tmp | tail -n +2 | while read -r path; do
  options=$(findmnt -n -o VFS-OPTIONS -M "$path") &&
    mount -o "remount,bind,$options,ro" "$path" || [ ! -x "$path" ]
done
mkdir -p /tmp/dev/pts /tmp/dev/shm /tmp/etc/ssl /tmp/proc /tmp/run /tmp/tmp /tmp/var /tmp/old
ln -s /tmp/tmp /tmp/var/tmp
ln -s /proc/self/fd /tmp/dev/fd
for name in {" ".join(_DEVICES)}; do
  [ ! -c /dev/$name ] || {{ : > /tmp/dev/$name; mount --bind /dev/$name /tmp/dev/$name; }}
done
mount --rbind /proc /tmp/proc
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
shift
while [ "$1" != -- ]; do mkdir -p "/tmp$1"; mount --rbind "$1" "/tmp$1"; shift; done
shift
mount --no-canonicalize --bind . /tmp/tmp
cd /tmp
pivot_root . old
umount -l /old
rmdir /old
cd /tmp
set +e
exec 3<&0 </dev/null
"$@" 3<&- & tool=$!
{{ cat <&3 >/dev/null; kill -KILL $tool; }} &
wait $tool
"""

Watch = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A user namespace that exists. `first_uid` is what its root is on the host."""

    holder_pid: int
    first_uid: int

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        timeout_s: float,
        has_network: bool = False,
        readable: Sequence[Path] = (),
        max_file_bytes: int = 64 << 30,
        on_line: Callable[[str], None] = lambda _line: None,
        watch: Watch = lambda: None,
    ) -> bytes:
        """Run a tool as the namespace's root, to its end; its last words.

        `cwd` is `WORK` there. Of this host's files only its programs (`/usr`) and the directories
        `readable` are there: no /etc, home, socket or store. `watch` is called often; it may raise.

        Raises `HostError` when it fails or takes too long.
        """
        kept = ["network" if has_network else "apart", *map(str, readable), "--"]
        wrapped = [
            *self._entering(has_network=has_network, max_file_bytes=max_file_bytes),
            *kept,
            *argv,
        ]
        with (
            started(
                wrapped,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
            ) as process,
            drained(process, on_line=on_line) as said,
        ):
            give_up = time.monotonic() + timeout_s
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
                    break
                watch()
                if time.monotonic() > give_up:
                    raise HostError(
                        f"it took longer than {format_duration(timeout_s)} and was stopped",
                        where=argv[0],
                    )
        if process.returncode != 0:
            raise failed(argv, process.returncode, bytes(said))
        return bytes(said)

    def _entering(self, *, has_network: bool, max_file_bytes: int) -> list[str]:
        limits = [f"--fsize={max_file_bytes}", f"--data={_MAX_DATA_BYTES}", "--core=0"]
        enter = ["nsenter", f"--user=/proc/{self.holder_pid}/ns/user", "--setuid=0", "--setgid=0"]
        apart = ["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--mount-proc"]
        return [
            *(
                tool("choom"),
                "-n",
                "1000",
                "--",
                tool("prlimit"),
                *limits,
                "--",
                tool(enter[0]),
                *enter[1:],
                "--",
            ),
            *(
                tool("unshare"),
                *apart,
                *([] if has_network else ["--net"]),
                "--",
                "/bin/sh",
                "-c",
                _INIT,
                "init",
            ),
        ]


@contextmanager
def user_namespace() -> Iterator[Inside]:
    """A user namespace; it lasts as long as the block.

    Raises `HostError` where this user can have none.
    """
    first = _ROOTS_FIRST_ID + secrets.randbelow(_ROOTS_SLOTS) * IDS
    argv = [tool("unshare"), "--user", "--", tool("cat")]
    with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        if holder.stdin is None or holder.stdout is None:
            raise ValueError("the holder was started without pipes")
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        if holder.stdout.readline() != b"\n":
            status = holder.wait()
            raise failed(argv, status, holder.stderr.read(1000) if holder.stderr else b"")
        if os.geteuid() == 0:
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{holder.pid}/{name}").write_text(f"0 {first} {IDS}\n")
        else:
            first = os.geteuid()
            _map_own(holder.pid)
        yield Inside(holder_pid=holder.pid, first_uid=first)
        holder.stdin.close()


def _map_own(pid: int) -> None:
    """Root is this user, the others are the ids subordinate to it."""
    for helper, own, file in (
        ("newuidmap", os.geteuid(), "subuid"),
        ("newgidmap", os.getegid(), "subgid"),
    ):
        first = first_subordinate_id(Path("/etc", file))
        if first is None:
            raise HostError(
                f"this user has no {IDS:,} subordinate ids",
                where=f"/etc/{file}",
                hint=grant_hint(user_name()),
            )
        lines = (0, own, 1, 1, first, IDS - 1)
        run_tool([tool(helper), str(pid), *map(str, lines)], timeout_s=20)
