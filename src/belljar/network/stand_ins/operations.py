"""The operations of an OpenAPI document, with its faults.

Each fault has its place in the file. References into other documents are refused: nothing is ever
fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from belljar.network.stand_ins.documents import Document, read_document
from belljar.network.stand_ins.schemas import DATA, Pointer, look, pattern_problem, pointer_of
from belljar.units import kind_of, quoted

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
MAX_OPERATIONS: Final = 2000
# Of a server's address, before and after its variables are put in: the rest is not read
MAX_URL_CHARS: Final = 2048
_STATUS: Final = re.compile(r"[1-5]([0-9]{2}|XX)|default", re.ASCII)
_PARAMETER: Final = re.compile(r"\{([^{}/]+)\}")
_OBJECT: Final = {"type": "object"}
_OBJECTS: Final = {"type": "object", "additionalProperties": _OBJECT}
_LIST: Final = {"type": "array", "items": _OBJECT}
_MEDIA: Final = {
    "type": "object",
    "properties": {"schema": {"type": ["object", "boolean"]}, "examples": _OBJECT},
}
_CONTENTS: Final = {"type": "object", "additionalProperties": _MEDIA}
_CONTENT: Final = {"type": "object", "properties": {"content": _CONTENTS, "headers": _OBJECTS}}
_NAMED_CONTENT: Final = {"type": "object", "additionalProperties": _CONTENT}
_SHARED: Final = {"parameters": _LIST, "servers": _LIST}
_OPERATION: Final = {
    "type": "object",
    "properties": {
        **_SHARED,
        "requestBody": _CONTENT,
        "responses": {"type": "object", "patternProperties": {"^[1-5d]": _CONTENT}},
        "security": _LIST,
    },
}
_PATH: Final = {"type": "object", "properties": {**_SHARED, **dict.fromkeys(METHODS, _OPERATION)}}
_COMPONENTS: Final = {
    "schemas": _OBJECT,
    **dict.fromkeys(("responses", "requestBodies"), _NAMED_CONTENT),
    **dict.fromkeys(("parameters", "headers", "securitySchemes"), _OBJECTS),
}
_SHAPE: Final = {
    "type": "object",
    "properties": {
        "paths": {"type": "object", "patternProperties": {"^/": _PATH}},
        "components": {"type": "object", "properties": _COMPONENTS},
        "servers": _LIST,
        "security": _LIST,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """`schema`: its place, None if unchecked."""

    name: str
    place: str
    required: bool
    schema: Pointer | None
    explode: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`answer`: the chosen answer's place."""

    method: str
    path: str
    pattern: re.Pattern[str]
    names: tuple[str, ...]
    at: Pointer
    parameters: tuple[Parameter, ...]
    body: Pointer | None
    status: int
    answer: Pointer | None
    responses: Mapping[str, Pointer]
    security: tuple[Mapping[str, Any], ...] = ()


@dataclass(kw_only=True)
class Api:
    """A document; concrete paths come first."""

    document: Document
    operations: tuple[Operation, ...] = ()
    schemes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def root(self) -> dict[str, Any]:
        """The document's value."""
        found: dict[str, Any] = self.document.value
        return found

    def at(self, path: Pointer) -> tuple[Pointer, Any]:
        """The value at a path, `$ref` at its end followed. Raises `KeyError`."""
        for _ in range(32):
            value = look(self.root, path)
            if not (isinstance(value, dict) and isinstance(value.get("$ref"), str)):
                return path, value
            try:
                path = pointer_of(value["$ref"])
            except ValueError as exc:
                raise KeyError(str(exc)) from None
        raise KeyError("references go round in a circle")


def load(settings: Mapping[str, Any], directory: Path | None) -> Api:
    """The operations; with `document.problems`, use nothing else."""
    api = Api(document=read_document(directory, settings["document"], what="an OpenAPI document"))
    if not api.document.problems:
        _DocumentReader(api).read()
    return api


