"""The `.env` file that Inspect reads, from the working directory or above it.

It may come with a task. Only what Inspect's own settings and model providers read may come from
it; everything else in it is refused, by name, before Inspect is imported.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from belljar.errors import PolicyError
from belljar.host.settings import environment_at_start
from belljar.policy.files import read_regular
from belljar.units import printable

MAX_BYTES: Final = 1 << 20

# Settings of Inspect that are numbers, words, or text for the model. Not among them: what names a
# file or a module to load (SOLVER, SCANNER, MODEL_CONFIG, RUN_CONFIG, …), arguments of a model
# (`trust_remote_code`) or a task, what opens a port or a socket (DEBUG, ACP_SERVER, CTL_SERVER),
# what approves, reviews or notifies, and ENV, which sets any variable. LOG_DIR and the last line's
# are judged by their values (`options.TAKEN`).
_SETTINGS: Final = """
    INSPECT_DISPLAY INSPECT_LOG_DIR INSPECT_LOG_FORMAT INSPECT_LOG_LEVEL
    INSPECT_LOG_LEVEL_TRANSCRIPT INSPECT_LOG_SHARED INSPECT_NO_ANSI
"""
_OF_EVAL: Final = """
    ADAPTIVE_CONNECTIONS ATTEMPT_TIMEOUT BATCH BEST_OF CACHE CACHE_PROMPT CONTINUE_ON_FAIL
    COST_LIMIT EFFORT EPOCHS EPOCHS_REDUCER EXTRA_BODY EXTRA_HEADERS FAIL_ON_ERROR FAIL_ON_REFUSAL
    FALLBACK_MODELS FREQUENCY_PENALTY INTERNAL_TOOLS LIMIT LOG_BUFFER LOG_FORMAT LOG_IMAGES
    LOG_MODEL_API LOG_REFUSALS LOG_SHARED LOGIT_BIAS LOGPROBS MAX_CONNECTIONS MAX_DATASET_MEMORY
    MAX_RETRIES MAX_SAMPLES MAX_SANDBOXES MAX_SUBPROCESSES MAX_TASKS MAX_TOKENS MAX_TOOL_OUTPUT
    MESSAGE_LIMIT METADATA MODALITIES MODEL MODEL_BASE_URL NO_EPOCHS_REDUCER NO_FAIL_ON_ERROR
    NO_LOG_REALTIME NO_SCORE NUM_CHOICES PARALLEL_TOOL_CALLS PRESENCE_PENALTY PROMPT_LOGPROBS
    REASONING_EFFORT REASONING_HISTORY REASONING_MODE REASONING_SUMMARY REASONING_TOKENS
    RESPONSE_SCHEMA RETRY_ON_ERROR SAMPLE_ID SAMPLE_SHUFFLE SCORE_DISPLAY SCORE_ON_ERROR SEED
    STOP_SEQS STREAM_IDLE_TIMEOUT SYSTEM_MESSAGE TAGS TEMPERATURE TIMEOUT TIME_LIMIT
    TOKEN_LIMIT TOP_K TOP_LOGPROBS TOP_P TRACE TURN_LIMIT VERBOSITY WORKING_LIMIT
    DETACH JSON JSON_OUTPUT LOG_DIR LOG_FILE_PATTERN NO_LOG_SAMPLES NO_SANDBOX_CLEANUP SANDBOX
"""
SETTINGS: Final = {*_SETTINGS.split(), *(f"INSPECT_EVAL_{name}" for name in _OF_EVAL.split())}
# Of Inspect's providers, beside `…_API_KEY` and `…_BASE_URL`, which any service may have.
_PROVIDERS: Final = """
    ANTHROPIC_AUTH_TOKEN ANTHROPIC_VERTEX_PROJECT_ID ANTHROPIC_VERTEX_REGION AWS_ACCESS_KEY_ID
    AWS_BEARER_TOKEN_BEDROCK AWS_DEFAULT_REGION AWS_REGION AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
    AZUREAI_OPENAI_API_VERSION AZURE_OPENAI_API_VERSION CLOUDFLARE_ACCOUNT_ID CLOUDFLARE_API_TOKEN
    GOOGLE_CLOUD_LOCATION GOOGLE_CLOUD_PROJECT GOOGLE_CLOUD_QUOTA_PROJECT GOOGLE_CSE_ID
    GOOGLE_GENAI_USE_VERTEXAI GOOGLE_USE_ADC HF_TOKEN LITELLM_PROXY_API_BASE OPENAI_API_VERSION
    OPENAI_ORG_ID OPENAI_PROJECT_ID OPENAI_SAFETY_IDENTIFIER
