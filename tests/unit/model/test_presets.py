"""The command of a model server."""

from __future__ import annotations

import ast

from belljar.model.serve import server_argv
from belljar.policy.serving import ModelBlock

DIGEST = "0" * 64


def block(**fields: object) -> ModelBlock:
    """A block with these fields."""
    return ModelBlock.model_validate({"weights": {"sha256": DIGEST}, **fields})


def test_llama_cpp_listens_on_the_loopback_with_the_bounds_of_the_block() -> None:
    """Its program is valid Python, and gets weights, port, context, slots and threads."""
    model = block(port=1234, context=512, parallel=3)
    argv = server_argv(model, served="a.gguf", threads=2, name="m")
    assert argv[3:] == ("/weights/a.gguf", "1234", "512", "3", "2", "m")
    ast.parse(argv[2])
    assert '"127.0.0.1"' in argv[2]


def test_vllm_serves_a_directory() -> None:
    """All of the weights, under the policy's name."""
    argv = server_argv(block(server="vllm"), served="", threads=2, name="m")
    command = argv[argv.index("vllm") :]
    assert command[:3] == ("vllm", "serve", "/weights")
    assert command[command.index("--served-model-name") + 1] == "m"
    assert "127.0.0.1" in argv


def test_a_command_of_the_authors_gets_its_values_as_whole_words() -> None:
    """Nothing within a word is replaced, and there is no shell."""
    model = block(server=["serve", "{weights}", "--port={port}", "{port}"])
    argv = server_argv(model, served="a", threads=1, name="m")
    assert argv == ("serve", "/weights/a", "--port={port}", "8080")
