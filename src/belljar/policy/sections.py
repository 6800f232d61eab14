"""Sections of a policy file that any cell has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, field_validator
from pydantic_core.core_schema import ValidationInfo

from belljar.policy import fields as kinds
from belljar.policy import limits
from belljar.policy.fields import Strict, list_of
from belljar.policy.files import Tree, list_tree
from belljar.policy.guarding import OWN_CELL
from belljar.policy.limits import CAPABILITIES, REFUSE, REPORT, HostTools, Resources
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.units import format_size, listed, quoted

MAX_FILES: Final = 256  # each is opened and digested before every cell
MAX_TOOLS: Final = 64
MAX_TOOL_CHARS: Final = 256
_DEFAULT: Final = Resources()

# As written; it is normalised where it is looked up. `parse_reference` raises what is wrong.
IMAGE: Final = kinds.checked(
    "an image", "", lambda image: IMAGE_ID.fullmatch(image) or parse_reference(image)
)


class ResourcesText(Strict):
    """Resources as they stand in the file."""

    cpus: Annotated[int, Field(ge=1, le=64)] = _DEFAULT.cpus
    """Virtual processors."""
    memory: Annotated[int, kinds.size("64MiB", "256GiB")] = kinds.amount("512MiB")
    """Memory for the cell's processes. From 64MiB to 256GiB."""
    disk: Annotated[int, kinds.size("16MiB", "256GiB")] = kinds.amount("512MiB")
    """Room for what the cell writes, in memory too. From 16MiB to 256GiB."""
    processes: Annotated[int, Field(ge=16, le=32768)] = _DEFAULT.processes
    """Processes and threads at one time."""
    lifetime: Annotated[float, kinds.duration("10s", "7d")] = kinds.amount("4h")
    """After this long the cell is destroyed, whatever it does. From 10s to 7d."""
    exec_timeout: Annotated[float, kinds.duration("1s", "1d")] = Field(
        _DEFAULT.exec_timeout_s, json_schema_extra={"default": "10m"}
    )
    """A command without one of its own is killed then. From 1s to 1d, at most the lifetime."""
    output: Annotated[int, kinds.size("1KiB", "256MiB")] = kinds.amount("10MiB")
    """Kept of each stream of one command; the rest is dropped and counted. From 1KiB to 256MiB."""

    @field_validator("exec_timeout", mode="after")
    @classmethod
    def _within_lifetime(cls, exec_timeout: float, info: ValidationInfo) -> float:
        lifetime = info.data.get("lifetime")
        if lifetime is not None and exec_timeout > lifetime:
            raise ValueError("must be at most `lifetime`")
        return exec_timeout

    def resources(self) -> Resources:
        """`exec_timeout` shrinks to a shorter lifetime."""
        written = self.model_dump() | {"exec_timeout": min(self.exec_timeout, self.lifetime)}
        return Resources(**{name: written[word] for name, word in Resources.words().items()})


def written_resources(value: object) -> object:
    return value.written() if isinstance(value, Resources) else value


if TYPE_CHECKING:  # written resources, or a program's, as `Resources`
    ResourcesField: TypeAlias = Resources
else:
    ResourcesField = Annotated[
        ResourcesText,
        BeforeValidator(written_resources, json_schema_input_type=ResourcesText),
        AfterValidator(ResourcesText.resources),
        PlainSerializer(written_resources, return_type=dict[str, Any]),
    ]


class HostRules(Strict):
    """What must hold of the host meanwhile."""

    air_gap: Literal["required"]
    """`required`: a run is refused unless `belljar airgap check` finds every way beyond the host
    absent, and void if one appears while it runs."""


class FileCopy(Strict):
    """A file that is copied into the cell."""

    source: Annotated[str, kinds.SOURCE]
    """The file, below the policy's own directory and relative to it."""
    target: Annotated[str, kinds.TARGET]
    """Its path in the cell, absolute or relative to the working directory."""
    mode: (
        Annotated[int, kinds.MODE, PlainSerializer(lambda mode: f"{mode:04o}", return_type=str)]
        | None
    ) = None
    """Permissions as octal digits in quotes; default "0644"."""
    owner: Annotated[str, kinds.USER] | None = None
    """Who owns it in the cell; default the cell's user."""
    secret: bool = False
    """A cell that has it is not saved or forked."""


