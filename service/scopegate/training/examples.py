"""Labelled questions: read from JSON lines, and divided by document."""

from __future__ import annotations

import gzip
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from scopegate.domain import Invalid

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    question: _Text
    passage: _Text
    answerable: bool
    doc: str | int | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A question, the passage it is asked of, whether that passage answers it, and the document it stands in.

    Examples that share a passage, or the document that a row names, have the same document here.
    """

    question: str
    passage: str
    answerable: bool
    document: str


@dataclass(frozen=True, slots=True)
class Split:
    """Examples in three parts that share no document: about 80, 10 and 10 percent."""

    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]


def read(paths: Iterable[Path], limit: int | None = None) -> list[Example]:
    """The rows of .jsonl or .jsonl.gz files: question, passage, answerable and, if known, doc.

    limit: about how many of a file's rows are kept, passages drawn from all of it; None for all.
    Raises Invalid, naming file and line, where a row is none, and where there are no rows.
    """
    rows: list[tuple[int, _Row]] = []
    for number, path in enumerate(paths):
        rows += ((number, row) for row in _rows(path))
    documents = _documents([row for _, row in rows])
    examples = [
        Example(row.question, row.passage, row.answerable, document)
        for (_, row), document in zip(rows, documents, strict=True)
    ]
    if limit is None:
        return examples
    files: dict[int, list[Example]] = defaultdict(list)
    for (number, _), example in zip(rows, examples, strict=True):
        files[number].append(example)
    return [example for held in files.values() for example in _some(held, limit)]


def split(examples: Sequence[Example], seed: int) -> Split:
    """Divides by document, in an order that the seed draws.

    Raises Invalid where a part lacks answerable or unanswerable questions.
    """
    parts: tuple[list[Example], list[Example], list[Example]] = ([], [], [])
    before = 0
    for held in _drawn(examples, seed, attrgetter("document")):
        middle = (before + len(held) / 2) / len(examples)
        parts[0 if middle < 0.8 else 1 if middle < 0.9 else 2].extend(held)
        before += len(held)
    for name, part in zip(("training", "validation", "test"), parts, strict=True):
        for answerable, label in ((True, "answerable"), (False, "unanswerable")):
            if not any(example.answerable is answerable for example in part):
                raise Invalid(
                    f"the {name} part has no {label} question: "
                    "give data with both kinds and more documents, which are never divided"
                )
    return Split(*map(tuple, parts))


def _rows(path: Path) -> Iterator[_Row]:
    found = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    found += 1
                    yield _row(line, f"{path}, line {number}")
    except (OSError, EOFError) as error:
        raise Invalid(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not found:
        raise Invalid(f"{path} holds no rows")


def _row(line: bytes, where: str) -> _Row:
    try:
        return _Row.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        raise Invalid(": ".join([where, *map(str, first["loc"]), first["msg"]])) from error


def _documents(rows: Sequence[_Row]) -> list[str]:
    """Each row's document: rows are joined by their passage and by the document they name, in any file."""
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while (parent := parents.setdefault(key, key)) != key:
            parents[key] = key = parents[parent]
        return key

    keys = ["text:" + hashlib.sha256(row.passage.encode()).hexdigest() for row in rows]
    for row, key in zip(rows, keys, strict=True):
        ends = {root(key), root(key if row.doc is None else f"doc:{row.doc}")}
        parents[max(ends)] = min(ends)
    return [root(key) for key in keys]


def _drawn(examples: Iterable[Example], seed: int, key: Callable[[Example], str]) -> list[list[Example]]:
    """The examples that have a key in common together, in an order that the seed draws."""
    held: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        held[key(example)].append(example)
    return [held[name] for name in sorted(held, key=lambda name: _draw(name, seed))]


def _draw(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


def _some(examples: Sequence[Example], limit: int) -> list[Example]:
    kept: list[Example] = []
    for held in _drawn(examples, 0, attrgetter("passage")):
        if len(kept) < limit:
            kept += held
    return kept
