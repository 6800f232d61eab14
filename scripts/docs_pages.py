"""The sources of the docs site, as one directory: `python -m scripts.docs_pages OUT`.

Copies the hand-written pages, writes the reference pages that are generated from the code, and
rewrites links: a link to a file that is a page leads to that page, any other one becomes text.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from posixpath import join, normpath, relpath
from typing import Any, Final

import click
from scripts import promises

from belljar.cli.main import COMMANDS, root
from belljar.compose.keys import KEYS
from belljar.ledger.kinds import FIELDS
from belljar.policy.model import policy_schema
from belljar.report.reasons import ReasonCode

ROOT: Final = Path(__file__).resolve().parents[1]
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HELP_WIDTH: Final = 88


def site_pages() -> dict[str, str]:
    """Hand-written page in the repository → its path in the site."""
    named = {
        "README.md": "index.md",
        "SPECIFICATION.md": "specification.md",
        "CHANGELOG.md": "changelog.md",
        "bench/README.md": "benchmarks.md",
    }
    examples = ROOT.glob("examples/*/README.md")
    return {
        **named,
        **{f"docs/{page.name}": page.name for page in (ROOT / "docs").glob("*.md")},
        **{f"design/{page.name}": f"design/{page.name}" for page in (ROOT / "design").glob("*.md")},
        **{
            f"examples/{page.parent.name}/README.md": f"example-{page.parent.name}.md"
            for page in examples
        },
    }


def relinked(text: str, source: str, pages: Mapping[str, str]) -> str:
    """`text` of the page `source`, with its links as the site has them."""

    def moved(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in path or path in GENERATED:
            return match[0]
        file = normpath(join(source, "..", path))
        if file in pages:
            place = relpath(pages[file], join(pages[source], ".."))
            return f"{mark}[{label}]({place}{hash_}{anchor})"
        if not file.startswith("docs/"):
            return label
        place = relpath(file.removeprefix("docs/"), join(pages[source], ".."))  # a picture, say
        return f"{mark}[{label}]({place}{hash_}{anchor})"

    return LINK.sub(moved, text)


def cell(text: object) -> str:
    """One cell of a table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def table(head: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n"


# ---- the command line


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Each command and subcommand with its full name."""
    # click keeps a command's help option from its first context: all of them have the same names
    names = root.context_settings["help_option_names"]
    top = click.Context(
        root, info_name="belljar", terminal_width=HELP_WIDTH, help_option_names=names
    )
    for name in COMMANDS:
        command = root.get_command(top, name)
        if command is None:
            continue
        context = click.Context(command, parent=top, info_name=name, terminal_width=HELP_WIDTH)
        yield f"belljar {name}", command, context
        if isinstance(command, click.Group):
            for sub, child in command.commands.items():
                inner = click.Context(
                    child, parent=context, info_name=sub, terminal_width=HELP_WIDTH
                )
                yield f"belljar {name} {sub}", child, inner


def cli_page() -> str:
    """Every command's help. An option's anchor is `COMMAND--OPTION`, as in `#ledger-show--kind`."""
    parts = [
        "# Command line reference\n",
        "Every command and option, from the program itself (`belljar COMMAND --help`).",
        "To learn the commands by use, begin with the [tutorial](tutorial.md).\n",
    ]
    for name, command, context in commands():
        usage = command.get_help(context).partition("\nOptions:\n")[0].rstrip()
        options = filter(None, (option_line(name, each, context) for each in command.params))
        parts += [f"## {name}\n", f"```text\n{usage}\n```\n", "\n".join(options), ""]
    return "\n".join(parts)


def option_line(name: str, parameter: click.Parameter, context: click.Context) -> str:
    """An item of a list that can be linked; "" for an argument and a hidden option."""
    record = parameter.get_help_record(context)
    if record is None or not isinstance(parameter, click.Option):
        return ""
    words = (*name.split()[1:], max(parameter.opts, key=len).lstrip("-"))
    anchor = f"{'-'.join(words[:-1])}--{words[-1]}"
    shown, meaning = (re.sub(r"\s+", " ", text) for text in record)
    return f"- [`{shown}`](#{anchor}){{ #{anchor} }}: {html.escape(meaning, quote=False)}"


# ---- the policy


def kind_of(field: Mapping[str, Any]) -> str:
    """What a field of a JSON Schema takes, in a few words."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        words = policy_schema()["$defs"][name].get("enum")
        return kind_of({"enum": words}) if words else f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(
                dict.fromkeys(kind_of(each) for each in field[key] if each != {"type": "null"})
            )
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field.get("type") == "array":
        item = field.get("items") or {}
        return f"list of {kind_of(item)}" if item else "list"
    words = field.get("type", "value")
    text = " or ".join(words) if isinstance(words, list) else words
    return {"string": "text", "object": "mapping", "boolean": "`true`, `false`"}.get(text, text)


def fields(schema: Mapping[str, Any]) -> str:
    """The table of one mapping's fields."""
    needed = set(schema.get("required", ()))

    def rows() -> Iterator[tuple[object, ...]]:
        for name, field in schema.get("properties", {}).items():
            default = field.get("default")
            shown = (
                "needed"
                if name in needed
                else f"`{json.dumps(default)}`".replace('"', "")
                if default not in (None, "", [], {})
                else ""
            )
            yield f"`{name}`", kind_of(field), shown, field.get("description", "")

    return table(("field", "takes", "default", "meaning"), rows())


def policy_page() -> str:
    """Every field of a policy file."""
    schema = policy_schema()
    parts = [
        "# Policy schema\n",
        "Every field of a policy file, from the models that check it. What the fields do, with",
        "examples: [the policy file](policy.md). For editors: `belljar policy schema`.\n",
        "```yaml\nbelljar: 1\nrisk: high\n```\n",
        f"## Policy\n\n{fields(schema)}",
    ]
    for name, each in schema["$defs"].items():
        if "enum" in each:
            continue  # where it is used
        parts.append(f"## {name}\n\n{each.get('description', '')}\n\n{fields(each)}")
    return "\n".join(parts)


# ---- the ledger


TYPES: Final = {
    "texts": "list of text",
    "flag": "boolean",
    "count": "integer from 0",
    "whole": "integer",
    "sha256": "SHA-256 in hex",
    "times": "list of pairs: milliseconds, bytes until then",
    **dict.fromkeys(("reaped", "findings", "differences"), "list of objects"),
}


def type_in_words(name: str) -> str:
    """A type of the table of events, in a few words."""
    if "|" in name:
        return ", ".join(f"`{word}`" for word in name.split("|"))
    plain = name.removesuffix("-or-null")
    return TYPES.get(plain, plain) + (" or null" if plain != name else "")


def events_page() -> str:
    """The data of each kind of event."""

    def rows() -> Iterator[tuple[object, ...]]:
        for kind, fields in FIELDS.items():
            for name, _, takes in (field.partition(":") for field in fields.split()):
                shown = name.removesuffix("?") if name.endswith("?") else f"**{name}**"
                yield f"`{kind.value}`", shown, type_in_words(takes)

    return (
        "# Event schema\n\nThe fields that the reader of a ledger checks, from the code: required "
        "ones in **bold**. An event may carry more fields; [events](events.md) explains all of them.\n\n"
        "```console\n$ belljar ledger show last --kind cell\n```\n\n"
        + table(("kind", "field", "takes"), rows())
    )


def reasons_page() -> str:
    """The codes that make a sample void or breached."""
    rows = (
        (f"`{code.value}`", code.verdict.value, code.text.replace("{}", "…")) for code in ReasonCode
    )
    return (
        "# Reason codes\n\nWhy a sample is not `contained`: each reason in `findings.json` and "
        "`--json` has one of these codes. [Verdicts](verdicts.md) explains how they are used.\n\n"
        "```console\n$ belljar verdict last --json\n```\n\n"
        + table(("code", "makes it", "text"), rows)
    )


# ---- compose files


def compose_page() -> str:
    """What becomes of each key of a service."""

    def rows() -> Iterator[tuple[object, ...]]:
        see = "see [compose files](compose.md#keys-of-a-service)"
        for key, fate in sorted(KEYS.items()):
            yield f"`{key}`", fate.fate or "converted", fate.why or see

    return (
        "# Compose keys\n\nEvery key of a compose file that Belljar knows, from the tables of the "
        "converter. What the words mean and how values are converted: [compose files](compose.md).\n\n"
        "```console\n$ belljar check compose.yaml\n```\n\n"
        f"{table(('key', 'outcome', 'reason'), rows())}"
    )


def egress_page() -> str:
    """Every way out of a range that the egress tests try."""
    from tests.security.egress import table as cases

    return cases.rendered()


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "reference-cli.md": cli_page,
    "reference-policy.md": policy_page,
    "reference-events.md": events_page,
    "reference-reasons.md": reasons_page,
    "reference-compose.md": compose_page,
    "reference-egress.md": egress_page,
    # Its texts, and so its links, are those of a page in the repository's root.
    "reference-promises.md": lambda: relinked(promises.page(), "SPECIFICATION.md", site_pages()),
}


