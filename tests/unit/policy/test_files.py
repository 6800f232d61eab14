"""Files that are copied in, in a policy and in its target cells."""

from __future__ import annotations

from pathlib import Path

from belljar.policy.load import examine


def problems(text: str, base: Path) -> list[str]:
    """What is wrong with a policy, as it is told."""
    return [problem.line("policy.yaml") for problem in examine(text.encode(), base=base).problems]


TARGET = """\
belljar: 1
risk: low
network:
  stand_ins:
    shop:
      kind: cell
      names: [shop.example]
      ports: [{ports}]
      files: [{files}]
"""


def test_a_target_cells_files_are_looked_at(tmp_path: Path) -> None:
    """As the policy's own: what is missing is told with its place."""
    (tmp_path / "there").write_text("x")
    assert problems(TARGET.format(ports="80", files="{source: there, target: /srv/x}"), tmp_path) == []
    (told,) = problems(TARGET.format(ports="80", files="{source: gone, target: /srv/x}"), tmp_path)
    assert told.startswith("policy.yaml:9:")
    assert "`gone` can't be copied in" in told


def test_no_two_files_of_a_target_cell_have_one_target(tmp_path: Path) -> None:
    """The one would hide the other."""
    (tmp_path / "there").write_text("x")
    twice = "{source: there, target: /srv/x}, {source: there, target: /srv/x}"
    (told,) = problems(TARGET.format(ports="80", files=twice), tmp_path)
    assert "two files have the target" in told


def test_all_ports_stand_alone(tmp_path: Path) -> None:
    """With others beside it, nobody would know what was meant."""
    assert problems(TARGET.format(ports="all", files=""), tmp_path) == []
    (told,) = problems(TARGET.format(ports="all, 80", files=""), tmp_path)
    assert "`all` stands alone" in told
