"""Docker's references to images (github.com/distribution/reference); commands that wait. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from belljar.dataclass import dataclass, replace
from belljar.units import printable

# What Docker adds to a name without them, so that a task's image means the same here.
DEFAULT_REGISTRY: Final = "docker.io"
DEFAULT_TAG: Final = "latest"
_OLD_DEFAULT_REGISTRY: Final = "index.docker.io"  # Docker's older name, in some files
_OFFICIAL: Final = "library/"  # where Docker Hub has the images that people write without a slash
_MAX_NAME_CHARS: Final = 255  # no registry takes a longer name (OCI distribution spec)
_MAX_CHARS: Final = 512  # a name, a tag of 128 and a digest of 71 characters fit
# As the grammar names them: `domain-component`, `domain` with a port, `path-component`,
# `remote-name` and `tag`.
_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST: Final = re.compile(
    rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?|{_PART}", re.ASCII
)
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
IMAGE_ID: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)  # Docker's, or the store's digest
_REFERENCE: Final = re.compile(  # behind the host; `parse_reference` also checks lengths
    rf"(?P<path>{_PART}(?:/{_PART})*)(?::(?P<tag>{_TAG}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?",
    re.ASCII,
)
# Docker refuses such a repository: it would be taken for an image's id.
_HEX_NAME: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Two names of one image are equal."""

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def canonical(self) -> str:
        """All parts are written out: `docker.io/library/debian:latest`."""
        return f"{self.registry}/{self.path}{_suffix(self.tag, self.digest)}"

    @property
    def familiar(self) -> str:
        """People write it so, without defaults."""
        is_latest = self.tag == DEFAULT_TAG and not self.digest
        suffix = _suffix("" if is_latest else self.tag, self.digest)
        if self.registry == DEFAULT_REGISTRY:
            official = self.path.removeprefix(_OFFICIAL)
            if "/" not in official and not _HEX_NAME.fullmatch(official) and official != "sha256":
                return f"{official}{suffix}"
            if not _is_host(self.path.partition("/")[0]):
                return f"{self.path}{suffix}"
        return f"{self.registry}/{self.path}{suffix}"

    @property
    def untagged(self) -> Reference:
        """It has no tag if it has a digest."""
        return replace(self, tag="") if self.digest else self


def parse_reference(text: str) -> Reference:
    """Raises `ValueError`, also for an image's id."""
    if IMAGE_ID.fullmatch(text) or _HEX_NAME.fullmatch(text):
        raise ValueError(f"`{text}` is an image's id, not its name")
    first, slash, rest = text.partition("/")
    has_host = bool(slash) and _is_host(first)
    match = _REFERENCE.fullmatch(rest if has_host else text) if len(text) <= _MAX_CHARS else None
    if match is None or text.startswith("sha256:") or (has_host and not _HOST.fullmatch(first)):
        form = "`[registry/]name[:tag][@sha256:…]` in lower case, or an id of 64 hexadecimal digits"
        raise ValueError(f"`{printable(text, max_chars=120)}` is not a valid image name: {form}")
    registry = first if has_host and first != _OLD_DEFAULT_REGISTRY else DEFAULT_REGISTRY
    is_official = registry == DEFAULT_REGISTRY and "/" not in match["path"]
    path = f"{_OFFICIAL}{match['path']}" if is_official else match["path"]
    if len(registry) + 1 + len(path) > _MAX_NAME_CHARS:
        most = f"{_MAX_NAME_CHARS} characters, registry included"
        raise ValueError(f"an image's name has at most {most}")
    digest = match["digest"] or ""
    tag = match["tag"] or ("" if digest else DEFAULT_TAG)
    return Reference(registry=registry, path=path, tag=tag, digest=digest)


def _is_host(text: str) -> bool:
    return text == "localhost" or "." in text or ":" in text or text != text.lower()


def _suffix(tag: str, digest: str) -> str:
    return (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")


# How authors keep a container open for commands that come from outside.
_WAITING: Final = frozenset({"tail -f /dev/null", "sleep infinity", "sleep inf"})
# Base images end in one: without a terminal or a script it has nothing to do.
_SHELLS: Final = frozenset(
    f"{place}{shell}" for shell in ("sh", "bash", "ash") for place in ("", "/bin/", "/usr/bin/")
)


def is_idle(command: Sequence[str]) -> bool:
    """It only keeps a container from ending."""
    words = list(command)
    if not words or (words[0] in _SHELLS and len(words) == 1):
        return True
    if words[0] in _SHELLS and words[1] in ("-c", "-lc") and len(words) == 3:
        words = words[2].removeprefix("exec ").split()
    return " ".join(words).strip() in _WAITING