def _each_target_once(files: tuple[FileCopy, ...]) -> tuple[FileCopy, ...]:
    targets = [file.target for file in files]
    if twice := [each for each in targets if targets.count(each) > 1]:
        raise ValueError(f"two files have the target {quoted(twice[0])}")
    return files


FilesField: TypeAlias = Annotated[  # a list of files, no two of them with one target
    tuple[FileCopy, ...], list_of(MAX_FILES, min_count=0), AfterValidator(_each_target_once)
]

# ---- rights inside the cell: only those that can reach neither the host nor the guest agent, whose
# word counts in verdicts (docs/threat-model.md has the reason of each)

_CAPABILITY: Final = kinds.checked(
    "a capability",
    "is not a capability of Linux",
    lambda text: text.upper().removeprefix("CAP_") in CAPABILITIES,
    convert=lambda text: text.upper().removeprefix("CAP_"),
)


class Rights(Strict):
    """What the workload may do beyond an ordinary container's."""

    capabilities: Annotated[
        tuple[Annotated[str, _CAPABILITY], ...],
        list_of(len(CAPABILITIES), min_count=0),
        AfterValidator(lambda names: tuple(sorted({*names} - limits.USUAL_CAPABILITIES))),
        PlainSerializer(list, return_type=list[str]),
    ] = ()
    """Capabilities of root in the cell, beside the usual ones."""
    seccomp: Literal["default", "unconfined"] = "default"
    """unconfined: the calls by which debuggers work."""
    setuid_programs: Literal["off", "auto", "on"] = "off"
    """Whether `su`, `sudo` and other set-user-ID programs gain their owner's rights, as in Docker.
    auto: where the tier grants it; on: only such a tier will do."""
    privileged: bool = False
    """All rights that the cell's tier grants, but for set-user-ID programs."""

    def common(self, other: Rights | None) -> Rights:
        """`privileged` means a tier's whole list; None bounds nothing."""
        if other is None:
            return self
        setuid = min(self.setuid_programs, other.setuid_programs, key=("off", "auto", "on").index)
        if self.privileged or other.privileged:
            fewer = self if other.privileged else other
            return fewer.model_copy(update={"setuid_programs": setuid})
        is_open = self.seccomp == other.seccomp == "unconfined"
        return Rights(
            capabilities=tuple(name for name in self.capabilities if name in other.capabilities),
            seccomp="unconfined" if is_open else "default",
            setuid_programs=setuid,
        )


def _read_host_tools(value: object) -> HostTools | None:
    written: Any = value
    match written:
        case None:
            return None
        case HostTools() as known:
            return known
        case "refuse" | "report":
            return REFUSE if value == "refuse" else REPORT
        case {"allow": [_, *_] as allow} if len(written) == 1 and len(allow) <= MAX_TOOLS:
            names = [name for name in allow if isinstance(name, str) and name.isprintable()]
            if len(names) == len(allow) and all(0 < len(each) <= MAX_TOOL_CHARS for each in names):
                return HostTools(allow=tuple(names))
    raise ValueError(
        f"write `refuse`, `report`, or `allow` with 1 to {MAX_TOOLS} names of tools or MCP "
        f"servers, each of at most {MAX_TOOL_CHARS} printable characters"
    )


_SHORT_RULES: Final = {REFUSE: "refuse", REPORT: "report"}
HostToolsField: TypeAlias = Annotated[
    HostTools | None,
    kinds.FieldKind(
        _read_host_tools, Literal["refuse", "report"] | dict[Literal["allow"], list[str]]
    ),
    PlainSerializer(lambda rule: rule and (_SHORT_RULES.get(rule) or {"allow": list(rule.allow)})),
]

# Servers whose command line is known here; any other is written as a list of words.
PRESETS: Final = ("llama_cpp", "vllm")
_MAX_WORDS: Final = 256  # a server's command with all its options
_SHA256: Final = kinds.checked(  # with the prefix or without it, and in any case, as tools print it
    "a SHA-256",
    "is not a SHA-256: write 64 hexadecimal digits",
    re.compile(r"(sha256:)?[0-9a-fA-F]{64}", re.ASCII).fullmatch,
    convert=lambda text: text.lower().removeprefix("sha256:"),
)
_GPU: Final = kinds.checked(
    "a GPU's device file",
    "is no GPU's device file: write `/dev/nvidia0`, `/dev/nvidia1` and so on",
    re.compile(r"/dev/nvidia[0-9]{1,3}").fullmatch,
)
_GPU_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")  # CUDA opens them, too


