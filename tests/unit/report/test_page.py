"""The page of a report: hostile text stays text, sizes are bounded, and nothing is left out silently."""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import html5lib
import pytest
from tests.unit.report.stories import (
    HOSTILE,
    RANGE,
    REQUEST,
    SAMPLE,
    findings_of,
    line,
    planned,
    story,
)

from belljar.events import Kind, Trust
from belljar.ledger.kinds import DATA
from belljar.ledger.schema import BodyRef, Line
from belljar.ledger.verification import Status, Verification
from belljar.report.page import MAX_BODY_BYTES, RunSource, page_facts, render
from belljar.report.samples import Transcript
from belljar.report.timeline import MAX_ENTRIES, Group, Timelines, shown

EVIL = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)><!--<script>"
    "\"'><svg/onload=alert(1)>javascript:alert(1){{7*7}}{%x%}&lt;"
    f"\x1b[31m{HOSTILE}\u2066\u200b\u2028\x00\x7f\udc80\U000e0041\ufeff"
)
BYTES = EVIL.encode("utf-8", "surrogatepass") + b"\xff\xfe\r\n\x00"
NAMESPACE = "{http://www.w3.org/1999/xhtml}"
# Values of which one fits any field of an event
CANDIDATES: tuple[Any, ...] = (
    *(EVIL, [EVIL], {"x": EVIL}, 7, True, "a" * 64, None, 1.5, []),
    *("allowed", "exited", "stdout", "open", "sent", "flag", "range", "sample", "start", "tcp"),
    *("upload", "main", "baseline", "completed", "dialled", "contained"),
)


def any_data(kind: Kind) -> dict[str, Any]:
    def value(check: Any) -> Any:  # noqa: ANN401 - JSON values
        for candidate in CANDIDATES:
            try:
                check(candidate)
            except ValueError:
                continue
            return candidate
        return []

    return {name.removesuffix("?"): value(check) for name, check in DATA[kind].items()}


def with_body(event: Line, content: bytes = BYTES) -> Line:
    size = len(content)
    return replace(
        event, bodies=(BodyRef(name="stdout", sha256="0" * 64, kept_bytes=size, total_bytes=size),)
    )


def source_of(lines: Sequence[Line], content: bytes = BYTES, **more: Any) -> RunSource:  # noqa: ANN401
    timelines = Timelines()
    for seq, each in enumerate(lines):
        timelines.take(replace(each, seq=seq))
    about: dict[str, Any] = {"status": Status.VERIFIED, "problem": None, "warnings": (EVIL,)}
    about |= {"run_id": "R", "key": "0" * 64, "key_checked": True, "key_mismatch": False}
    about |= dict.fromkeys(("events", "signed_events"), len(lines))
    verification = Verification(**about, checkpoints=1, bodies=1, root="1" * 64)
    given: dict[str, Any] = {"plans": {}, "host": {}, "versions": {}, **more}
    return RunSource(
        verification=verification,
        read=lambda _body, size: content[:size],
        timelines=timelines,
        **given,
    )


def hostile_lines() -> list[Line]:
    """Each kind of event in a sample's cell and range, with hostile text wherever it may stand."""
    made = []
    for kind in Kind:
        if kind.value.startswith(("cell.planned", "run.started", "sample.")):
            continue
        data = any_data(kind)
        optional = {"headers": [[EVIL, EVIL]], "path": EVIL, "value": EVIL, "findings": [], "op": 3}
        where = "c1" if kind.value.startswith(("cell", "exec", "file", "guard", "limit")) else None
        event = line(kind, where, **{**optional, **data, **({} if where else {"range": RANGE})})
        made.append(with_body(replace(event, trust=Trust.GUEST_REPORTED)))
    refused = {**REQUEST, "verdict": "refused", "reason": EVIL, "url": EVIL, "exchange": 8}
    return [*made, line(Kind.NETWORK_HTTP, **refused)]


