"""The truth about scopes and facts, in SQL. Every write takes the scope's row lock and its next revision."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Row, bindparam, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from scopegate.domain import (
    Conflict,
    Document,
    Fact,
    NewFact,
    Origin,
    Page,
    Provenance,
    Scope,
    UnknownFact,
    UnknownScope,
)
from scopegate.ids import new_id
from scopegate.knowledge import schema
from scopegate.knowledge.database import Database

Vectors = NDArray[np.float32]
Keep = Literal["keep"]

ROWS = 1000
LAST_KEY = 2**63 - 1
# A replica that has not looked for so long starts anew.
TOMBSTONES_LAST = timedelta(days=7)


def normalised(text: str) -> str:
    """The text whose equality makes two facts one: Unicode NFC, runs of white space as one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def digest(text: str) -> bytes:
    """SHA-256 of the normalised text."""
    return hashlib.sha256(normalised(text).encode()).digest()


class MissingVectors(Exception):
    """The write needs vectors of these texts, by digest; embed them and try again."""

    def __init__(self, texts: Mapping[bytes, str]) -> None:
        self.texts = texts


@dataclass(frozen=True, slots=True)
class StoredFact:
    """A fact as a view wants it."""

    key: int
    id: str
    text: str
    confidence: float
    source: str | None
    vector: bytes


@dataclass(frozen=True, slots=True)
class Written:
    """What a write of facts or documents did; removed counts facts that lost their last provenance."""

    added: int
    removed: int
    ids: list[str]
    scope: Scope


class ScopeReader:
    """One scope as it is in one snapshot of the database."""

    def __init__(self, connection: AsyncConnection, key: int, forgotten_revision: int, scope: Scope) -> None:
        self._connection = connection
        self.key = key
        self._forgotten_revision = forgotten_revision
        self.scope = scope

    def reaches(self, incarnation: str, revision: int) -> bool:
        """Whether every change since that revision of that incarnation can still be told."""
        return incarnation == self.scope.incarnation and self._forgotten_revision <= revision <= self.scope.revision

    async def changed(self, after: int) -> AsyncIterator[list[StoredFact]]:
        """The facts of later revisions than after, in chunks; all of them for -1."""
        facts = schema.facts.c
        place = tuple_(facts.revision, facts.key)
        query = select(facts.key, facts.id, facts.text, facts.confidence, facts.source, facts.vector, facts.revision)
        query = query.where(facts.scope == self.key).order_by(facts.revision, facts.key).limit(ROWS)
        last = (after, LAST_KEY)
        while True:
            rows = (await self._connection.execute(query.where(place > last))).all()
            if not rows:
                return
            yield [StoredFact(*row[:-1]) for row in rows]
            last = (rows[-1].revision, rows[-1].key)

    async def removed(self, after: int) -> list[int]:
        """Keys of the facts removed in later revisions than after."""
        query = select(schema.tombstones.c.fact).where(
            schema.tombstones.c.scope == self.key, schema.tombstones.c.revision > after
        )
        return list((await self._connection.execute(query)).scalars())


