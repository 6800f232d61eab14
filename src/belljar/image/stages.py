"""The stages of a Dockerfile, and the images that they start or copy from. Pure."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from belljar.image.kernel import debian_arch
from belljar.image.parser import DockerfileError, Instruction, escape_of, parse
from belljar.image.variables import Expander

_MAX_STAGES: Final = 200
NAME: Final = re.compile(r"[^\s\"'\\$=]+")
"""Of a variable."""
_STAGE: Final = re.compile(r"[a-z][a-z0-9_.-]*")
_IMAGE: Final = re.compile(r"[\w./:@-]+", re.ASCII)
_FLAGS: Final = {
    "FROM": {"platform"},
    "RUN": {"mount", "network", "security"},
    "COPY": {"from", "chown", "chmod", "link", "parents", "exclude"},
    "ADD": {"chown", "chmod", "link", "exclude", "checksum"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "start-interval", "retries"},
}
# The longer name of an option of --mount.
_SAME_OPTION: Final = {
    "src": "source",
    "dst": "target",
    "destination": "target",
    "ro": "readonly",
    "rw": "readwrite",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """`name`: its own among all; `base`: an image, or the stage that it starts from."""

    name: str
    base: str | Stage
    items: tuple[Instruction, ...]
    earlier: Mapping[str, Stage]

    def triggers(self, line: int) -> tuple[Instruction, ...]:
        """The instructions of ONBUILD, for a stage at `line` that starts from this one."""
        texts = [item.text.partition(" ")[2] for item in self.items if item.word == "ONBUILD"]
        if any("<<" in text or text.endswith("\\") for text in texts):
            raise DockerfileError("an ONBUILD of its base has a here-document")
        items = parse("\n".join(texts)) if texts else ()
        return tuple(replace(item, line=line) for item in items)

    def sources(self) -> Iterator[str | Stage]:
        """The images and stages copied or mounted from."""
        for item in self.items:
            with at_line(item.line):
                for name, value in flags_of(item):
                    given = value if item.word == "COPY" and name == "from" else ""
                    if item.word == "RUN" and name == "mount":
                        given = mount_options(value).get("from", "")
                    if given:
                        yield self.source(given)

    def source(self, name: str) -> str | Stage:
        """An earlier stage by its name or number, or an image."""
        found = self.earlier.get(name.lower(), name)
        if isinstance(found, str) and (found.isdigit() or not _IMAGE.fullmatch(found)):
            raise DockerfileError(f"from={name} names neither an earlier stage nor an image")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """Images started or copied from, and the stages that the target needs, the target last.

    `context`: a name that the file can't contain, as it is made of the file's digest.
    """

    images: tuple[str, ...]
    stages: tuple[Stage, ...]
    args: Mapping[str, str]
    known: Mapping[str, str]
    escape: str
    context: str


def base_images(text: str, args: Mapping[str, str], *, target: str = "") -> Bases:
    """The images used for stage `target`, else the last. Raises `DockerfileError`."""
    arch = debian_arch()
    known = {
        f"{side}{name}": args.get(f"{side}{name}", value)
        for side in ("TARGET", "BUILD")
        for name, value in (
            *(("PLATFORM", f"linux/{arch}"), ("OS", "linux"), ("OSVERSION", "")),
            *(("ARCH", arch), ("VARIANT", "")),
        )
    }
    expander = Expander(env=known, escape=escape_of(text))
    begun = list[tuple[Instruction, list[Instruction]]]()
    for item in parse(text):
        with at_line(item.line):
            if item.word == "FROM":
                begun.append((item, []))
            elif begun:
                begun[-1][1].append(item)
            elif item.word == "ARG":
                declare(item, args, known, {}, expander.expand)
            else:
                raise DockerfileError(f"{item.word} stands before the first FROM")
    if not begun:
        raise DockerfileError("it has no FROM")
    if len(begun) > _MAX_STAGES:
        raise DockerfileError(f"it has more than {_MAX_STAGES} stages")
    stages, by_name = list[Stage](), dict[str, Stage]()
    for number, (item, items) in enumerate(begun):
        with at_line(item.line):
            base, name = _from(item, expander.expand, known)
            parent = by_name.get(base.lower(), base)
            triggers = parent.triggers(item.line) if isinstance(parent, Stage) else ()
        unique = f"{name or 'stage'}-{number}"
        all_items = (*triggers, *items)
        stages.append(Stage(name=unique, base=parent, items=all_items, earlier=dict(by_name)))
        by_name |= {str(number): stages[-1]} | ({name: stages[-1]} if name else {})
    last = by_name.get(target.lower()) if target else stages[-1]
    if last is None:
        raise DockerfileError(f"it has no stage {target}")
    needed, images = [last], list[str]()
    for stage in reversed(stages):
        if stage in needed:
            found = [stage.base, *stage.sources()]
            needed += [each for each in found if isinstance(each, Stage)]
            images[:0] = [each for each in found if isinstance(each, str) and each != "scratch"]
    kept = tuple(stage for stage in stages if stage in needed)
    return Bases(
        images=tuple(dict.fromkeys(images)),
        stages=kept,
        args=args,
        known=known,
        escape=expander.escape,
        context=f"heredocs-{hashlib.sha256(text.encode()).hexdigest()[:40]}",
    )


@contextmanager
def at_line(line: int) -> Iterator[None]:
    """Errors within name the line."""
    try:
        yield
    except DockerfileError as error:
        raise DockerfileError(
            str(error) if str(error).startswith("line ") else f"line {line}: {error}"
        ) from None


def declare(
    item: Instruction,
    args: Mapping[str, str],
    known: dict[str, str],
    inherited: Mapping[str, str],
    expand: Callable[[str], str],
) -> list[str]:
    """Put an ARG's values into `known`; returns the names that have one."""
    names = []
    if not item.values:
        raise DockerfileError("ARG needs a name")
    for word in item.values:
        name, has_default, default = word.partition("=")
        if not NAME.fullmatch(name):
            raise DockerfileError(f"ARG {word} has no plain name")
        if name in args:
            known[name] = args[name]
        elif has_default:
            known[name] = expand(default)
        elif name in inherited:
            known[name] = inherited[name]
        if name in args or has_default or name in inherited:
            names.append(name)
    return names


