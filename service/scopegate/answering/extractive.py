"""Answers without an LLM: the sentences of the evidence that answer, verbatim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scopegate.domain import Evidence
from scopegate.gate.features import Kind, Question, answer_places, read_question, read_sentence, substitutes

# What a sentence's coverage of the question and an answer of the kind asked for are worth beside its similarity;
# chosen on train data, see models/feature-probe/README.md.
_COVERAGE = 0.5
_ANSWER = 0.15
# What a probe that found the answer in it is worth; chosen on train data, see models/minilm-reader/README.md.
_FOUND = 1.0
# A second sentence must cover at least this share of the question that the first does not.
_GAIN = 0.15

_ASKED_FOR = {
    Kind.NAME: "a name",
    Kind.DATE: "a date",
    Kind.PLACE: "a place",
    Kind.NUMBER: "a number",
    Kind.REASON: "a reason",
    Kind.MANNER: "a way",
}


def extract(
    question: str,
    evidence: Sequence[Evidence],
    rarity: Callable[[str], float],
    places: Mapping[str, float],
    found_weight: float = _FOUND,
) -> tuple[tuple[Evidence, ...], str]:
    """The one or two pieces of evidence that answer the question best, and a sentence that says why these.

    evidence: at least one. places: P(the answer stands in it) of pieces, by id, where a probe looked; found_weight:
    what that is worth. A second piece is taken only where it covers informative words of the question that the first
    leaves uncovered, and speaks of something that the first speaks of. Raises ValueError where there is no evidence.
    """
    if not evidence:
        raise ValueError("an answer needs evidence")
    asked = read_question(question)
    weights = {word.stem: rarity(word.stem) for word in asked.words}
    total = sum(weights.values()) or 1.0

    def covered(held: Evidence) -> set[str]:
        sentence = read_sentence(held.text)
        return {stem for stem in weights if stem in sentence.places} | substitutes(asked, sentence)

    def share(stems: set[str]) -> float:
        return sum(weights[stem] for stem in stems) / total

    def score(held: Evidence) -> float:
        answers = bool(answer_places(asked, read_sentence(held.text)))
        found = found_weight * places.get(held.id, 0.0)
        return 1.0 - held.ratio / 2.0 + _COVERAGE * share(covered(held)) + _ANSWER * answers + found

    first = max(evidence, key=score)
    left = weights.keys() - covered(first)
    topics = _topics(first)
    rest = [
        held
        for held in evidence
        if held is not first and share(covered(held) & left) >= _GAIN and topics & _topics(held)
    ]
    chosen = (first, max(rest, key=lambda held: (share(covered(held) & left), score(held)))) if rest else (first,)
    return chosen, _reason(asked, chosen)


def _topics(held: Evidence) -> set[str]:
    sentence = read_sentence(held.text)
    return {sentence.stems[at] for at in sentence.informative}


def _reason(asked: Question, chosen: Sequence[Evidence]) -> str:
    sentences = [read_sentence(held.text) for held in chosen]
    shared = _quoted(asked, {stem for sentence in sentences for stem in sentence.places})
    said = f"shares {shared} with the question" if shared else "is the closest in meaning to the question"
    if otherwise := _quoted(asked, {stem for sentence in sentences for stem in substitutes(asked, sentence)}):
        said += f" and has something else in the place of {otherwise}"
    if len(chosen) > 1:
        return f"Together these sentences cover the question best: what they say {said}."
    kind = _ASKED_FOR.get(asked.kind)
    gives = kind and answer_places(asked, sentences[0])
    return f"This sentence {said} and gives {kind}, which it asks for." if gives else f"This sentence {said}."


def _quoted(asked: Question, stems: set[str]) -> str:
    return ", ".join(f"“{word.text}”" for word in asked.words if word.stem in stems)
