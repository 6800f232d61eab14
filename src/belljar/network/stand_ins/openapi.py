"""The stand-in `openapi`: answers from an OpenAPI 3.0 or 3.1 document.

A request is checked as the document says (parameters, credentials' presence, body) and refused with
the error that the document describes, else with a usual one. What is answered is the lowest 2xx:
the author's example, else a value made from the schema, the same each time. Nothing is remembered
between requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.documents import MAX_PROBLEMS, Faults, refuse_faults
from belljar.network.stand_ins.examples import Maker, NoExampleError
from belljar.network.stand_ins.operations import Api, Operation, Parameter, arguments, load, walk
from belljar.network.stand_ins.schemas import Pointer, Schemas
from belljar.network.stand_ins.templates import text_of
from belljar.network.stand_ins.web import (
    Answer,
    App,
    Pairs,
    Request,
    compact,
    header_text,
    http_app,
    json_answer,
    parse_json,
    phrase,
)

# References that examples of a document's answers are held against while it is checked
MAX_SPENT: Final = 1_000_000
_MAX_ACCEPTED: Final = 50


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:
    """What is wrong with the document, answers without a valid example among it."""
    api, problems = load(settings, directory)
    if problems:
        return tuple(problems)
    server = _Server(api)
    for path, message in server.wrong_schemas():
        api.document.problem(path, message)
    for operation in api.operations if not api.document.problems else ():
        if server.given.spent > MAX_SPENT or len(api.document.problems) >= MAX_PROBLEMS:
            api.document.problem(
                ("paths",), "its schemas refer to each other too often for all answers to be made"
            )
            break
        for path, message in server.unanswerable(operation):
            api.document.problem(path, message)
    return tuple(api.document.problems[:MAX_PROBLEMS])


def make(context: StandInContext) -> App:
    """The ASGI app. Raises `PolicyError` for what is wrong with the document."""
    api, problems = load(context.settings, context.files)
    refuse_faults(problems, context.id)
    return http_app(_Server(api, auth=bool(context.settings.get("auth", True))).handle)


class _Server:
    def __init__(self, api: Api, *, auth: bool = True) -> None:
        self.api, self.auth = api, auth
        self.asked, self.given = Schemas(api.root, "request"), Schemas(api.root, "answer")
        self.maker = Maker(self.given)
        self.bodies: dict[Pointer, Mapping[str, bytes]] = {}

    def wrong_schemas(self) -> Iterator[tuple[Pointer, str]]:
        for path, _ in walk(self.given.root, ()):
            if (
                path[-1] == "schema" or (path[:2] == ("components", "schemas") and len(path) == 3)
            ) and (message := self.given.fault(path)):
                yield path, message

    def unanswerable(self, operation: Operation) -> Iterator[tuple[Pointer, str]]:
        if operation.answer is None:
            return
        at, answer = self.api.at(operation.answer)
        content = answer.get("content", {}) if isinstance(answer, dict) else {}
        for media, item in content.items():
            if _example(item) is None and _is_made(media) and "schema" in item:
                try:
                    self.maker.make((*at, "content", media, "schema"))
                except NoExampleError as exc:
                    yield (
                        (*at, "content", media),
                        f"no valid example can be made from the schema: {exc}; write an `example`",
                    )

    async def handle(self, request: Request) -> Answer:
        found = [
            (op, names)
            for op in self.api.operations
            if (names := arguments(op, request.raw_path)) is not None
        ]
        if not found:
            return json_answer({"message": "Not Found"}, 404)
        method = (
            "GET"
            if request.method == "HEAD" and not any(op.method == "HEAD" for op, _ in found)
            else request.method
        )
        chosen = next(((op, names) for op, names in found if op.method == method), None)
        if chosen is None:
            return json_answer(
                {"message": "Method Not Allowed"},
                405,
                (("allow", ", ".join(sorted({op.method for op, _ in found}))),),
            )
        operation, names = chosen
        if self.auth and not self.authorized(operation, request):
            return self.refusal(operation, 401, "Unauthorized", (("www-authenticate", "Bearer"),))
        errors = [
            *self.wrong_parameters(operation, request, names),
            *self.wrong_body(operation, request),
        ]
        if errors:
            status, message = errors[0]
            return self.refusal(operation, status, message)
        return self.answer(operation, request)

    def authorized(self, operation: Operation, request: Request) -> bool:
        """Whether credentials of the right kind are there; which ones doesn't matter."""
        demands = operation.security
        return not demands or any(
            all(self.carried(name, request) for name in demand) for demand in demands
        )

    def carried(self, name: str, request: Request) -> bool:
        scheme = self.api.schemes.get(name, {})
        if scheme.get("type") != "apiKey":
            return bool(request.header("authorization").partition(" ")[2].strip())
        key = str(scheme.get("name", ""))
        places = {
            "header": request.header(key.lower()),
            "query": dict(request.query).get(key),
            "cookie": request.cookies.get(key),
        }
        return bool(places.get(str(scheme.get("in"))))

    def wrong_parameters(
        self, operation: Operation, request: Request, names: Mapping[str, str]
    ) -> Iterator[tuple[int, str]]:
        for parameter in operation.parameters:
            values = _values(parameter, request, names)
            if not values:
                if parameter.required:
                    yield 400, f"missing required {parameter.place} parameter '{parameter.name}'"
            elif parameter.schema is not None:
                value = self.typed(parameter.schema, values, explode=parameter.explode)
                for _, message in self.asked.errors(parameter.schema, value)[:1]:
                    yield 400, f"invalid {parameter.place} parameter '{parameter.name}': {message}"

    def typed(self, path: Pointer, values: list[str], *, explode: bool = True) -> Any:  # noqa: ANN401 - any JSON value
        """Text as the schema's type; text that isn't stays text, and the schema says so."""
        schema = self.asked.plain(path)
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if "array" in kinds:
            parts = values if explode and len(values) > 1 else values[0].split(",")
            item = schema.get("items", {})
            inner = self.asked.kinds(item)
            return [_scalar(part, inner) for part in parts]
        return _scalar(values[0], kinds)

    def wrong_body(self, operation: Operation, request: Request) -> Iterator[tuple[int, str]]:
        if operation.body is None:
            return
        at, body = self.api.at(operation.body)
        content = body.get("content", {})
        if not request.body:
            if body.get("required") is True:
                yield 400, "request body is required"
            return
        media = next(
            (
                name
                for name in (
                    request.content_type,
                    f"{request.content_type.partition('/')[0]}/*",
                    "*/*",
                )
                if name in _bare(content)
            ),
            None,
        )
        if media is None:
            yield 415, f"unsupported content type '{request.content_type[:80]}'"
            return
        written = _bare(content)[media]
        if "schema" not in content[written]:
            return
        schema: Pointer = (*at, "content", written, "schema")
        if _is_json(request.content_type):
            try:
                value = parse_json(request.body)
            except ValueError:
                yield 400, "request body is not valid JSON"
                return
        elif request.content_type == "application/x-www-form-urlencoded":
            properties = self.asked.plain(schema).get("properties", {})
            value = {
                name: _scalar(text, self.asked.kinds(properties.get(name, {})))
                for name, text in request.form
            }
        else:
            return
        for place, message in self.asked.errors(schema, value):
            yield 400, f"request body{f' at {place}' if place else ''}: {message}"

    def answer(self, operation: Operation, request: Request) -> Answer:
        if operation.answer is None:
            return Answer(status=operation.status)
        at, described = self.api.at(operation.answer)
        headers = self.headers(at, described)
        try:
            bodies = self.contents(at, described)
        except NoExampleError:
            return json_answer({"message": "Internal Server Error"}, 500)
        if not bodies:
            return Answer(status=operation.status, headers=headers)
        media = accepted(request.header("accept"), tuple(bodies))
        if media is None:
            return json_answer({"message": "Not Acceptable"}, 406)
        return Answer(
            status=operation.status, headers=(("content-type", media), *headers), body=bodies[media]
        )

    def contents(self, at: Pointer, described: Mapping[str, Any]) -> Mapping[str, bytes]:
        """Bodies by content type; those that can be made, JSON first."""
        if at not in self.bodies:
            found: dict[str, bytes] = {}
            content = described.get("content", {})
            for media in sorted(content, key=lambda name: not _is_json(name)):
                body = self.body(media, content[media], (*at, "content", media))
                if body is not None:
                    found["application/json" if media == "*/*" else media] = body
            self.bodies[at] = found
        return self.bodies[at]

    def body(self, media: str, item: Mapping[str, Any], at: Pointer) -> bytes | None:
        example = _example(item)
        if example is not None:
            text = (
                example[0]
                if isinstance(example[0], str) and not _is_json(media)
                else compact(example[0])
            )
            return text.encode("utf-8", "replace")
        if not _is_made(media) or "schema" not in item:
            return None
        value = self.maker.make((*at, "schema"))
        return (value if isinstance(value, str) and not _is_json(media) else compact(value)).encode(
            "utf-8", "replace"
        )

    def headers(self, at: Pointer, described: Mapping[str, Any]) -> Pairs:
        found = []
        for name in described.get("headers", {}):
            place, item = self.api.at((*at, "headers", name))
            try:
                example = _example(item)
                value = example[0] if example else self.maker.make((*place, "schema"))
            except NoExampleError:
                continue
            if name.lower() not in (
                "content-type",
                "content-length",
                "transfer-encoding",
                "connection",
            ):
                found.append((name.lower(), header_text(text_of(value))))
        return tuple(found)

    def refusal(
        self, operation: Operation, status: int, message: str, headers: Pairs = ()
    ) -> Answer:
        """The error as the document describes it, with the message where it has a place for one."""
        codes = (str(status), "422" if status == 400 else "", f"{status // 100}XX", "default")
        code = next((code for code in codes if code in operation.responses), None)
        plain = json_answer(
            {"code": status, "error": phrase(status), "message": message}, status, headers
        )
        if code is None:
            return plain
        at, described = self.api.at(operation.responses[code])
        media = next((name for name in described.get("content", {}) if _is_json(name)), None)
        if media is None:
            return plain
        body = self.told(described["content"][media], (*at, "content", media, "schema"), message)
        return (
            plain
            if body is None
            else json_answer(body, int(code) if code.isdigit() else status, headers, media=media)
        )

    def told(self, item: Mapping[str, Any], schema: Pointer, message: str) -> Any:  # noqa: ANN401
        example = _example(item)
        if example is not None:
            return example[0]
        try:
            made = self.maker.make(schema)
        except NoExampleError:
            return None
        for name in ("message", "detail", "error", "title", "description"):
            if isinstance(made, dict) and isinstance(made.get(name), str):
                worded = {**made, name: message}
                return made if self.given.errors(schema, worded) else worded
        return made


