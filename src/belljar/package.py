"""What is installed: the package's version, its directory and its compiled programs."""

import os
from pathlib import Path
from typing import Final

__version__ = "0.1.0"
PACKAGE_DIR: Final = Path(__file__).parent
# Compiled when the package is built: an air gap has no compiler.
PROGRAMS_DIR: Final = PACKAGE_DIR / "_bin"


def program_path(name: str) -> Path:
    """Where the compiled program `name` for this processor lies, whether or not it is there."""
    return PROGRAMS_DIR / f"{name}-{os.uname().machine}"
