"""What knowledge promises, on a real database; tests/services runs the same on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from scopegate.domain import (
    Conflict,
    Document,
    Invalid,
    NewFact,
    Origin,
    Provenance,
    Unavailable,
    UnknownFact,
    UnknownScope,
)
from scopegate.inference.embedder import Embedder
from scopegate.knowledge import Knowledge, store
from scopegate.knowledge.store import ScopeReader, StoredFact
from tests.unit.conftest import OpenKnowledge
from tests.unit.facts import SAMPLE, fact


async def nearest(knowledge: Knowledge, embedder: Embedder, question: str, scope: str = "default") -> list[str]:
    view = await knowledge.view(scope)
    (vector,) = await embedder.embed([question])
    evidence, _ = await view.nearest(vector, 3)
    return [found.text for found in evidence]


async def texts(knowledge: Knowledge, scope: str = "default") -> list[str]:
    return [held.text async for held in knowledge.export(scope)]


async def until_seen(knowledge: Knowledge, scope: str, revision: int) -> None:
    async with asyncio.timeout(5):
        while True:
            try:
                if (await knowledge.view(scope)).revision >= revision:
                    return
            except (UnknownScope, Unavailable):
                pass
            await asyncio.sleep(0.01)


class TestAdding:
    async def test_an_added_fact_is_found_by_the_next_question(self, knowledge: Knowledge, embedder: Embedder) -> None:
        added = await knowledge.add("default", [fact(text) for text in SAMPLE])
        assert (added.added, added.duplicates, added.revision) == (5, 0, 1)
        assert (await nearest(knowledge, embedder, "How many hearts does an octopus have?"))[0] == SAMPLE[4]

    async def test_ids_sort_by_creation(self, knowledge: Knowledge) -> None:
        added = await knowledge.add("default", [fact(f"Sentence number {n}.") for n in range(50)])
        assert list(added.ids) == sorted(added.ids)

    async def test_the_same_text_is_one_fact_with_several_provenances(self, knowledge: Knowledge) -> None:
        first = await knowledge.add("default", [fact("Basalt is  a rock.", 0.5, source="a")])
        second = await knowledge.add("default", [fact(" Basalt is a rock. ", 0.9, source="b")])
        assert (second.added, second.duplicates) == (0, 1)
        assert second.ids == first.ids
        held = await knowledge.fact("default", first.ids[0])
        assert held.confidence == 0.9
        assert [(p.source, p.confidence) for p in held.provenances] == [("a", 0.5), ("b", 0.9)]

    async def test_texts_that_differ_in_composition_of_letters_alone_are_one(self, knowledge: Knowledge) -> None:
        added = await knowledge.add("default", [fact("Caf\u00e9 Mozart is open."), fact("Cafe\u0301 Mozart is open.")])
        assert (added.added, added.duplicates) == (1, 1)
        assert added.ids[0] == added.ids[1]

    async def test_saying_the_same_again_changes_nothing(self, knowledge: Knowledge) -> None:
        await knowledge.add("default", [fact(SAMPLE[0])])
        assert (await knowledge.add("default", [fact(SAMPLE[0])])).revision == 1

    async def test_a_taken_id_with_another_text_is_a_conflict_and_nothing_is_kept(self, knowledge: Knowledge) -> None:
        await knowledge.add("default", [fact(SAMPLE[0], fact_id="one")])
        with pytest.raises(Conflict, match="one"):
            await knowledge.add("default", [fact(SAMPLE[1]), fact(SAMPLE[2], fact_id="one")])
        assert await texts(knowledge) == [SAMPLE[0]]

    async def test_an_id_may_not_say_two_things_in_one_call(self, knowledge: Knowledge) -> None:
        with pytest.raises(Conflict):
            await knowledge.add("default", [fact(SAMPLE[0], fact_id="one"), fact(SAMPLE[1], fact_id="one")])

    async def test_a_known_id_with_the_same_text_adds_a_provenance(self, knowledge: Knowledge) -> None:
        await knowledge.add("default", [fact(SAMPLE[0], fact_id="one")])
        await knowledge.add("default", [fact(SAMPLE[0], fact_id="one", source="again")])
        assert len((await knowledge.fact("default", "one")).provenances) == 2

    async def test_writers_at_the_same_moment_all_succeed(self, knowledge: Knowledge) -> None:
        calls = (knowledge.add("fresh", [fact(f"Writer {n} was here."), fact("All were here.")]) for n in range(20))
        done = await asyncio.gather(*calls)
        assert sorted(added.revision for added in done) == list(range(1, 21))
        assert sum(added.added for added in done) == 21
        assert len(await texts(knowledge, "fresh")) == 21

    async def test_a_text_removed_between_looking_and_writing_is_embedded_after_all(
        self, knowledge: Knowledge, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def nothing_unknown(*_: object) -> dict[bytes, str]:
            return {}

        monkeypatch.setattr(store.Store, "unknown", nothing_unknown)
        await knowledge.add("default", [fact(SAMPLE[4])])
        assert await nearest(knowledge, embedder, "octopus hearts") == [SAMPLE[4]]


class TestDocuments:
    async def test_replacing_one_of_two_documents_takes_its_provenance_alone(self, knowledge: Knowledge) -> None:
        both = [
            Document("a", "A", "Basalt is a rock. Granite is a rock.", None),
            Document("b", None, "Basalt is a rock. Slate is a rock.", "b.txt"),
        ]
        first = await knowledge.add_documents("default", both)
        assert (first.documents, first.sentences, first.added, first.removed) == (2, 3, 3, 0)
        second = await knowledge.add_documents("default", [Document("a", "A", "Marble is a rock.", None)])
        assert (second.sentences, second.added, second.removed) == (1, 1, 1)
        held = {held.text: held.provenances async for held in knowledge.export("default")}
        assert sorted(held) == ["Basalt is a rock.", "Marble is a rock.", "Slate is a rock."]
        assert held["Basalt is a rock."] == (Provenance(Origin.DOCUMENT, "b.txt", "b", 1.0),)

    async def test_a_fact_goes_with_its_last_provenance(self, knowledge: Knowledge, embedder: Embedder) -> None:
        await knowledge.add_documents("default", [Document("a", None, "Octopuses have three hearts.", None)])
        assert await nearest(knowledge, embedder, "octopus hearts") == ["Octopuses have three hearts."]
        await knowledge.add_documents("default", [Document("a", None, "Basalt is a rock.", None)])
        assert await nearest(knowledge, embedder, "octopus hearts") == ["Basalt is a rock."]

    async def test_a_fact_that_a_person_gave_too_outlives_the_document(self, knowledge: Knowledge) -> None:
        await knowledge.add_documents("default", [Document("a", None, "Basalt is a rock.", None)])
        await knowledge.add("default", [fact("Basalt is a rock.", 0.7)])
        await knowledge.add_documents("default", [Document("a", None, "Slate is a rock.", None)])
        (held,) = [held async for held in knowledge.export("default") if held.text.startswith("Basalt")]
        assert held.confidence == 0.7

    async def test_the_same_id_twice_in_a_call_is_refused(self, knowledge: Knowledge) -> None:
        with pytest.raises(Invalid, match="twice"):
            await knowledge.add_documents(
                "default", [Document("a", None, "One.", None), Document("a", None, "2.", None)]
            )


class TestCorrecting:
    async def test_a_corrected_text_is_what_the_next_question_finds(
        self, knowledge: Knowledge, embedder: Embedder
    ) -> None:
        added = await knowledge.add("default", [fact("Octopuses have two hearts.", 0.8, source="s")])
        fixed = await knowledge.correct(
            "default", added.ids[0], text="Octopuses have three hearts.", confidence=None, metadata=None
        )
        assert fixed.id == added.ids[0]
        assert fixed.provenances == (Provenance(Origin.MANUAL, "s", None, 0.8),)
        assert await nearest(knowledge, embedder, "octopus hearts") == ["Octopuses have three hearts."]

    async def test_a_corrected_confidence_counts_at_once(self, knowledge: Knowledge, embedder: Embedder) -> None:
        added = await knowledge.add("default", [fact(SAMPLE[4])])
        await knowledge.correct("default", added.ids[0], text=None, confidence=0.25, metadata={"seen": 1})
        (vector,) = await embedder.embed(["octopus hearts"])
        ((found,), revision) = await (await knowledge.view("default")).nearest(vector, 1)
        assert (found.confidence, revision) == (0.25, 2)
        assert found.ratio == pytest.approx(found.distance / 0.25)

    async def test_correcting_into_another_fact_is_a_conflict(self, knowledge: Knowledge) -> None:
        added = await knowledge.add("default", [fact(SAMPLE[0]), fact(SAMPLE[1])])
        with pytest.raises(Conflict, match=added.ids[1]):
            await knowledge.correct("default", added.ids[0], text=SAMPLE[1], confidence=None, metadata=None)

    async def test_a_removed_fact_is_gone(self, knowledge: Knowledge, embedder: Embedder) -> None:
        added = await knowledge.add("default", [fact(SAMPLE[4]), fact(SAMPLE[2])])
        await knowledge.remove("default", added.ids[0])
        assert await nearest(knowledge, embedder, "octopus hearts") == [SAMPLE[2]]
        with pytest.raises(UnknownFact):
            await knowledge.remove("default", added.ids[0])


class TestBrowsing:
    async def test_pages_hold_every_fact_once_in_order(self, knowledge: Knowledge) -> None:
        await knowledge.add("default", [fact(f"Sentence number {n}.") for n in range(7)])
        seen: list[str] = []
        cursor = None
        while True:
            page = await knowledge.facts("default", 3, cursor, None)
            seen += [held.text for held in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == [f"Sentence number {n}." for n in range(7)]

    async def test_search_by_meaning(self, knowledge: Knowledge) -> None:
        await knowledge.add("default", [fact(text) for text in SAMPLE])
        page = await knowledge.facts("default", 2, None, "sea creatures' anatomy")
        assert page.items[0].text == SAMPLE[4]
        assert (len(page.items), page.next_cursor) == (2, None)

    async def test_a_cursor_of_no_page_is_refused(self, knowledge: Knowledge) -> None:
        with pytest.raises(Invalid):
            await knowledge.facts("default", 3, "elsewhere", None)

    async def test_an_export_taken_in_elsewhere_exports_the_same(self, knowledge: Knowledge) -> None:
        await knowledge.add_documents("default", [Document("a", "A", "Basalt is a rock. Slate is too.", None)])
        await knowledge.add("default", [fact("Basalt is a rock.", 0.5, source="me")])
        exported = [held async for held in knowledge.export("default")]
        given = [
            NewFact(held.text, held.provenances, held.metadata, held.id, held.created_at, held.updated_at)
            for held in exported
        ]
        await knowledge.add("copy", given)
        assert [held async for held in knowledge.export("copy")] == exported


class TestScopes:
    async def test_the_default_scope_exists_and_comes_back_empty(self, knowledge: Knowledge) -> None:
        await knowledge.add("default", [fact(SAMPLE[0])])
        await knowledge.delete_scope("default")
        assert await texts(knowledge) == []
        assert len(await knowledge.view("default")) == 0

    async def test_a_scope_made_anew_is_another_incarnation(self, knowledge: Knowledge) -> None:
        await knowledge.add("news", [fact(SAMPLE[0])])
        before = await knowledge.scope("news")
        await knowledge.delete_scope("news")
        with pytest.raises(UnknownScope):
            await knowledge.view("news")
        await knowledge.add("news", [fact(SAMPLE[1])])
        assert (await knowledge.scope("news")).incarnation != before.incarnation
        assert await texts(knowledge, "news") == [SAMPLE[1]]

    async def test_policy_is_replaced_whole_and_kept_where_not_given(self, knowledge: Knowledge) -> None:
        made, created = await knowledge.put_scope(
            "news", policy={"k": 2, "alpha": 1.0}, overridable=("k",), embedder=None, reembed=False
        )
        assert (created, made.revision) == (True, 1)
        same, created = await knowledge.put_scope("news", policy=None, overridable="keep", embedder=None, reembed=False)
        assert (created, same.policy, same.overridable) == (False, {"k": 2, "alpha": 1.0}, ("k",))
        other, _ = await knowledge.put_scope("news", policy={"k": 3}, overridable=None, embedder=None, reembed=False)
        assert (other.policy, other.overridable) == ({"k": 3}, None)
        assert knowledge.scope_of("news") == other

    async def test_scopes_are_listed_by_name_in_pages(self, knowledge: Knowledge) -> None:
        for name in ("b", "a"):
            await knowledge.add(name, [fact(SAMPLE[0])])
        first = await knowledge.scopes(2, None)
        assert ([scope.name for scope in first.items], first.next_cursor) == (["a", "b"], "b")
        assert [scope.name for scope in (await knowledge.scopes(2, "b")).items] == ["default"]

    async def test_an_embedder_from_a_request_must_be_the_services(self, knowledge: Knowledge) -> None:
        with pytest.raises(Invalid, match="operator"):
            await knowledge.put_scope("news", policy=None, overridable=None, embedder="other", reembed=False)


class OtherEmbedder(Embedder):
    """The same vectors under another name, as another model's would come."""

    def __init__(self, embedder: Embedder) -> None:
        self.__dict__ = dict(embedder.__dict__)
        self.fingerprint = "other@1"


