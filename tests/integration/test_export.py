"""`belljar export` of a real run, each format read by a program that isn't ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jsonschema  # type: ignore[import-untyped]
import pytest
from google.protobuf.json_format import ParseDict
from ocsf_json_schema import (  # type: ignore[import-untyped]
    OcsfJsonSchemaEmbedded,
    get_ocsf_schema,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pymerkle import InmemoryTree  # type: ignore[import-untyped]
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]
from tests.integration.processes import quick_command

from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify

pytestmark = [pytest.mark.vm, pytest.mark.slow]
EXAMPLE = Path(__file__).parents[2] / "examples" / "honeypot" / "honeypot.py"
ENV = "BELLJAR_HOME"


@pytest.fixture(scope="module")
def run(vm_home: Path) -> Path:
    """A run of the greedy agent: commands, files, packets, HTTP, DNS, decoys, hits of the guard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV, str(vm_home))
        argv = quick_command("run", "--json", f"{EXAMPLE}@honeypot", "--sample-id", "greedy")
        done = subprocess.run(argv, capture_output=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return Path(json.loads(done.stdout)["run_dir"])


def exported(run: Path, home: Path, *words: str) -> bytes:
    """What `belljar export RUN WORDS…` writes."""
    argv = quick_command("export", str(run), *words)
    done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert home.exists()
    return done.stdout


def test_ocsf_is_valid(run: Path, home: Path) -> None:
    """Each event is valid by the published schema of its class; a changed one is not."""
    schema = OcsfJsonSchemaEmbedded(get_ocsf_schema("1.5.0"))
    known: dict[int, jsonschema.Draft202012Validator] = {}
    events = [json.loads(line) for line in exported(run, home, "--format", "ocsf").splitlines()]
    for event in events:
        uid = event["class_uid"]
        if uid not in known:
            name = schema.lookup_class_name_from_uid(uid)
            found = schema.get_class_schema(name, ["host", "security_control"])
            known[uid] = jsonschema.Draft202012Validator(found)
        known[uid].validate(event)
    assert {1001, 1007, 2004, 4001, 4002, 4003} <= known.keys()
    assert not known[2004].is_valid({**events[0], "finding_info": {}})


def test_the_statement_is_signed_by_the_runs_key(run: Path, home: Path) -> None:
    """The envelope verifies with the run's public key and no other; it is about the ledger's root
    and says the verdict."""
    envelope = json.loads(exported(run, home, "--format", "intoto"))
    public = json.loads((run / "manifest.json").read_bytes())["public_key"]
    keyid = envelope["signatures"][0]["keyid"]
    key, other = (
        SSlibKey(keyid, "ed25519", "ed25519", {"public": value}) for value in (public, "11" * 32)
    )
    read = Envelope.from_dict(envelope)
    read.verify([key], threshold=1)
    with pytest.raises(VerificationError):
        read.verify([other], threshold=1)
    statement = json.loads(b64decode(envelope["payload"]))
    assert statement["subject"][0]["digest"]["sha256"] == verify(run).root
    assert any(each["name"].endswith(".eval") for each in statement["subject"])
    assert statement["predicate"]["verdict"] == "contained"


class _Sketch:
    """What Timesketch's importer talks to: keeps the events that it uploads."""

    def __init__(self) -> None:
        self.id, self.api_root, self.events = 1, "http://timesketch.invalid/api/v1", list[Any]()
        self.api = self.session = self

    def post(self, _url: str, *, data: object, files: dict[str, Any]) -> SimpleNamespace:
        """Answer as a server does that took all."""
        assert data
        self.events += map(json.loads, files["events"][1].splitlines())
        return SimpleNamespace(status_code=200, json=lambda: {"objects": [{"id": 1}]})


def test_timesketchs_importer_takes_every_event(run: Path, home: Path, tmp_path: Path) -> None:
    """Timesketch's own importer reads each line, and finds the time, kind and text of each event."""
    importer = pytest.importorskip(
        "timesketch_import_client.importer", reason="timesketch-import-client is not installed"
    )
    file, sketch = tmp_path / "events.jsonl", _Sketch()
    file.write_bytes(exported(run, home, "--format", "timesketch"))
    with importer.ImportStreamer() as streamer:
        streamer.set_sketch(sketch)
        streamer.add_file(str(file))
    found = [
        (datetime.fromisoformat(each["datetime"]), each["timestamp_desc"]) for each in sketch.events
    ]
    assert found == [(datetime.fromisoformat(each.time), each.kind) for each in read_events(run)]
    assert all(each["message"] for each in sketch.events)


def test_the_events_hash_to_the_signed_root(run: Path, home: Path) -> None:
    """pymerkle makes the root that was signed of the lines as exported."""
    tree = InmemoryTree(algorithm="sha256")
    for line in exported(run, home, "--format", "jsonl").splitlines():
        assert isinstance(json.loads(line), dict)
        tree.append_entry(line)
    assert tree.get_root().hex() == verify(run).root


class _Collector(BaseHTTPRequestHandler):
    """Keeps the requests of an OTLP exporter."""

    requests: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        """Decode one request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[str]:
    """The address of a collector on loopback."""
    with HTTPServer(("127.0.0.1", 0), _Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()
        thread.join()


def test_traces_reach_a_collector(run: Path, home: Path, collector: str) -> None:
    """Commands are children of their sample, which is the run's; codes and arguments have the
    convention's names. A file has the same spans, in OTLP's JSON."""
    exported(run, home, "--format", "otlp", "--endpoint", collector)
    spans = [
        span
        for request in _Collector.requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    by_id = {span.span_id: span for span in spans}
    (sample,) = [span for span in spans if span.name == "sample greedy"]
    command = next(s for s in spans if s.name == "exec" and s.parent_span_id == sample.span_id)
    assert by_id[sample.parent_span_id].name == "run"
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans)
    names = {attribute.key for attribute in command.attributes}
    assert {"process.command_args", "process.exit.code"} <= names
    written = [json.loads(line) for line in exported(run, home, "--format", "otlp").splitlines()]
    for document in written:
        ParseDict(document, ExportTraceServiceRequest())  # knows every field
    scopes = [scope for each in written for scope in each["resourceSpans"][0]["scopeSpans"]]
    ids = {span["spanId"] for scope in scopes for span in scope["spans"]}
    assert ids == {span_id.hex() for span_id in by_id}


def test_a_cast_has_each_command(run: Path, home: Path) -> None:
    """A header of version 3, pauses that are not negative, an exit for each command."""
    events = [
        json.loads(line)
        for line in (run / "ledger.jsonl").read_text().splitlines()
        if '"exec.' in line
    ]
    cell = next(event["cell"] for event in events if event["kind"] == "exec.started")
    ends = ("exec.completed", "exec.timed_out", "exec.failed")
    count = sum(event["cell"] == cell and event["kind"] in ends for event in events)
    cast = exported(run, home, "--format", "cast", "--cell", cell).splitlines()
    header, *rest = map(json.loads, cast)
    assert header["version"] == 3
    assert all(after_s >= 0 and code in "oxi" for after_s, code, _ in rest)
    assert sum(code == "x" for _, code, _ in rest) == count


@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="tcpdump is not installed")
def test_tcpdump_reads_the_packets(run: Path, home: Path, tmp_path: Path) -> None:
    """All of them, with the cell's questions for names among them."""
    file = tmp_path / "packets.pcapng"
    file.write_bytes(exported(run, home, "--format", "pcap"))
    argv = ["tcpdump", "-n", "-r", str(file)]
    read = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert len(read.stdout.splitlines()) > 10
    assert " A? " in read.stdout


def test_a_replay_cannot_act_on_the_terminal(home: Path) -> None:
    """Titles, cursors and clipboards of a command's output are shown as text."""
    hostile = r"printf '\033[31mred\033[0m \033]0;title\007 \033]52;c;eA==\007 \033[2J\302\233A\n'"
    for words in (
        ["exec", "low", "--tier", "container", "--", "sh", "-c", hostile],
        ["replay", "last"],
    ):
        done = subprocess.run(quick_command(*words), capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert home.exists()
    assert b"red" in done.stdout
    assert rb"\x1b]0;title\x07" in done.stdout
    assert not any(each in done.stdout for each in (b"\x1b", b"\x07", b"\xc2\x9b"))
