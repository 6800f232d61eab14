"""Where a daemon is looked for, and that whatever answers there does no harm."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.errors import HostError
from belljar.image.daemon import ask_daemons, daemon_hosts


def test_docker_host_stands_alone_and_sockets_are_found(tmp_path: Path) -> None:
    """A DOCKER_HOST is the only place that is asked; without one, each socket that is there."""
    assert daemon_hosts({"DOCKER_HOST": "tcp://127.0.0.1:2375"}) == ("tcp://127.0.0.1:2375",)
    (tmp_path / "podman").mkdir()
    (tmp_path / "docker.sock").write_text("no socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "podman/podman.sock"))
        found = daemon_hosts({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert f"unix://{tmp_path}/podman/podman.sock" in found
    assert f"unix://{tmp_path}/docker.sock" not in found
    for environ in (
        {"DOCKER_HOST": "ssh://x"},
        {"DOCKER_HOST": "tcp://x:2376", "DOCKER_TLS_VERIFY": "1"},
    ):
        with pytest.raises(HostError):
            daemon_hosts(environ)


def answered(path: Path, answer: bytes, name: str = "x") -> HostError | None:
    """Ask a daemon that answers with these bytes and hangs up."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.recv(4096)
                connected.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            ask_daemons((f"unix://{path}",), name, timeout_s=5)
        except HostError as error:
            return error
        finally:
            thread.join()
            path.unlink()
    return None


@pytest.mark.promise("1.8")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    answer=st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=100).map(lambda body: b"HTTP/1.1 200 OK\r\n\r\n" + body),
        st.recursive(
            st.none() | st.text(max_size=10),
            lambda inner: st.dictionaries(st.sampled_from(("Id", "x")), inner),
        ).map(lambda value: b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(value).encode()),
    )
)
def test_whatever_a_daemon_answers_is_an_image_or_one_error(answer: bytes, tmp_path: Path) -> None:
    """Bytes that are no HTTP, no JSON, or no image: a `HostError` that can be shown."""
    error = answered(tmp_path / "d.sock", answer)
    assert error is not None
    assert str(error).isprintable() or "\n  hint: " in str(error)


def test_an_id_is_all_that_is_needed(tmp_path: Path) -> None:
    """Podman leaves `sha256:` out; names that are none are left out."""
    document = json.dumps({"Id": "1" * 64, "RepoTags": None}).encode()
    assert answered(tmp_path / "d.sock", b"HTTP/1.1 200 OK\r\n\r\n" + document) is None