"""
_OF_A_SERVICE: Final = re.compile(r"(?!INSPECT_|BELLJAR_)[A-Z][A-Z0-9_]*_(API_KEY|BASE_URL)")
_ADDRESS: Final = re.compile(r".*_(BASE_URL|API_BASE)")
# To these, credentials are sent that are in no variable: of a home directory or a machine.
_OF_A_CLOUD: Final = re.compile(r".*(AWS|AZURE|BEDROCK|GOOGLE|VERTEX).*_BASE_URL")
_KEY: Final = re.compile(r".*_API_KEY|ANTHROPIC_AUTH_TOKEN|.*_API_TOKEN|AWS_BEARER_TOKEN_BEDROCK")

# What chooses this host's programs, their code, the store and its keys, trust roots and proxies.
_OF_THE_HOST: Final = re.compile(
    r"(BELLJAR|DOCKER|LD|OPENSSL|SSL|XDG)_.*|PYTHON.*|HOME|PATH|TMPDIR|(?i:.*_proxy)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DotEnv:
    """A file's place, "" for none, and the variables that it will set."""

    path: str = ""
    names: Sequence[str] = ()

    def place(self, name: str) -> str:
        """Where a variable's value is from."""
        return f"{name} in {self.path}" if name in self.names else f"environment variable {name}"


def read_dotenv(environ: Mapping[str, str]) -> DotEnv:
    """Find and judge the file that Inspect will read. Changes nothing.

    Raises `PolicyError` for a name that is not allowed, and for an address whose requests would
    carry a key of `environ`.
    """
    from io import BytesIO, TextIOWrapper

    from dotenv import dotenv_values, find_dotenv

    path = find_dotenv(usecwd=True)
    if not path:
        return DotEnv()
    where = printable(path)
    try:
        # Never a FIFO, which would hold the start. A link may lead anywhere, as for Inspect.
        real = Path(os.path.realpath(path))
        data = read_regular(real.parent, real.name, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError("it has more than 1 MiB")
        stream = TextIOWrapper(BytesIO(data), encoding="utf-8")  # as Inspect opens it
        values = dotenv_values(stream=stream, interpolate=False)
    except (OSError, ValueError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeError) else str(error)
        hint = "repair it, or remove it from there"
        raise PolicyError(f"it can't be read: {printable(why)}", where=where, hint=hint) from error
    names = sorted(name for name, value in values.items() if value is not None)
    allowed = {*SETTINGS, *_PROVIDERS.split()}
    refused = [
        name
        for name in names
        if name not in allowed
        and (not _OF_A_SERVICE.fullmatch(name) or _OF_A_CLOUD.fullmatch(name))
    ]
    if refused:
        raise PolicyError(
            f"a `.env` file can't set {printable(', '.join(refused), max_chars=600)}: only some"
            " settings of Inspect, and keys and addresses of model providers",
            where=where,
            hint="remove it there; if you want it, set it in the environment of belljar",
        )
    addresses = [name for name in names if _ADDRESS.fullmatch(name)]
    keys = sorted(name for name, value in environ.items() if value and _KEY.fullmatch(name))
    if addresses and keys:
        raise PolicyError(
            f"{', '.join(addresses)} of this file would be sent a key of your environment "
            f"({printable(', '.join(keys), max_chars=300)})",
            where=where,
            hint="set both in one place: in the file, or in the environment of belljar",
        )
    return DotEnv(path=path, names=[name for name in names if not environ.get(name)])


def restore_start() -> None:
    """Undo what a `.env` file made of this host's variables under the `inspect` command.

    That reads the file unjudged, and before anything of Belljar is imported. Programs, store and
    trust roots are those of the environment at the start. A program of someone's own that calls
    Inspect may set them.
    """
    if not sys.argv[0].endswith(("/inspect", "/inspect_ai/__main__.py")):
        return
    start = environment_at_start()
    for name in filter(_OF_THE_HOST.fullmatch, {*os.environ, *start}):
        if name in start:
            os.environ[name] = start[name]
        else:
            os.environ.pop(name, None)
