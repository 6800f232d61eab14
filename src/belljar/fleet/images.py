"""Sends images to nodes that lack them: once, piece by piece, and checked there by digest.

Templates and the guest kernel are not sent: a node makes the ones, and `belljar setup` the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from belljar.fleet.engine import CLEAR_S, Engine
from belljar.fleet.node import clear, take_image, take_piece
from belljar.image.store import Image, Store, is_like_digest
from belljar.units import format_size, printable
from belljar.waiting import print_status

# So much of an image is in memory at a time, on the head and on each node. With Slurm each piece
# waits in the queue: small ones would take longer to wait than to go.
PIECE_BYTES: Final = 64 << 20

# A node, and what the event says of the image that it took.
Sent: TypeAlias = tuple[str, dict[str, Any]]


def send_images(
    engine: Engine, store: Store, fleet: str, lacking: Mapping[str, Sequence[str]]
) -> tuple[list[Sent], dict[str, str]]:
    """Send images of this store that nodes lack, by node.

    Return what was sent, and the reason of each node that could not take one.
    """
    sent, failed = list[Sent](), dict[str, str]()
    for name in sorted({name for names in lacking.values() for name in names}):
        nodes = [node for node, names in lacking.items() if name in names and node not in failed]
        image = store.find(name)
        refused = _send(engine, fleet, image, name, nodes)
        shown = printable(name)
        failed |= {each: f"image {shown}: {why}" for each, why in refused.items()}
        about = {"image": name, "digest": image.digest, "bytes": image.size_bytes}
        sent += [(node, about) for node in nodes if node not in refused]
    return sent, failed


def _send(
    engine: Engine, fleet: str, image: Image, name: str, nodes: Sequence[str]
) -> dict[str, str]:
    """Send one image to these nodes; return why some did not take it."""
    refused, to = dict[str, str](), [*nodes]

    def call(function: Callable[..., str], *arguments: object) -> None:
        nonlocal to
        said = engine.on_each(to, function, fleet, image.digest, *arguments)
        for each, why in said.items():
            if why != "":
                is_said = isinstance(why, str | Exception)
                refused[each] = last_words(why if is_said else "its answer can't be understood")
        # A node that refused one piece gets no further ones.
        to = [each for each in to if each not in refused]

    size, offset = image.size_bytes, 0
    with image.rootfs.open("rb") as file:
        while to and (piece := file.read(PIECE_BYTES)):
            call(take_piece, offset, size, piece)
            offset += len(piece)
            shown = f"{format_size(offset)} of {format_size(size)}"
            print_status(f"belljar: image {printable(name)}: {shown} sent to {len(to)} node(s)")
    document = image.rootfs.with_name("image.json").read_bytes()
    # An image that was asked for by its digest has no name to give it there.
    names = [] if is_like_digest(name) else [name]
    call(take_image, document, names, [*image.origins])
    if refused:  # their disks may be full
        engine.on_each([*refused], clear, fleet, within_s=CLEAR_S)
    return refused


def last_words(error: object) -> str:
    """Return the last line of an error: those of a node come with where they were raised."""
    return printable(str(error).strip().rpartition("\n")[2], max_chars=300)
