"""What the documentation shows is true."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import click

from belljar.cli.main import root
from belljar.policy.load import examine
from belljar.probe.catalogue import FINGERPRINT, PROBES

PAGE = Path(__file__).parents[3] / "docs" / "policy.md"
ROOT = PAGE.parents[1]


def pages() -> list[Path]:
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted(ROOT.glob("examples/*/README.md")),
    ]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)


def test_every_example_is_a_valid_policy(tmp_path: Path) -> None:
    """Each YAML block of each page, with the files that it names present."""
    found = {page.stem: blocks(page) for page in pages()}
    assert len(blocks(ROOT / "README.md")) == 2
    assert all(found[name] for name in ("policy", "policy-network", "ranges", "stand-ins"))
    for block in itertools.chain(*found.values()):
        for name in re.findall(r"source: (\S+)", block):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("x")
        for name in re.findall(r"(?:packages|files): ([a-z]\S+)", block):
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
        assert examine(block.encode(), base=tmp_path).problems == (), block


def test_the_pages_know_how_many_probes_there_are() -> None:
    """The first page and the changelog say how many the catalogue has that aren't fingerprints."""
    count = sum(probe.group != FINGERPRINT for probe in PROBES)
    for name in ("README.md", "CHANGELOG.md"):
        assert re.findall(r"(\d+) containment tests", (ROOT / name).read_text()) == [str(count)]
    rows = re.findall(
        r"^\| `(\w+\.\w+)` \|", (ROOT / "docs" / "containment.md").read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted(probe.name for probe in PROBES)


def test_every_command_exists() -> None:
    """What a page shows as `belljar …` is a command with those options."""
    shown = re.compile(r"(?:`|^\$ |^\.venv/bin/|/bin/|^)belljar ([a-z][^`\n#…]*)", re.MULTILINE)
    texts = [page.read_text() for page in (*pages(), *ROOT.glob("S*.md"), *ROOT.glob("CO*.md"))]
    for said in (said for text in texts for said in shown.findall(text)):
        words = said.split(" -- ")[0].split()
        command = root.get_command(click.Context(root), words.pop(0))
        if isinstance(command, click.Group) and words:
            command = command.commands.get(words.pop(0))
        assert command is not None, said
        if not command.context_settings.get("ignore_unknown_options"):  # `run` takes Inspect's too
            known = {option for each in command.params for option in each.opts}
            plain = [word.strip("[") for word in words if word.strip("[").startswith("--")]
            assert {re.sub(r"[\]=].*", "", word) for word in plain} <= known, said