@cache
def hostile_page() -> bytes:
    lines = [
        replace(each, time=f"2026-11-20T22:{at // 60:02}:{at % 60:02}.000000Z")
        for at, each in enumerate(story(*hostile_lines()))
    ]
    evil: dict[str, Any] = {"scores": {EVIL: EVIL}, "error": EVIL, "notes": (EVIL,)}
    transcript = Transcript(task=EVIL, sample=EVIL, epoch=2, uuid="u1", **evil)
    plan = {
        **dict.fromkeys(("tier", "risk", "emulated"), EVIL),
        "image": {"name": EVIL},
        "blast_radius": {key: [EVIL, 7] for key in ("read", "write", "reach", "consume")},
        "layers": [dict.fromkeys(("name", "state", "what", "enforced_by"), EVIL)],
        "warnings": [EVIL, 7],
        "policy": {"name": EVIL},
        "network": {
            "stand_ins": [{"id": EVIL, "names": [EVIL], "kind": EVIL, "ports": [{"number": EVIL}]}],
            "upstreams": [{"host": EVIL, "reason": EVIL}],
        },
    }
    source = source_of(
        lines,
        alarm=EVIL,
        is_running=True,
        plans={EVIL: plan, "2": {"layers": 7, "network": [], "policy": EVIL}},
        host={
            "cpu_model": EVIL,
            "kvm": {"state": EVIL},
            "tools": [{"name": EVIL, "version": EVIL}],
            "runtimes": [],
        },
        versions={EVIL: EVIL, "x": {EVIL: EVIL}},
    )
    source.timelines.take_transcript("u1", [("2026-11-20T22:00:00.000000Z", EVIL, EVIL)])
    findings = findings_of([transcript], lines, error=EVIL)
    return render(page_facts(replace(findings, errors=(EVIL,), run_id=EVIL), source))


@cache
def elements(page: bytes) -> list[Any]:
    """Each element as a browser makes it, which takes seconds of a large page."""
    # A comment's tag is a function
    return [each for each in html5lib.parse(page).iter() if not callable(each.tag)]


def data_of(page: bytes) -> list[list[Any]]:
    return [
        json.loads(each.text)
        for each in elements(page)
        if each.tag == f"{NAMESPACE}script" and each.get("id", "").startswith("d")
    ]


@pytest.mark.promise("4.4")
def test_hostile_text_makes_no_element_attribute_or_link() -> None:
    """A hostile page has our one script, no handler, no link that leaves it, and every group."""
    page = hostile_page()
    found = elements(page)
    scripts = [each.get("type") for each in found if each.tag == f"{NAMESPACE}script"]
    assert sorted(set(scripts)) == ["application/json", "module"]
    assert scripts.count("module") == 1
    tags = {each.tag.rpartition("}")[2] for each in found}
    assert not tags & {"img", "iframe", "object", "embed", "link", "base", "video", "math"}
    drawings = [each for each in found if each.tag.endswith("}svg")]
    assert [each.get("class") for each in drawings] == ["bar", "graph"]
    for each in found:
        assert not [name for name in each.attrib if name.startswith(("on", "style", "src"))]
        assert (each.get("href") or "#").startswith("#")
    text = "".join(found[0].itertext())
    assert "<script>alert(1)</script>" in text
    assert "{{7*7}}" in text
    (entries,) = data_of(page)
    assert {entry[2] for entry in entries} == set(Group)


@pytest.mark.promise("4.4")
def test_nothing_in_a_page_is_invisible_or_acts_on_a_reader() -> None:
    """No control, bidi or other format character is in a page; each is shown as its number."""
    text = hostile_page().decode()
    data = json.dumps(data_of(text.encode()), ensure_ascii=False)
    for found in (text, data):
        odd = {c for c in found if unicodedata.category(c)[0] == "C" and c not in "\n\t"}
        assert not odd
        assert "\\u202e" in found.replace("\\\\", "\\")
        assert "\\x1b" in found.replace("\\\\", "\\")


