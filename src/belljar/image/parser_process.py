"""The process apart of `belljar.image.dockerfile`: a Dockerfile on standard input, JSON as output.

It is run as a file, by a Python that imports nothing else: it starts in 20 ms.
"""

from __future__ import annotations

import json
import resource
import sys

# The parser is quadratic in places: only a file that was made for it needs seconds.
_CPU_S = 3
# A Go program reserves more than it uses.
_MAX_DATA_BYTES = 2 << 30
# Each becomes a step, and Docker itself takes 127 layers.
_MAX_INSTRUCTIONS = 10_000


def main() -> None:
    sys.path += json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_DATA_BYTES, _MAX_DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import dockerfile  # type: ignore[import-not-found] # a compiled module without stubs

    text = sys.stdin.buffer.read().decode()

    found: object
    try:
        commands = dockerfile.parse_string(text)
        found = [
            (
                *(each.cmd.upper(), each.start_line, each.flags, each.value, each.json),
                *(each.original, [(doc.name, doc.content) for doc in each.heredocs]),
            )
            for each in commands
        ]
        if len(commands) > _MAX_INSTRUCTIONS:
            found = f"it has more than {_MAX_INSTRUCTIONS:,} instructions"
    except dockerfile.GoParseError as error:
        found = str(error)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
