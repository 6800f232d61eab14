"""Runs a command in a bare Debian root.

    python -m tests.integration.bare_root ROOT BUNDLE COMMAND...

Called inside new mount, pid and network namespaces. ROOT becomes `/`: in a chroot no user namespace
could be made. The bundle is at /bundle, read-only. A bare Debian has no `mount`, so this does it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from belljar.network.syscalls import MS_BIND, MS_RDONLY, MS_REC, enter_root, mount

MS_REMOUNT = 32
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "NO_COLOR": "1",
}


def main(root: str, bundle: str, *command: str) -> None:
    mount(root, root, "", MS_BIND)
    Path(root, "bundle").mkdir(exist_ok=True)
    for name in ("sys", "dev"):
        mount(f"/{name}", f"{root}/{name}", "", MS_BIND | MS_REC)
    mount("proc", f"{root}/proc", "proc", 0)
    for name in ("run", "tmp"):
        mount("tmpfs", f"{root}/{name}", "tmpfs", 0)
    mount(bundle, f"{root}/bundle", "", MS_BIND)
    mount("", f"{root}/bundle", "", MS_BIND | MS_REMOUNT | MS_RDONLY)
    enter_root(root)
    os.execvpe(command[0], list(command), ENVIRONMENT)  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
