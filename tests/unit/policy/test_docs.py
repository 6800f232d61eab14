"""What the documentation shows is true."""

from __future__ import annotations

import re
from pathlib import Path

from belljar.policy import Network, Policy, policy_schema
from belljar.policy.load import examine
from belljar.policy.network import Record, Upstream
from belljar.policy.stand_ins import MODELS, CellStandIn, StandIn

PAGE = Path(__file__).parents[3] / "docs" / "policy.md"


def test_every_example_is_a_valid_policy(tmp_path: Path) -> None:
    """Each YAML block of the page, with the files it names present."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    for name in re.findall(r"source: (\S+)", PAGE.read_text()):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "wheels").mkdir()
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


def test_every_kind_and_field_of_a_network_is_documented() -> None:
    """Each kind has a row with its own fields and usual ports; what all have, and an upstream's fields, are told."""
    page = PAGE.read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name in [
        *(set(Network.model_fields) - {"record", "own_cell"}),
        *(f"record.{name}" for name in Record.model_fields),
        "own_cell.names",
    ]:
        assert any(row.startswith(f"| `{name}`") for row in rows), name
    common = {*StandIn.model_fields}
    for kind, model in MODELS.items():
        row = next(row for row in rows if f"`{kind}`" in row.split("|")[1])
        inherited = set(CellStandIn.model_fields) - {"command"} if kind == "python" else set()
        for name in set(model.model_fields) - common - inherited:
            assert f"`{name}" in row, (kind, name)
        assert ", ".join(map(str, model.usual_ports)) in row
    for name in Upstream.model_fields:
        assert f" {name}:" in page
