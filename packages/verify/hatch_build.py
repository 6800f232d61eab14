"""Build hook: makes the package `belljar_verify` of the modules of `belljar` that verification needs.

They are read from `src/belljar` when the wheel is built, and are the same but for the name of the package in their imports: both wheels can be installed
beside each other. The wheel is built from a checkout (`python -m hatchling build -t wheel`); there is no source distribution.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

MODULES = (
    "dataclass", "descriptors", "errors", "events", "units",
    *(f"ledger/{name}" for name in ("chain", "files", "keys", "kinds", "schema", "verification")),
)  # fmt: skip
_OURS = re.compile(r"^(\s*from )belljar(?=[. ])", re.M)


def sources(here: Path) -> dict[str, str]:
    """The path of each file in the wheel, and its text."""
    belljar = here.parents[1] / "src" / "belljar"
    found = {f"{name}.py": (belljar / f"{name}.py").read_text() for name in MODULES}
    found["ledger/kinds.txt"] = (belljar / "ledger/kinds.txt").read_text()
    found["command.py"] = (here / "command.py").read_text()
    found |= dict.fromkeys(
        ("__init__.py", "ledger/__init__.py"), '"""Checks the record of a Belljar run."""\n'
    )
    found["__main__.py"] = (
        '"""`python -m belljar_verify`."""\n\nfrom belljar.command import main\n\nmain()\n'
    )
    return {
        f"belljar_verify/{name}": _OURS.sub(r"\1belljar_verify", text)
        for name, text in found.items()
    }


class CustomMetadataHook(MetadataHookInterface):
    """Hatchling calls this for the version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set it: that of the checkout."""
        text = (Path(self.root).parents[1] / "src/belljar/package.py").read_text()
        found = re.search(r'^__version__ = "(.+)"$', text, re.M)
        if found is None:
            raise SystemExit("hatch_build: src/belljar/package.py has no version")
        metadata["version"] = found[1]


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling calls this for the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Write the modules into a scratch directory, and name them."""
        self._scratch = tempfile.TemporaryDirectory(prefix="belljar-verify-")
        for name, text in sources(Path(self.root)).items():
            path = Path(self._scratch.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            build_data["force_include"][str(path)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - as above
        """Remove the scratch directory."""
        self._scratch.cleanup()
