"""Loads and renders the prompts in prompts/, one template a file.

A file is a header of `name: value` lines, a line of three dashes, and a Jinja template in sections that begin with
`=== system`, `=== user` or `=== assistant`: the turns. What comes from documents, passages or people goes through the
filter `data`, so that it cannot end the place it stands in. A variable with choices, `examples=none|given`, is bound
when the prompt is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, meta

from scopegate.domain import Invalid, Speaker, Turn
from scopegate.settings import prompts_dir

_FIELDS = {"name", "role", "source", "variables", "version"}
_SECTION = re.compile(r"^=== (system|user|assistant)\n", re.MULTILINE)
# What chat templates and tokenizers read as their own: <|eot_id|>, </s>, [INST], [/INST], [control_555].
_CONTROL = re.compile(r"\[(?=/?[A-Za-z_]+(?:_\d+)?\])")
# Between these, models that think aloud do so; some chat templates have written the first already.
_THINKING, _THOUGHT = "<think>", "</think>"


def data(text: str) -> str:
    """Text that is to be read and not obeyed: it can neither close a tag nor spell a control token.

    & < > become entities, and the bracket of what looks like a control token in brackets does.
    """
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _CONTROL.sub("&#91;", escaped)


def plain(text: str) -> str:
    """What `data` was given, where an LLM quotes what it made of it."""
    shown = text.replace("&#91;", "[").replace("&lt;", "<").replace("&gt;", ">")
    return shown.replace("&amp;", "&")


# What LLMs set around a line or its label, though asked for plain text.
MARKUP = " \t*_`#>-"


def after_thoughts(text: str) -> str:
    """What an LLM says once it has thought aloud; nothing while it still does."""
    _, thought, said = text.partition(_THOUGHT)
    if thought:
        return said
    return "" if _THINKING.startswith(text.lstrip()[: len(_THINKING)]) else text


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt. id: NAME@VERSION, with the values bound at loading between: answer_text/basic@1."""

    id: str
    role: str
    source: str
    variables: frozenset[str]
    bound: Mapping[str, Any]
    sections: tuple[tuple[Speaker, Template], ...]

    def render(self, **variables: Any) -> tuple[Turn, ...]:
        """The prompt's turns. Raises ValueError where a variable is missing or unknown."""
        if variables.keys() != self.variables:
            wrong = ", ".join(sorted(variables.keys() ^ self.variables))
            raise ValueError(f"the prompt {self.id} takes {', '.join(sorted(self.variables))}; wrong: {wrong}")
        return tuple(Turn(role, template.render(**variables, **self.bound).strip()) for role, template in self.sections)


@cache
def load_prompt(name: str, **bound: str) -> Prompt:
    """The prompt in prompts/NAME.txt, with some of its variables bound for good: at least those with choices.

    Raises Invalid where there is none of that name, where its header or its variables are not as they say, or where a
    bound value is none of the choices.
    """
    return _read(prompts_dir(), name, bound)


def prompt_at(path: str) -> Prompt:
    """The prompt that an id names before its version, as answer_text/basic. Raises Invalid where there is none."""
    name, *values = path.split("/")
    _, choices, _ = _parts(prompts_dir(), name)
    chosen = sorted(variable for variable, allowed in choices.items() if allowed)
    return load_prompt(name, **dict(zip(chosen, values, strict=False)))


def _read(folder: Path, name: str, bound: Mapping[str, str]) -> Prompt:
    environment = Environment(  # noqa: S701 - prompts are no HTML; `data` escapes what must be
        loader=FileSystemLoader(folder, encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["data"] = data
    said, choices, body = _parts(folder, name)
    if choices.keys() != meta.find_undeclared_variables(environment.parse(body)):
        raise Invalid(f"the prompt {name!r} does not use the variables that its header lists")
    for variable, allowed in choices.items():
        if allowed and bound.get(variable) not in allowed.split("|"):
            raise Invalid(f"the prompt {name!r} needs {variable} to be one of {allowed.replace('|', ', ')}")
    if not bound.keys() <= choices.keys() or not _SECTION.match(body):
        raise Invalid(f"the prompt {name!r} has no section, or not the variables {', '.join(bound)}")
    # Cut before it is rendered, so that no text put into it can begin a turn.
    _, *pieces = _SECTION.split(body)
    path = "/".join([name, *(bound[key] for key in sorted(bound))])
    return Prompt(
        f"{path}@{said['version']}",
        said["role"],
        said["source"],
        frozenset(choices.keys() - bound.keys()),
        dict(bound),
        tuple(
            (Speaker(role), environment.from_string(text)) for role, text in zip(pieces[::2], pieces[1::2], strict=True)
        ),
    )


def _parts(folder: Path, name: str) -> tuple[Mapping[str, str], Mapping[str, str], str]:
    """A file's header, its variables with what they may be bound to ("" for what is not bound), and its body."""
    try:
        header, _, body = (folder / f"{name}.txt").read_text("utf-8").partition("\n---\n")
    except OSError as error:
        raise Invalid(f"there is no prompt {name!r}") from error
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in header.splitlines())}
    if said.keys() != _FIELDS or said["name"] != name:
        raise Invalid(f"the prompt {name!r} needs a header with its own name and {', '.join(sorted(_FIELDS))}")
    choices = dict(variable.strip().partition("=")[::2] for variable in said["variables"].split(","))
    return said, choices, body
