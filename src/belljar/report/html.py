"""Renders a report as one HTML page that loads nothing and runs only its own script.

Three walls stand between a guest's text and a browser: `timeline.shown`; Jinja's or JSON's escape;
and a Content-Security-Policy that allows one script and one style by digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from belljar.report.source import texts_of
from belljar.report.timeline import shown
from belljar.units import format_duration, format_size

_HERE: Final = Path(__file__).parent


def render(report: Mapping[str, Any]) -> bytes:
    """The page of `collect`'s findings. The same report gives the same bytes."""
    style, script = ((_HERE / name).read_text() for name in ("page.css", "page.js"))
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(_HERE),
        # A fact that is missing fails the page: an empty place would read as nothing to report.
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"size": format_size, "duration": format_duration, "data": _data, "texts": texts_of}
    environment.filters |= filters
    page = environment.get_template("page.html").render(
        report=report,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy="; ".join(
            (
                # The page loads nothing and sends nothing, whatever a run's texts get it to do.
                "default-src 'none'",
                f"script-src {_digest(script)}",
                f"style-src {_digest(style)}",
                "base-uri 'none'",
                "form-action 'none'",
                "require-trusted-types-for 'script'",
            )
        ),
    )
    return page.encode()


def _visible(value: object) -> object:
    """Show a run's text without active or hidden parts."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return shown(value, max_chars=len(value))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(value: object) -> Markup:
    """JSON for a script element, which no text can end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704 - the characters of markup are escaped