async def test_another_embedder_is_refused_until_the_scope_is_embedded_anew(
    open_knowledge: OpenKnowledge, embedder: Embedder
) -> None:
    async with open_knowledge() as before:
        await before.add("default", [fact(text) for text in SAMPLE])
    other = OtherEmbedder(embedder)
    async with open_knowledge(other) as knowledge:
        with pytest.raises(Conflict, match="reembed"):
            await knowledge.view("default")
        with pytest.raises(Conflict, match="reembed"):
            await knowledge.add("default", [fact("One more.")])
        await knowledge.put_scope("default", policy=None, overridable="keep", embedder="other@1", reembed=True)
        assert (await nearest(knowledge, embedder, "octopus hearts"))[0] == SAMPLE[4]
        await knowledge.add("default", [fact("One more.")])


class TestFollowing:
    async def test_another_process_sees_a_write(self, open_knowledge: OpenKnowledge, embedder: Embedder) -> None:
        async with open_knowledge() as here, open_knowledge() as there:
            added = await here.add("default", [fact(text) for text in SAMPLE])
            await until_seen(there, "default", added.revision)
            assert (await nearest(there, embedder, "octopus hearts"))[0] == SAMPLE[4]
            await here.remove("default", added.ids[4])
            await until_seen(there, "default", added.revision + 1)
            assert SAMPLE[4] not in await nearest(there, embedder, "octopus hearts")

    async def test_min_revision_waits_for_the_write(self, open_knowledge: OpenKnowledge, embedder: Embedder) -> None:
        async with open_knowledge() as here, open_knowledge(tail_interval_s=30) as there:
            added = await here.add("default", [fact(SAMPLE[4])])
            view = await there.view("default", added.revision)
            assert len(view) == 1

    async def test_another_process_sees_a_new_scope_and_its_end(self, open_knowledge: OpenKnowledge) -> None:
        async with open_knowledge() as here, open_knowledge() as there:
            await here.add("news", [fact(SAMPLE[0])])
            await until_seen(there, "news", 1)
            await here.delete_scope("news")
            await here.add("news", [fact(SAMPLE[1])])
            anew = (await here.scope("news")).incarnation
            async with asyncio.timeout(5):
                while True:
                    with suppress(UnknownScope, Unavailable):  # it is gone for a moment
                        if there.scope_of("news").incarnation == anew:
                            break
                    await asyncio.sleep(0.01)
            assert await texts(there, "news") == [SAMPLE[1]]
            assert len(await there.view("news")) == 1

    async def test_a_reader_older_than_the_tombstones_starts_anew(
        self, open_knowledge: OpenKnowledge, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "TOMBSTONES_LAST", timedelta(0))
        async with open_knowledge() as here, open_knowledge(tail_interval_s=30) as there:
            added = await here.add("default", [fact(text) for text in SAMPLE])
            await there.view("default", added.revision)
            for fact_id in added.ids[:3]:  # each removal forgets the stones of the ones before
                await here.remove("default", fact_id)
            view = await there.view("default", added.revision + 3)
            assert len(view) == 2
            assert set(await nearest(there, embedder, "anything")) == set(SAMPLE[3:])


