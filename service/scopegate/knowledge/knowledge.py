"""Every scope of this service: the truth in SQL, a view of each in memory, and a tail that keeps them together."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import structlog
from numpy.typing import NDArray

from scopegate.domain import (
    MAX_FACTS,
    Added,
    Conflict,
    Document,
    Fact,
    Invalid,
    NewFact,
    Origin,
    Page,
    Provenance,
    Scope,
    ScopegateError,
    ScopeSize,
    Split,
    Unavailable,
    UnknownScope,
)
from scopegate.inference.embedder import Embedder
from scopegate.knowledge.database import Database
from scopegate.knowledge.index import IndexKind
from scopegate.knowledge.sentences import split
from scopegate.knowledge.snapshot import Snapshots
from scopegate.knowledge.store import (
    LAST_KEY,
    MissingVectors,
    ScopeReader,
    Store,
    Written,
    digest,
    normalised,
    require_embedder,
)
from scopegate.knowledge.view import ScopeView
from scopegate.settings import Settings

DEFAULT_SCOPE = "default"
# A database that has not told its scopes' revisions by then is as good as away.
LOOK_S = 5

log = structlog.get_logger()


class Knowledge:
    """Scopes and their facts. Writes are durable when they return, and seen by the next question asked here."""

    def __init__(self, settings: Settings, embedder: Embedder) -> None:
        self._settings = settings
        self._embedder = embedder
        self._database = Database(settings.sql_url)
        self._store = Store(self._database)
        self._kind = IndexKind(
            embedder.dimension, settings.index_exact_limit, settings.index_factory, settings.index_parameters
        )
        self._kind.make(settings.index_exact_limit + 1)  # says now, not at the 50,000th fact, that it makes no sense
        self._followed: Collection[str] | None = None
        self._views: dict[str, ScopeView] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._trouble: str | None = "the knowledge store is being opened"
        self._loading: set[str] = set()
        self._loaded = asyncio.Event()
        self._wanted = asyncio.Event()
        self._lookups = ThreadPoolExecutor(min(os.cpu_count() or 1, 16), thread_name_prefix="lookup")
        self._tasks: set[asyncio.Task[None]] = set()

    # Starting and stopping

    async def start(self, follow: Collection[str] | None = None) -> None:
        """Opens the store and begins to load the views of the followed scopes (None: of all), in the background.

        Raises Invalid where the data directory cannot be made.
        """
        try:
            self._settings.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"the data directory {self._settings.data_dir} cannot be made: {error.strerror}") from error
        self._followed = follow
        self._spawn(self._tail())

    async def ready(self, timeout_s: float) -> None:
        """Waits until everything is loaded. Raises Unavailable, with the cause, where that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._loaded.wait()
        except TimeoutError as error:
            raise Unavailable("; ".join(self.not_ready())) from error

    async def stop(self) -> None:
        """Writes snapshots and closes the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for view in self._views.values():
            await view.settled()
            await self._save(view)
        self._lookups.shutdown()
        await self._database.close()

    def not_ready(self) -> list[str]:
        """What is not ready, a sentence each."""
        troubles = [self._trouble] if self._trouble else []
        return troubles + [f"scope {name!r} is loading" for name in sorted(self._loading)]

    def sizes(self) -> list[ScopeSize]:
        """How large the loaded scopes are."""
        return [ScopeSize(name, len(view), view.revision) for name, view in self._views.items()]

    @property
    def database(self) -> Database:
        """Where the truth is, of jobs too; open once it is ready."""
        return self._database

    # Asking

    def scope_of(self, name: str) -> Scope:
        """The scope as this process last saw it. Raises UnknownScope, or Unavailable while it loads."""
        return self._view(name).scope

    async def view(self, name: str, min_revision: int | None = None) -> ScopeView:
        """The scope's view, at min_revision or later, for which it waits as long as its caller does.

        Raises UnknownScope, Unavailable while it loads, Conflict where another embedder made its vectors.
        """
        view = self._view(name)
        require_embedder(view.scope, self._embedder.fingerprint)
        while min_revision is not None and view.revision < min_revision:
            self._wanted.set()
            await view.advanced(self._settings.tail_interval_s)
            view = self._view(name)
        return view

    def _view(self, name: str) -> ScopeView:
        view = self._views.get(name)
        if view is not None:
            return view
        if name in self._loading or not self._loaded.is_set():
            raise Unavailable("; ".join(self.not_ready()) or f"scope {name!r} is loading")
        raise UnknownScope(f"there is no scope {name!r}")

    # Scopes

    async def scopes(self, limit: int, cursor: str | None) -> Page[Scope]:
        """Scopes by name."""
        return await self._store.scopes(limit, cursor)

    async def scope(self, name: str) -> Scope:
        """The scope as it is stored. Raises UnknownScope."""
        return await self._store.scope(name)

    async def put_scope(
        self,
        name: str,
        *,
        policy: Mapping[str, Any] | None,
        overridable: tuple[str, ...] | Literal["keep"] | None,
        embedder: str | None,
        reembed: bool,
    ) -> tuple[Scope, bool]:
        """Makes or changes a scope; returns it, and whether it is new.

        policy replaces the scope's, None leaves it. reembed gives all its facts vectors of this service's embedder.
        Raises Conflict where the scope has another embedder and reembed is not asked for, Invalid for an embedder
        that this service does not run.
        """
        own = self._embedder.fingerprint
        if embedder is not None and embedder != own:
            raise Invalid(f"this service runs the embedder {own!r}; which one is the operator's to choose")
        if reembed:
            with suppress(UnknownScope):
                await self._reembed(name)
        scope, created = await self._store.put_scope(name, own, policy, overridable)
        await self._seen(name)
        return scope, created

    async def delete_scope(self, name: str) -> None:
        """Removes a scope and all that is in it; the default scope comes back empty. Raises UnknownScope."""
        await self._store.delete_scope(name)
        if name == DEFAULT_SCOPE:
            await self._store.put_scope(name, self._embedder.fingerprint, None, "keep")
        await self._seen(name)

    async def _reembed(self, name: str) -> None:
        while True:
            scope, facts = await self._store.texts(name)
            if scope.embedder == self._embedder.fingerprint:
                return
            vectors = await self._embedder.embed([text for _, text in facts], bulk=True)
            keys = [key for key, _ in facts]
            if await self._store.replace_vectors(scope, keys, vectors, self._embedder.fingerprint):
                return

    # Facts

    async def add(self, name: str, facts: Sequence[NewFact]) -> Added:
        """Adds facts, all or nothing, to a scope that is made where it is new.

        Raises Conflict where an id is taken by another text, or where another embedder made the scope's vectors.
        """
        written = await self._put(name, facts)
        return Added(written.added, len(facts) - written.added, written.ids, written.scope.revision)

    async def add_documents(self, name: str, documents: Sequence[Document]) -> Split:
        """Splits documents into sentences, each a fact; a known document's id replaces what it gave before.

        Raises Invalid where an id stands twice or there are more than 10,000 sentences, Conflict as add does.
        """
        if len({document.id for document in documents}) < len(documents):
            raise Invalid("a document's id stands twice in one call")
        facts: list[NewFact] = []
        for document in documents:
            source = document.source or document.title
            provenance = Provenance(Origin.DOCUMENT, source, document.id, 1.0)
            sentences = await asyncio.to_thread(split, document.text)
            facts.extend(NewFact(sentence, (provenance,)) for sentence in sentences)
            if len(facts) > MAX_FACTS:
                raise Invalid(f"one call takes at most {MAX_FACTS:,} sentences; send these documents in several")
        written = await self._put(name, facts, documents)
        ids = list(dict.fromkeys(written.ids))
        return Split(len(documents), len(ids), written.added, written.removed, ids, written.scope.revision)

    async def _put(self, name: str, facts: Sequence[NewFact], documents: Sequence[Document] = ()) -> Written:
        own = self._embedder.fingerprint
        texts = {digest(fact.text): normalised(fact.text) for fact in facts}
        vectors: dict[bytes, NDArray[np.float32]] = {}
        missing: Mapping[bytes, str] = await self._store.unknown(name, texts, own)
        while True:
            vectors.update(zip(missing, await self._embedder.embed(list(missing.values()), bulk=True), strict=True))
            try:
                written = await self._store.put_facts(name, facts, vectors, own, documents)
            except MissingVectors as request:  # someone removed a text that was known a moment ago
                missing = request.texts
                continue
            await self._seen(name)
            return written

    async def facts(self, name: str, limit: int, cursor: str | None, query: str | None) -> Page[Fact]:
        """Facts in the order of their making, or those nearest to a query in meaning, best first.

        Raises UnknownScope, Invalid for a cursor that no page gave.
        """
        if query is not None:
            view = await self.view(name)
            (vector,) = await self._embedder.embed([query])
            return Page(await self._store.facts_by_key(name, await view.closest(vector, limit)), None)
        if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and int(cursor) <= LAST_KEY):
            raise Invalid("the cursor is none that a page gave")
        found, last = await self._store.facts(name, limit, int(cursor or 0))
        return Page(found, None if last is None else str(last))

    async def fact(self, name: str, fact_id: str) -> Fact:
        """One fact. Raises UnknownScope, UnknownFact."""
        return await self._store.fact(name, fact_id)

    async def correct(
        self,
        name: str,
        fact_id: str,
        *,
        text: str | None,
        confidence: float | None,
        metadata: Mapping[str, Any] | None,
    ) -> Fact:
        """Corrects what is given; another text makes the fact a manual one.

        Raises UnknownScope, UnknownFact, Conflict where another fact says the same already.
        """
        vector = None if text is None else (await self._embedder.embed([normalised(text)], bulk=True))[0]
        fact = await self._store.correct(
            name,
            fact_id,
            self._embedder.fingerprint,
            text=text,
            vector=vector,
            confidence=confidence,
            metadata=metadata,
        )
        await self._seen(name)
        return fact

    async def remove(self, name: str, fact_id: str) -> None:
        """Removes a fact. Raises UnknownScope, UnknownFact."""
        await self._store.remove(name, fact_id)
        await self._seen(name)

    async def export(self, name: str) -> AsyncIterator[Fact]:
        """Every fact, in the order of making, a page in memory at a time. Raises UnknownScope."""
        last: int | None = 0
        while last is not None:
            facts, last = await self._store.facts(name, 1000, last)
            for fact in facts:
                yield fact

    async def documents(self, name: str) -> list[Document]:
        """The documents that were added, oldest first. Raises UnknownScope."""
        return await self._store.documents(name)

    # Following the truth

    async def _tail(self) -> None:
        is_open = False
        while True:
            try:
                if not is_open:
                    await self._database.open()
                    await self._store.put_scope(DEFAULT_SCOPE, self._embedder.fingerprint, None, "keep")
                    is_open = True
                await self._look()
                self._trouble = None
                self._loaded.set()
            except Conflict:  # the default scope has another embedder: it exists, and that is all we want of it
                is_open = True
                continue
            except (ScopegateError, TimeoutError) as error:
                cause = str(error) or "the knowledge store does not answer"
                if self._trouble != cause:
                    log.warning("knowledge cannot be followed", cause=cause)
                self._trouble = cause
            except Exception:
                log.exception("knowledge cannot be followed")
                self._trouble = "the knowledge store cannot be read"
            await self._pause()

    async def _pause(self) -> None:
        """Until the next look is due, or wanted sooner."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.tail_interval_s):
                await self._wanted.wait()
        self._wanted.clear()

    async def _look(self) -> None:
        """Brings every followed view up to what SQL holds; one that cannot be keeps no other from it."""
        async with asyncio.timeout(LOOK_S):
            heads = await self._store.heads()
        for name in self._views.keys() - heads.keys():
            await self._refresh(name)
        stale = [name for name, head in heads.items() if self._follows(name) and head != self._head(name)]
        if not self._loaded.is_set():
            self._loading.update(stale)
        troubles = []
        for name in stale:
            try:
                await self._refresh(name)
            except ScopegateError as error:
                troubles.append(error)
            except Exception as error:
                log.exception("a scope cannot be followed", scope=name)
                troubles.append(Unavailable(f"scope {name!r} cannot be followed ({type(error).__name__})"))
            self._loading.discard(name)
        if troubles:
            raise troubles[0]

    def _follows(self, name: str) -> bool:
        return self._followed is None or name in self._followed

    def _head(self, name: str) -> tuple[str, int] | None:
        view = self._views.get(name)
        return None if view is None else (view.scope.incarnation, view.revision)

    async def _seen(self, name: str) -> None:
        """Makes a write visible here. The write is done, so what cannot be read now is left to the tail."""
        if self._follows(name):
            try:
                await self._refresh(name)
            except Exception:
                log.exception("a write is not visible yet", scope=name)

    async def _refresh(self, name: str) -> None:
        async with self._turns[name]:
            view = followed = self._views.get(name)
            try:
                async with self._store.reading(name) as reader:
                    if view is None or not view.can_follow(reader):
                        view = await self._opened(reader)
                    if view.scope.embedder != self._embedder.fingerprint:
                        view.scope, view.revision = reader.scope, reader.scope.revision  # its vectors mean nothing here
                    elif view.revision != reader.scope.revision:
                        await view.follow(reader)
            except UnknownScope:
                if view is not None:
                    del self._views[name]
                    view.forget()
                    view.wake()
                return
            self._views[name] = view
            if followed is not None and followed is not view:
                followed.wake()
        if view.wants_rebuild:
            self._spawn(view.rebuild())
        if view.wants_snapshot:
            self._spawn(self._save(view))

    async def _opened(self, reader: ScopeReader) -> ScopeView:
        folder = self._settings.data_dir / "views" / str(reader.key)
        view = ScopeView(reader.scope, self._kind, Snapshots(folder), self._lookups)
        if reader.scope.embedder == self._embedder.fingerprint:
            await view.restore(reader)
        return view

    async def _save(self, view: ScopeView) -> None:
        try:
            await view.save()
        except OSError as error:
            log.warning("no snapshot was written", scope=view.scope.name, cause=str(error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("upkeep failed", exc_info=task.exception())
