"""What a guest is booted from: the initramfs, made of the package's agent and the kernel's modules, and the digests that go into a template's key."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import belljar
from belljar.errors import HostError
from belljar.image import Kernel, initramfs

_NUMBERED: Final = re.compile(r"\d+-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Initramfs:
    """The archive and its digest."""

    contents: bytes
    digest: str


def build_initramfs(kernel: Kernel) -> Initramfs:
    """For this kernel, with this package's agent. Raises `HostError` when a part is missing or damaged."""
    agent = Path(belljar.__file__).parent / "_bin" / f"agent-{platform.machine()}"
    try:
        modules = [(_NUMBERED.sub("", path.stem, count=1), path.read_bytes()) for path in kernel.modules]
        contents = initramfs.build(agent.read_bytes(), modules)
    except OSError as exc:
        mend = "install the package again; its build compiles it" if exc.filename == str(agent) else "run `belljar setup`"
        raise HostError(f"a part of the guest can't be read: {exc.strerror}", where=str(exc.filename), mend=mend) from exc
    except ValueError as exc:
        raise HostError(f"the guest's initramfs can't be made: {exc}", where=str(kernel.vmlinuz.parent), mend="run `belljar setup`") from exc
    return Initramfs(contents=contents, digest=hashlib.sha256(contents).hexdigest())


def write_read_only(path: Path, contents: bytes) -> None:
    """A file that its readers can't change and that is on the disk when this returns."""
    with path.open("xb") as file:
        file.write(contents)
        file.flush()
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())
