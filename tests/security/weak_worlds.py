"""Weakened surroundings for the program of the probes: `weak_worlds.py WORLD PROGRAM NAME…`, as
root, as process 1 of throwaway namespaces.

Whoever starts it has made mount, pid, network, IPC and UTS namespaces (`unshare`), so that nothing
here is the real host's. A world is a hole that a careless runtime would leave; in it the program is
run once, and what it says goes to standard output.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_SHARED, CLONE_NEWUSER = 4096, 1 << 20, 0x10000000
CHARACTER, BLOCK = 0o020666, 0o060666
KEPT: list[Any] = []
"""What must live until the program has ended: listeners, processes."""


class World:
    """What the program is told and how it is started."""

    def __init__(self) -> None:
        self.told = {"nonce": "ab", "token": "cafe", "btime": boot_time(), "fresh": "1"}
        self.told |= dict.fromkeys(("capabilities", "debugger_calls", "setuid_programs"), "0")
        self.environment: dict[str, str] = {}
        self.kept: list[int] = []
        self.through: tuple[str, ...] = ()
        self.before: list[Callable[[], None]] = []

    def run(self, program: str, names: list[str]) -> bytes:
        """What the program says. Its parent is this process, which is process 1."""
        said = "".join(f"{key}={value}\n" for key, value in self.told.items())

        def prepare() -> None:
            for step in self.before:
                step()

        started = subprocess.run(
            [*self.through, program, *names],
            input=said.encode(),
            env=self.environment,
            pass_fds=self.kept,
            preexec_fn=prepare,
            check=True,
            capture_output=True,
            timeout=300,
        )
        return bytes(started.stdout)


def boot_time() -> str:
    """When the kernel was started, as the program reads it."""
    return Path("/proc/stat").read_text().partition("\nbtime ")[2].split()[0]


def must(result: int) -> int:
    """The result of a C call that has to work."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    texts = [text.encode() for text in (source, target, kind, data)]
    must(LIBC.mount(texts[0], texts[1], texts[2], flags, texts[3]))


def cover(path: str, text: str) -> None:
    fd, name = tempfile.mkstemp(dir="/run")
    os.write(fd, text.encode())
    os.close(fd)
    mount(name, path, flags=MS_BIND)


def scratch(*paths: str) -> None:
    """Empty directories in memory over the host's: nothing that follows is written to a disk."""
    for path in paths:
        mount("none", path, "tmpfs")


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def listen(family: int, kind: int, address: Any) -> int:  # noqa: ANN401 - as socket.bind takes it
    """A socket that accepts; its port, if it has one."""
    listener = socket.socket(family, kind)
    KEPT.append(listener)
    listener.bind(address)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    return int(listener.getsockname()[1]) if family != socket.AF_UNIX else 0


def child(*argv: str) -> int:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=block
    )
    KEPT.append(process)
    return process.pid


def command(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        # SIOCSIFFLAGS: up, running
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))


def privileged(world: World) -> None:
    """Root with every capability of the machine's first user namespace, and no filter."""
    scratch("/tmp", "/run")
    mount("none", "/sys/kernel/debug", "debugfs")
    mount("none", "/proc/sys/fs/binfmt_misc", "binfmt_misc")
    cover("/proc/cmdline", "quiet")
    world.told["namespaces"] = f"user:{os.stat('/proc/self/ns/user').st_ino}"  # noqa: PTH116
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def beside(world: World) -> None:
    """The host's files, processes, sockets, loopback address; its directory left open."""
    scratch("/tmp", "/run")
    loopback_up()
    world.told["canary"] = str(write("/tmp/host/notes.txt", "host"))
    world.told["pid"] = str(child("cat"))
    child("unshare", "--pid", "--fork", "sh", "-c", "echo inside; exec cat")
    KEPT[-1].stdout.readline()  # before that word there may be none in another namespace
    world.told["socket"], world.told["abstract"] = "/run/host.sock", "host-abstract"
    stream, unix = socket.SOCK_STREAM, socket.AF_UNIX
    for address in ("/run/host.sock", "\0host-abstract"):
        listen(unix, stream, address)
    world.told["tcp"] = str(listen(socket.AF_INET, stream, ("127.0.0.1", 0)))
    world.told["tcp6"] = str(listen(socket.AF_INET6, stream, ("::1", 0)))
    world.told["udp"] = str(listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)))
    write("/run/secrets/kubernetes.io/serviceaccount/token", "ey")
    world.kept.append(os.open("/tmp/host", os.O_RDONLY | os.O_DIRECTORY))