class _DocumentReader:
    def __init__(self, api: Api) -> None:
        self.api = api
        self.wrong = api.document.problem

    def read(self) -> None:
        root = self.api.document.value
        version = root.get("openapi") if isinstance(root, dict) else None
        if not isinstance(version, str) or not re.fullmatch(r"3\.[01](\.\d+)?", version):
            is_swagger = isinstance(root, dict) and "swagger" in root
            shown = "Swagger 2.0: convert it first" if is_swagger else quoted(version)
            needed = "an OpenAPI document of version 3.0 or 3.1 is needed"
            self.wrong(("openapi",), f"{needed}, this is {shown}")
            return
        for error in Draft202012Validator(_SHAPE).iter_errors(root):
            self.wrong(tuple(error.absolute_path), str(error.message)[:300])
        self.references(root)
        if not root.get("paths"):
            self.wrong(("paths",), "there are no paths, so nothing could be answered")
        if self.api.document.problems:
            return
        found = [operation for name in root["paths"] for operation in self.path(name)]
        if len(found) > MAX_OPERATIONS:
            self.wrong(("paths",), f"more than {MAX_OPERATIONS} operations")
        self.api.operations = tuple(sorted(found, key=lambda operation: len(operation.names)))
        schemes = root.get("components", {}).get("securitySchemes", {})
        self.api.schemes = {
            name: self.api.at(("components", "securitySchemes", name))[1] for name in schemes
        }

    def references(self, root: object) -> None:
        for path, value in walk(root, ()):
            if path[-1:] == ("$ref",) and isinstance(value, str):
                try:
                    pointer_of(value)
                    self.api.at(path[:-1])
                except ValueError as exc:
                    hint = "put what it names into this document"
                    self.wrong(path, f"{quoted(value)}: {exc}; {hint}")
                except KeyError:
                    self.wrong(path, f"{quoted(value)} leads nowhere, or round in a circle")
            elif path[-1:] == ("pattern",) and isinstance(value, str):
                self.pattern(path, value)
            elif path[-1:] == ("patternProperties",) and isinstance(value, Mapping):
                for name in value:
                    self.pattern((*path, name), name, key=True)

    def pattern(self, path: Pointer, pattern: str, *, key: bool = False) -> None:
        if message := pattern_problem(pattern):
            self.wrong(path, f"{quoted(pattern)}: {message}", key=key)

    def path(self, path: str) -> Iterator[Operation]:
        at: Pointer = ("paths", path)
        if not path.startswith("/"):
            if not path.startswith("x-"):
                self.wrong(at, "a path begins with `/`", key=True)
            return
        try:
            at, item = self.api.at(at)
        except KeyError:
            self.wrong(at, "a reference leads nowhere")
            return
        if not isinstance(item, dict):
            self.wrong(at, f"a mapping of methods is needed, but this is {kind_of(item)}")
            return
        for method in METHODS:
            if method in item:
                operation = self.operation(method, path, (*at, method), at, item)
                if operation is not None:
                    yield operation

    def operation(
        self, method: str, path: str, at: Pointer, above: Pointer, item: Mapping[str, Any]
    ) -> Operation | None:
        value = item[method]
        responses = value.get("responses") if isinstance(value, dict) else None
        if not isinstance(responses, dict) or not responses:
            self.wrong((*at, "responses"), "an operation has at least one response")
            return None
        for code in responses:
            if not _STATUS.fullmatch(code) and not code.startswith("x-"):
                what = f"{quoted(code)} is no status, no `2XX` and not `default`"
                self.wrong((*at, "responses", code), what, key=True)
        codes = {code: (*at, "responses", code) for code in responses if _STATUS.fullmatch(code)}
        status, chosen = choose(codes)
        # Longest first; no server means the root.
        servers = value.get("servers") or item.get("servers") or self.api.root.get("servers")
        known = (
            [one for one in servers if isinstance(one, dict)] if isinstance(servers, list) else []
        )
        bases = sorted({_base(server) for server in known} or {""}, key=len, reverse=True)
        segments = "/".join(map(_segment, path.split("/")))
        pattern = f"(?:{'|'.join(map(re.escape, bases))}){segments}"
        security = value.get("security", self.api.root.get("security"))
        demands = security if isinstance(security, list) else ()
        return Operation(
            method=method.upper(),
            path=path,
            pattern=re.compile(pattern),
            names=tuple(_PARAMETER.findall(path)),
            at=at,
            parameters=self.parameters(at, above, value, item),
            body=(*at, "requestBody") if isinstance(value.get("requestBody"), dict) else None,
            status=status,
            answer=codes.get(chosen),
            responses=codes,
            security=tuple(part for part in demands if isinstance(part, dict)),
        )

    def parameters(
        self, at: Pointer, above: Pointer, value: Mapping[str, Any], item: Mapping[str, Any]
    ) -> tuple[Parameter, ...]:
        found: dict[tuple[str, str], Parameter] = {}
        for place, holder in ((above, item), (at, value)):
            listed = holder.get("parameters")
            for index in range(len(listed) if isinstance(listed, list) else 0):
                parameter = self.parameter((*place, "parameters", index))
                if parameter is not None:
                    found[(parameter.name, parameter.place)] = parameter
        return tuple(found.values())

    def parameter(self, path: Pointer) -> Parameter | None:
        at, value = self.api.at(path)
        known = value if isinstance(value, dict) else {}
        name, place = known.get("name"), known.get("in")
        if not isinstance(name, str) or place not in ("path", "query", "header", "cookie"):
            places = "`in` is `path`, `query`, `header` or `cookie`"
            self.wrong(path, f"a parameter has a `name`, and {places}")
            return None
        return Parameter(
            name=name,
            place=place,
            required=value.get("required") is True,
            schema=(*at, "schema") if isinstance(value.get("schema"), (dict, bool)) else None,
            explode=value.get("explode", value.get("style", "form") == "form") is True,
        )


