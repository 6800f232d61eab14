"""Asks, compares and prepares the participating nodes; remembers their keys."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

from belljar.dataclass import replace
from belljar.errors import HostError
from belljar.fleet import node as on_node
from belljar.fleet.engine import CELLS, CLEAR_S, HARDWARE, MEMORY, Engine, joined
from belljar.fleet.guard import END_S
from belljar.fleet.units import Node
from belljar.harness.options import SelectedTask
from belljar.image.store import Image, Store
from belljar.ledger.keys import local_fingerprint
from belljar.ledger.kinds import HEX64, check_shape, shape_of
from belljar.package import __version__
from belljar.policy.reference import IMAGE_ID
from belljar.store.locks import locked
from belljar.units import format_size, printable
from belljar.waiting import print_status

NODES: Final = "fleet/nodes.json"  # as SSH's known_hosts: a known name with another key is refused
# Another version's may have more fields.
_DESCRIBED: Final = shape_of("name:text key:sha256 version:text inspect:text")
_CHECKED: Final = shape_of("exit_code:whole why:text images:object missing:texts")

# So much of an image is in memory at a time, on the head and on each node. With Slurm each piece
# waits in the queue: small ones would take longer to wait than to go.
PIECE_BYTES: Final = 64 << 20

# A node, and what the event says of the image that it took.
Sent: TypeAlias = tuple[str, dict[str, Any]]
_Checked: TypeAlias = "dict[str, dict[str, Any] | Exception]"


def describe_nodes(engine: Engine, home: Path, task: SelectedTask) -> list[Node]:
    offers, known, nodes = engine.offers(), pinned_keys(home), list[Node]()
    # A signature must say whose record it is, and the record tells nodes apart by their names.
    owners = {local_fingerprint(home): "the head"}
    inspect = version("inspect-ai")
    for node_id, said in engine.on_each([*offers], partial(on_node.describe)).items():
        try:
            if isinstance(said, Exception):
                raise said
            check_shape(said, _DESCRIBED, extra=True)
        except Exception as error:  # noqa: BLE001 - whatever a node raises is its own
            why = f"it can't be asked: {last_words(error)}"
            nodes.append(Node(node_id=node_id, name=node_id[:12], refusal=why))
            continue
        name, key = printable(said["name"], max_chars=64), said["key"]
        offer = offers[node_id]
        if engine.needs_token and said.get("has_token") is not True:
            why = "Ray's token authentication is off there: set RAY_AUTH_MODE=token"
        elif (said["version"], said["inspect"]) != (__version__, inspect):
            theirs = printable(f"{said['version']} with inspect-ai {said['inspect']}")
            why = f"it runs Belljar {theirs}, and the head {__version__} with {inspect}"
        elif key in owners:
            why = f"it has the key of {owners[key]}: set BELLJAR_HOME to a store of its own"
        elif known.get(name, key) != key:
            why = f"its key is {key[:16]}…, and the one known for {name} is {known[name][:16]}…"
        else:
            why = _lacking(offer, task)
        cells = min(int(offer[CELLS]), int(offer.get(MEMORY, 0)) // task.memory_mib)
        if not why:
            owners[key], known[name] = name, key
        nodes.append(Node(node_id=node_id, name=name, key=key, cells=cells, refusal=why))
    return nodes


def _lacking(offer: Mapping[str, float], task: SelectedTask) -> str:
    if not offer.get(f"belljar_{task.tier}"):
        return f"it has no cells of the tier {task.tier}"
    if task.needs_hardware and not offer.get(HARDWARE):
        return "it has no hardware virtualisation, which the task's risk demands"
    # Resources that were written by hand may lack it.
    if (memory_mib := int(offer.get(MEMORY, 0))) < task.memory_mib:
        return f"a sample's cells need {task.memory_mib} MiB; its {MEMORY} is {memory_mib}"
    return ""


def prepare_nodes(
    engine: Engine,
    nodes: Sequence[Node],
    fleet: str,
    archive: bytes,
    sha256: str,
    task: SelectedTask,
    home: Path,
) -> tuple[list[Node], dict[str, str], list[Sent]]:
    """Send the task's files, run `belljar check` on each node, send missing images.

    Returns the nodes, refused if the check fails, the images' digests by name, and what was sent.
    Raises `HostError` when none can run the task, or two would with different images.
    """
    usable = [node.node_id for node in nodes if not node.refusal]
    settings = on_node.settings_of(os.environ)
    words, store = task.check_words, Store(home)
    prepare = partial(on_node.prepare, fleet, archive, sha256, words, settings)
    said = _checked(engine.on_each(usable, prepare))
    sent, failed = send_images(engine, store, fleet, _to_send(store, task, said))
    if again := {node for node, _ in sent} - {*failed}:
        check = partial(on_node.check, fleet, words, settings)
        said |= _checked(engine.on_each(sorted(again), check))
    made, images, first = list[Node](), dict[str, str](), ""
    for node in nodes:
        result, why = said.get(node.node_id), node.refusal
        if node.node_id in failed:
            why = failed[node.node_id]
        elif isinstance(result, Exception):
            why = f"the task can't be prepared: {last_words(result)}"
        elif result is not None and result["exit_code"]:
            why = printable(result["why"], max_chars=400)
        elif result is not None:
            found = result["images"]
            first, images = first or node.name, images or found
            if differing := sorted(name for name in found if images.get(name) != found[name]):
                what = f"the image {printable(differing[0])} of {node.name} is not that of {first}"
                hint = "`belljar image rm` it on each node: this machine's own is then sent"
                raise HostError(what, hint=hint)
        made.append(replace(node, refusal=why))
    if all(node.refusal for node in made):
        reasons = "; ".join(f"{node.name}: {node.refusal}" for node in made)
        what = f"no node can run this task as planned: {reasons or 'the cluster has none'}"
        raise HostError(what, hint="run `belljar fleet node`, and `belljar check TASK`, there")
    return made, images, sent


def _checked(said: Mapping[str, Any]) -> _Checked:
    found: _Checked = {**said}
    for node, answer in said.items():
        try:
            if isinstance(answer, Exception):
                continue
            check_shape(answer, _CHECKED)
            for name, digest in answer["images"].items():
                # It goes on record, which takes no half of a surrogate pair.
                if printable(name) != name:
                    raise ValueError("the name of an image is not one")
                HEX64(digest)
        except ValueError as error:
            found[node] = ValueError(f"its answer can't be understood: {error}")
    return found


def _to_send(store: Store, task: SelectedTask, said: _Checked) -> dict[str, list[str]]:
    answers = {node: each for node, each in said.items() if isinstance(each, dict)}
    theirs = [pair for each in answers.values() for pair in each["images"].items()]
    own = {name: store.find(name).digest for name in task.images if store.missing(name) is None}
    # None of which a node has another than this store: two would run different images.
    alike = {name for name in own if all(own[name] == got for each, got in theirs if each == name)}
    found = {node: [n for n in each["missing"] if n in alike] for node, each in answers.items()}
    return {node: names for node, names in found.items() if names}


# --- images that a node lacks: sent once, piece by piece, and checked there by digest


def send_images(
    engine: Engine, store: Store, fleet: str, lacking: Mapping[str, Sequence[str]]
) -> tuple[list[Sent], dict[str, str]]:
    sent, failed = list[Sent](), dict[str, str]()
    for name in sorted({name for names in lacking.values() for name in names}):
        nodes = [node for node, names in lacking.items() if name in names and node not in failed]
        image = store.find(name)
        refused = _send(engine, fleet, image, name, nodes)
        failed |= {each: f"image {printable(name)}: {why}" for each, why in refused.items()}
        about = {"image": name, "digest": image.digest, "bytes": image.size_bytes}
        sent += [(node, about) for node in nodes if node not in refused]
    return sent, failed


def _send(
    engine: Engine, fleet: str, image: Image, name: str, nodes: Sequence[str]
) -> dict[str, str]:
    """Return why some nodes didn't take the image."""
    refused, to = dict[str, str](), [*nodes]

    def call(function: Callable[..., str], *arguments: object) -> None:
        said = engine.on_each(to, partial(function, fleet, image.digest, *arguments))
        for each, why in said.items():
            if why != "":
                is_said = isinstance(why, str | Exception)
                refused[each] = last_words(why if is_said else "its answer can't be understood")
                to.remove(each)  # it gets no further pieces

    size, offset = image.size_bytes, 0
    with image.rootfs.open("rb") as file:
        while to and (piece := file.read(PIECE_BYTES)):
            call(on_node.take_piece, offset, size, piece)
            offset += len(piece)
            shown = f"{format_size(offset)} of {format_size(size)}"
            print_status(f"belljar: image {printable(name)}: {shown} sent to {len(to)} node(s)")
    document = image.rootfs.with_name("image.json").read_bytes()
    # An image that was asked for by its digest has no name to give it there.
    is_digest = IMAGE_ID.fullmatch(f"sha256:{name.removeprefix('sha256:')}")
    names = [] if is_digest else [name]
    call(on_node.take_image, document, names, [*image.origins])
    if refused:  # their disks may be full
        engine.on_each([*refused], partial(on_node.clear, fleet), within_s=CLEAR_S)
    return refused


