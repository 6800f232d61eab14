"""How fast the egress guard scans, and how it does on its corpus beside other scanners.

    python bench/bench_guard.py [--mib N] [--peers DIRECTORY] [--json]

Data goes in pieces of 1 MiB through a scanner that knows 10,000 values. "hits": every line holds one
of them. `--peers`: a virtual environment that holds `detect-secrets` and `trufflehog3`
(`python -m venv D && D/bin/pip install detect-secrets trufflehog3`); each case of the corpus is a file
for them. They know neither the protected values nor what is sent in pieces: so the cases of
credentials and the look-alikes are counted apart.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import string
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.guard_cases import Case, feeds, read_cases, scan_case

from belljar.policy.load import load_policy
from belljar.signals.scanner import Scanner
from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel, KnownValue, ScanBounds, ScanSpec, ValueSource, read_protected

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests/security/guard"
RANDOM = random.Random(12)  # noqa: S311 - the same data each time
PIECE = 1 << 20
LETTERS = string.ascii_letters + string.digits


def token(size: int) -> str:
    """Random letters and digits."""
    return "".join(RANDOM.choices(LETTERS, k=size))


def data_sets(mib: int, values: list[str]) -> dict[str, bytes]:
    """Name → data."""
    size = mib << 20
    words = re.findall(r"[A-Za-z]+", (ROOT / "SPECIFICATION.md").read_text())

    def lines(make: Callable[[], str]) -> bytes:
        out, length = [], 0
        while length < size:
            out.append(make())
            length += len(out[-1]) + 1
        return "\n".join(out).encode()[:size]

    def prose() -> str:
        return " ".join(RANDOM.choices(words, k=12)) + "."

    def record() -> str:
        fields = {"id": RANDOM.randrange(10**6), "name": " ".join(RANDOM.choices(words, k=3)), "price": RANDOM.random()}
        return json.dumps(fields | {"tags": RANDOM.choices(words, k=4), "active": True})

    return {
        "binary": RANDOM.randbytes(size),
        "text": lines(prose),
        "JSON": lines(record),
        "hits": lines(lambda: f"{prose()} {RANDOM.choice(values)}"),
    }


def real_files(suffix: str, mib: int) -> list[bytes]:
    """Files of the interpreter and of its packages, in random order."""
    found = sorted(path for path in Path(sysconfig.get_path("stdlib")).rglob(f"*{suffix}") if path.is_file())
    RANDOM.shuffle(found)
    chosen: list[bytes] = []
    for path in found:
        if sum(map(len, chosen)) >= mib << 20:
            break
        if 500 < path.stat().st_size < 2 << 20:
            chosen.append(path.read_bytes())
    return chosen


def speed_of_files(scanner: Scanner, files: list[bytes]) -> float:
    """MiB a second of processor time."""
    begun = time.process_time()
    for data in files:
        scanner.scan(data)
    return sum(map(len, files)) / (time.process_time() - begun) / (1 << 20)


def speed(scanner: Scanner, data: bytes) -> tuple[float, int]:
    """MiB a second of processor time, and hits, of the fastest of three passes: the first ones prepare
    the prefilter."""
    best, hits = 0.0, 0
    for _ in range(3):
        begun, hits = time.process_time(), 0
        for at in range(0, len(data), PIECE):
            hits += len(scanner.scan(data[at : at + PIECE]).hits)
        best = max(best, len(data) / (time.process_time() - begun) / (1 << 20))
    return best, hits


def latency(scanner: Scanner) -> tuple[float, float]:
    """P50 and P99 in ms of a request of 1 KiB, in three parts."""
    stream = StreamScanner(scanner)
    header = (
        b"Host: svc.internal\r\nUser-Agent: python-requests/2.32\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    )
    took = []
    for number in range(300):
        url = b"/api/v1/items?page=%d&sort=name" % number
        body = json.dumps({"id": number, "text": " ".join(["a blue chair of wood"] * 42)}).encode()[:880]
        begun = time.perf_counter()
        for part, data in (("url", url), ("header", header), ("body", body)):
            stream.feed("f", Channel.HTTP, part, data)
        took.append((time.perf_counter() - begun) * 1000)
    cuts = statistics.quantiles(took, n=100)
    return cuts[49], cuts[98]


def rates(flagged: Iterable[str], cases: tuple[Case, ...]) -> dict[str, float]:
    """Recall of all, of credentials; false-positive rate."""
    found = set(flagged)

    def share(chosen: list[Case]) -> float:
        return round(sum(case.id in found for case in chosen) / len(chosen), 3)

    return {
        "recall": share([case for case in cases if case.flags]),
        "recall_credentials": share([case for case in cases if case.id.startswith("cred-")]),
        "false_positives": share([case for case in cases if not case.flags]),
    }


def corpus(peers: Path | None) -> dict[str, dict[str, float]]:
    """Each scanner's rates and seconds."""
    cases = read_cases((CORPUS / "cases.jsonl").read_bytes())
    loaded = load_policy(CORPUS / "policy.yaml")
    spec = ScanSpec(
        values=read_protected(loaded),
        classes=tuple(loaded.policy.guard_rules.classes),
        key_hex="00" * 32,
        bounds=ScanBounds(time_s=60),
    )
    stream = StreamScanner(Scanner(spec))
    begun = time.perf_counter()
    own = [case.id for case in cases if scan_case(case, stream).classes]
    found = {"belljar": rates(own, cases) | {"seconds": round(time.perf_counter() - begun, 2)}}
    if peers is not None:
        with tempfile.TemporaryDirectory() as temporary:
            where = Path(temporary)
            for case in cases:
                parts = [data for step in case.steps for _, data in feeds(step)]
                (where / f"{case.id}.txt").write_bytes(b"\n".join(parts))
            for name, argv in (
                ("detect-secrets", ["detect-secrets", "scan", "--all-files", "--no-verify", "."]),
                ("trufflehog3", ["trufflehog3", "--no-history", "--format", "JSON", "."]),
            ):
                begun = time.perf_counter()
                done = subprocess.run(
                    [str(peers / "bin" / argv[0]), *argv[1:]], cwd=where, capture_output=True, text=True, check=False
                )
                named = set(re.findall(r"([a-z0-9][A-Za-z0-9._-]*)\.txt", done.stdout))
                found[name] = rates(named, cases) | {"seconds": round(time.perf_counter() - begun, 2)}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = [token(RANDOM.randint(16, 40)) for _ in range(10_000)]
    values = [KnownValue(id=str(n), text=text, source=ValueSource.PROTECTED) for n, text in enumerate(texts)]
    begun = time.perf_counter()
    bounds = ScanBounds(time_s=600, decoded_bytes=1 << 30)
    scanner = Scanner(ScanSpec(values=tuple(values), key_hex="00" * 32, bounds=bounds))
    result: dict[str, object] = {"prepare_s": round(time.perf_counter() - begun, 2)}
    for name, data in data_sets(options.mib, texts).items():
        mib_s, hits = speed(scanner, data)
        result[name] = {"mib_s": round(mib_s, 1), "hits": hits}
    for suffix in (".py", ".so", ".json", ".md"):
        if files := real_files(suffix, 2):
            result[f"{suffix} files"] = {"mib_s": round(speed_of_files(scanner, files), 1), "files": len(files)}
    p50, p99 = latency(scanner)
    result["request_1kib_ms"] = {"p50": round(p50, 3), "p99": round(p99, 3)}
    result["corpus"] = corpus(options.peers)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {json.dumps(value)}")


if __name__ == "__main__":
    main()
