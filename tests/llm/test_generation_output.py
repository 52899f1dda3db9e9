from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest

from scopegate.domain import Invalid
from scopegate.generation import output
from scopegate.generation.card import card
from scopegate.generation.data_set import DataSet
from scopegate.generation.options import Options
from tests.llm.eloq import PLACES

OPTIONS = Options(facts_per_document=6, rounds=2, in_scope_questions=2, seed=7)
ROWS: list[dict[str, Any]] = [
    row | {"created_at": "2026-01-02T03:04:05.678Z"} for place in PLACES for row in place.rows(seed=7)
]
DOCUMENTS = [
    {**place.document, "source": f"https://news.example/{number}", "skipped": None}
    for number, place in enumerate(PLACES, 1)
] + [{"id": "short", "title": None, "text": "", "topic": None, "source": None, "skipped": "3 words"}]
COLUMNS = ["id", "document_id", "topic", "question", "in_scope", "claim", "confusion", "votes"]
COLUMNS += ["generator", "judge", "prompts", "seed", "created_at"]
CARD = card(ROWS, OPTIONS, output.PARQUET)


def test_jsonl_is_a_row_a_line() -> None:
    assert [orjson.loads(line) for line in output.jsonl(ROWS).splitlines()] == ROWS
    assert output.jsonl([]) == b""


def load(folder: Path) -> Any:
    import datasets

    return datasets.load_dataset(str(folder), cache_dir=str(folder / "cache"), split="train")


@pytest.mark.filterwarnings("ignore")
def test_a_folder_with_the_card_loads_with_datasets(tmp_path: Path) -> None:
    (tmp_path / output.PARQUET).write_bytes(output.parquet(ROWS, CARD))
    (tmp_path / output.CARD).write_text(CARD)
    # Another file, to see that the card says which one holds the data.
    (tmp_path / "news.json").write_text("{}")
    assert load(tmp_path).to_list() == ROWS


def test_parquet_holds_its_card_and_has_a_schema_without_rows(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(output.parquet([], CARD)))
    assert table.num_rows == 0
    assert table.schema.names == COLUMNS
    assert table.schema.metadata[b"card"].decode() == CARD


def test_parquet_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Invalid, match=r"scopegate\[data\]"):
        output.parquet(ROWS, CARD)


def test_the_layout_of_the_published_data_set() -> None:
    files = output.eloq(ROWS, DOCUMENTS, CARD)
    assert files.keys() == {"news.json", "questions.json", "silver.csv", "README.md"}
    news = json.loads(files["news.json"])
    assert news["port_alder"] == {
        "website": "news.example",
        "url": "https://news.example/1",
        "date": None,
        "title": "A day in Port Alder",
        "content": PLACES[0].text,
    }
    assert "short" not in news
    questions = json.loads(files["questions.json"])
    assert questions["port_alder_1_1"] == PLACES[0].questions[1]
    labels = list(csv.DictReader(io.StringIO(files["silver.csv"].decode())))
    assert labels[0] == {"doc_id": "port_alder", "q_id": "port_alder_1_1", "llm_confusion_label": "yes"}
    assert labels[2] == {"doc_id": "port_alder", "q_id": "port_alder_0_1", "llm_confusion_label": "no"}
    assert {label["q_id"] for label in labels} == questions.keys()
    assert {label["doc_id"] for label in labels} == news.keys()


@pytest.mark.filterwarnings("ignore")
def test_the_published_layout_loads_with_datasets(tmp_path: Path) -> None:
    data_set = DataSet(ROWS, DOCUMENTS, [], OPTIONS, whole=True)
    for name, content in data_set.eloq().items():
        (tmp_path / name).write_bytes(content)
    labels = load(tmp_path).to_list()
    assert [label["q_id"] for label in labels] == [row["id"] for row in ROWS]
    assert {label["llm_confusion_label"] for label in labels} == {"yes", "no"}


@pytest.mark.parametrize("source", ["http://[bad/x", "the mayor", None])
def test_a_source_that_is_no_url_has_no_website(source: str | None) -> None:
    news = json.loads(output.eloq([], [DOCUMENTS[0] | {"source": source}], CARD)["news.json"])
    assert (news["port_alder"]["website"], news["port_alder"]["url"]) == (None, source)


def test_an_archive_is_the_same_for_the_same_files() -> None:
    archive = output.zipped({"a.txt": b"one", "b.txt": b"two"})
    assert archive == output.zipped({"a.txt": b"one", "b.txt": b"two"})
    with zipfile.ZipFile(io.BytesIO(archive)) as held:
        assert {name: held.read(name) for name in held.namelist()} == {"a.txt": b"one", "b.txt": b"two"}


def test_the_card_counts_and_says_how_it_was_made() -> None:
    for line in (
        "| documents with questions | 3 |",
        "| in-scope questions | 3 |",
        "| out-of-scope questions | 6 |",
        "| confusion: false_premise | 3 |",
        "- Written by scripted-1, judged by scripted-1",
        "- Prompt recover_claims@1",
    ):
        assert line in CARD.splitlines()
    assert "Not the whole set" not in CARD
    assert "Not the whole set" in card(ROWS[:3], OPTIONS, output.JSONL, whole=False)


def test_the_card_tells_what_was_skipped() -> None:
    said = card(ROWS, OPTIONS, output.JSONL, notes=["short: skipped: 3 words,\n and at least 150 are needed"])
    assert "- short: skipped: 3 words, and at least 150 are needed" in said.splitlines()
    assert "skipped or failed" not in CARD


def test_the_card_tells_of_every_column() -> None:
    for column in COLUMNS:
        assert column in CARD
