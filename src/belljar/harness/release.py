"""Knocking at doors from outside: telling the owners of held cells to let them go.

Blocking, bounded in time.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from belljar.harness.door import doors_directory, short_path
from belljar.harness.door_wire import FrameKind, frame

_TIMEOUT_S: Final = 5.0


def knock(path: Path, *, timeout_s: float = _TIMEOUT_S) -> socket.socket:
    """A connection to a door. Raises `OSError` when nobody owns it any more."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(timeout_s)
    try:
        with short_path(path) as name:
            stream.connect(name)
    except OSError:
        stream.close()
        raise
    return stream


def release_doors(cell_id: str | None, home: Path | None = None) -> list[str]:
    """Tell the owner of each held cell (or of one) to destroy it; a door without an owner is
    removed. Returns the cells that answered.
    """
    directory = doors_directory(home)
    if not directory.is_dir():
        return []
    wanted = [path for path in sorted(directory.iterdir()) if cell_id in (None, path.name)]
    return [path.name for path in wanted if _release(path)]


def sweep_doors(home: Path | None = None) -> list[str]:
    """Remove the doors whose owners are dead; returns their cells.

    A door that answers is left alone.
    """
    directory = doors_directory(home)
    swept = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        try:
            knock(path, timeout_s=1).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            swept.append(path.name)
        except OSError:
            continue  # full, or not ours to judge
    return swept


def _release(path: Path) -> bool:
    try:
        with knock(path) as stream:
            stream.sendall(frame(FrameKind.RELEASE))
            return bool(stream.recv(1))
    except TimeoutError:
        # A running sample's door that is not served right now: its owner lives and will destroy it
        return False
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return False
    except OSError:
        return False
