"""The report that a real run leaves, read by a parser and by a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from tests.unit.report.stories import findings_of
from tests.unit.report.test_page import (
    EVIL,
    data_of,
    elements,
    hostile_page,
    many,
    source_of,
)

from belljar.ledger import verify
from belljar.ledger.verification import Status
from belljar.report.collect import collect
from belljar.report.html import render

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog
    from tests.integration.conftest import Belljar

CHROMIUM = shutil.which("chromium")
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        for command in state.metadata["commands"]:
            await sandbox().exec(["sh", "-c", command])
        return state
    return solve

@task
def two():
    evil = "printf '</script><script>alert(1)</script>\\\\033[31m\\\\342\\\\200\\\\256\\\\377'; exit 3"
    asks = "curl -s http://shop.example/ ; curl -s http://nowhere.example/ ; true"
    samples = [
        Sample(id="<b>evil</b>", input="x", metadata={"commands": [evil]}),
        Sample(id="asks", input="x", metadata={"commands": [asks]}),
    ]
    return Task(dataset=samples, solver=work(), sandbox=("belljar", "policy.yaml"))
"""
POLICY = """
belljar: 1
risk: low
network:
  stand_ins:
    shop: {kind: http, names: [shop.example], routes: [{path: /, body: tea}]}
    mail: {kind: smtp, names: [mail.example]}
"""


@pytest.mark.slow
@pytest.mark.root
def test_a_run_leaves_a_page_of_what_it_did(belljar: Belljar, tmp_path: Path) -> None:
    """`belljar run` ends with a page that names what each sample did and what was never used; the
    run verifies, and `belljar report` makes the same bytes."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "policy.yaml").write_text(POLICY)
    ran = belljar("run", f"{tmp_path}/task.py", "--model", "mockllm/model")
    assert ran.returncode == 0, ran.stderr.decode()
    run = belljar.runs()[-1]
    target = belljar.home / "reports" / f"{run.name}.html"
    assert f"report: {target}" in ran.stdout.decode()
    page = target.read_bytes()
    made = {sample[0][2]: sample for sample in data_of(page)}
    assert made
    text = "".join(each.text or "" for each in elements(page))
    assert "stand-in, smtp" in text
    evil, asks = sorted(data_of(page), key=lambda entries: "shop.example" in str(entries))
    (command,) = [entry for entry in evil if entry[2] == "command"]
    assert command[4].startswith("exited 3")
    assert "</script><script>alert(1)</script>\\x1b[31m\\u202e\\xff" in command[-1][0][1]
    assert any("GET http://shop.example/" in entry[3] for entry in asks)
    assert any(entry[2] == "refusal" and "nowhere.example" in entry[3] for entry in asks)
    assert verify(run).status is Status.VERIFIED
    again = belljar("report", run.name, "-o", str(tmp_path / "again.html"))
    assert again.returncode == 0, again.stderr.decode()
    assert (tmp_path / "again.html").read_bytes() == page


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Debian's chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.mark.thorough
def test_a_browser_runs_nothing_of_a_guest(browser: Browser, tmp_path: Path) -> None:
    """With hostile text in every field no dialog opens, nothing is requested, no script but ours
    runs; filter, sorting and timelines work by keyboard and mouse."""
    browser_page = browser.new_page()
    target = tmp_path / "page.html"
    target.write_bytes(hostile_page())
    told: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        told.append(dialog.message)
        dialog.dismiss()

    browser_page.on("dialog", dismiss)
    browser_page.on("console", lambda message: told.append(message.text))
    browser_page.on("pageerror", lambda error: told.append(str(error)))
    browser_page.on("request", lambda request: told.append(request.url))
    browser_page.goto(target.as_uri())
    browser_page.locator("#table tbody a").first.focus()
    browser_page.keyboard.press("Enter")
    browser_page.wait_for_selector("#s0 .entries")
    for more in browser_page.locator("#s0 .entries details summary").all():
        more.click()
    assert "<script>alert(1)</script>" in browser_page.locator("#s0 .entries").inner_text()
    shown = browser_page.locator("#table tbody tr:visible")
    browser_page.fill("#search", "no sample has this name")
    assert shown.count() == 0
    browser_page.check("#deep")
    browser_page.fill("#search", EVIL[:40])
    browser_page.wait_for_function("document.getElementById('progress').hidden")
    assert shown.count() > 0
    browser_page.fill("#search", "")
    browser_page.locator("#table thead button").first.click()
    assert browser_page.locator("#table thead th").first.get_attribute("aria-sort") == "ascending"
    assert told == [target.as_uri()]


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_page(
    browser: Browser, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    """Contrast, labels, headings and roles are as the rules of axe want them."""
    checker = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    target = tmp_path / "page.html"
    target.write_bytes(hostile_page())
    # The page's own policy would keep axe out
    page = browser.new_context(bypass_csp=True, color_scheme=scheme).new_page()
    page.goto(f"{target.as_uri()}#s0")
    page.wait_for_selector("#s0 .entries")
    found = checker.Axe().run(page)
    assert found.response["violations"] == []
    assert found.response["passes"]


@pytest.mark.thorough
@pytest.mark.alone
def test_a_large_page_opens_in_two_seconds(browser: Browser, tmp_path: Path) -> None:
    """100,000 events of 500 samples are open in two seconds, and filtered in a tenth of one."""
    lines, transcripts = many(500, 100)
    source = source_of(lines, b"a line of output\n" * 500)
    target = tmp_path / "page.html"
    target.write_bytes(render(collect(findings_of(transcripts, lines), source)))
    page = browser.new_page()
    page.goto(target.as_uri())
    opened_ms = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    filtered_ms = page.evaluate(
        """() => {
            const search = document.getElementById("search");
            const start = performance.now();
            search.value = "s499";
            search.dispatchEvent(new Event("input", {bubbles: true}));
            return performance.now() - start;
        }"""
    )
    assert page.inner_text("#found") == "1 of 500"
    assert opened_ms < 2000
    assert filtered_ms < 100
