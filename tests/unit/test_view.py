"""What a view promises while things happen at the same time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, text

from scopegate.domain import Document, Overloaded, UnknownFact
from scopegate.inference.embedder import Embedder
from scopegate.knowledge import Knowledge, schema, view
from scopegate.knowledge.index import VectorIndex
from scopegate.knowledge.snapshot import Snapshots
from scopegate.knowledge.view import ScopeView
from tests.unit.conftest import OpenKnowledge
from tests.unit.facts import SAMPLE, fact
from tests.unit.test_knowledge import OtherEmbedder, nearest


async def test_a_search_that_is_cancelled_keeps_writers_out_until_its_thread_is_done(
    knowledge: Knowledge, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await knowledge.add("default", [fact(text) for text in SAMPLE])
    seen = await knowledge.view("default")
    (vector,) = await embedder.embed(["octopus hearts"])
    searching: list[bool] = []
    original = VectorIndex.nearest

    def slow(self: VectorIndex, *arguments: Any) -> Any:
        searching.append(True)
        time.sleep(0.3)
        searching.pop()
        return original(self, *arguments)

    monkeypatch.setattr(view, "INLINE", 0)
    monkeypatch.setattr(VectorIndex, "nearest", slow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await seen.nearest(vector, 1)
    assert searching
    original_show = VectorIndex.show
    shown_while_searching: list[bool] = []

    def show(self: VectorIndex, *arguments: Any) -> None:
        shown_while_searching.append(bool(searching))
        original_show(self, *arguments)

    monkeypatch.setattr(VectorIndex, "show", show)
    await knowledge.add("default", [fact("One more.")])
    assert shown_while_searching == [False]


async def test_a_replaced_document_is_the_old_or_the_new_one_to_every_question(
    knowledge: Knowledge, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "STEP", 2)

    def document(version: int) -> Document:
        return Document("d", None, " ".join(f"Part {n} of issue {version} is here." for n in range(9)), None)

    await knowledge.add_documents("default", [document(0)])
    (vector,) = await embedder.embed(["Which parts are here?"])
    torn: list[set[str]] = []
    done = False

    async def ask() -> None:
        while not done:
            evidence, revision = await (await knowledge.view("default")).nearest(vector, 20)
            issues = {found.text.split()[4] for found in evidence}
            if issues != {str(revision - 1)} or len(evidence) != 9:
                torn.append(issues)
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    for version in range(1, 20):
        await knowledge.add_documents("default", [document(version)])
    done = True
    await asking
    assert not torn


async def test_checks_and_the_first_write_go_on_while_a_snapshot_is_written(
    knowledge: Knowledge, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await knowledge.add("default", [fact(text) for text in SAMPLE])
    seen = await knowledge.view("default")
    writing = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*_: object) -> None:
        loop.call_soon_threadsafe(writing.set)
        time.sleep(0.5)

    monkeypatch.setattr(Snapshots, "save", slow)
    saving = asyncio.create_task(seen.save())
    await writing.wait()
    adding = asyncio.create_task(knowledge.add("default", [fact("One more.")]))
    await asyncio.sleep(0.1)
    assert (await nearest(knowledge, embedder, "octopus hearts"))[0] == SAMPLE[4]
    assert not saving.done()
    await asyncio.gather(saving, adding)


async def test_a_write_that_is_done_is_acknowledged_even_where_it_cannot_be_read_back(
    knowledge: Knowledge, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise Overloaded("no connection is free")

    with monkeypatch.context() as patched:
        patched.setattr(ScopeView, "follow", broken)
        added = await knowledge.add("default", [fact(SAMPLE[4])])
    assert added.added == 1
    async with asyncio.timeout(5):
        while not await nearest(knowledge, embedder, "octopus hearts"):
            await asyncio.sleep(0.01)


async def test_a_scope_of_another_embedder_keeps_nobody_from_the_others(
    open_knowledge: OpenKnowledge, embedder: Embedder
) -> None:
    async with open_knowledge() as here, open_knowledge(OtherEmbedder(embedder)) as there:
        await here.add("a-foreign-one", [fact(SAMPLE[0])])
        await there.add("z-own-one", [fact(SAMPLE[4])])
        await here.add("a-foreign-one", [fact(SAMPLE[1])])
        await asyncio.sleep(0.3)
        assert here.not_ready() == there.not_ready() == []
        assert len(await there.view("z-own-one")) == 1


async def test_one_scope_that_cannot_be_followed_is_named_and_the_others_are_followed(
    open_knowledge: OpenKnowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ScopeView.follow

    async def follow(self: ScopeView, reader: Any) -> None:
        if self.scope.name == "bad":
            raise RuntimeError("torn")
        await original(self, reader)

    async with open_knowledge() as here, open_knowledge() as there:
        monkeypatch.setattr(ScopeView, "follow", follow)
        await here.add("bad", [fact(SAMPLE[0])])
        await here.add("good", [fact(SAMPLE[1])])
        async with asyncio.timeout(5):
            while not any("'bad'" in trouble for trouble in there.not_ready()):
                await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            while "good" not in {size.scope for size in there.sizes()}:
                await asyncio.sleep(0.01)


async def test_a_fact_deleted_between_two_questions_is_not_found_again(
    knowledge: Knowledge, embedder: Embedder
) -> None:
    added = await knowledge.add("default", [fact(SAMPLE[4])])
    (vector,) = await embedder.embed(["octopus hearts"])
    asked = await knowledge.view("default")
    found, removed = await asyncio.gather(asked.nearest(vector, 1), knowledge.remove("default", added.ids[0]))
    assert removed is None
    assert [evidence.text for evidence in found[0]] in ([SAMPLE[4]], [])
    assert await asked.nearest(vector, 1) == ([], 2)
    with pytest.raises(UnknownFact):
        await knowledge.fact("default", added.ids[0])


async def test_a_store_that_hangs_is_not_ready(knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch) -> None:
    from scopegate.knowledge import knowledge as module

    async def hang() -> dict[str, tuple[str, int]]:
        await asyncio.sleep(60)
        return {}

    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(knowledge._store, "heads", hang)
    async with asyncio.timeout(5):
        while not knowledge.not_ready():
            await asyncio.sleep(0.01)
    assert knowledge.not_ready() == ["the knowledge store does not answer"]


async def test_changes_are_read_by_their_revision_not_by_going_through_the_scope(knowledge: Knowledge) -> None:
    if not knowledge._database.is_sqlite:
        pytest.skip("SQLite tells its plan in words; Postgres has the same index")
    statements: list[tuple[str, Any]] = []

    def listen(_c: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if "facts.vector" in statement:
            statements.append((statement, parameters))

    await knowledge.add("default", [fact(SAMPLE[0])])
    event.listen(knowledge._database._engine.sync_engine, "before_cursor_execute", listen)
    await knowledge.add("default", [fact(SAMPLE[1])])
    statement, parameters = statements[0]
    async with knowledge._database.read() as connection:
        plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        told = " ".join(row.detail for row in plan)
    assert "ix_facts_scope_revision (scope=? AND" in told
    assert "TEMP B-TREE" not in told


async def test_the_migrations_make_the_schema(knowledge: Knowledge) -> None:
    def differences(connection: Connection) -> list[Any]:
        return list(compare_metadata(MigrationContext.configure(connection), schema.metadata))

    async with knowledge._database.read() as connection:
        await connection.execute(text("SELECT 1"))
        assert await connection.run_sync(differences) == []
