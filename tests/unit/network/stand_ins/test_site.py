"""What an author writes for an `http` stand-in: every mistake is reported with file, line and column,
all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.site import load_site

HEAD = "routes:\n  - path: /a/{id}\n    "
MISTAKES = {
    "routes: []": "1:1: there is nothing to answer",
    "routs: []": "1:1: routs: there is no such field; did you mean `routes`?",
    "routes:\n  - pth: /": "2:5: routes[0].pth: there is no such field; did you mean `path`?",
    "routes:\n  - path: a": "2:11: routes[0].path: a path begins with `/`",
    "routes:\n  - path: /{a}/{a}": "2:11: routes[0].path: two parameters have one name",
    "routes:\n  - {path: /, body: a}\n  - {path: /, body: b}": "3:12: routes[1].path: never reached: routes[0] answers GET here",
    f"{HEAD}method: FETCH": "3:13: routes[0].method: `FETCH` is none of",
    f"{HEAD}status: 99": "3:13: routes[0].status: `99` is no status",
    f"{HEAD}body: x\n    json: y": "4:11: routes[0].json: an answer has one of",
    f'{HEAD}body: "{{{{ path.name }}}}"': "3:11: routes[0].body: the path has no parameter `name`",
    f'{HEAD}body: "{{{{ nothing }}}}"': "3:11: routes[0].body: a reference begins with one of",
    f'{HEAD}body: "{{{{ query.q"': "3:11: routes[0].body: `{{` is never closed by `}}` (character 1)",
    f"{HEAD}json: {{a: [1, '{{{{ x }}}}']}}": "3:19: routes[0].json.a[1]: a reference",
    f"{HEAD}headers: {{content-length: 3}}": "3:15: routes[0].headers.content-length: `content-length` can't be set",
    f"{HEAD}headers: {{Set-Cookie: x}}": "write `cookies`",
    f"{HEAD}cookies: {{'a b': x}}": "`a b` is no name of a cookie",
    f"{HEAD}type: html": "3:11: routes[0].type: `html` is no content type",
    f"{HEAD}delay: 31s": "3:12: routes[0].delay: `31s` is no delay",
    f"{HEAD}delay: 5": "`5` is no delay",
    f"{HEAD}when: {{query: x}}": "3:12: routes[0].when.query: `query` is followed by one name",
    f"{HEAD}when: {{query.q: {{like: x}}}}": "a condition is a value, or one of",
    f"{HEAD}when: {{query.q: {{exists: maybe}}}}": "true or false is needed",
    f"{HEAD}do: {{set: {{query.q: 1}}}}": "only what lies below `state` and `session` can be changed",
    f"{HEAD}do: {{delete: [1]}}": "a reference begins with one of",
    f"{HEAD}do: {{increment: {{state.n: x}}}}": "a whole number is needed, but this is text",
    f"{HEAD}do: {{put: {{state.n: x}}}}": "routes[0].do.put: there is no such field",
    f"{HEAD}file: none.txt": "3:11: routes[0].file: none.txt: there is no such file",
    f"{HEAD}file: ../x": "`../x` is not below the stand-in's directory",
    f"{HEAD}file: link": "leads out of the stand-in's directory by a link",
    f"{HEAD}template: bad.html": "bad.html:2:4: a reference begins with",
    f"{HEAD}answers: []": "a list of 1 to 1000 answers is needed",
    f"{HEAD}answers: [{{}}]\n    status: 201": "with `answers`, `status` belongs into each of them",
    f"{HEAD}websocket: shout": "a WebSocket is `echo`, or a list",
    f"{HEAD}websocket: [{{close: 99}}]": "`99` is no close code",
    f"{HEAD}websocket: echo\n    body: x": "4:5: routes[0].body: `body` says nothing for a WebSocket",
    "static: nowhere": "1:9: static: `nowhere` is no directory",
    "static: {/a: ../x}": "`../x` is not below",
    "static: .\nsession_cookie: a b": "`a b` is no name of a cookie",
    "static: .\nstate: []": "2:8: state: a mapping is needed, but this is a list",
    "a: &x 1": "1:4: a: anchors are not allowed",
    "a: [": "not YAML",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with what the mistakes name."""
    (tmp_path / "bad.html").write_text("<p>\n{{ x }}")
    (tmp_path.parent / f"{tmp_path.name}-outside").write_text("x")
    (tmp_path / "link").symlink_to(f"../{tmp_path.name}-outside")
    return tmp_path


@pytest.mark.parametrize("text", MISTAKES)
def test_every_mistake_is_reported_with_its_place(text: str, folder: Path) -> None:
    """The sentence names the file, where there is a place its line and column, and the field."""
    (folder / "r.yaml").write_text(text)
    problems = [str(fault) for fault in load_site({"routes": "r.yaml"}, folder)[1]]
    assert any(MISTAKES[text] in problem for problem in problems), problems
    assert all(problem.startswith("r.yaml:") for problem in problems)


def test_all_mistakes_are_reported_at_once(folder: Path) -> None:
    """One wrong field hides no other."""
    (folder / "r.yaml").write_text(
        "routes:\n  - {path: x, status: 1}\n  - {path: /, method: NO, body: '{{'}\nstatic: none"
    )
    assert [str(fault.line) for fault in load_site({"routes": "r.yaml"}, folder)[1]] == [
        "2",
        "2",
        "3",
        "3",
        "4",
    ]


def test_inline_routes_are_reported_by_field() -> None:
    """What stands in the policy itself is named by its field."""
    assert load_site({"routes": [{"path": "x"}]}, None)[1][0].path == ("routes", 0, "path")
    assert load_site({"routes": "x.yaml", "state": {}}, None)[1][0].path == ("state",)
    (fault,) = load_site({"routes": [{"path": "/"}], "stat": {}}, None)[1]
    assert str(fault) == "stat: there is no such field; did you mean `state`?"


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.integers()
    | st.booleans()
    | st.sampled_from(["/", "/{a}", "{{ state.x }}", "echo", "GET"])
    | st.text(max_size=6),
    lambda i: (
        st.lists(i, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "path",
                    "method",
                    "methods",
                    "when",
                    "do",
                    "set",
                    "delete",
                    "append",
                    "state.x",
                    "query.q",
                    "json",
                    "body",
                    "file",
                    "template",
                    "redirect",
                    "answers",
                    "websocket",
                    "send",
                    "headers",
                    "cookies",
                    "delay",
                    "static",
                    "exists",
                ]
            ),
            i,
            max_size=6,
        )
    ),
    max_leaves=25,
)


@given(JSON, st.dictionaries(st.sampled_from(["static", "state", "session_cookie"]), JSON))
def test_any_value_is_judged(routes: Any, more: dict[str, Any]) -> None:  # noqa: ANN401 - any JSON value
    """Routes of any shape give sentences, never an exception."""
    load_site({"routes": routes, **more}, None)
    load_site({"routes": [routes], **more}, Path("/nonexistent"))
