"""Traces of runs with several samples at once."""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating import attributes
from opentelemetry.trace import StatusCode
from tests.unit.report.stories import line

from belljar.events import Kind
from belljar.export.otlp import batches
from belljar.ledger.schema import Line

REQUEST: dict[str, Any] = {"reason": "", "bytes": 0, "stand_in": "site", "method": "GET"}
ANSWER: dict[str, Any] = {"stand_in": "site", "bytes": 1, "duration_ms": 1.0, "cell": "default"}


EXEC: dict[str, Any] = {"op": 1, "argv": ["ls"], "cwd": "/", "user": "root", "env_names": []}
MODEL: dict[str, Any] = {"request": 1, "bytes": 1, "sha256": "0" * 64}


def story() -> list[Line]:
    """Two samples, each with a range, whose exchanges are numbered alike; then a refusal."""
    found = [line(Kind.RUN_STARTED, "x", run_id="R", kind="run", argv=[], key="0" * 64, belljar="")]
    planned: dict[str, Any] = {"policy_sha256": "", "tier": "gvisor", "emulated": False}
    for at in ("1", "2"):
        data = {**planned, "layers": [], "range": f"r{at}", "name": "default"}
        found.append(line(Kind.CELL_PLANNED, f"c{at}", **data))
        found.append(line(Kind.SAMPLE_STARTED, f"c{at}", sample=at))
    for at, verdict, number in (("1", "allowed", 1), ("2", "allowed", 1), ("1", "refused", 2)):
        data = {**REQUEST, "cell": "default", "exchange": number, "verdict": verdict}
        found.append(line(Kind.NETWORK_HTTP, None, **{**data, "url": at, "range": f"r{at}"}))
    for at, status in (("1", 201), ("2", 202)):
        data = {**ANSWER, "exchange": 1, "status": status, "range": f"r{at}"}
        found.append(line(Kind.NETWORK_HTTP_ANSWERED, None, **data))
    return [replace(each, seq=seq) for seq, each in enumerate(found)]


def test_exchanges_of_two_samples_stay_apart() -> None:
    """Each sample's request is its child and has its own answer; a refused one ends at once."""
    (found,) = batches(story(), "R")
    samples = {each.context.span_id: each.name for each in found if each.name != "network.http"}
    requests = [each for each in found if each.name == "network.http"]
    known: dict[tuple[str, Any], list[Any]] = {}
    for each in requests:
        assert each.parent is not None
        assert each.attributes is not None
        key = samples[each.parent.span_id], each.attributes["url.full"]
        known.setdefault(key, []).append(each.attributes.get("http.response.status_code"))
    assert known == {("sample 1", "1"): [None, 201], ("sample 2", "2"): [202]}
    refused = next(each for each in requests if each.status.status_code is StatusCode.ERROR)
    assert refused.end_time == refused.start_time


def test_names_are_those_of_the_pinned_convention() -> None:
    """Each attribute that isn't `belljar.*` is one of OpenTelemetry's own list; resource and scope
    name the version that has them."""
    ended = {"stdin_times": [], "status": "exited", "code": 3, "duration_ms": 1.0}
    asked = {**MODEL, "prompt_tokens": 5, "completion_tokens": 7, "status": 200}
    made = [
        line(Kind.EXEC_STARTED, "c1", **EXEC),
        line(Kind.EXEC_COMPLETED, "c1", op=1, **ended),
        line(Kind.MODEL_REQUEST_STARTED, "c1", **MODEL, path="/v1/chat/completions"),
        line(Kind.MODEL_REQUEST_COMPLETED, "c1", **asked, path="/v1/chat/completions"),
    ]
    lines = [*story(), *(replace(each, seq=100 + at) for at, each in enumerate(made))]
    (found,) = batches(lines, "R")
    modules = [
        import_module(f"{attributes.__name__}.{each.name}")
        for each in pkgutil.iter_modules(attributes.__path__)
    ]
    known = {value for each in modules for value in vars(each).values() if isinstance(value, str)}
    names = {name for each in found for name in each.attributes or ()}
    assert {name for name in names if not name.startswith("belljar.")} - known == set()
    command, model = (each.attributes for each in found if each.name in ("exec", "model.request"))
    assert command is not None
    assert model is not None
    assert command["process.command_args"] == ("ls",)
    assert (command["process.exit.code"], command["process.owner"]) == (3, "root")
    assert (model["gen_ai.usage.input_tokens"], model["gen_ai.usage.output_tokens"]) == (5, 7)
    assert model["gen_ai.operation.name"] == "chat"
    (resource,) = encode_spans(found).resource_spans
    assert resource.schema_url == resource.scope_spans[0].schema_url
    assert resource.schema_url in {each.value for each in schemas.Schemas}
