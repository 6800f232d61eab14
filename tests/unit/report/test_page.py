"""The page of a report: hostile text stays text, sizes are bounded, and nothing is left out silently."""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import html5lib
import pytest
from tests.unit.report.stories import (
    FLOW,
    HOSTILE,
    RANGE,
    REQUEST,
    findings_of,
    line,
    planned,
    story,
)
from tests.unit.report.test_model_cells import model_cell

from belljar.events import Kind, Trust
from belljar.ledger.kinds import DATA, Optional
from belljar.ledger.schema import BodyRef, Line
from belljar.ledger.verification import Status, Verification
from belljar.report.collect import MAX_DETAIL_BYTES, MAX_UNITS, collect
from belljar.report.entries import MAX_BODY_BYTES
from belljar.report.html import render
from belljar.report.reading import MAX_STEPS, Activity
from belljar.report.samples import RunFindings, Transcript
from belljar.report.source import RunSource
from belljar.report.timeline import (
    FIRST,
    LAST,
    Group,
    Timelines,
    shown,
)

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
    """Data of this kind with hostile text in each field that takes text."""

    def value(check: Any) -> Any:  # noqa: ANN401 - JSON values
        for candidate in CANDIDATES:
            try:
                (check.check if isinstance(check, Optional) else check)(candidate)
            except ValueError:
                continue
            return candidate
        return []

    return {name: value(check) for name, check in DATA[kind].items()}


def with_body(event: Line, content: bytes = BYTES) -> Line:
    """The same with a body."""
    size = len(content)
    return replace(
        event, bodies=(BodyRef(name="stdout", sha256="0" * 64, kept_bytes=size, total_bytes=size),)
    )


def source_of(lines: Sequence[Line], content: bytes = BYTES, **more: Any) -> RunSource:  # noqa: ANN401
    """A run directory with these events, and this in each body."""
    timelines = Timelines()
    for seq, each in enumerate(lines):
        timelines.take(replace(each, seq=seq))
    verification = Verification(
        status=Status.VERIFIED,
        problem=None,
        warnings=(EVIL,),
        run_id="R",
        key="0" * 64,
        key_checked=True,
        key_mismatch=False,
        events=len(lines),
        signed_events=len(lines),
        checkpoints=1,
        bodies=1,
        root="1" * 64,
    )
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


def hostile_page() -> bytes:
    """A page with hostile text in every place, of events that took some minutes."""
    lines = [
        replace(each, time=f"2026-11-20T22:{at // 60:02}:{at % 60:02}.000000Z")
        for at, each in enumerate(story(*hostile_lines()))
    ]
    transcript = Transcript(
        task=EVIL,
        sample=EVIL,
        epoch=2,
        uuid="u1",
        scores={EVIL: EVIL},
        error=EVIL,
        notes=(EVIL,),
    )
    plan = {
        "tier": EVIL,
        "layers": [{"name": EVIL, "what": EVIL}],
        "warnings": [EVIL, 7],
        "policy": {"name": EVIL},
        "network": {
            "stand_ins": [{"id": EVIL, "names": [EVIL], "kind": EVIL, "ports": [EVIL]}, EVIL],
            "upstreams": [{"host": EVIL, "reason": EVIL}],
        },
    }
    source = source_of(
        lines,
        alarm=EVIL,
        is_running=True,
        plans={EVIL: plan, "2": {"layers": 7, "network": [], "policy": EVIL}},
        host={"cpu_model": EVIL, "tools": [{"name": EVIL, "version": EVIL}, 7]},
        versions={EVIL: EVIL, "x": {EVIL: EVIL}},
    )
    source.timelines.take_transcript("u1", [("2026-11-20T22:00:00.000000Z", EVIL, EVIL)])
    findings = findings_of([transcript], lines, error=EVIL)
    return render(collect(replace(findings, errors=(EVIL,), run_id=EVIL), source))


def elements(page: bytes) -> list[Any]:
    """Each element as a browser makes it."""
    # A comment's tag is a function
    return [each for each in html5lib.parse(page).iter() if not callable(each.tag)]


def data_of(page: bytes) -> list[list[Any]]:
    """The entries of each sample."""
    return [
        json.loads(each.text)
        for each in elements(page)
        if each.tag == f"{NAMESPACE}script" and each.get("id", "").startswith("d")
    ]


