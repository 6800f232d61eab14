"""The stand-in `openapi`: answers from an OpenAPI 3.0 or 3.1 document.

A request is checked against the document: parameters, credentials' presence, body. What breaks it
gets the error that the document describes, else a usual one.

The answer is the lowest 2xx: the author's example, else a value made from the schema, the same each
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from belljar.network.gateway.context import App, StandInContext
from belljar.network.stand_ins.documents import MAX_PROBLEMS, Faults, refuse_faults
from belljar.network.stand_ins.examples import Maker, NoExampleError
from belljar.network.stand_ins.operations import Api, Operation, Parameter, arguments, load, walk
from belljar.network.stand_ins.schemas import Pointer, Schemas
from belljar.network.stand_ins.templates import text_of
from belljar.network.stand_ins.web import (
    Answer,
    Pairs,
    Request,
    accepted,
    compact,
    header_text,
    http_app,
    json_answer,
    parse_json,
    phrase,
)

# References that examples of a document's answers are held against while it is checked
MAX_SPENT: Final = 1_000_000


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:
    """What is wrong with the document, answers without a valid example among it."""
    api = load(settings, directory)
    if api.document.problems:
        return tuple(api.document.problems)
    server = _OpenApi(api)
    for path, _ in walk(server.given.root, ()):
        is_schema = path[-1] == "schema" or path[:2] == ("components", "schemas") == path[:-1]
        if is_schema and (message := server.given.fault(path)):
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
    api = load(context.settings, context.files)
    refuse_faults(api.document.problems, context.id)
    return http_app(_OpenApi(api, auth=bool(context.settings.get("auth", True))).handle)


class _OpenApi:
    def __init__(self, api: Api, *, auth: bool = True) -> None:
        self.api, self.auth = api, auth
        self.asked, self.given = Schemas(api.root, "request"), Schemas(api.root, "answer")
        self.maker = Maker(self.given)
        self.bodies: dict[Pointer, Mapping[str, bytes]] = {}

    def unanswerable(self, operation: Operation) -> Iterator[tuple[Pointer, str]]:
        if operation.answer is None:
            return
        at, answer = self.api.at(operation.answer)
        content = answer.get("content", {}) if isinstance(answer, dict) else {}
        for media, item in content.items():
            try:
                self.body(media, item, (*at, "content", media))
            except NoExampleError as exc:
                what = f"no valid example can be made from the schema: {exc}"
                yield (*at, "content", media), f"{what}; write an `example`"

    async def handle(self, request: Request) -> Answer:
        found = {
            op.method: (op, names)
            for op in reversed(self.api.operations)
            if (names := arguments(op, request.raw_path)) is not None
        }
        if not found:
            return json_answer({"message": "Not Found"}, 404)
        is_get = request.method == "HEAD" and "HEAD" not in found
        chosen = found.get("GET" if is_get else request.method)
        if chosen is None:
            allow = ("allow", ", ".join(sorted(found)))
            return json_answer({"message": "Method Not Allowed"}, 405, (allow,))
        operation, names = chosen
        if self.auth and not self.authorized(operation, request):
            return self.refusal(operation, 401, "Unauthorized", (("www-authenticate", "Bearer"),))
        wrong = (
            *self.wrong_parameters(operation, request, names),
            *self.wrong_body(operation, request),
        )
        return self.refusal(operation, *wrong[0]) if wrong else self.answer(operation, request)

    def authorized(self, operation: Operation, request: Request) -> bool:
        """Whether credentials of the right kind are there; which ones doesn't matter."""
        return not operation.security or any(
            all(self.carried(name, request) for name in demand) for demand in operation.security
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

    def typed(self, path: Pointer, values: list[str], *, explode: bool) -> object:
        """Text as the schema's type; text that isn't stays text, and the schema says so."""
        kinds = self.asked.kinds(self.asked.plain(path))
        if "array" not in kinds:
            return _scalar(values[0], kinds)
        parts = values if explode and len(values) > 1 else values[0].split(",")
        inner = self.asked.kinds(self.asked.plain(path).get("items", {}))
        return [_scalar(part, inner) for part in parts]

    def wrong_body(self, operation: Operation, request: Request) -> Iterator[tuple[int, str]]:
        if operation.body is None:
            return
        at, body = self.api.at(operation.body)
        content = body.get("content", {})
        if not request.body:
            if body.get("required") is True:
                yield 400, "request body is required"
            return
        sent = request.content_type
        bare = {name.partition(";")[0].strip().lower(): name for name in content}
        wildcard = f"{sent.partition('/')[0]}/*"
        written = bare.get(sent) or bare.get(wildcard) or bare.get("*/*")
        if written is None:
            yield 415, f"unsupported content type '{sent[:80]}'"
            return
        if "schema" not in content[written]:
            return
        schema: Pointer = (*at, "content", written, "schema")
        if _is_json(sent):
            try:
                value = parse_json(request.body)
            except ValueError:
                yield 400, "request body is not valid JSON"
                return
        elif sent == "application/x-www-form-urlencoded":
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
        headers = (("content-type", media), *headers)
        return Answer(status=operation.status, headers=headers, body=bodies[media])

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
        is_made = _is_json(media) or media.startswith("text/") or media in ("*/*", "application/*")
        if example is not None:
            (value,) = example
        elif is_made and "schema" in item:
            value = self.maker.make((*at, "schema"))
        else:
            return None
        text = value if isinstance(value, str) and not _is_json(media) else compact(value)
        return text.encode("utf-8", "replace")

    def headers(self, at: Pointer, described: Mapping[str, Any]) -> Pairs:
        found = []
        framing = ("content-type", "content-length", "transfer-encoding", "connection")
        for name in described.get("headers", {}):
            place, item = self.api.at((*at, "headers", name))
            try:
                example = _example(item)
                value = example[0] if example else self.maker.make((*place, "schema"))
            except NoExampleError:
                continue
            if name.lower() not in framing:
                found.append((name.lower(), header_text(text_of(value))))
        return tuple(found)

    def refusal(
        self, operation: Operation, status: int, message: str, headers: Pairs = ()
    ) -> Answer:
        """The error as the document describes it, with the message where it has a place for one."""
        codes = (str(status), "422" if status == 400 else "", f"{status // 100}XX", "default")
        plain = {"code": status, "error": phrase(status), "message": message}
        code = next((code for code in codes if code in operation.responses), None)
        if code is None:
            return json_answer(plain, status, headers)
        at, described = self.api.at(operation.responses[code])
        content = described.get("content", {})
        media = next((name for name in content if _is_json(name)), None)
        if media is None:
            return json_answer(plain, status, headers)
        body = self.error_body(content[media], (*at, "content", media, "schema"), message)
        if body is None:
            return json_answer(plain, status, headers)
        status = int(code) if code.isdigit() else status
        return json_answer(body, status, headers, media=media)

    def error_body(self, item: object, schema: Pointer, message: str) -> Any:  # noqa: ANN401 - JSON
        if example := _example(item):
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


def _is_json(media: str) -> bool:
    kind = media.partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


def _values(parameter: Parameter, request: Request, names: Mapping[str, str]) -> list[str]:
    name = parameter.name
    match parameter.place:
        case "path":
            return [names[name]] if name in names else []
        case "query":
            return [value for key, value in request.query if key in (name, f"{name}[]")]
        case "header":
            return [request.header(name.lower())] if request.has_header(name.lower()) else []
    return [request.cookies[name]] if name in request.cookies else []


def _scalar(text: str, kinds: list[str]) -> Any:  # noqa: ANN401 - any JSON value
    is_numeric = "integer" in kinds or "number" in kinds
    if not (is_numeric or "boolean" in kinds) or len(text) > 64:
        return text
    try:
        value = parse_json(text)
    except ValueError:
        return text
    if isinstance(value, bool):
        return value if "boolean" in kinds else text
    return value if is_numeric and isinstance(value, (int, float)) else text
