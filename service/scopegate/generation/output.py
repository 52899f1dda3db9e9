"""A data set as files: JSONL, Parquet, and the layout in which ELOQ was published; with a card that says what it is."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from scopegate.domain import Invalid

Row = Mapping[str, Any]

JSONL, PARQUET, CARD = "data.jsonl", "data.parquet", "README.md"
# What the card of the published layout names as its data: rows, where questions.json is one object.
LABELS = "silver.csv"
# One moment for all, so that the same data set is the same archive, byte for byte.
_ZIPPED_AT = (1980, 1, 1, 0, 0, 0)


def line(row: Row) -> bytes:
    """A row of JSONL."""
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def jsonl(rows: Iterable[Row]) -> bytes:
    """A row a line."""
    return b"".join(map(line, rows))


def parquet(rows: Sequence[Row], card: str) -> bytes:
    """A Parquet file, with the card in its metadata. Raises Invalid where its library is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise Invalid("Parquet needs the extra: pip install 'scopegate[data]'") from error
    votes = pa.struct([(name, pa.int32()) for name in ("yes", "no", "unread")])
    schema = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("document_id", pa.string(), nullable=False),
            pa.field("topic", pa.string()),
            pa.field("question", pa.string(), nullable=False),
            pa.field("in_scope", pa.bool_(), nullable=False),
            pa.field("claim", pa.string()),
            pa.field("confusion", pa.string()),
            pa.field("votes", votes, nullable=False),
            pa.field("generator", pa.string()),
            pa.field("judge", pa.string()),
            pa.field("prompts", pa.list_(pa.string()), nullable=False),
            pa.field("seed", pa.int64(), nullable=False),
            pa.field("created_at", pa.string(), nullable=False),
        ],
        metadata={"card": card},
    )
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema), file, compression="zstd")
    return file.getvalue()


def eloq(rows: Sequence[Row], documents: Iterable[Mapping[str, Any]], card: str) -> dict[str, bytes]:
    """The files of the published data set, by name: news.json, questions.json, silver.csv; and the card.

    documents: as the job's items hold them; those that were skipped are left out.
    """
    news = {
        each["id"]: {
            "website": _website(each["source"] or ""),
            "url": each["source"],
            "date": None,
            "title": each["title"] or "",
            "content": each["text"],
        }
        for each in documents
        if each["skipped"] is None
    }
    labels = io.StringIO(newline="")
    writer = csv.writer(labels, lineterminator="\n")
    writer.writerow(("doc_id", "q_id", "llm_confusion_label"))
    writer.writerows((row["document_id"], row["id"], "no" if row["in_scope"] else "yes") for row in rows)
    return {
        "news.json": _json(news),
        "questions.json": _json({row["id"]: row["question"] for row in rows}),
        LABELS: labels.getvalue().encode(),
        CARD: card.encode(),
    }


def zipped(files: Mapping[str, bytes]) -> bytes:
    """An archive of files."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as held:
        for name, content in files.items():
            held.writestr(zipfile.ZipInfo(name, _ZIPPED_AT), content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def _website(source: str) -> str | None:
    """None where the source is no URL: it is free text."""
    try:
        return urlsplit(source).hostname
    except ValueError:
        return None


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)