def walk(value: object, path: Pointer) -> Iterator[tuple[Pointer, object]]:
    """Every value and its place, outside an author's data."""
    items: Any = enumerate(value) if isinstance(value, list) else ()
    for name, item in value.items() if isinstance(value, Mapping) else items:
        here = (*path, name)
        yield here, item
        # An author's examples may hold anything; a property may have such a name, and then holds a
        # schema.
        is_schema = isinstance(item, dict) and {"type", "$ref", "content", "schema"} & item.keys()
        if name not in DATA or is_schema:
            yield from walk(item, here)


def _base(server: Mapping[str, Any]) -> str:
    url = str(server.get("url", "/"))
    variables = server.get("variables")
    defaults = {
        f"{{{name}}}": str(variable.get("default", ""))
        for name, variable in (variables.items() if isinstance(variables, dict) else ())
        if isinstance(variable, dict)
    }
    # In one pass: a default that names variables could stand for a text of any length.
    url = _PARAMETER.sub(lambda found: defaults.get(found[0], found[0]), url[:MAX_URL_CHARS])
    try:
        return urlsplit(url[:MAX_URL_CHARS]).path.rstrip("/")
    except ValueError:
        return ""


def _segment(segment: str) -> str:
    parts = _PARAMETER.split(segment)
    # Several in one segment are tried at every place: shorter, so that no path takes long.
    max_chars = 2048 if len(parts) <= 3 else 128
    return "".join(
        re.escape(part) if index % 2 == 0 else f"([^/]{{1,{max_chars}}}?)"
        for index, part in enumerate(parts)
    )


def choose(codes: Mapping[str, Pointer]) -> tuple[int, str]:
    """The lowest 2xx, `default` as 200, the lowest 3xx or any."""
    numbers = sorted(code for code in codes if code.isdigit() and code != "100" and code[0] != "1")
    for first in ("2", "default", "3"):
        if first == "default" and first in codes:
            return 200, first
        number = next((code for code in numbers if code.startswith(first)), None)
        if number:
            return int(number), number
        if f"{first}XX" in codes:
            return int(first) * 100, f"{first}XX"
    return (int(numbers[0]), numbers[0]) if numbers else (200, next(iter(codes), ""))


def arguments(operation: Operation, raw_path: str) -> dict[str, str] | None:
    """The path's decoded parameters, or None."""
    match = operation.pattern.fullmatch(raw_path)
    if match is None:
        return None
    return {
        name: unquote(text, errors="replace")
        for name, text in zip(operation.names, match.groups(), strict=True)
    }
