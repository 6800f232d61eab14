"""Tools and their versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.host.tools import Tool, tool_facts


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on the search path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, script: str) -> Path:
    """A tool that runs this shell script."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


VMM = Tool(name="vmm", package="vmm-package", use="the microVM", needed=True, needed_min="8.2")


def facts_of(
    tool: Tool, cache: Path = Path("/proc/nonexistent/tools.json")
) -> tuple[str, bool, str]:
    """(version, ok, hint) of one tool."""
    fact = tool_facts((tool,), cache, search_path="/nonexistent")[0]
    return fact.version, fact.ok, fact.hint


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
    bin_dir: Path, script: str, version: str, ok: bool
) -> None:
    """What doesn't say its version is not believed to be new enough."""
    install(bin_dir, "vmm", script)
    assert facts_of(VMM)[:2] == (version, ok)