@pytest.mark.promise("4.4")
def test_only_our_script_and_style_may_run() -> None:
    """The page's policy forbids everything but one script and one style, by their digests."""
    found = elements(hostile_page())
    (policy,) = [each.get("content") for each in found if each.get("http-equiv")]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, kind in (("script", "module"), ("style", None)):
        named = [each for each in found if each.tag == NAMESPACE + tag]
        (ours,) = [each for each in named if each.get("type") == kind]
        digest = base64.b64encode(hashlib.sha256(ours.text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_only_what_the_record_proves_was_unused() -> None:
    """Not of a changed record or a run that goes on; Belljar's own probes use nothing."""
    places = [{"id": n, "kind": "http", "names": [f"{n}.example"], "ports": []} for n in "ab"]
    plan = {"network": {"stand_ins": places, "upstreams": []}}
    lines = story(line(Kind.NETWORK_HTTP, **{**REQUEST, "stand_in": "a"}))
    for more in ({}, {"alarm": "changed"}, {"is_running": True}):
        report = page_facts(
            findings_of([SAMPLE], lines), source_of(lines, plans={"": plan}, **more)
        )
        assert [name.strip() for _, name, uses in report["targets"] if not uses] == ["b: b.example"]
        assert ("would have done as well" in render(report).decode()) == (not more)


def test_of_very_many_samples_the_worst_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a page has room for: it stays small, counts the rest, and has every breach."""
    monkeypatch.setattr("belljar.report.page.MAX_UNITS", 100)
    monkeypatch.setattr("belljar.report.page.MAX_DETAIL_BYTES", 512 << 10)  # as much for each
    lines, transcripts = many(150, 0)
    breach = {**any_data(Kind.PROBE_COMPLETED), "phase": "start", "verdict": "breached"}
    lines.append(line(Kind.PROBE_STARTED, "c149", which="quick", phase="start", user=""))
    lines.append(line(Kind.PROBE_COMPLETED, "c149", **breach))
    noted = [replace(each, notes=("<&>" * 1000,) * 300) for each in transcripts]
    report = page_facts(findings_of(noted, lines), source_of(lines))
    assert len(report["units"]) == 100
    assert report["units_left_out"] == 50
    assert "s149" in {unit["name"] for unit in report["units"]}
    assert len(render(report)) < 4 * (512 << 10)


def many(samples: int, commands: int) -> tuple[list[Line], list[Transcript]]:
    lines: list[Line] = []
    ended = any_data(Kind.EXEC_COMPLETED) | {"status": "exited", "code": 0}
    started = any_data(Kind.EXEC_STARTED) | {"argv": ["echo", "x" * 50], "user": "", "cwd": ""}
    for number in range(samples):
        cell = f"c{number}"
        about = {"sample": f"s{number}", "task": "t", "uuid": f"u{number}"}
        lines.append(planned(cell))
        lines.append(line(Kind.SAMPLE_STARTED, cell, **about))
        for op in range(commands):
            lines.append(line(Kind.EXEC_STARTED, cell, **{**started, "op": op}))
            lines.append(with_body(line(Kind.EXEC_COMPLETED, cell, **{**ended, "op": op})))
    transcripts = [
        Transcript(task="t", sample=f"s{number}", epoch=1, uuid=f"u{number}")
        for number in range(samples)
    ]
    return lines, transcripts


def test_a_page_is_bounded_and_says_what_it_leaves_out() -> None:
    """Long lines, large bodies and many events are cut, counted, and named with their command."""
    lines, transcripts = many(1, MAX_ENTRIES + 5)
    huge = b"x" * (10 << 20)
    lines = [with_body(each, huge) if each.kind is Kind.EXEC_COMPLETED else each for each in lines]
    report = page_facts(findings_of(transcripts, lines), source_of(lines, huge))
    (unit,) = report["units"]
    assert len(unit["entries"]) == MAX_ENTRIES
    assert unit["left_out"] == {"command": 5}
    _, text, note = unit["entries"][0][-1][0]
    assert len(text) == MAX_BODY_BYTES
    assert "of 10 MiB" in note
    assert len(page := render(report)) < 4 << 20
    assert b"--cell-id c0" in page
    assert shown("y" * (10 << 20)).endswith("characters)")


def test_a_flood_of_one_kind_hides_nothing_of_another() -> None:
    """A sample that touches decoys without end still has all of its commands on the page."""
    lines, transcripts = many(200, 3)
    touched = {"decoy": "d" * 1000, "operation": "open", "path": "x" * 2000}
    lines += [line(Kind.DECOY_TOUCHED, "c0", **touched)] * 500
    unit, *_ = page_facts(findings_of(transcripts, lines), source_of(lines))["units"]
    shown_groups = [group for _, _, group, *_ in unit["entries"]]
    assert shown_groups.count("command") == 3
    assert "command" not in unit["left_out"]
    assert shown_groups.count("decoy") + unit["left_out"]["decoy"] == 500
