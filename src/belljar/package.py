"""The installed package: version, directory and compiled programs."""

import os
from pathlib import Path
from typing import Final

__version__ = "0.1.0"
PACKAGE_DIR: Final = Path(__file__).parent
# Compiled when the package is built: an air gap has no compiler.
PROGRAMS_DIR: Final = PACKAGE_DIR / "_bin"


def program_path(name: str) -> Path:
    return PROGRAMS_DIR / f"{name}-{os.uname().machine}"
