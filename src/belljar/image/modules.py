"""Which kernel modules a guest loads, and in which order. Pure: the modules' bytes are handed in."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

from belljar.errors import HostError

_DEPENDS: Final = re.compile(rb"(?:\A|\0)depends=([^\0]{0,4096})\0")


def module_name(text: str) -> str:
    """A module's name as the kernel says it, from a file name or any spelling (`virtio-rng.ko.xz` → `virtio_rng`)."""
    return text.partition(".ko")[0].replace("-", "_")


def dependencies(module: bytes) -> tuple[str, ...]:
    """The modules that must be loaded before this one, as its `.modinfo` section names them."""
    match = _DEPENDS.search(module)
    return tuple(module_name(name) for name in match[1].decode("ascii", "replace").split(",") if name) if match else ()


def load_order(
    wanted: Sequence[str], *, read: Callable[[str], bytes | None], builtin: Collection[str]
) -> list[tuple[str, bytes]]:
    """The wanted modules and all they depend on, each after what it needs, in the order wanted; built-in ones left out.

    `read` gives a module's bytes, or None if there is none. Raises `HostError` for a module that is neither there nor built in.
    """
    ordered: dict[str, bytes] = {}
    for name in wanted:
        _add(module_name(name), ordered, (), read=read, builtin=builtin)
    return list(ordered.items())


def _add(
    name: str,
    ordered: dict[str, bytes],
    above: tuple[str, ...],
    *,
    read: Callable[[str], bytes | None],
    builtin: Collection[str],
) -> None:
    if name in ordered or name in builtin or name in above:
        return
    content = read(name)
    if content is None:
        raise HostError(f"the kernel has no module {name}, and it is not built in", where="modules")
    for needed in dependencies(content):
        _add(needed, ordered, (*above, name), read=read, builtin=builtin)
    ordered[name] = content