@pytest.mark.promise("4.4")
def test_hostile_text_makes_no_element_attribute_or_link() -> None:
    """With hostile text in every field, a page has our one script, no handler, and no link that
    leaves it."""
    page = hostile_page()
    found = elements(page)
    scripts = [each.get("type") for each in found if each.tag == f"{NAMESPACE}script"]
    assert sorted(set(scripts)) == ["application/json", "module"]
    assert scripts.count("module") == 1
    tags = {each.tag.rpartition("}")[2] for each in found}
    assert not tags & {
        "img",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "video",
        "math",
        "title2",
    }
    drawings = [each for each in found if each.tag.endswith("}svg")]
    assert [each.get("class") for each in drawings] == ["bar", "graph"]
    for each in found:
        assert not [name for name in each.attrib if name.startswith(("on", "style", "src"))]
        assert (each.get("href") or "#").startswith("#")
    text = "".join(html5lib.parse(page).itertext())
    assert "<script>alert(1)</script>" in text
    assert "{{7*7}}" in text


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
        (ours,) = [
            each for each in found if each.tag == NAMESPACE + tag and each.get("type") == kind
        ]
        digest = base64.b64encode(hashlib.sha256(ours.text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_every_kind_of_event_with_a_reader_is_shown() -> None:
    """Commands, files, requests, refusals, probes, limits, decoys and hits are entries, with their
    outcome, headers and bodies."""
    (entries,) = data_of(hostile_page())
    assert {group for _, _, group, *_ in entries} == set(Group)
    commands = [entry for entry in entries if entry[2] == "command"]
    assert any(body[0] == "stdout" and "\\xff" in body[1] for body in commands[0][-1])
    requests = [entry for entry in entries if "alert" in "".join(entry[7])]
    assert requests


def test_a_revert_and_the_run_itself_have_their_entries() -> None:
    """A revert is on the page with what it left; what is no cell's, as a check of the air gap, a
    call of a model or an order to stop, is the run's own; both are bad where they failed."""
    gap = {"air_gapped": False, "findings": [{"name": "dns", "state": "open", "evidence": "x"}]}
    called = {"model": "openai/gpt", "address": "", "bytes": 9, "guarded": False}
    traces = {"from": "c0", "planted": ["file"], "found": ["file"], "not_checked": ["memory"]}
    own = [
        line(Kind.AIR_GAP_CHECKED, phase="end", **gap),
        line(Kind.MODEL_CALLED, **called),
        line(Kind.KILL_TRIGGERED, scope="run", rule="operator", reason="enough"),
    ]
    own = [replace(each, data={k: v for k, v in each.data.items() if k != "range"}) for each in own]
    lines = story(
        line(Kind.CELL_REVERT_VERIFIED, "c1", **traces),
        line(
            Kind.CELL_REVERTED,
            "c1",
            **{"from": "c0", "to": "c1", "from_pool": True, "duration_ms": 5},
        ),
        *own,
    )
    transcript = Transcript(task="t", sample="s", epoch=1, uuid="u1")
    report = collect(findings_of([transcript], lines), source_of(lines))
    sample, run = report["units"]
    found = [
        (what, outcome, bad)
        for _, _, group, what, outcome, bad, *_ in sample["entries"]
        if group == "cell"
    ]
    assert ("fresh cell in place of c0", "5 ms", 0) in found
    assert ("looked for traces of c0: file", "FOUND: file; not looked for: memory", 1) in found
    assert run["kind"] == "run"
    assert [(group, bad) for _, _, group, _, _, bad, *_ in run["entries"]] == [
        ("probe", 1),
        ("model", 0),
        ("limit", 1),
    ]
    assert run["entries"][0][7] == ["dns: open: x"]
    assert report["air_gap"] == {"end": False}
    assert "NOT air-gapped" in render(report).decode()


def test_a_model_cell_has_its_requests_and_its_end() -> None:
    """What was asked of a model is on the page, with tokens, weights and the cell's own verdict:
    a model cell that lacks evidence is no contained one."""
    for phases, verdict in ((("start", "end"), "contained"), (("start",), "void")):
        lines = model_cell(*phases)
        transcript = Transcript(task="t", sample="s", epoch=1, uuid="u1")
        report = collect(findings_of([transcript], lines), source_of(lines))
        _, unit = report["units"]
        assert (unit["kind"], unit["verdict"], unit["requests"]) == ("model cell", verdict, 1)
        (request,) = [entry for entry in unit["entries"] if entry[2] == "model"]
        assert request[4] == "200, 3 → 2 tokens"
        assert "sha256:ababab" in unit["remarks"][0]
        assert len(report["missing"]) == (phases != ("start", "end"))
        assert all(count is None for _, count in report["missing"])  # it is no sample's


def test_output_has_the_time_since_its_command_began() -> None:
    """What a player needs; a time before the command's, as after a clock was set, counts as none."""
    for later, after_s in (("22:00:03.250000", 3.25), ("21:59:59.000000", 0.0)):
        lines = many(1, 1)[0]
        ended = replace(with_body(lines[-1]), time=f"2026-11-20T{later}Z")
        (unit,) = collect(findings_of([], [*lines[:-1], ended]), source_of([*lines[:-1], ended]))[
            "units"
        ]
        (command,) = [entry for entry in unit["entries"] if entry[2] == "command"]
        assert command[-1][0][-1] == [[after_s, 1.0]]


def test_output_of_which_the_beginning_is_shown_keeps_its_times() -> None:
    """Its shares are those of the text that a page has."""
    begun, ended = many(1, 1)[0][-2:]
    size = 2 * MAX_BODY_BYTES
    times = [[1000, MAX_BODY_BYTES // 2], [2000, MAX_BODY_BYTES], [3000, size]]
    ended = with_body(replace(ended, data={**ended.data, "stdout_times": times}), b"x" * size)
    lines = [*many(1, 1)[0][:-2], begun, ended]
    (unit,) = collect(findings_of([], lines), source_of(lines, b"x" * size))["units"]
    (command,) = [entry for entry in unit["entries"] if entry[2] == "command"]
    name, text, note, shares = command[-1][0]
    assert (name, len(text), note) == ("stdout", MAX_BODY_BYTES, "the first 8 KiB of 16 KiB")
    assert shares[:3] == [[1.0, 0.5], [2.0, 1.0], [3.0, 1.0]]


def test_a_units_bodies_come_with_whether_a_terminal_had_them() -> None:
    """Only the latest ledger's, since each unit's are read from its own record."""
    begun, ended = many(1, 1)[0][-2:]
    timelines = Timelines()
    for cell, sizes in (("c1", {}), ("c2", {"pty": True, "cols": 91, "rows": 27}), ("c3", {})):
        if cell != "c3":
            timelines.begin_ledger()
        timelines.take(replace(begun, cell=cell, data={**begun.data, **sizes}))
        timelines.take(replace(with_body(ended), cell=cell))
    assert [is_terminal for _, is_terminal in timelines.bodies_of_ledger()] == [True, False]


def test_a_terminal_has_its_size_and_what_it_obeys() -> None:
    """Carriage returns and escapes are for the player; what hides is a number; what was typed is
    not there without its times, which say that the policy allows it."""
    screen, typed = "\x1b[31m\r\u202e\x00", b"secret\r"
    for keystrokes in ({}, {"stdin_times": [[1, 7]]}):
        begun, ended = many(1, 1)[0][-2:]
        sizes = {"pty": True, "cols": 91, "rows": 27}
        ended = with_body(ended)
        stdin = replace(ended.bodies[0], name="stdin", sha256="1" * 64, kept_bytes=len(typed))
        data = {**ended.data, "size_times": [[500, 70, 20]], **keystrokes}
        lines = [
            *many(1, 1)[0][:-2],
            replace(begun, data={**begun.data, **sizes}),
            replace(ended, data=data, bodies=(stdin, *ended.bodies)),
        ]
        source = source_of(lines)
        given = replace(
            source,
            read=lambda body, _size: typed if body.name == "stdin" else screen.encode(),
        )
        (unit,) = collect(findings_of([], lines), given)["units"]
        (command,) = [entry for entry in unit["entries"] if entry[2] == "command"]
        assert command[-2] == [[0.0, 91, 27], [0.5, 70, 20]]
        bodies = {name: text for name, text, *_ in command[-1]}
        assert bodies["stdout"] == "\x1b[31m\r\\u202e\\x00"
        assert ("secret" in str(command)) is bool(keystrokes)


def test_what_happened_when_is_counted_in_few_steps() -> None:
    """A run of days has as many steps as a short one, and no count is lost."""
    activity = Activity()
    start = datetime(2026, 11, 20, tzinfo=UTC)
    for minutes in (*range(5000), 0):
        activity.add("command", start + timedelta(minutes=minutes))
    found = activity.to_json()
    assert MAX_STEPS / 2 < len(found["times"]) <= MAX_STEPS
    assert sum(found["counts"]["command"]) == 5001
    assert found["times"][1] - found["times"][0] == found["width_s"]


def test_a_transcript_stands_beside_the_timeline() -> None:
    """Messages are placed among the ledger's events by time, whose own order stays."""
    at = [f"2026-11-20T22:00:0{number}.000000Z" for number in range(6)]
    lines = [
        replace(each, time=at[number])
        for each, number in zip(many(1, 1)[0], (0, 1, 4, 2), strict=True)
    ]
    source = source_of(lines)
    turns = [(at[3], "assistant", "→ bash ls"), (at[5], "tool bash", "a file")]
    source.timelines.take_transcript("u0", turns)
    transcript = Transcript(task="t", sample="s0", epoch=1, uuid="u0")
    (unit,) = collect(findings_of([transcript], lines), source)["units"]
    assert [(entry[2], entry[4]) for entry in unit["entries"]] == [
        ("transcript", "assistant"),
        ("command", unit["entries"][1][4]),
        ("transcript", "tool bash"),
    ]


def test_a_range_is_a_graph_of_what_was_used() -> None:
    """Each cell and place is a node, each exchange a line with its count; Belljar's probes are
    none, and a place that nobody used says so."""
    plan = {"network": {"stand_ins": [{"id": "shop"}, {"id": "mail"}], "upstreams": []}}
    refused = {**FLOW, "address": "10.9.9.9", "port": 22, "verdict": "refused"}
    lines = story(
        *[line(Kind.NETWORK_HTTP, **REQUEST)] * 2,
        line(Kind.NETWORK_FLOW, **{**refused, "count": 3}),
        line(Kind.PROBE_STARTED, "c1", which="quick", phase="end", user=""),
        line(Kind.NETWORK_FLOW, **{**refused, "address": "10.8.8.8"}),
    )
    transcript = Transcript(task="t", sample="s", epoch=1, uuid="u1")
    report = collect(findings_of([transcript], lines), source_of(lines, plans={"": plan}))
    (graph,) = report["units"][0]["graphs"]
    assert graph["texts"] == ["default → shop: 2 allowed", "default → 10.9.9.9: 3 refused"]
    assert [(name, is_used) for name, _, is_used in graph["right"]] == [
        ("shop", True),
        ("mail", False),
        ("10.9.9.9", True),
    ]
    assert len(graph["lines"]) == 2


def test_of_very_many_samples_the_worst_are_shown() -> None:
    """Thousands of samples and cells, each with hostile lists, are a bounded page that says how
    many are left out; a breach is never among those."""
    lines, transcripts = many(MAX_UNITS + 50, 0)
    bad = f"s{MAX_UNITS + 49}"
    breach = {**any_data(Kind.PROBE_COMPLETED), "phase": "start", "verdict": "breached"}
    cell = f"c{MAX_UNITS + 49}"
    lines += [
        line(Kind.PROBE_STARTED, cell, which="quick", phase="start", user=""),
        line(Kind.PROBE_COMPLETED, cell, **breach),
    ]
    noted = [replace(each, notes=("<&>" * 1000,) * 300) for each in transcripts]
    report = collect(findings_of(noted, lines), source_of(lines))
    assert len(report["units"]) == MAX_UNITS
    assert report["units_left_out"] == 50
    assert bad in {unit["name"] for unit in report["units"]}
    assert len(render(report)) < 4 * MAX_DETAIL_BYTES


def test_events_of_another_shape_are_shown_as_such() -> None:
    """Optional fields of any type end no report."""
    for value in (7, EVIL, [7], [[7]], {"a": 1}, None):
        odd = [
            line(Kind.NETWORK_HTTP, **{**REQUEST, "headers": value}),
            line(Kind.DECOY_TOUCHED, "c1", decoy="d", operation="open", path=value, to=value),
            line(Kind.PROBE_COMPLETED, "c1", **any_data(Kind.PROBE_COMPLETED)),
            line(Kind.CELL_DESTROYED, "c1", **{**any_data(Kind.CELL_DESTROYED), "checked": [7]}),
        ]
        timelines = Timelines()
        for each in odd:
            timelines.take(each)
        assert timelines.events == len(odd)


def many(samples: int, commands: int) -> tuple[list[Line], list[Transcript]]:
    """A run of so many samples with so many commands each."""
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
    """Long lines, large bodies and many events are cut, counted, and named with the command that
    shows them."""
    lines, transcripts = many(1, FIRST + LAST + 5)
    huge = b"x" * (10 << 20)
    lines = [with_body(each, huge) if each.kind is Kind.EXEC_COMPLETED else each for each in lines]
    report = collect(findings_of(transcripts, lines), source_of(lines, huge))
    (unit,) = report["units"]
    assert len(unit["entries"]) == FIRST + LAST
    assert unit["left_out"] == {"command": 5}
    assert "--cell-id c0" in unit["show"]
    _, text, note, _ = unit["entries"][0][-1][0]
    assert len(text) == MAX_BODY_BYTES
    assert "of 10 MiB" in note
    assert len(render(report)) < 4 << 20
    assert shown("y" * (10 << 20)).endswith("characters)")


def test_many_samples_share_the_bound() -> None:
    """A run of 500 samples whose outputs exceed the bound has a page below it, with each sample's
    entries in it."""
    lines, transcripts = many(500, 20)
    report = collect(findings_of(transcripts, lines), source_of(lines, b"z" * 8000))
    assert len(render(report)) < 1.5 * MAX_DETAIL_BYTES
    assert all(len(unit["entries"]) == 20 for unit in report["units"])
    assert all(unit["entries"][0][-1] for unit in report["units"])


def test_the_same_run_gives_the_same_bytes() -> None:
    """Nothing in a page depends on when or where it is made."""
    assert hostile_page() == hostile_page()


@pytest.mark.parametrize(
    ("uses", "unused"),
    [(0, ["shop: shop.example port 80", "mail: mail.example"]), (1, ["mail: mail.example"])],
)
def test_what_was_allowed_and_never_used_is_named(uses: int, unused: list[str]) -> None:
    """A stand-in counts as used when a request to it was allowed, not by another's or a refusal."""
    lines = story(
        *[line(Kind.NETWORK_HTTP, **REQUEST)] * uses,
        line(Kind.NETWORK_HTTP, **{**REQUEST, "stand_in": "mail", "verdict": "refused"}),
    )
    plan: Mapping[str, Any] = {
        "network": {
            "stand_ins": [
                {
                    "id": "shop",
                    "kind": "http",
                    "names": ["shop.example"],
                    "ports": [{"number": 80}],
                },
                {"id": "mail", "kind": "smtp", "names": ["mail.example"], "ports": []},
            ]
        }
    }
    findings: RunFindings = findings_of([], lines)
    targets = collect(findings, source_of(lines, plans={"": plan}))["targets"]
    assert [each["name"] for each in targets if not each["uses"]] == unused


def test_packets_of_belljars_own_probes_are_no_refusals_of_a_sample() -> None:
    """What a range refuses while a cell is probed is counted apart."""
    flow = any_data(Kind.NETWORK_FLOW) | {"verdict": "refused", "address": "10.9.9.9"}
    during = line(Kind.PROBE_STARTED, "c1", which="quick", phase="end", user="")
    lines = story(line(Kind.NETWORK_FLOW, **flow), during, line(Kind.NETWORK_FLOW, **flow))
    transcript = Transcript(task="t", sample="s", epoch=1, uuid="u1")
    (unit,) = collect(findings_of([transcript], lines), source_of(lines))["units"]
    assert (unit["refusals"], unit["probed"]) == (1, 1)


def test_a_flood_of_one_kind_hides_nothing_of_another() -> None:
    """A sample that touches decoys without end still has all of its commands on the page."""
    lines, transcripts = many(200, 3)
    touched = {"decoy": "d" * 1000, "operation": "open", "path": "x" * 2000}
    lines += [line(Kind.DECOY_TOUCHED, "c0", **touched)] * 500
    unit, *_ = collect(findings_of(transcripts, lines), source_of(lines))["units"]
    shown_groups = [group for _, _, group, *_ in unit["entries"]]
    assert shown_groups.count("command") == 3
    assert "command" not in unit["left_out"]
    assert shown_groups.count("decoy") + unit["left_out"]["decoy"] == 500
