"""A Python process that has imported what `belljar run` imports of others (5 s of processor time),
and forks for each command.

`server SOCKET` is that process; `client SOCKET ARGS…` runs `python -m belljar ARGS…`, or another
module that ARGS name by `-m`, in a fork of it, with the client's own arguments, environment, directory and streams, and ends with its exit
code. The client passes SIGHUP, SIGINT and SIGTERM on; if it ends first, the command is killed.
Nothing of Belljar is imported beforehand. What depends on ignored signals, on a session of its own
or on the start itself is tested with real processes. Belljar takes the operator's variables from
the environment that its process was *started* with (`/proc/self/environ`): a fork gets the client's
there, too, or starts a real process when there is no room for it.
"""

import array
import contextlib
import os
import select
import signal
import socket
import sys

_NUMBER_BYTES = 4
ROOM = {"ROOM": "x" * 65536}
"""For the server's environment, so that those of its forks have place in it."""
_ENV_START = 47  # fields of /proc/PID/stat after the name: where the environment begins, and ends
_OTHERS = (
    "inspect_ai._cli.main",
    "inspect_ai._eval.eval",
    "inspect_evals._registry",
    "inspect_ai.model._providers.mockllm",
)
_OTHERS_BY_NEED = """
openai.types.responses openai.types.chat openai.resources openai.lib.streaming.chat mcp markdown_it
fastapi uvicorn starlette.testclient ruamel.yaml cryptography.hazmat.primitives.asymmetric.ed25519
cryptography.x509 opentelemetry.trace wsproto email_validator rich.markdown rich._emoji_codes
sse_starlette acp rfc8785 anyio._backends._asyncio uvicorn.protocols.http.auto
uvicorn.protocols.websockets.auto inspect_ai._cli._scanner inspect_ai.hooks
inspect_ai.model._providers.none inspect_ai.agent._acp.server inspect_ai.model._openai_responses
inspect_ai.tool._mcp._local inspect_ai.tool._mcp._sandbox
"""


def client(path: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(path)
        words = [
            os.getcwd(),  # noqa: PTH109 - pathlib would be a third of a client's time
            str(len(arguments)),
            *arguments,
            *(f"{name}={value}" for name, value in os.environ.items()),
        ]
        body = os.memfd_create("request")
        os.write(body, "\0".join(words).encode(errors="surrogateescape"))
        fds = array.array("i", [body, 0, 1, 2])
        sock.sendmsg([b"run"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds.tobytes())])
        pid = int.from_bytes(sock.recv(_NUMBER_BYTES), "big")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _frame: os.kill(pid, number))
        said = sock.recv(_NUMBER_BYTES)
    return int.from_bytes(said, "big") if said else 255


def server(path: str) -> None:
    import gc
    import importlib

    for name in _OTHERS:
        importlib.import_module(name)
    for name in _OTHERS_BY_NEED.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if loaded := [name for name in sys.modules if name.partition(".")[0] == "belljar"]:
        raise SystemExit(f"this was to be imported by each command: {loaded}")
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    serve(listener)


def serve(listener: socket.socket) -> None:
    """One poll of everything: new clients, clients that went away, commands that ended (by their
    pidfds)."""
    commands: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: the pid and its client
    while True:
        waited: list[int | socket.socket] = [
            0,
            listener,
            *commands,
            *(sock for _, sock in commands.values()),
        ]
        ready, _, _ = select.select(waited, [], [])
        if 0 in ready:
            return
        for pidfd, (pid, sock) in list(commands.items()):
            if pidfd in ready:
                _, status = os.waitpid(pid, 0)
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                with contextlib.suppress(OSError):
                    sock.send(code.to_bytes(_NUMBER_BYTES, "big"))
                sock.close()
                os.close(pidfd)
                del commands[pidfd]
            elif sock in ready:  # a client says nothing more: it has ended
                os.kill(pid, 9)
        if listener in ready:
            sock, _ = listener.accept()
            _, fds, _, _ = socket.recv_fds(sock, 16, 4)
            if (pid := os.fork()) == 0:
                for other in (listener, sock, *(one for _, one in commands.values())):
                    other.close()
                for pidfd in commands:
                    os.close(pidfd)
                run(fds)
            for fd in fds:
                os.close(fd)
            sock.send(pid.to_bytes(_NUMBER_BYTES, "big"))
            commands[os.pidfd_open(pid)] = (pid, sock)


def run(fds: list[int]) -> None:
    import atexit
    import random
    import runpy
    import threading
    import traceback

    with os.fdopen(fds[0], "rb") as file:
        file.seek(0)
        folder, count, *words = file.read().decode(errors="surrogateescape").split("\0")
    for target, fd in enumerate(fds[1:]):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(folder)
    sys.argv[1:], variables = words[: int(count)], words[int(count) :]
    module = "belljar"
    if sys.argv[1:2] == ["-m"]:
        module = sys.argv[2]
        del sys.argv[1:3]
    sys.path[0] = folder
    os.environ.clear()
    for variable in variables:
        name, _, value = variable.partition("=")
        os.environ[name] = value
    start_environment = "\0".join([*variables, ""]).encode(errors="surrogateescape")
    if not started_with(start_environment):
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])  # noqa: S606
    random.seed()
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def started_with(environment: bytes) -> bool:
    """Whether `/proc/self/environ` now shows this: it is written where the kernel put that of the
    server, which came with `ROOM`; the rest of that reads as a word that is no variable.
    `os.environ` must be empty or copied from there."""
    import ctypes

    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib is for the client too slow
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
    if len(environment) > end - start:
        return False
    ctypes.memmove(start, environment.ljust(end - start, b"x"), end - start)
    return True


if __name__ == "__main__":
    if sys.argv[1] == "client":
        sys.exit(client(sys.argv[2], sys.argv[3:]))
    server(sys.argv[2])