class Store:
    """Scopes, facts, provenances and documents in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Reading

    @asynccontextmanager
    async def reading(self, name: str) -> AsyncIterator[ScopeReader]:
        """One scope in one snapshot. Raises UnknownScope."""
        async with self._database.read() as connection:
            row = await _scope_row(connection, name)
            yield ScopeReader(connection, row.key, row.forgotten_revision, _scope(row))

    async def heads(self) -> dict[str, tuple[str, int]]:
        """Every scope's incarnation and revision, by name."""
        scopes = schema.scopes.c
        async with self._database.read() as connection:
            rows = await connection.execute(select(scopes.name, scopes.incarnation, scopes.revision))
            return {row.name: (row.incarnation, row.revision) for row in rows}

    async def scope(self, name: str) -> Scope:
        """The scope. Raises UnknownScope."""
        async with self.reading(name) as reader:
            return reader.scope

    async def scopes(self, limit: int, cursor: str | None) -> Page[Scope]:
        """Scopes by name, those after the cursor."""
        query = select(schema.scopes).order_by(schema.scopes.c.name).limit(limit + 1)
        if cursor is not None:
            query = query.where(schema.scopes.c.name > cursor)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
            items = [_scope(row) for row in rows[:limit]]
        return Page(items, items[-1].name if len(rows) > limit else None)

    async def facts(self, name: str, limit: int, after: int) -> tuple[list[Fact], int | None]:
        """Facts in the order of their making, those after a key; and the key to go on from, None at the end."""
        facts = schema.facts.c
        async with self._database.read() as connection:
            scope = await _scope_row(connection, name)
            query = select(*_FACT).where(facts.scope == scope.key, facts.key > after)
            rows = (await connection.execute(query.order_by(facts.key).limit(limit + 1))).all()
            found = await _facts(connection, rows[:limit])
        return found, rows[limit - 1].key if len(rows) > limit else None

    async def facts_by_key(self, name: str, keys: Sequence[int]) -> list[Fact]:
        """The facts with these keys, in this order; those that are gone are left out."""
        facts = schema.facts.c
        found: dict[int, Fact] = {}
        async with self._database.read() as connection:
            scope = await _scope_row(connection, name)
            for part in _parts(keys):
                query = select(*_FACT).where(facts.scope == scope.key, facts.key.in_(part))
                rows = (await connection.execute(query)).all()
                found.update(zip([row.key for row in rows], await _facts(connection, rows), strict=True))
        return [found[key] for key in keys if key in found]

    async def fact(self, name: str, fact_id: str) -> Fact:
        """One fact. Raises UnknownScope, UnknownFact."""
        async with self._database.read() as connection:
            scope = await _scope_row(connection, name)
            return (await _facts(connection, [await _fact_row(connection, scope.key, name, fact_id)]))[0]

    async def documents(self, name: str) -> list[Document]:
        """The documents, oldest first. Raises UnknownScope."""
        documents = schema.documents.c
        async with self._database.read() as connection:
            scope = await _scope_row(connection, name)
            query = select(schema.documents).where(documents.scope == scope.key)
            rows = await connection.execute(query.order_by(documents.created_at, documents.id))
            return [Document(row.id, row.title, row.text, row.source) for row in rows]

    async def unknown(self, name: str, texts: Mapping[bytes, str], embedder: str) -> dict[bytes, str]:
        """Those of the texts, by digest, that the scope has no vector of. Raises Conflict for a foreign embedder."""
        facts = schema.facts.c
        known: set[bytes] = set()
        async with self._database.read() as connection:
            row = (await connection.execute(select(schema.scopes).where(schema.scopes.c.name == name))).one_or_none()
            if row is not None:
                require_embedder(row, embedder)
                for part in _parts(list(texts)):
                    query = select(facts.digest).where(facts.scope == row.key, facts.digest.in_(part))
                    known.update((await connection.execute(query)).scalars())
        return {key: text for key, text in texts.items() if key not in known}

    # Writing

    async def put_scope(
        self, name: str, embedder: str, policy: Mapping[str, Any] | None, overridable: Sequence[str] | Keep | None
    ) -> tuple[Scope, bool]:
        """Makes or changes a scope; a policy of None leaves it. Returns it, and whether it is new."""
        async with self._database.write() as connection:
            row, created = await self._locked(connection, name, embedder)
            values: dict[str, Any] = {}
            if policy is not None and (stored := orjson.loads(orjson.dumps(policy))) != row.policy:
                values["policy"] = stored
            if overridable != "keep" and _listed(overridable) != row.overridable:
                values["overridable"] = _listed(overridable)
            if values:
                await _advance(connection, row, **values)
            return _scope(await _scope_row(connection, name)), created

    async def delete_scope(self, name: str) -> None:
        """Removes a scope and all that is in it. Raises UnknownScope."""
        async with self._database.write() as connection:
            row = await _scope_row(connection, name, lock=True)
            await connection.execute(delete(schema.scopes).where(schema.scopes.c.key == row.key))

    async def put_facts(
        self,
        name: str,
        given: Sequence[NewFact],
        vectors: Mapping[bytes, NDArray[np.float32]],
        embedder: str,
        documents: Sequence[Document] = (),
    ) -> Written:
        """Adds facts, and lets documents replace what they gave before; all or nothing.

        given: for a document, its sentences, each with the document's provenance. vectors: by digest, of the texts
        that are new. Raises MissingVectors; Conflict where an id is taken by another text, or for a foreign embedder.
        """
        async with self._database.write() as connection:
            row, _ = await self._locked(connection, name, embedder)
            change = _Change(row, datetime.now(UTC))
            await change.load(connection, given, [document.id for document in documents])
            change.merge(given, vectors)
            await change.write(connection)
            new_documents = await _put_documents(connection, row.key, documents, change.now)
            if change.is_empty and not documents:
                scope = _scope(row)
            else:
                counts = {
                    "facts": row.facts + len(change.new) - len(change.gone),
                    "documents": row.documents + new_documents,
                }
                await _advance(connection, row, **counts)
                scope = _scope(await _scope_row(connection, name))
            return Written(len(change.new), len(change.gone), change.ids, scope)

    async def correct(
        self,
        name: str,
        fact_id: str,
        embedder: str,
        *,
        text: str | None,
        vector: NDArray[np.float32] | None,
        confidence: float | None,
        metadata: Mapping[str, Any] | None,
    ) -> Fact:
        """Corrects a fact. Another text is a person's word and no longer a document's, so its provenance is manual.

        Raises UnknownScope, UnknownFact, Conflict where another fact has the text.
        """
        facts = schema.facts.c
        async with self._database.write() as connection:
            scope = await _scope_row(connection, name, lock=True)
            require_embedder(scope, embedder)
            row = await _fact_row(connection, scope.key, name, fact_id)
            (fact,) = await _facts(connection, [row])
            values: dict[str, Any] = {}
            provenances = fact.provenances
            if text is not None and vector is not None and normalised(text) != fact.text:
                values |= {"text": normalised(text), "digest": digest(text), "vector": _bytes(vector)}
                taken = select(facts.id).where(facts.scope == scope.key, facts.digest == values["digest"])
                other = (await connection.execute(taken)).scalar_one_or_none()
                if other is not None:
                    raise Conflict(f"fact {other!r} of scope {name!r} already says this")
                provenances = (Provenance(Origin.MANUAL, row.source, None, fact.confidence),)
            if confidence is not None:
                provenances = tuple(Provenance(p.origin, p.source, p.document_id, confidence) for p in provenances)
            if metadata is not None:
                values["metadata"] = dict(metadata)
            best = _best(provenances)
            values |= {"confidence": best.confidence, "source": best.source, "updated_at": datetime.now(UTC)}
            await connection.execute(
                update(schema.facts).where(facts.key == row.key).values(**values, revision=scope.revision + 1)
            )
            if provenances != fact.provenances:
                await _replace_provenances(connection, scope.key, {row.key: provenances})
            await _advance(connection, scope)
            return (await _facts(connection, [await _fact_row(connection, scope.key, name, fact_id)]))[0]

    async def remove(self, name: str, fact_id: str) -> None:
        """Removes a fact, whatever gave it. Raises UnknownScope, UnknownFact."""
        async with self._database.write() as connection:
            scope = await _scope_row(connection, name, lock=True)
            row = await _fact_row(connection, scope.key, name, fact_id)
            await _bury(connection, scope, [row.key], datetime.now(UTC))
            await _advance(connection, scope, facts=scope.facts - 1)

    async def texts(self, name: str) -> tuple[Scope, list[tuple[int, str]]]:
        """The scope, and every fact's key and text."""
        facts = schema.facts.c
        async with self._database.read() as connection:
            row = await _scope_row(connection, name)
            found = await connection.execute(select(facts.key, facts.text).where(facts.scope == row.key))
            return _scope(row), [(key, text) for key, text in found]

    async def replace_vectors(self, seen: Scope, keys: Sequence[int], vectors: Vectors, embedder: str) -> bool:
        """Gives every fact the vector of another embedder, and the scope another incarnation.

        Returns False, with nothing done, where the scope has changed since it was seen.
        """
        async with self._database.write() as connection:
            row = await _scope_row(connection, seen.name, lock=True)
            if (row.incarnation, row.revision) != (seen.incarnation, seen.revision):
                return False
            statement = update(schema.facts).where(schema.facts.c.key == bindparam("fact"))
            rows = [{"fact": key, "vector": _bytes(vector)} for key, vector in zip(keys, vectors, strict=True)]
            if rows:
                await connection.execute(statement, rows)
            await _advance(connection, row, embedder=embedder, incarnation=new_id())
            return True

    async def _locked(self, connection: AsyncConnection, name: str, embedder: str) -> tuple[Row[Any], bool]:
        """The scope's row, locked until the transaction ends, made where it is missing."""
        now = datetime.now(UTC)
        make = sqlite_insert if self._database.is_sqlite else postgres_insert
        made = await connection.execute(
            make(schema.scopes)
            .values(
                name=name,
                incarnation=new_id(),
                revision=0,
                forgotten_revision=0,
                facts=0,
                documents=0,
                embedder=embedder,
                policy={},
                overridable=None,
                created_at=now,
                updated_at=now,
            )
            .on_conflict_do_nothing(index_elements=["name"])
        )
        row = await _scope_row(connection, name, lock=True)
        require_embedder(row, embedder)
        return row, made.rowcount == 1


