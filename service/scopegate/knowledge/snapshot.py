"""Snapshots of a view on disk, so that a start need not build it again. Never the only copy of anything."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from scopegate.knowledge.index import IndexKind, VectorIndex

FORMAT = 1
MANIFEST = "manifest.json"
ABANDONED_S = 3600


@dataclass(frozen=True, slots=True)
class Record:
    """What a verdict says of a fact, beside its distance and confidence."""

    id: str
    text: str
    source: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A view as it was at a revision of an incarnation of its scope."""

    incarnation: str
    revision: int
    index: VectorIndex
    records: dict[int, Record]


class Snapshots:
    """A scope's snapshots: a folder each, complete once it has its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, snapshot: Snapshot) -> None:
        """Writes a snapshot and drops the older ones. Raises OSError, and leaves no trace, where the disk is full."""
        self._clear_up()
        scratch = self._folder / f".{uuid.uuid4().hex}"
        scratch.mkdir(parents=True)
        try:
            snapshot.index.save(scratch)
            records = [[key, record.id, record.text, record.source] for key, record in snapshot.records.items()]
            (scratch / "records.json").write_bytes(orjson.dumps(records))
            manifest = {
                "format": FORMAT,
                "incarnation": snapshot.incarnation,
                "revision": snapshot.revision,
                "kind": asdict(snapshot.index.kind),
                "files": {path.name: _checksum(path) for path in sorted(scratch.iterdir())},
            }
            (scratch / MANIFEST).write_bytes(orjson.dumps(manifest))
            for path in scratch.iterdir():
                _to_disk(path)
            others = self._all()
            scratch.rename(self._folder / f"{snapshot.revision:020d}-{scratch.name[1:]}")
        except RuntimeError as error:  # FAISS's word for a failed write
            shutil.rmtree(scratch, ignore_errors=True)
            raise OSError(str(error)) from error
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        for path in others:
            shutil.rmtree(path, ignore_errors=True)

    def load(self, incarnation: str, kind: IndexKind) -> Snapshot | None:
        """The newest snapshot of the incarnation that is whole and of this kind of index, None where there is none."""
        for path in reversed(self._all()):
            try:
                manifest = orjson.loads((path / MANIFEST).read_bytes())
                if (manifest["format"], manifest["incarnation"]) != (FORMAT, incarnation):
                    continue
                if manifest["kind"] != asdict(kind):
                    continue
                if any(_checksum(path / name) != checksum for name, checksum in manifest["files"].items()):
                    continue
                rows = orjson.loads((path / "records.json").read_bytes())
                records = {key: Record(fact_id, text, source) for key, fact_id, text, source in rows}
                index = VectorIndex.load(path, kind)
            except (OSError, ValueError, KeyError, TypeError, RuntimeError):
                continue  # damaged: an older one will do, or SQL
            return Snapshot(incarnation, manifest["revision"], index, records)
        return None

    def drop(self) -> None:
        """Removes all of them."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _clear_up(self) -> None:
        """Removes what a process that was killed while it wrote has left."""
        for path in self._folder.glob(".*"):
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)

    def _all(self) -> list[Path]:
        """The finished ones, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.sha256).hexdigest()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
