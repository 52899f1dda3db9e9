from __future__ import annotations

import numpy as np
import pytest

from scopegate.domain import Check, Invalid, Passage
from scopegate.gate.retrieval import MAX_READ, Case, Retriever
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import Encoder
from scopegate.knowledge import Knowledge
from scopegate.settings import Settings
from scopegate.words import stem
from tests.unit.facts import SAMPLE, fact

QUESTION = "When does the bakery open?"
PASSAGES = (
    Passage("a", "Basalt is a volcanic rock. The bakery on Mill Lane opens at six.", "guide"),
    Passage("b", "Octopuses have three hearts.\n\nBasalt is a volcanic rock.", None, 0.5),
)


async def found(
    knowledge: Knowledge, embedder: Embedder, *passages: Passage, depth: int = 8, max_sentences: int = 100
) -> Case:
    retriever = Retriever(embedder, Settings(max_sentences=max_sentences))
    view = await knowledge.view("default")
    return await retriever.retrieve(QUESTION, Check(QUESTION, passages=passages), view, 1, depth)


async def test_the_best_sentences_of_passages_by_distance_over_confidence(
    knowledge: Knowledge, embedder: Embedder, encoder: Encoder
) -> None:
    case = await found(knowledge, embedder, *PASSAGES, depth=3)
    assert case.revision is None
    best = case.evidence[0]
    assert (best.id, best.text, best.source) == ("a#2", "The bakery on Mill Lane opens at six.", "guide")
    question, sentence = encoder.encode(encoder.tokens([QUESTION, best.text]))
    assert best.distance == pytest.approx(float(np.square(question - sentence).sum()), abs=0.02)
    assert [held.ratio for held in case.evidence] == sorted(held.distance / held.confidence for held in case.evidence)
    whole = await found(knowledge, embedder, *PASSAGES)
    assert whole.evidence[:3] == case.evidence
    assert {held.id for held in whole.evidence} == {"a#1", "a#2", "b#1", "b#2"}
    doubted = next(held for held in whole.evidence if held.id == "b#2")
    trusted = next(held for held in whole.evidence if held.id == "a#1")
    assert doubted.ratio == 2 * trusted.ratio


async def test_rarity_counts_every_sentence_of_the_passages(knowledge: Knowledge, embedder: Embedder) -> None:
    case = await found(knowledge, embedder, *PASSAGES)
    assert case.rarity(stem("basalt")) < case.rarity(stem("octopuses"))


async def test_a_sentence_that_is_repeated_is_embedded_once(knowledge: Knowledge, embedder: Embedder) -> None:
    embedded: list[str] = []
    embed = embedder.embed

    async def counting(texts: list[str]) -> object:
        embedded.extend(texts)
        return await embed(texts)

    embedder.embed = counting  # type: ignore[assignment, method-assign]
    case = await found(knowledge, embedder, Passage("p", "Go! " * 50), depth=60)
    assert embedded == [QUESTION, "Go!"]
    assert len(case.evidence) == 50


async def test_more_sentences_than_the_limit_are_refused(knowledge: Knowledge, embedder: Embedder) -> None:
    assert len((await found(knowledge, embedder, *PASSAGES, max_sentences=4)).evidence) == 4
    with pytest.raises(Invalid, match="more than 3 sentences"):
        await found(knowledge, embedder, *PASSAGES, max_sentences=3)


async def test_passages_that_say_nothing_give_no_evidence(knowledge: Knowledge, embedder: Embedder) -> None:
    assert (await found(knowledge, embedder, Passage("p", "..."))).evidence == ()


async def test_the_facts_of_a_scope_with_its_revision(knowledge: Knowledge, embedder: Embedder) -> None:
    added = await knowledge.add("default", [fact(text) for text in SAMPLE])
    retriever = Retriever(embedder, Settings())
    case = await retriever.retrieve(QUESTION, Check(QUESTION), await knowledge.view("default"), 2, 3)
    assert [len(case.evidence), len(case.reading), case.revision] == [3, 2, added.revision]
    assert case.reading == case.evidence[:2]
    assert case.evidence[0].text == SAMPLE[3]


async def test_an_llm_reads_passages_in_their_own_order(knowledge: Knowledge, embedder: Embedder) -> None:
    case = await found(knowledge, embedder, *PASSAGES, depth=1)
    assert [held.id for held in case.reading] == ["a#1", "a#2", "b#1", "b#2"]
    many = " ".join(f"Boat number {n} sails to Harwick." for n in range(MAX_READ + 9))
    case = await found(knowledge, embedder, Passage("p", many), max_sentences=200)
    numbers = [int(held.id.removeprefix("p#")) for held in case.reading]
    assert len(numbers) == MAX_READ
    assert numbers == sorted(numbers)
