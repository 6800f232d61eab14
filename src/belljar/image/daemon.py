"""Asking a Docker daemon, or Podman's service, for an image. Bounded in time and bytes.

Source: Docker Engine API, `GET /images/{name}/json`; Podman serves the same.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Timer
from typing import Final
from urllib.parse import quote, urlsplit

from belljar.errors import HostError, PolicyError
from belljar.units import format_duration, format_size, printable

DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_MAX_ANSWER_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 20
_HINT_SAVE: Final = "`docker save NAME -o FILE`, then `belljar image import docker-archive:FILE`"


class _DeadlineError(TimeoutError): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonImage:
    """`digests`: those of its registry manifests."""

    host: str
    image_id: str
    names: tuple[str, ...]
    digests: tuple[str, ...]


def daemon_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """`$DOCKER_HOST`, else each Docker or Podman socket. Raises `HostError`."""
    if host := environ.get("DOCKER_HOST", ""):
        if urlsplit(host).scheme not in {"unix", "tcp", "http"} or environ.get("DOCKER_TLS_VERIFY"):
            what = "a daemon is asked over unix:// or plain tcp:// alone"
            raise HostError(what, where="DOCKER_HOST", hint=_HINT_SAVE)
        return (host,)
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    own = (f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock")
    candidates = ("/var/run/docker.sock", *own, "/run/podman/podman.sock")
    found = list[str]()
    for path in candidates:
        with suppress(OSError):  # a directory may be closed to this user
            found += [f"unix://{path}"] if stat.S_ISSOCK(Path(path).stat().st_mode) else []
    return tuple(found)


def ask_daemons(hosts: tuple[str, ...], name: str, *, timeout_s: float) -> DaemonImage:
    """From the first daemon that has it. Raises `HostError`."""
    failures = []
    for host in hosts:
        try:
            found = _ask(host, name, timeout_s=timeout_s)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            failures.append(f"{host}: {_why(error)}")
            continue
        if found is not None:
            return found
        failures.append(f"{host}: it has no such image")
    what = "; ".join(failures) or "no socket of Docker or Podman is here"
    raise HostError(
        f"no daemon gave the image {printable(name)!r}: {printable(what, max_chars=600)}",
        where=f"docker-daemon:{printable(name)}",
        hint=f"check DOCKER_HOST and the name, or fetch it: `belljar image import "
        f"docker://{printable(name)}`",
    )


def save_image(
    found: DaemonImage,
    path: Path,
    *,
    max_bytes: int,
    stall_s: float,
    timeout_s: float,
    report: Callable[[str], None],
) -> None:
    """Write what `docker save` gives to a new file; skopeo's client is too old for daemons now.

    Raises `HostError` when the daemon stops sending, `PolicyError` for more than `max_bytes`.
    """
    total, request = 0, f"/images/{found.image_id}/get"
    try:
        with (
            _answer(found.host, request, stall_s=stall_s, timeout_s=timeout_s) as answer,
            path.open("xb") as file,
        ):
            if answer.status != http.HTTPStatus.OK:
                raise ValueError(f"it answered with status {answer.status}")
            while chunk := answer.read1(_CHUNK_BYTES):
                total += file.write(chunk)
                if total > max_bytes:
                    what = f"the image is larger than {format_size(max_bytes)}"
                    raise PolicyError(what, where=found.host, hint="--max-size allows more")
                report(f"fetching: {format_size(total)}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise HostError("no space left on device") from error
        why = printable(_why(error), max_chars=300)
        raise HostError(f"the daemon did not give the image: {why}") from error


def daemon_answers(host: str, *, timeout_s: float = 5) -> bool:
    """Return whether a daemon answers there."""
    try:
        return _get(host, "/_ping", timeout_s=timeout_s)[0] == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException, ValueError):
        return False


def _ask(host: str, name: str, *, timeout_s: float) -> DaemonImage | None:
    status, body = _get(host, f"/images/{quote(name, safe='')}/json", timeout_s=timeout_s)
    if status == http.HTTPStatus.NOT_FOUND:
        return None
    if status != http.HTTPStatus.OK:
        raise ValueError(f"it answered with status {status}")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("its answer can't be read")
    image_id = f"sha256:{str(document.get('Id')).removeprefix('sha256:')}"
    if DIGEST.fullmatch(image_id) is None:
        raise ValueError("its answer has no id of an image")
    digests = [text.rpartition("@")[2] for text in _texts(document.get("RepoDigests"))]
    return DaemonImage(
        host=host,
        image_id=image_id,
        names=tuple(_texts(document.get("RepoTags"))),
        digests=tuple(digest for digest in digests if DIGEST.fullmatch(digest)),
    )


def _get(host: str, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    with _answer(host, path, stall_s=timeout_s, timeout_s=timeout_s) as answer:
        return answer.status, answer.read(_MAX_ANSWER_BYTES)


@contextmanager
def _answer(
    host: str, path: str, *, stall_s: float, timeout_s: float
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a GET; `stall_s` bounds each read, `timeout_s` the whole block."""
    connection = http.client.HTTPConnection("localhost", timeout=stall_s)
    with closing(_connected(host, stall_s)) as connected:
        connection.sock = connected
        is_late = Event()

        def disconnect() -> None:
            is_late.set()
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

        deadline = Timer(timeout_s, disconnect)
        deadline.start()
        what = f"it took longer than {format_duration(timeout_s)}"
        try:
            connection.request("GET", path)
            yield connection.getresponse()
        except (http.client.HTTPException, OSError) as error:
            if is_late.is_set():
                raise _DeadlineError(what) from error
            raise
        finally:
            deadline.cancel()
        if is_late.is_set():  # what was read may be a part
            raise _DeadlineError(what)


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _connected(host: str, timeout_s: float) -> socket.socket:
    parts = urlsplit(host)
    if parts.scheme == "unix":
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(timeout_s)
        try:
            connected.connect(parts.path or parts.netloc)
        except OSError:
            connected.close()
            raise
        return connected
    address = (parts.hostname or "localhost", parts.port or 2375)
    return socket.create_connection(address, timeout=timeout_s)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return str(error) if isinstance(error, _DeadlineError) else "it did not answer in time"
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
