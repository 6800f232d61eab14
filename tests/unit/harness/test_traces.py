"""`belljar run --otlp`: traces while a run lasts; real Inspect, ledger and SDK, fake cells."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.unit.harness.runs import one_sample

from belljar.errors import PolicyError
from belljar.events import Event, JsonValue, Kind
from belljar.export.otlp import follow
from belljar.ledger.rundir import create_run
from belljar.ledger.verification import verify


@contextmanager
def collector(names: list[str]) -> Iterator[str]:
    """The address of one that keeps the names of the spans that it takes."""

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                names.extend(span.name for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()
        thread.join()


def test_a_collector_gets_all_spans_of_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once; that a collector on this host may pass them on is part of what left it."""
    monkeypatch.chdir(tmp_path)
    names: list[str] = []
    with collector(names) as endpoint:
        outcome = one_sample(tmp_path, otlp=endpoint)
    assert sorted(names) == sorted([*(each for each in names if each != "run"), "run"])
    assert {"run", "sample a", "exec"} <= set(names)
    assert f"{len(names)} spans were sent\n" in capfd.readouterr().err
    assert "(--otlp)" in str(outcome.findings.left.unknown)


def test_a_collector_that_hangs_changes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends as ever and is sealed; one line says what was not sent, and how to send it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("belljar.export.traces._EXIT_TIMEOUT_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # accepts, and never answers
        port = hanging.getsockname()[1]
        began_s = time.monotonic()
        outcome = one_sample(tmp_path, otlp=f"http://127.0.0.1:{port}/v1/traces")
    assert time.monotonic() - began_s < 60
    assert outcome.exit_code == 0
    assert verify(outcome.path).ok(strict=True)
    assert f"belljar export {outcome.run_id} --format otlp" in capfd.readouterr().err


def test_an_endpoint_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """With the option named."""
    for endpoint in ("collector:4318", "file:///x", "http://[", "http://"):
        with pytest.raises(PolicyError):
            one_sample(tmp_path, otlp=endpoint)
    assert not (tmp_path / "home/runs").exists()


def test_what_is_refused_is_kept_and_sent_again_in_order(tmp_path: Path) -> None:
    """A collector that is away for a while loses nothing, and nothing is held but one batch."""
    got: list[str] = []
    refusals = iter([False, False, True])
    with create_run(tmp_path, "exec", ["x"]) as run:

        def export(found: object) -> bool:
            assert isinstance(found, list)
            if next(refusals, True):
                got.extend(span.name for span in found)
                return True
            return False

        result: list[tuple[int, int]] = []
        thread = threading.Thread(
            target=lambda: result.append(follow(run.path, export, grace_s=20))
        )
        thread.start()
        for op in range(1, 4):
            data: dict[str, JsonValue] = {"op": op, "path": "/x"}
            run.recorder.record(Event(kind=Kind.FILE_READ_STARTED, cell_id="c", data=data))
            end: dict[str, JsonValue] = {"op": op, "bytes": 1}
            run.recorder.record(Event(kind=Kind.FILE_READ_COMPLETED, cell_id="c", data=end))
    thread.join(60)
    assert result == [(4, 0)]
    assert got == ["file.read", "file.read", "file.read", "run"]
