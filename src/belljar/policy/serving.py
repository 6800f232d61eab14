"""The block `model:` of a policy: which server answers, with which weights."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from belljar.policy import fields as kinds
from belljar.policy.fields import Strict, list_of
from belljar.units import listed

# Servers whose command line is known here; any other is written as a list of words.
PRESETS: Final = ("llama_cpp", "vllm")
# A server's command with all its options.
_MAX_WORDS: Final = 256
# With the prefix or without it, and in any case, as tools print it.
_SHA256: Final = kinds.checked(
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
# What CUDA opens beside the GPUs' own files.
_GPU_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def _read_server(value: object) -> object:
    words = tuple(value) if isinstance(value, list | tuple) else ()
    if 0 < len(words) <= _MAX_WORDS and all(isinstance(w, str) and "\0" not in w for w in words):
        return words
    if value in PRESETS:
        return value
    what = f"{listed(PRESETS)}, or a command as a list of words"
    raise kinds.expected(what, value)


class Weights(Strict):
    """The model's weights, which the store has by their digest."""

    sha256: Annotated[str, _SHA256] = Field(
        description="The digest that `belljar model add` printed."
    )


class Gpu(Strict):
    """NVIDIA GPUs for the server, with which it reaches this host's driver."""

    devices: Annotated[tuple[Annotated[str, _GPU], ...], list_of(16)] = Field(
        description="Device files of this host's GPUs: `/dev/nvidia0` and so on."
    )
    reason: Annotated[str, kinds.LINE] | None = Field(
        default=None, description="Why this is acceptable; needed for risk high and critical."
    )


class ModelBlock(Strict):
    """A model server in a cell of its own."""

    weights: Weights = Field(description="The weights, which the cell gets read-only at /weights.")
    server: Annotated[
        Literal["llama_cpp", "vllm"] | tuple[str, ...],
        BeforeValidator(
            _read_server, json_schema_input_type=Literal["llama_cpp", "vllm"] | list[str]
        ),
    ] = Field("llama_cpp", description="`llama_cpp`, `vllm`, or an OpenAI-like server's command.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(
        8080, description="Where it listens, on the cell's own loopback."
    )
    context: Annotated[int, Field(ge=128, le=1 << 24)] = Field(
        4096, description="Tokens of one request, prompt and answer together."
    )
    parallel: Annotated[int, Field(ge=1, le=32)] = Field(
        1, description="Requests that it answers at one time."
    )
    start_timeout: Annotated[float, kinds.duration("1s", "1h")] = Field(
        300.0,
        description="After this long without an answer the server counts as broken.",
        json_schema_extra={"default": "5m"},
    )
    request_timeout: Annotated[float, kinds.duration("1s", "1d")] = Field(
        600.0,
        description="After this long a request is given up.",
        json_schema_extra={"default": "10m"},
    )
    answer: Annotated[int, kinds.size("1KiB", "1GiB")] = Field(
        16 << 20,
        description="The most of one answer; more is a violation, which ends the cell.",
        json_schema_extra={"default": "16MiB"},
    )
    record: Literal["text", "digest"] = Field(
        "text", description="What is kept of requests and answers besides sizes and digests."
    )
    gpu: Gpu | None = Field(
        None, description="GPUs that the cell gets; only tier container passes them through."
    )

    @property
    def devices(self) -> tuple[str, ...]:
        """The device files of this host that the cell gets."""
        return () if self.gpu is None else (*_GPU_CONTROL, *dict.fromkeys(self.gpu.devices))
