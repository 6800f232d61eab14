"""Attach sockets from outside: asking the owners of held cells to destroy them.

Blocking, bounded in time.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from belljar.harness.attach_frames import FrameKind, frame
from belljar.harness.attach_socket import attach_directory, short_path

_TIMEOUT_S: Final = 5.0


def connect_to(path: Path, *, timeout_s: float = _TIMEOUT_S) -> socket.socket:
    """A connection to an attach socket. Raises `OSError` if its owner is gone."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(timeout_s)
    try:
        with short_path(path) as name:
            stream.connect(name)
    except OSError:
        stream.close()
        raise
    return stream


def release_cells(cell_id: str | None, home: Path | None = None) -> list[str]:
    """Ask the owner of each held cell (or of one) to destroy it; a socket without an owner is
    removed. Returns the cells that answered.
    """
    directory = attach_directory(home)
    if not directory.is_dir():
        return []
    wanted = [path for path in sorted(directory.iterdir()) if cell_id in (None, path.name)]
    return [path.name for path in wanted if _release(path)]


def remove_dead_sockets(home: Path | None = None) -> list[str]:
    """Remove the sockets whose owners are dead; returns their cells.

    A socket that answers is left alone.
    """
    directory = attach_directory(home)
    swept = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        try:
            connect_to(path, timeout_s=1).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            swept.append(path.name)
        except OSError:
            continue  # full, or not ours to judge
    return swept


def _release(path: Path) -> bool:
    try:
        with connect_to(path) as stream:
            stream.sendall(frame(FrameKind.RELEASE))
            return bool(stream.recv(1))
    except TimeoutError:
        # A running sample's socket that is not served right now: its owner destroys the cell.
        return False
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return False
    except OSError:
        return False