def _from(
    item: Instruction, expand: Callable[[str], str], known: Mapping[str, str]
) -> tuple[str, str]:
    """The image or stage, and the name of the new stage."""
    values = item.values
    if len(values) not in {1, 3} or (len(values) == 3 and values[1].lower() != "as"):
        raise DockerfileError("a FROM is neither `FROM image` nor `FROM image AS stage`")
    for _, written in flags_of(item):
        platform = expand(written).lower().replace("x86_64", "amd64").replace("aarch64", "arm64")
        if platform.split("/")[:2] not in ([*known["BUILDPLATFORM"].split("/")], ["linux"]):
            raise DockerfileError(f"--platform={written} is not this machine's platform")
    image = expand(values[0])
    name = values[2].lower() if len(values) == 3 else ""
    if not image:
        raise DockerfileError(
            f"`FROM {values[0]}` names no image: give the argument with --build-arg"
        )
    if not _IMAGE.fullmatch(image) or (name and not _STAGE.fullmatch(name)):
        raise DockerfileError(f"a FROM names no image or stage: {item.text[:80]}")
    return image, name


def flags_of(item: Instruction) -> list[tuple[str, str]]:
    """Names and values. Raises `DockerfileError` for a flag that can't be honoured."""
    found = []
    for flag in item.flags:
        name, has_value, value = flag.removeprefix("--").partition("=")
        if name not in _FLAGS.get(item.word, ()):
            raise DockerfileError(f"line {item.line}: {item.word} can't have {flag} here")
        found.append((name, value if has_value else "true"))
    return found


def mount_options(text: str) -> dict[str, str]:
    """The options of a `--mount` by their longest names. Raises `DockerfileError`."""
    try:
        fields = next(csv.reader([text], strict=True), [])
    except csv.Error:
        fields = [""]
    found = dict[str, str]()
    for each in fields:
        key, has_value, value = each.partition("=")
        key = _SAME_OPTION.get(key.lower(), key.lower())
        if not has_value and key not in {"readonly", "readwrite", "required"}:
            raise DockerfileError(f"--mount={text} has an option without a value: {each!r}")
        value = value if has_value else "true"
        if key == "readwrite":
            key, value = "readonly", "false" if value == "true" else "true"
        found[key] = value
    return found
