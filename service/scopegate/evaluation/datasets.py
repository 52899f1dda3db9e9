"""Rows that evaluations take: questions on documents, and questions with choices, in the layouts that are about."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictBool, StringConstraints, ValidationError

from scopegate.domain import Invalid

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Row = TypeVar("Row", bound=BaseModel)

# What a CSV says in words.
_FLAGS = frozenset({"in_scope", "answerable", "out_of_scope", "defused"})
_WORDS = {"true": True, "yes": True, "false": False, "no": False}
# Of a CSV's cell, in characters: whole documents are in there.
_LONGEST_CELL = 2**31 - 1
# With fewer words, an answer says nothing by itself.
_FEW_WORDS = 4


class Asked(BaseModel):
    """A question on a document. in_scope: whether the document answers it. response, defused: what somebody answered,
    and whether people say that this defuses the question."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)

    id: Text
    question: Text
    in_scope: StrictBool = Field(validation_alias=AliasChoices("in_scope", "answerable"))
    document: Text = Field(validation_alias=AliasChoices("document", "passage"))
    document_id: Text = Field(validation_alias=AliasChoices("document_id", "doc"))
    topic: Text | None = None
    response: Text | None = None
    defused: StrictBool | None = None


class Document(BaseModel):
    """A document to be found, or to be joined to its questions."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)

    id: Text
    text: Text
    title: str | None = None
    topic: Text | None = None

    @property
    def whole(self) -> str:
        """Title and text."""
        return f"{self.title}\n\n{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Choice:
    """A question with candidates, of which those at `right` are right; gold: a right answer as one sentence."""

    id: str
    question: str
    candidates: tuple[str, ...]
    right: tuple[int, ...]
    gold: str


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl, .json or .csv file, packed with gzip or not. Raises Invalid where it is none.

    Of a CSV, empty cells are None, and labels are true or false where they say so, or yes or no.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        text = content.decode("utf-8-sig")
        kind = path.name.removesuffix(".gz").rpartition(".")[2].lower()
        if kind == "csv":
            csv.field_size_limit(_LONGEST_CELL)
            return [_cells(row) for row in csv.DictReader(io.StringIO(text, newline=""))]
        # Texts hold what else splitlines() takes for the end of a line.
        rows = json.loads(text) if kind == "json" else [json.loads(line) for line in text.split("\n") if line.strip()]
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zlib.error, csv.Error) as error:
        raise Invalid(f"{path} holds no rows of JSON or CSV: {error}") from error
    except RecursionError:
        raise Invalid(f"{path} holds JSON that is too deep") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Invalid(f"{path} holds no list of objects")
    return rows


def asked(rows: Sequence[Mapping[str, Any]], documents: Iterable[Document] = (), first: int = 1) -> list[Asked]:
    """The rows as questions; what they lack of id, document and topic comes from their place and their document.

    first: the place of the first of them. Raises Invalid, naming the row, where one is none, and where there are none.
    """
    known = {document.id: document for document in documents}
    found = []
    for number, row in enumerate(rows, first):
        brought = {key: value for key, value in row.items() if value is not None}
        given: dict[str, Any] = {"id": f"{number}"}
        name, text = brought.get("document_id", brought.get("doc")), brought.get("document", brought.get("passage"))
        if (held := known.get(str(name))) is not None:
            given |= {"document": held.whole, "topic": held.topic}
        elif name is not None and text is None:
            raise Invalid(f"row {number} names the document {name!r}, and its text is not given")
        elif name is None:
            given["document_id"] = text
        found.append(valid(Asked, given | brought, number))
    if not found:
        raise Invalid("the data set holds no rows")
    return found


def valid(kind: type[Row], row: Mapping[str, Any], number: int) -> Row:
    """The row as what it is to be. Raises Invalid, naming the row and what is wrong in it."""
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        raise Invalid(f"row {number}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def documents(rows: Sequence[Mapping[str, Any]]) -> list[Document]:
    """The rows as documents. Raises Invalid, naming the row, where one is none."""
    return [valid(Document, row, number) for number, row in enumerate(rows, 1)]


def choices(rows: Sequence[Mapping[str, Any]], *, several: bool, seed: int, first: int = 1) -> list[Choice]:
    """The rows of TruthfulQA, CommonsenseQA or MedQA files, or rows of question, candidates and right (numbers from 0).

    several: TruthfulQA's MC2, in which several are right; else MC1. seed: of the order of TruthfulQA's candidates.
    first: the place of the first of them.
    Raises Invalid, naming the row, where one is none of these, and where there are none.
    """
    if not rows:
        raise Invalid("the data set holds no rows")
    found = []
    for number, row in enumerate(rows, first):
        try:
            found.append(_choice(row, number, several, seed))
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise Invalid(
                f"row {number} is a question with choices in none of the layouts TruthfulQA, CommonsenseQA, MedQA, or "
                "question, candidates, right"
            ) from error
    return found


def _cells(row: Mapping[str, str | None]) -> dict[str, Any]:
    # Under None is what stands beyond the columns.
    cells = {name: value for name, value in row.items() if name is not None}
    return {
        name: _WORDS.get(value.strip().casefold(), value) if value and name in _FLAGS else value or None
        for name, value in cells.items()
    }


def statement(question: str, answer: str) -> str:
    """An answer that says something by itself; of few words, it stands after its question."""
    return answer if len(answer.split()) >= _FEW_WORDS else f"{question} {answer}"


def _choice(row: Mapping[str, Any], number: int, several: bool, seed: int) -> Choice:
    if "Best Answer" in row:
        question, best = row["Question"].strip(), row["Best Answer"].strip()
        right = _parts(row["Correct Answers"]) if several else [best]
        candidates = list(dict.fromkeys([*right, *_parts(row["Incorrect Answers"])]))
        random.Random(f"{seed}:{question}").shuffle(candidates)  # noqa: S311 - an order, no secret
        return _made(f"{number}", question, candidates, [candidates.index(each) for each in right], best)
    asked = row["question"]
    if isinstance(asked, dict):
        candidates = [choice["text"] for choice in asked["choices"]]
        labels = [choice["label"] for choice in asked["choices"]]
        return _made(row.get("id", f"{number}"), asked["stem"], candidates, [labels.index(row["answerKey"])])
    if "options" in row:
        letters = list(row["options"])
        return _made(
            row.get("id", f"{number}"), asked, list(row["options"].values()), [letters.index(row["answer_idx"])]
        )
    return _made(row.get("id", f"{number}"), asked, row["candidates"], row["right"], row.get("gold"))


def _made(name: Any, question: Any, candidates: Any, right: Any, gold: Any = None) -> Choice:
    texts = [question, *_list(candidates), *([] if gold is None else [gold])]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError("a question, a candidate and a right answer are texts")
    if (
        len(candidates) < 2
        or not right
        or not all(type(at) is int and 0 <= at < len(candidates) for at in _list(right))
    ):
        raise ValueError("a choice needs two candidates, one of them right")
    best = gold or candidates[right[0]]
    return Choice(str(name), question, tuple(candidates), tuple(right), statement(question, best))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("it is no list")
    return value


def _parts(listed: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in listed.split(";") if part.strip()))