class TestSnapshots:
    @pytest.fixture
    async def read(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Counts the facts that views read from SQL."""
        counted: list[int] = []
        original = ScopeReader.changed

        async def counting(self: ScopeReader, after: int) -> AsyncIterator[list[StoredFact]]:
            async for facts in original(self, after):
                counted.append(len(facts))
                yield facts

        monkeypatch.setattr(ScopeReader, "changed", counting)
        return counted

    async def test_a_start_replays_what_came_after_the_snapshot(
        self, open_knowledge: OpenKnowledge, embedder: Embedder, read: list[int]
    ) -> None:
        async with open_knowledge() as writer:
            await writer.add("default", [fact(text) for text in SAMPLE[:4]])
            async with open_knowledge():
                pass  # leaves a snapshot of the four
            await writer.add("default", [fact(SAMPLE[4])])
            await writer.remove("default", (await writer.facts("default", 1, None, None)).items[0].id)
            read.clear()
            async with open_knowledge() as knowledge:
                assert sum(read) == 1
                assert len(await knowledge.view("default")) == 4
                found = await nearest(knowledge, embedder, "octopus hearts")
                assert found[0] == SAMPLE[4]
                assert SAMPLE[0] not in found

    @pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "stale"])
    async def test_a_snapshot_that_does_not_hold_is_made_anew_without_embedding(
        self, open_knowledge: OpenKnowledge, embedder: Embedder, read: list[int], damage: str
    ) -> None:
        async with open_knowledge() as writer:
            await writer.add("default", [fact(text) for text in SAMPLE])
        (index,) = (writer._settings.data_dir / "views").rglob("index.faiss")
        content = index.read_bytes()
        if damage == "flip":
            index.write_bytes(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])
        elif damage == "truncate":
            index.write_bytes(content[: len(content) // 2])
        elif damage == "missing":
            index.unlink()
        else:
            manifest = index.parent / "manifest.json"
            incarnation = writer.scope_of("default").incarnation
            assert incarnation in manifest.read_text()
            manifest.write_text(manifest.read_text().replace(incarnation, "0" * 26))
        read.clear()

        class Deaf(OtherEmbedder):
            def __init__(self) -> None:
                super().__init__(embedder)
                self.fingerprint = embedder.fingerprint

            async def embed(self, *_: object, **__: object) -> object:  # type: ignore[override]
                raise AssertionError("nothing is to be embedded again")

        async with open_knowledge(Deaf()) as knowledge:
            assert sum(read) == 5
            assert (await nearest(knowledge, embedder, "octopus hearts"))[0] == SAMPLE[4]


async def test_a_scope_that_grows_gets_a_graph_while_it_serves(
    open_knowledge: OpenKnowledge, embedder: Embedder
) -> None:
    async with open_knowledge(index_exact_limit=100) as knowledge:
        for start in range(0, 300, 60):
            await knowledge.add("default", [fact(f"Room {n} is on floor {n % 9}.") for n in range(start, start + 60)])
        await knowledge.add("default", [fact(SAMPLE[4])])
        view = await knowledge.view("default")
        async with asyncio.timeout(10):
            while view.wants_rebuild or view._rebuilding:
                await asyncio.sleep(0.01)
        assert type(view._index.faiss).__name__ == "IndexHNSWFlat"
        assert len(view) == 301
        assert (await nearest(knowledge, embedder, "octopus hearts"))[0] == SAMPLE[4]


async def test_times_are_utc(knowledge: Knowledge) -> None:
    before = datetime.now(UTC)
    added = await knowledge.add("default", [fact(SAMPLE[0])])
    held = await knowledge.fact("default", added.ids[0])
    assert before <= held.created_at <= datetime.now(UTC)
    assert held.created_at.utcoffset() == timedelta(0)


async def test_a_store_that_cannot_be_reached_is_said(open_knowledge: OpenKnowledge, embedder: Embedder) -> None:
    from scopegate.settings import Settings

    lost = Knowledge(Settings(database_url="postgresql://nobody@127.0.0.1:1/nothing"), embedder)
    await lost.start()
    with pytest.raises(Unavailable, match="does not answer"):
        await lost.ready(0.5)
    with pytest.raises(Unavailable):
        await lost.view("default")
    await lost.stop()