# ---- the whole


def navigation() -> dict[str, list[tuple[str, str]]]:
    """Section → its pages (title, file), as `zensical.toml` has them."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    sections: dict[str, list[tuple[str, str]]] = {}
    for entry in config["project"]["nav"]:
        ((section, value),) = entry.items()
        pages = [{section: value}] if isinstance(value, str) else value
        sections[section] = [next(iter(page.items())) for page in pages]
    return sections


def purpose(text: str) -> str:
    """The first sentence below a page's title."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", FENCE.sub("", text))]
    plain = (part for part in paragraphs if part and part[0] not in "#`|<!>")
    first = LINK.sub(lambda match: match[2], next(plain, "")).replace("\n", " ").strip("*")
    return re.split(r"(?<=[.])\s", first, maxsplit=1)[0].rstrip(":")


def llms_txt(directory: Path) -> str:
    """The index for language models (https://llmstxt.org): pages as Markdown, with their purpose."""
    parts = ["# Belljar\n", f"> {purpose((directory / 'index.md').read_text())}\n"]
    for section, pages in navigation().items():
        links = [
            f"- [{title}]({file}): {purpose((directory / file).read_text())}"
            for title, file in pages
        ]
        parts.append(f"## {section}\n\n" + "\n".join(links) + "\n")
    return "\n".join(parts)


def write(directory: Path) -> None:
    """Make `directory` anew with every page, picture and `llms.txt`."""
    shutil.rmtree(directory, ignore_errors=True)
    pages = site_pages()
    texts = {
        place: relinked((ROOT / source).read_text(), source, pages)
        for source, place in pages.items()
    }
    texts |= {name: page() for name, page in GENERATED.items()}
    for place, text in texts.items():
        (directory / place).parent.mkdir(parents=True, exist_ok=True)
        (directory / place).write_text(text)
    for folder in ("img", "css"):
        shutil.copytree(ROOT / "docs" / folder, directory / folder)
    (directory / "llms.txt").write_text(llms_txt(directory))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
