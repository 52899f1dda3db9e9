"""How near out-of-scope questions lie to their documents: recall and MRR of finding them (ELOQ, table 6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Invalid
from scopegate.evaluation.datasets import asked, documents
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import load_encoder
from scopegate.jobs.work import Done, Item
from scopegate.knowledge.sentences import split
from scopegate.settings import Settings, models_dir

BM25, EMBEDDER, SENTENCES = "bm25", "embedder", "sentences"
RETRIEVERS = (BM25, EMBEDDER, SENTENCES)
DEPTHS = (1, 5, 10)
_BLOCK = 256
_LOCAL = "local:"

Scores = Callable[[list[str], list[str]], Awaitable[NDArray[np.float32]]]


class Retrieval:
    """A task on questions with documents; the corpus is the documents of all rows, and options "documents" besides.

    options: retrievers: "bm25"; "embedder", the service's, over whole texts as far as it reads them; "sentences", the
    same, where a document is as near as its nearest sentence, which is how the service finds facts;
    "local:NAME", a sentence-transformers model. in_scope: whether questions in scope count too.
    """

    def __init__(self, embedder: Embedder, settings: Settings) -> None:
        self._embedder = embedder
        self._settings = settings

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """See Work. Raises Invalid where rows are no such questions or a retriever is unknown or not installed."""
        retrievers = spec.get("options", {}).get("retrievers", RETRIEVERS)
        for name in retrievers:
            if name not in RETRIEVERS and not name.startswith(_LOCAL):
                raise Invalid(f"there is no retriever {name!r}; there are {', '.join(RETRIEVERS)} and {_LOCAL}NAME")
        if BM25 in retrievers:
            _bm25()
        await asyncio.to_thread(_asked, spec)
        return [Item(name, {}) for name in dict.fromkeys(retrievers)]

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work. A row for each question: the rank of its document; among equals it is the last."""
        stage(item.key)
        questions, corpus = await asyncio.to_thread(_asked, spec)
        places = {document_id: place for place, document_id in enumerate(corpus)}
        texts = list(corpus.values())
        rows = []
        async for start, block in self._blocks(item.key, [each.question for each in questions], texts):
            for number, scores in enumerate(block, start):
                own = scores[places[questions[number].document_id]]
                rows.append({"id": questions[number].id, "retriever": item.key, "rank": int((scores >= own).sum())})
        return Done(tuple(rows), {"questions": len(rows)})

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """See Work."""
        retrievers = {}
        for each in done:
            if each.rows:
                ranks = np.array([row["rank"] for row in each.rows])
                recall = {f"recall@{depth}": float((ranks <= depth).mean()) for depth in DEPTHS}
                retrievers[each.rows[0]["retriever"]] = {**recall, "mrr": float((1 / ranks).mean())}
        questions, corpus = await asyncio.to_thread(_asked, spec)
        return {
            "task": "retrieval",
            "questions": len(questions),
            "documents": len(corpus),
            "embedder": self._embedder.fingerprint,
            "retrievers": retrievers,
        }

    async def _blocks(self, name: str, questions: list[str], texts: list[str]) -> Any:
        """Pairs of a question's number and scores from there on, shape (at most 256, len(texts)), higher is nearer."""
        if name == BM25:
            scores = await asyncio.to_thread(_bm25, texts)
            for start in range(0, len(questions), _BLOCK):
                yield start, await asyncio.to_thread(scores, questions[start : start + _BLOCK])
            return
        embedder, own = self._embedder, False
        if name.startswith(_LOCAL):
            embedder, own = Embedder(await asyncio.to_thread(load_encoder, name, models_dir()), self._settings), True
        try:
            pieces = [split(text) or [text] for text in texts] if name == SENTENCES else [[text] for text in texts]
            firsts = np.cumsum([0, *map(len, pieces)])[:-1]
            known = await embedder.embed([piece for each in pieces for piece in each], bulk=True)
            wanted = await embedder.embed(questions, bulk=True)
        finally:
            if own:
                await embedder.stop()
        for start in range(0, len(questions), _BLOCK):
            yield start, await asyncio.to_thread(_nearest, wanted[start : start + _BLOCK], known, firsts)


def _asked(spec: Mapping[str, Any]) -> tuple[list[Any], dict[str, str]]:
    """The questions that count, and the corpus by document. Raises Invalid where they make no sense."""
    options = spec.get("options", {})
    rows = asked(spec["dataset"])
    corpus: dict[str, str] = {}
    for row in rows:
        if corpus.setdefault(row.document_id, row.document) != row.document:
            raise Invalid(f"the document {row.document_id!r} has two texts")
    corpus |= {document.id: document.whole for document in documents(options.get("documents", []))}
    kept = [row for row in rows if options.get("in_scope", False) or not row.in_scope]
    if not kept:
        raise Invalid("none of the questions is out of scope; with in_scope, those in scope count too")
    return kept, corpus


def _bm25(texts: list[str] | None = None) -> Any:
    """A function from questions to their scores, as Lucene computes BM25. Raises Invalid where bm25s is missing."""
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise Invalid("BM25 needs the extra 'evaluate': pip install 'scopegate[evaluate]'") from error
    if texts is None:
        return None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets its own to debug
    stemmer = Stemmer.Stemmer("english")

    def tokens(of: list[str]) -> Any:
        return bm25s.tokenize(of, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)

    known = tokens(texts)
    if not any(known):  # of which no index can be made
        return lambda questions: np.zeros((len(questions), len(texts)), np.float32)
    index = bm25s.BM25(method="lucene")
    index.index(known, show_progress=False)

    def scores(questions: list[str]) -> NDArray[np.float32]:
        return np.stack([_scored(index, each, len(texts)) for each in tokens(questions)])

    return scores


def _nearest(wanted: NDArray[np.float32], known: NDArray[np.float32], firsts: NDArray[np.intp]) -> NDArray[np.float32]:
    """How near each text's nearest piece is, shape (questions, texts); firsts: where each text's pieces begin."""
    nearest: NDArray[np.float32] = np.maximum.reduceat(wanted @ known.T, firsts, axis=1)
    return nearest


def _scored(index: Any, tokens: list[str], documents_: int) -> NDArray[np.float32]:
    known = [token for token in tokens if token in index.vocab_dict]
    return np.asarray(index.get_scores(known), np.float32) if known else np.zeros(documents_, np.float32)