def served(world: World) -> None:
    """Sockets of the host's runtime, mounted or in a shared network namespace."""
    scratch("/run")
    for address in ("/run/docker.sock", "\0/containerd-shim/x.sock"):
        listen(socket.AF_UNIX, socket.SOCK_STREAM, address)
    world.through = ("unshare", "--pid", "--fork", "--kill-child")


def serving(world: World) -> None:
    """The same sockets, of a process of the cell's own: no weakness."""
    served(world)
    world.through = ()


def networked(world: World) -> None:
    """An interface with addresses, and default routes. Its other end leads nowhere."""
    scratch("/run")
    loopback_up()
    Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 2147483647")
    Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0")
    command("ip", "link", "add", "up0", "type", "veth", "peer", "name", "down0")
    for name in ("up0", "down0"):
        command("ip", "link", "set", name, "up")
    command("ip", "address", "add", "192.0.2.2/24", "dev", "up0")
    command("ip", "-6", "address", "add", "2001:db8::2/64", "dev", "up0", "nodad")
    command("ip", "route", "add", "default", "via", "192.0.2.1")
    command("ip", "-6", "route", "add", "default", "via", "2001:db8::1")
    cover("/etc/resolv.conf", "nameserver 192.0.2.53\n")


def equipped(world: World) -> None:
    """Device nodes in /dev that a cell has no use for, some of them only by name."""
    scratch("/tmp", "/dev")
    zero = os.makedev(1, 5)
    for name in ("null", "zero", "mem", "console", "vport0p1"):
        os.mknod(f"/dev/{name}", CHARACTER, os.makedev(1, 3) if name == "null" else zero)
    os.mknod("/dev/loop0", BLOCK, os.makedev(7, 0))
    for directory in ("/dev/net", "/dev/pts"):
        Path(directory).mkdir()
    os.mknod("/dev/net/tun", CHARACTER, os.makedev(10, 200))
    mount("none", "/dev/pts", "devpts", data="newinstance,ptmxmode=0666")
    world.told["terminals"] = "2"
    Path("/dev/ptmx").symlink_to("pts/ptmx")


def mounted(world: World) -> None:
    """A shared mount, a disk that can be written, a file system that a program serves."""
    server = os.open("/dev/fuse", os.O_RDWR)
    scratch("/run")
    mount("none", "/run", flags=MS_SHARED)
    Path("/run/served").mkdir()
    mount("served", "/run/served", "fuse", data=f"fd={server},rootmode=40000,user_id=0,group_id=0")


def used(world: World) -> None:
    """Not made anew: files, objects, processes and a cron table of an earlier cell."""
    scratch("/dev/shm", "/var/spool")
    write("/dev/shm/message", "hello")
    write("/var/spool/cron/crontabs/root", "* * * * * true")
    must(LIBC.shmget(4711, 4096, 0o1600))
    child("cat")


def telling(world: World) -> None:
    scratch("/run", "/sys/class", "/sys/block")
    socket.sethostname("sandbox")
    world.told["hostname"] = "sandbox"
    world.environment["BELLJAR_RUN"] = "1"
    write("/run/belljar/x", "")
    write("/sys/block/vda/size", "1")
    write("/sys/class/dmi/id/sys_vendor", "QEMU\n")
    mount("sandbox", "/mnt", "tmpfs")
    cover("/proc/cmdline", "quiet harness=1")
    numbers_of_a_lower_layer()
    cover("/proc/cpuinfo", "model name : QEMU Virtual CPU")
    child("cat", "/dev/stdin", "--", "-", "/run/belljar/x")