def _read_server(value: object) -> object:
    words = tuple(value) if isinstance(value, list | tuple) else ()
    if 0 < len(words) <= _MAX_WORDS and all(isinstance(w, str) and "\0" not in w for w in words):
        return words
    if value in PRESETS:
        return value
    raise kinds.expected(f"{listed(PRESETS)}, or a command as a list of words", value)


class Weights(Strict):
    """The model's weights, in the store."""

    sha256: Annotated[str, _SHA256]
    """The digest that `belljar model add` printed."""


class Gpu(Strict):
    """NVIDIA GPUs; the server reaches this host's driver."""

    devices: Annotated[tuple[Annotated[str, _GPU], ...], list_of(16)]
    """Device files of this host's GPUs: `/dev/nvidia0` and so on."""
    reason: Annotated[str, kinds.LINE] | None = None
    """Why this is acceptable; needed for risk high and critical."""


class ModelBlock(Strict):
    """A model server in a cell of its own."""

    weights: Weights
    """The weights, which the cell gets read-only at /weights."""
    server: Annotated[
        Literal["llama_cpp", "vllm"] | tuple[str, ...],
        BeforeValidator(
            _read_server, json_schema_input_type=Literal["llama_cpp", "vllm"] | list[str]
        ),
    ] = "llama_cpp"
    """`llama_cpp`, `vllm`, or an OpenAI-like server's command."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8080
    """Where it listens, on the cell's own loopback."""
    context: Annotated[int, Field(ge=128, le=1 << 24)] = 4096
    """Tokens of one request, prompt and answer together."""
    parallel: Annotated[int, Field(ge=1, le=32)] = 1
    """Requests that it answers at one time."""
    start_timeout: Annotated[float, kinds.duration("1s", "1h")] = kinds.amount("5m")
    """After this long without an answer the server counts as broken."""
    request_timeout: Annotated[float, kinds.duration("1s", "1d")] = kinds.amount("10m")
    """After this long a request is given up."""
    answer: Annotated[int, kinds.size("1KiB", "1GiB")] = kinds.amount("16MiB")
    """The most of one answer; more is a violation, which ends the cell."""
    record: Literal["text", "digest"] = "text"
    """What is kept of requests and answers besides sizes and digests."""
    gpu: Gpu | None = None
    """GPUs that the cell gets; only tier container passes them through."""

    @property
    def devices(self) -> tuple[str, ...]:
        return () if self.gpu is None else (*_GPU_CONTROL, *dict.fromkeys(self.gpu.devices))


MAX_ENTRIES: Final = 2_000  # of one cell: each is an operation of its own
MAX_BYTES: Final = 100 << 20  # of one cell together. More belongs into an image.


class TaskFile(Strict):
    """`source` is below the root."""

    target: str
    source: str


class CellData(Strict):
    """`hosts` are names and addresses."""

    files: tuple[TaskFile, ...] = ()
    hosts: tuple[tuple[str, str], ...] = ()


class TaskData(Strict):
    """`cell` is the one being made."""

    cells: Mapping[str, CellData] = {}
    root: str = ""
    cell: str = OWN_CELL

    @property
    def own(self) -> CellData:
        return self.cells.get(self.cell, CellData())

    def of(self, cell: str) -> TaskData:
        return self.model_copy(update={"cell": cell})


def trees_of(root: Path, data: CellData) -> dict[str, Tree]:
    """Raises as `list_tree`."""
    trees: dict[str, Tree] = {}
    entries = total_bytes = 0
    for file in data.files:
        tree = trees[file.target] = list_tree(root, file.source, max_entries=MAX_ENTRIES - entries)
        entries += len(tree.entries)
        total_bytes += tree.total_bytes
        if total_bytes > MAX_BYTES:
            most = format_size(MAX_BYTES)
            raise ValueError(f"{format_size(total_bytes)} of files; at most {most} for one cell")
    return trees