def _example(item: object) -> tuple[Any] | None:
    """An author's example, in a tuple because it may be null."""
    if not isinstance(item, dict):
        return None
    if "example" in item:
        return (item["example"],)
    examples = item.get("examples")
    named = next(iter(examples.values()), None) if isinstance(examples, dict) else None
    return (named["value"],) if isinstance(named, dict) and "value" in named else None


def _bare(content: Mapping[str, Any]) -> dict[str, str]:
    return {name.partition(";")[0].strip().lower(): name for name in content}


def _is_json(media: str) -> bool:
    kind = media.partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


def _is_made(media: str) -> bool:
    return _is_json(media) or media.startswith("text/") or media in ("*/*", "application/*")


def _values(parameter: Parameter, request: Request, names: Mapping[str, str]) -> list[str]:
    match parameter.place:
        case "path":
            return [names[parameter.name]] if parameter.name in names else []
        case "query":
            return [
                value
                for name, value in request.query
                if name in (parameter.name, f"{parameter.name}[]")
            ]
        case "header":
            return (
                [request.header(parameter.name.lower())]
                if request.has_header(parameter.name.lower())
                else []
            )
    return [request.cookies[parameter.name]] if parameter.name in request.cookies else []


def _scalar(text: str, kinds: list[str]) -> Any:  # noqa: ANN401 - any JSON value
    if ("integer" in kinds or "number" in kinds or "boolean" in kinds) and len(text) <= 64:
        try:
            value = parse_json(text)
        except ValueError:
            return text
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if (is_number and ("integer" in kinds or "number" in kinds)) or (
            isinstance(value, bool) and "boolean" in kinds
        ):
            return value
    return text


def accepted(field: str, offered: tuple[str, ...]) -> str | None:
    """The offered type that an Accept field likes best (RFC 9110, 12.5.1), else None."""
    if not field.strip():
        return offered[0]
    best: tuple[float, str] | None = None
    for media in offered:
        weight = max(
            (
                _weight(wish, media.partition(";")[0].strip().lower())
                for wish in field.lower().split(",")[:_MAX_ACCEPTED]
            ),
            default=(-1, 0.0),
        )[1]
        if weight > 0 and (best is None or weight > best[0]):
            best = (weight, media)
    return best[1] if best else None


def _weight(wish: str, media: str) -> tuple[int, float]:
    """How exactly a wish names a type, and how much it is wanted."""
    name, *parameters = (part.strip() for part in wish.split(";"))
    exactness = {media: 2, f"{media.partition('/')[0]}/*": 1, "*/*": 0}.get(name, -1)
    quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
    try:
        return exactness, min(1.0, float(quality[:5])) if exactness >= 0 else 0.0
    except ValueError:
        return exactness, 0.0
