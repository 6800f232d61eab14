"""Server presets: what a model cell runs, and the image for it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from belljar.policy.limits import WEIGHTS_IN_CELL

if TYPE_CHECKING:
    from belljar.policy.serving import ModelBlock

LLAMA_APT: Final = ("libgomp1",)
LLAMA_PIP: Final = ("xllamacpp==2026.10.11549",)

# llama.cpp's own server, by its Python binding: no user interface, no local file by URL, no file
# that a request could name.
_LLAMA: Final = """\
import sys, threading
import xllamacpp
path, port, context, parallel, threads, name = sys.argv[1:]
p = xllamacpp.CommonParams()
p.model.path = path
p.model_alias = {name}
p.hostnames = ["127.0.0.1"]
p.port = int(port)
p.n_parallel = int(parallel)
p.n_ctx = int(context) * p.n_parallel
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(threads)
p.n_threads_http = p.n_parallel + 2
p.ui = False
p.use_jinja = True
p.offline = True
p.n_gpu_layers = 0
server = xllamacpp.Server(p)
print("serving", flush=True)
threading.Event().wait()
"""


def server_argv(model: ModelBlock, *, served: str, threads: int, name: str) -> tuple[str, ...]:
    """The command of the server.

    Args:
        served: the weights' path below `/weights`; "" for all of it.
        threads: for its computation.
        name: what the model is called in requests.
    """
    weights = f"{WEIGHTS_IN_CELL}/{served}" if served else WEIGHTS_IN_CELL
    port, context, parallel = str(model.port), str(model.context), str(model.parallel)
    if model.server == "llama_cpp":
        numbers = (port, context, parallel, str(threads))
        return ("python3", "-c", _LLAMA, weights, *numbers, name)
    if model.server == "vllm":
        return (
            *("vllm", "serve", weights, "--host", "127.0.0.1", "--port", port),
            *("--served-model-name", name, "--max-model-len", context),
            *("--max-num-seqs", parallel),
        )
    words = {"{weights}": weights, "{port}": port, "{context}": context, "{parallel}": parallel}
    return tuple(words.get(word, word) for word in model.server)