def numbers_of_a_lower_layer() -> None:
    """A file of an overlay whose number is beyond what its upper layer has."""
    for number in range(32):
        write(f"/run/lower/{number}", "")
    write("/run/lower/passwd", "")
    Path("/run/few").mkdir()
    mount("none", "/run/few", "tmpfs", data="nr_inodes=8")
    for name in ("upper", "work"):
        Path("/run/few", name).mkdir()
    layers = "lowerdir=/run/lower,upperdir=/run/few/upper,workdir=/run/few/work"
    mount("overlay", "/etc", "overlay", data=layers)


def limited(world: World) -> None:
    """No limit as promised; a score for the out-of-memory killer that takes any value."""
    scratch("/tmp")
    world.told.update(open_files="64", processes="2", disk_bytes="4096")
    score = str(write("/tmp/score", "0\n"))
    world.before.append(lambda: mount(score, "/proc/self/oom_score_adj", flags=MS_BIND))


def rooted(world: World) -> None:
    """A root that was changed instead of pivoted, entered from above."""
    scratch("/run")
    Path("/run/cell/tmp").mkdir(parents=True)
    copy = Path("/run/cell/program")
    copy.write_bytes(Path(sys.argv[2]).read_bytes())
    copy.chmod(0o755)
    sys.argv[2] = "/program"
    os.chdir("/run")
    os.chroot("/run/cell")


def owning(world: World) -> None:
    """The creator's rights over a user namespace, and so over its keyrings, which go with it."""

    def own() -> None:
        must(LIBC.unshare(CLONE_NEWUSER))

    world.before.append(own)


# Number on x86-64, on arm64 (none there: 0), and what is answered.
CALLS = {
    "init_module": (175, 105, errno.ENOEXEC),
    "finit_module": (313, 273, errno.EBADF),
    "kexec_load": (246, 104, errno.EINVAL),
    "ioperm": (173, 0, 0),
    "iopl": (172, 0, 0),
    "prlimit64": (302, 261, 0),
}


def bpf(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, k)


def answers() -> bytes:
    """Calls answered as by a kernel that has them; prlimit64: only where it sets."""
    load_number, load_third = bpf(0x20, 0), bpf(0x20, 32)
    code = load_number
    for name, (*numbers, said) in CALLS.items():
        number = numbers[platform.machine() != "x86_64"]
        answer = bpf(0x06, 0x00050000 | said)
        setting = load_third + bpf(0x15, 0, 1, 0) + answer + load_number
        body = setting if name == "prlimit64" else answer
        code += (bpf(0x15, number, 0, len(body) // 8) + body) if number else b""
    return code + bpf(0x06, 0x7FFF0000)


def answering(world: World) -> None:
    """Modules, kexec, I/O ports, limits: not every test host's kernel has them."""

    def install() -> None:
        code = answers()
        program = ctypes.create_string_buffer(code, len(code))
        filter_ = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(program))
        must(LIBC.prctl(38, 1, 0, 0, 0))
        must(LIBC.prctl(22, 2, ctypes.create_string_buffer(filter_, len(filter_)), 0, 0))

    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
    world.before.append(install)


def bare(world: World) -> None:
    """Nothing but the throwaway namespaces, or without them the machine's own processes."""


WORLDS: dict[str, Callable[[World], None]] = {
    each.__name__: each
    for each in (
        *(privileged, beside, served, serving, networked, equipped, mounted, used, telling),
        *(limited, rooted, owning, answering, bare),
    )
}


def main() -> None:
    """One world, one run; by its descriptor, where a world covers the program."""
    world = World()
    held = os.open(sys.argv[2], os.O_PATH)
    WORLDS[sys.argv[1]](world)
    if not Path(sys.argv[2]).exists():
        world.kept.append(held)
        sys.argv[2] = f"/proc/self/fd/{held}"
    sys.stdout.buffer.write(world.run(sys.argv[2], sys.argv[3:]))


if __name__ == "__main__":
    main()