class _Change:
    """The effect of a write of facts and documents on a scope, worked out in memory, then written."""

    def __init__(self, scope: Row[Any], now: datetime) -> None:
        self.scope = scope
        self.now = now
        self.ids: list[str] = []
        self.new: dict[bytes, dict[str, Any]] = {}
        self.gone: list[int] = []
        self._documents: set[str] = set()
        self._rows: dict[int, Row[Any]] = {}
        self._by_digest: dict[bytes, int] = {}
        self._by_id: dict[str, bytes] = {}
        self._before: dict[int, list[Provenance]] = {}
        self._after: dict[int, list[Provenance]] = {}
        self._provenances_of_new: dict[bytes, list[Provenance]] = {}
        self._metadata: dict[int, dict[str, Any]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the scope would be as it was."""
        return not self.new and not self.gone and not self._changed()

    async def load(self, connection: AsyncConnection, given: Sequence[NewFact], documents: Sequence[str]) -> None:
        """Reads what the write may touch: facts with these texts or ids, and what the documents gave so far."""
        facts, provenances = schema.facts.c, schema.provenances.c
        self._documents = set(documents)
        wanted: list[tuple[ColumnElement[Any], list[Any]]] = [
            (facts.digest, [digest(fact.text) for fact in given]),
            (facts.id, [fact.id for fact in given if fact.id is not None]),
        ]
        touched: list[int] = []
        for part in _parts(list(documents)):
            query = select(provenances.fact).where(
                provenances.scope == self.scope.key, provenances.document_id.in_(part)
            )
            touched.extend((await connection.execute(query.distinct())).scalars())
        wanted.append((facts.key, touched))
        for column, values in wanted:
            for part in _parts(values):
                query = select(*_FACT, facts.digest).where(facts.scope == self.scope.key, column.in_(part))
                for row in await connection.execute(query):
                    self._rows[row.key] = row
                    self._by_digest[row.digest] = row.key
                    self._by_id[row.id] = row.digest
        self._before = await _provenances(connection, list(self._rows))
        self._after = {
            key: [provenance for provenance in held if provenance.document_id not in self._documents]
            for key, held in self._before.items()
        }

    def merge(self, given: Sequence[NewFact], vectors: Mapping[bytes, NDArray[np.float32]]) -> None:
        """Works out what the given facts change. Raises MissingVectors, Conflict."""
        missing: dict[bytes, str] = {}
        for fact in given:
            text_digest = digest(fact.text)
            if fact.id is not None and self._by_id.setdefault(fact.id, text_digest) != text_digest:
                raise Conflict(f"fact {fact.id!r} of scope {self.scope.name!r} says something else")
            key = self._by_digest.get(text_digest)
            if key is not None:
                self.ids.append(self._rows[key].id)
                _join(self._after[key], fact.provenances)
                held = self._metadata.get(key, self._rows[key].metadata)
                self._metadata[key] = {**held, **fact.metadata}
            elif text_digest in self.new:
                self.ids.append(self.new[text_digest]["id"])
                _join(self._provenances_of_new[text_digest], fact.provenances)
                self.new[text_digest]["metadata"] |= fact.metadata
            elif text_digest not in vectors:
                missing[text_digest] = normalised(fact.text)
            else:
                self.new[text_digest] = {
                    "scope": self.scope.key,
                    "id": fact.id or new_id(),
                    "text": normalised(fact.text),
                    "digest": text_digest,
                    "metadata": dict(fact.metadata),
                    "vector": _bytes(vectors[text_digest]),
                    "revision": self.scope.revision + 1,
                    "created_at": fact.created_at or self.now,
                    "updated_at": fact.updated_at or fact.created_at or self.now,
                }
                self.ids.append(self.new[text_digest]["id"])
                self._provenances_of_new[text_digest] = []
                _join(self._provenances_of_new[text_digest], fact.provenances)
        if missing:
            raise MissingVectors(missing)
        for text_digest, values in self.new.items():
            best = _best(self._provenances_of_new[text_digest])
            values |= {"confidence": best.confidence, "source": best.source}
        self.gone = [key for key, held in self._after.items() if not held]

    async def write(self, connection: AsyncConnection) -> None:
        """Writes it; the scope's revision is the caller's to advance."""
        facts = schema.facts.c
        await _bury(connection, self.scope, self.gone, self.now)
        provenances: dict[int, Sequence[Provenance]] = {}
        for key in self._changed():
            best = _best(self._after[key])
            values: dict[str, Any] = {"confidence": best.confidence, "source": best.source, "updated_at": self.now}
            if key in self._metadata:
                values["metadata"] = self._metadata[key]
            await connection.execute(
                update(schema.facts).where(facts.key == key).values(**values, revision=self.scope.revision + 1)
            )
            if self._after[key] != self._before[key]:
                provenances[key] = self._after[key]
        if self.new:
            await connection.execute(insert(schema.facts), list(self.new.values()))
            query = select(facts.key, facts.digest).where(
                facts.scope == self.scope.key, facts.revision == self.scope.revision + 1
            )
            for row in await connection.execute(query):
                if row.digest in self.new:
                    provenances[row.key] = self._provenances_of_new[row.digest]
        await _replace_provenances(connection, self.scope.key, provenances)

    def _changed(self) -> list[int]:
        return [key for key, held in self._after.items() if held and self._differs(key)]

    def _differs(self, key: int) -> bool:
        metadata = self._rows[key].metadata
        return self._after[key] != self._before[key] or self._metadata.get(key, metadata) != metadata


_FACT = tuple(
    getattr(schema.facts.c, name)
    for name in ("key", "id", "text", "confidence", "source", "metadata", "created_at", "updated_at")
)


async def _scope_row(connection: AsyncConnection, name: str, *, lock: bool = False) -> Row[Any]:
    query = select(schema.scopes).where(schema.scopes.c.name == name)
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None:
        raise UnknownScope(f"there is no scope {name!r}")
    return row


def _scope(row: Row[Any]) -> Scope:
    return Scope(
        name=row.name,
        incarnation=row.incarnation,
        revision=row.revision,
        embedder=row.embedder,
        policy=row.policy,
        overridable=None if row.overridable is None else tuple(row.overridable),
        facts=row.facts,
        documents=row.documents,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


async def _advance(connection: AsyncConnection, scope: Row[Any], **values: Any) -> None:
    await connection.execute(
        update(schema.scopes)
        .where(schema.scopes.c.key == scope.key)
        .values(revision=scope.revision + 1, updated_at=datetime.now(UTC), **values)
    )


async def _fact_row(connection: AsyncConnection, scope: int, name: str, fact_id: str) -> Row[Any]:
    query = select(*_FACT).where(schema.facts.c.scope == scope, schema.facts.c.id == fact_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise UnknownFact(f"there is no fact {fact_id!r} in scope {name!r}")
    return row


async def _facts(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[Fact]:
    provenances = await _provenances(connection, [row.key for row in rows])
    return [
        Fact(
            row.id, row.text, row.confidence, tuple(provenances[row.key]), row.metadata, row.created_at, row.updated_at
        )
        for row in rows
    ]


async def _provenances(connection: AsyncConnection, keys: Sequence[int]) -> dict[int, list[Provenance]]:
    columns = schema.provenances.c
    found: dict[int, list[Provenance]] = {key: [] for key in keys}
    for part in _parts(keys):
        query = select(schema.provenances).where(columns.fact.in_(part)).order_by(columns.key)
        for row in await connection.execute(query):
            found[row.fact].append(Provenance(Origin(row.origin), row.source, row.document_id, row.confidence))
    return found


async def _replace_provenances(
    connection: AsyncConnection, scope: int, provenances: Mapping[int, Sequence[Provenance]]
) -> None:
    for part in _parts(list(provenances)):
        await connection.execute(delete(schema.provenances).where(schema.provenances.c.fact.in_(part)))
    rows = [
        {
            "fact": fact,
            "scope": scope,
            "origin": provenance.origin.value,
            "source": provenance.source,
            "document_id": provenance.document_id,
            "confidence": provenance.confidence,
        }
        for fact, held in provenances.items()
        for provenance in held
    ]
    if rows:
        await connection.execute(insert(schema.provenances), rows)


async def _put_documents(connection: AsyncConnection, scope: int, documents: Sequence[Document], now: datetime) -> int:
    """Stores documents in place of earlier ones; how many are new."""
    columns = schema.documents.c
    made: dict[str, datetime] = {}
    for part in _parts([document.id for document in documents]):
        matching = (columns.scope == scope) & columns.id.in_(part)
        for row in await connection.execute(select(columns.id, columns.created_at).where(matching)):
            made[row.id] = row.created_at
        await connection.execute(delete(schema.documents).where(matching))
    if documents:
        rows = [
            {
                "scope": scope,
                "id": document.id,
                "title": document.title,
                "text": document.text,
                "source": document.source,
                "created_at": made.get(document.id, now),
                "updated_at": now,
            }
            for document in documents
        ]
        await connection.execute(insert(schema.documents), rows)
    return len(documents) - len(made)


async def _bury(connection: AsyncConnection, scope: Row[Any], keys: Sequence[int], now: datetime) -> None:
    """Removes facts and leaves tombstones of this revision; forgets tombstones that nobody needs any more."""
    if not keys:
        return
    stones = schema.tombstones
    for part in _parts(keys):
        await connection.execute(delete(schema.facts).where(schema.facts.c.key.in_(part)))
    rows = [{"fact": key, "scope": scope.key, "revision": scope.revision + 1, "removed_at": now} for key in keys]
    await connection.execute(insert(stones), rows)
    old = (stones.c.scope == scope.key) & (stones.c.removed_at < now - TOMBSTONES_LAST)
    forgotten = (await connection.execute(select(func.max(stones.c.revision)).where(old))).scalar_one()
    if forgotten is not None:
        await connection.execute(delete(stones).where(old))
        await connection.execute(
            update(schema.scopes).where(schema.scopes.c.key == scope.key).values(forgotten_revision=forgotten)
        )


def require_embedder(scope: Row[Any] | Scope, embedder: str) -> None:
    """Raises Conflict where another embedder made the scope's vectors."""
    if scope.embedder != embedder:
        raise Conflict(
            f"scope {scope.name!r} was embedded by {scope.embedder!r}, this service runs {embedder!r}: "
            "put the scope with reembed true, or start the service with the scope's embedder"
        )


def _join(held: list[Provenance], added: Iterable[Provenance]) -> None:
    """Adds provenances; of one that is held already, the higher confidence stays."""
    for provenance in added:
        for row, other in enumerate(held):
            if (other.origin, other.source, other.document_id) == (
                provenance.origin,
                provenance.source,
                provenance.document_id,
            ):
                held[row] = max(other, provenance, key=_confidence)
                break
        else:
            held.append(provenance)


def _best(provenances: Iterable[Provenance]) -> Provenance:
    return max(provenances, key=_confidence)


def _confidence(provenance: Provenance) -> float:
    return provenance.confidence


def _bytes(vector: NDArray[np.float32]) -> bytes:
    return vector.astype("<f4").tobytes()


def _listed(names: Sequence[str] | Keep | None) -> list[str] | None:
    return None if names is None else list(names)


def _parts(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Portions that fit in one statement's parameters."""
    return (values[start : start + 500] for start in range(0, len(values), 500))
