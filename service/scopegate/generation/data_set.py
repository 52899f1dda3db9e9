"""What a generation job has made so far, to be written as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from scopegate.domain import Job, JobStatus
from scopegate.generation import output
from scopegate.generation.card import card
from scopegate.generation.options import Options
from scopegate.jobs import Jobs


@dataclass(frozen=True, slots=True)
class DataSet:
    """Rows, and the documents that they were made of.

    notes: what was skipped or failed. whole: False while the job goes on, or where it was cancelled.
    """

    rows: Sequence[Mapping[str, Any]]
    documents: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    options: Options
    whole: bool

    @classmethod
    async def of(cls, jobs: Jobs, job: Job, *, with_documents: bool = True) -> Self:
        """That of a job; JSONL, Parquet and card need no documents. Raises UnknownJob where it is removed meanwhile."""
        _, spec = await jobs.spec(job.id)
        done = [one async for part in jobs.result(job.id) for one in part]
        rows = [row for one in done for row in one.rows]
        notes = [note for one in done for note in one.notes]
        documents = [item.body async for part in jobs.finished(job.id) for item in part] if with_documents else []
        return cls(rows, documents, notes, Options.of(spec), job.status is JobStatus.SUCCEEDED)

    def jsonl(self) -> bytes:
        """A row a line."""
        return output.jsonl(self.rows)

    def parquet(self) -> bytes:
        """A Parquet file. Raises Invalid where its library is not installed."""
        return output.parquet(self.rows, self.card(output.PARQUET))

    def eloq(self) -> dict[str, bytes]:
        """The files of the published layout, by name."""
        return output.eloq(self.rows, self.documents, self.card(output.LABELS))

    def card(self, data_file: str) -> str:
        """The card beside that file."""
        return card(self.rows, self.options, data_file, notes=self.notes, whole=self.whole)
