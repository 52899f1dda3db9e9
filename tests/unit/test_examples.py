from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scopegate.domain import Invalid
from scopegate.training.examples import Example, read, split


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def row(passage: str, doc: str | int | None = None, *, answerable: bool = True) -> dict[str, Any]:
    return {"question": "Who?", "passage": passage, "answerable": answerable, "doc": doc, "split": "val2"}


def test_a_passage_or_a_named_document_is_one_document_in_any_file(tmp_path: Path) -> None:
    first = write(tmp_path / "first.jsonl", [row("a", 7), row("b", 7), row("c"), row("e")])
    second = write(tmp_path / "second.jsonl.gz", [row("c", "other"), row("d", "other"), row("a")])
    documents = [example.document for example in read([first, second])]
    a, b, c, e, c_again, d, a_again = documents
    assert a == b == a_again
    assert c == c_again == d
    assert len({a, c, e}) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_split_never_leaks(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    rows = [
        row(
            str(random.randrange(1000)),
            random.choice([None, None, random.randrange(400)]),
            answerable=random.random() < 0.5,
        )
        for _ in range(600)
    ]
    files = [write(tmp_path / "first.jsonl", rows[:300]), write(tmp_path / "second.jsonl.gz", rows[300:])]
    parts = split(read(files), seed)
    named = {given["passage"]: set[Any]() for given in rows}
    for given in rows:
        named[given["passage"]] |= {given["doc"]} - {None}
    seen = [
        {key for example in part for key in (f"passage {example.passage}", *named[example.passage])}
        for part in (parts.train, parts.validation, parts.test)
    ]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]
    assert sum(map(len, (parts.train, parts.validation, parts.test))) == 600


def documents(count: int) -> list[Example]:
    return [
        Example(f"q{number}", f"p{number}", answerable, f"d{number}")
        for number in range(count)
        for answerable in (True, False)
    ]


def test_a_split_is_80_10_10_and_the_seeds_own() -> None:
    examples = documents(1000)
    parts = split(examples, 0)
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [1600, 200, 200]
    assert split(examples[::-1], 0).test != parts.test  # order within a document follows the file
    assert set(split(examples[::-1], 0).test) == set(parts.test)
    assert set(split(examples, 1).test) != set(parts.test)


def test_a_part_without_both_kinds_is_refused() -> None:
    with pytest.raises(Invalid, match="part has no"):
        split(documents(2), 0)
    with pytest.raises(Invalid, match="the training part has no unanswerable question"):
        split([example for example in documents(100) if example.answerable], 0)


def test_a_limit_keeps_whole_passages_from_all_of_each_file(tmp_path: Path) -> None:
    first = write(tmp_path / "first.jsonl", [row(f"{n // 3}", f"a{n // 30}") for n in range(300)])
    second = write(tmp_path / "second.jsonl", [row(f"x{n}") for n in range(5)])
    kept = read([first, second], 60)
    assert sum(example.document.startswith("doc:a") for example in kept) == 60
    assert {sum(other.passage == example.passage for other in kept[:60]) for example in kept[:60]} == {3}
    assert len({example.document for example in kept[:60]}) > 5
    assert sum(example.passage.startswith("x") for example in kept) == 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": "Who?", "passage": "p"}', "line 2: answerable: Field required"),
        ('{"question": "Who?", "passage": "p", "answerable": "yes"}', "line 2: answerable: Input should be"),
        ('{"question": " ", "passage": "p", "answerable": true}', "line 2: question: String should have"),
        ('["Who?"]', "line 2: Input should be an object"),
        ("{", "line 2: Invalid JSON"),
        ("\udcff", "line 2: Invalid JSON"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(f"{json.dumps(row('p'))}\n{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(Invalid, match=said):
        read([path])


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file"):
        read([tmp_path / "missing.jsonl"])
    (tmp_path / "text.jsonl.gz").write_text("not zipped")
    with pytest.raises(Invalid, match="cannot be read"):
        read([tmp_path / "text.jsonl.gz"])
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(row("p")).encode() * 9)[:-9])
    with pytest.raises(Invalid, match="cannot be read"):
        read([tmp_path / "cut.jsonl.gz"])
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(Invalid, match="holds no rows"):
        read([tmp_path / "empty.jsonl"])