def last_words(error: object) -> str:
    """Return an error's last line: a node's includes its traceback."""
    return printable(str(error).strip().rpartition("\n")[2], max_chars=300)


# --- keys


def pinned_keys(home: Path) -> dict[str, str]:
    """Raises `HostError`."""
    try:
        known = json.loads((home / NODES).read_bytes())
        return {str(name): str(key) for name, key in known.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        hint = "correct it, or remove it: nodes are then met for the first time"
        what = "the list of nodes' keys can't be read"
        raise HostError(what, where=str(home / NODES), hint=hint) from error


def pin_keys(home: Path, nodes: Sequence[Node]) -> None:
    (home / NODES).parent.mkdir(mode=0o700, exist_ok=True)
    # Of two heads at once, the later one would forget what the other pins.
    with locked(home, "fleet"):
        known = pinned_keys(home) | {node.name: node.key for node in nodes if not node.refusal}
        fresh = home / f"{NODES}.new"  # renamed into place: half a list would forget keys
        fresh.write_text(json.dumps(known, indent=1))
        fresh.rename(home / NODES)


def kill_fleet(fleet: str, *, hold_too: bool, reason: str) -> list[dict[str, Any]]:
    """Halt every cell of each live node of a cluster. Raises `HostError`.

    Returns the engine's id of each node (`node`), its `name` ("": it did not answer), `ok`, and
    what it `said`.
    """
    found = list[dict[str, Any]]()
    with joined(fleet) as engine:
        asked, more = [*engine.offers(to_kill=True)], ["--hold"] if hold_too else []
        # `kill_all` gives up after END_S; the rest is for a busy node to start a worker.
        kill = partial(on_node.kill_all, reason, more)
        answers = engine.on_each(asked, kill, within_s=END_S + 30.0)
        for node in asked:
            name, is_killed, words = "", False, "its answer can't be understood"
            match answers[node]:
                # A tuple comes back as a list through Slurm's JSON, and a node may send anything.
                case (str(name), int(code), str(words)):
                    is_killed = code == 0 and code is not False
                case Exception() as error:
                    words = str(error)
            text = printable(words, max_chars=400)
            found.append({"node": node, "name": name, "ok": is_killed, "said": text})
    return found
