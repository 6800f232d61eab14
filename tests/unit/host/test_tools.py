"""Tools and their versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.host.tools import Tool, tool_facts


@pytest.mark.parametrize(
    ("script", "version", "ok"),
    [
        ("echo 'vmm emulator version 10.0.2 (Debian 1:10.0.2+ds)'", "10.0.2", True),
        ("echo 8.10", "8.10", True),
        ("echo version 8.1.9 >&2", "8.1.9", False),
        ("echo no version here", "", False),
        ("exit 1", "", False),
        ("echo 0.0~20240729.0", "0.0~20240729", False),
    ],
)
def test_a_tool_is_ok_when_it_says_a_version_that_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, version: str, ok: bool
) -> None:
    """What doesn't say its version is not believed to be new enough."""
    file = tmp_path / "vmm"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    vmm = Tool("vmm", "vmm-package", "the microVM", needed=True, needed_min="8.2")
    (fact,) = tool_facts((vmm,), tmp_path / "tools.json")
    assert (fact.version, fact.ok) == (version, ok)
