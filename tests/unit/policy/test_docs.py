"""What the documentation shows is true."""

from __future__ import annotations

import re
from pathlib import Path

from belljar.policy import Policy, policy_schema
from belljar.policy.load import examine

PAGE = Path(__file__).parents[3] / "docs" / "policy.md"


def test_every_example_is_a_valid_policy(tmp_path: Path) -> None:
    """Each YAML block of the page, with the files it names present."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for name in re.findall(r"source: (\S+)", PAGE.read_text()):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for block in blocks:
        assert examine(block.encode(), base=tmp_path)[1] == ()


def test_every_field_is_documented() -> None:
    """The table has a row for each, with its default where the schema has one."""
    page = PAGE.read_text()
    for name in Policy.model_fields:
        assert f"| `{name}`" in page or f"| `{name}." in page, name
    for name, field in policy_schema()["$defs"]["ResourcesText"]["properties"].items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `resources.{name}`"))
        assert f" {field['default']}" in row, name
