"""What can be seen of a question and its evidence without a model of language: coverage, similarity, answer type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Evidence
from scopegate.words import Word, background, remembered, stem, word_set, words


class Kind(StrEnum):
    """What a question asks for, by its question word and the noun beside it."""

    NAME = "name"
    DATE = "date"
    PLACE = "place"
    NUMBER = "number"
    REASON = "reason"
    MANNER = "manner"
    YES_NO = "yes_no"
    THING = "thing"


AUXILIARIES = word_set(
    "am are is was were be do does did has have had can could may might must shall should will would "
    "isn't aren't wasn't weren't don't doesn't didn't hasn't haven't hadn't can't couldn't won't wouldn't"
)
_ASKED_OUTRIGHT = {
    "who": Kind.NAME,
    "whom": Kind.NAME,
    "whose": Kind.NAME,
    "when": Kind.DATE,
    "where": Kind.PLACE,
    "why": Kind.REASON,
}
QUESTION_WORDS = frozenset(_ASKED_OUTRIGHT) | {"how", "what", "which"}
# "Could you tell me in which year", "Do you know who", "I would like to know how".
_FRAME = word_set(
    "can could would will may might do does did have i i'd we you anybody anyone somebody someone me us please kindly "
    "like want need happen to tell say explain ask know remember any idea in at on by from for"
)
_ASKED_BY_NOUN = {
    stem(noun): kind
    for kind, nouns in {
        Kind.NAME: "person man woman actor actress singer player author writer president minister king queen director "
        "artist inventor founder composer scientist leader team company name organization band",
        Kind.DATE: "year date day month century decade time season era period",
        Kind.PLACE: "place city country state county continent region location town village river street island "
        "province district area nation capital planet",
        Kind.NUMBER: "number percentage percent amount population age cost price total size height length width depth "
        "distance speed temperature rate ratio score share weight area",
    }.items()
    for noun in nouns.split()
}
_BEFORE_NOUN = word_set("is was are were the a an other")
_MEASURED = word_set("many much old long far tall high big large often fast deep wide heavy late early")
_MONTHS_AND_DAYS = word_set(
    "january february march april may june july august september october november december "
    "monday tuesday wednesday thursday friday saturday sunday"
)
_TIMES = word_set("century decade year month week today yesterday tomorrow noon midnight spring summer autumn winter")
_MAGNITUDES = word_set("dozen hundred thousand million billion trillion half third quarter percent once twice")
_PLACE_WORDS = word_set("in at on near inside outside from to across through under behind beside between above")
_REASON_WORDS = word_set("because due since so cause caused causes reason result led therefore thus order help")
_MANNER_WORDS = word_set("by through using via with method process means way")
_NEGATIONS = word_set("not no never none nor without neither nobody nothing cannot")
_EXTREMES = frozenset(
    map(stem, word_set("first last only least largest smallest biggest highest lowest oldest newest best worst"))
)
_YEAR = re.compile(r"1\d{3}s?|20\d\ds?|\d{1,2}:\d\d")
_RARE_IN_ENGLISH = 1e-3
_NEARBY = 6.0
# A word that stands more often in one sentence than this was planted there.
_PLACES = 50


@dataclass(frozen=True, slots=True)
class Question:
    """A question, read.

    words: the informative ones, each stem once, without those that only ask. asking: "where", "how many". kind: what
    it asks for. noun: the stem beside "what" or "which".
    """

    words: tuple[Word, ...]
    asking: tuple[Word, ...]
    stems: frozenset[str]
    kind: Kind
    noun: str | None
    names: frozenset[str]
    numbers: frozenset[str]
    negated: bool


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, read: its stems in order, and where the words stand that could answer each kind of question."""

    stems: tuple[str, ...]
    places: dict[str, tuple[int, ...]]
    beginnings: frozenset[str]
    answers: dict[Kind, tuple[int, ...]]
    informative: tuple[int, ...]
    negated: bool


@remembered(4096, longest=1_000)
def read_question(text: str) -> Question:
    """Reads a question; see Question."""
    all_words = _unframed(words(text))
    kind, noun, asked = _expected(all_words)
    skipped = (
        {noun.stem, *(word.stem for word in asked)} if noun and kind is not Kind.THING else {w.stem for w in asked}
    )
    unique: dict[str, Word] = {}
    for word in all_words:
        if word.informative and word.stem not in skipped:
            unique.setdefault(word.stem, word)
    return Question(
        words=tuple(unique.values()),
        asking=asked,
        stems=frozenset(word.stem for word in all_words),
        kind=kind,
        noun=noun.stem if noun else None,
        names=frozenset(all_words[at].stem for at in _names(all_words) if all_words[at].stem in unique),
        numbers=frozenset(stem for stem in unique if stem[0].isdigit() or stem in _MONTHS_AND_DAYS),
        negated=_negated(all_words),
    )


@remembered(8192, longest=1_000)
def read_sentence(text: str) -> Sentence:
    """Reads a sentence; see Sentence."""
    all_words = words(text)
    places: dict[str, list[int]] = {}
    for at, word in enumerate(all_words):
        places.setdefault(word.stem, []).append(at)
    return Sentence(
        stems=tuple(word.stem for word in all_words),
        places={stem: tuple(ats) for stem, ats in places.items()},
        beginnings=frozenset(stem[:5] for stem in places if len(stem) >= 5),
        answers=_answers(all_words),
        informative=tuple(at for at, word in enumerate(all_words) if word.informative),
        negated=_negated(all_words),
    )


def _plain(word: Word) -> str:
    return word.text.casefold().replace("’", "'")


def _unframed(all_words: Sequence[Word]) -> Sequence[Word]:
    """The question inside a polite frame: "when is it open" of "Do you know when is it open?"."""
    for at, word in enumerate(map(_plain, all_words)):
        if word.removesuffix("'s") in QUESTION_WORDS:
            return all_words[at:]
        if word not in _FRAME:
            break
    return all_words


def _expected(all_words: Sequence[Word]) -> tuple[Kind, Word | None, tuple[Word, ...]]:
    """What a question asks for, the noun that says so, and the words that only ask."""
    plain = list(map(_plain, all_words))
    if plain and plain[0] in AUXILIARIES:
        return Kind.YES_NO, None, (all_words[0],)
    for at, word in enumerate(plain):
        word = word.removesuffix("'s")
        if word in _ASKED_OUTRIGHT:
            return _ASKED_OUTRIGHT[word], None, (all_words[at],)
        if word == "how":
            if at + 1 < len(plain) and plain[at + 1] in _MEASURED:
                return Kind.NUMBER, None, tuple(all_words[at : at + 2])
            return Kind.MANNER, None, (all_words[at],)
        if word in {"what", "which"}:
            noun = _noun(all_words[at + 1 : at + 6])
            return _ASKED_BY_NOUN.get(noun.stem, Kind.THING) if noun else Kind.THING, noun, (all_words[at],)
    return Kind.THING, None, ()


def _noun(following: Sequence[Word]) -> Word | None:
    """The noun in "what year", "which is the largest city": one that tells the kind, else the first."""
    phrase: list[Word] = []
    for word in following:
        if word.informative:
            phrase.append(word)
        elif phrase or word.text.casefold() not in _BEFORE_NOUN:
            break
    return next((word for word in phrase if word.stem in _ASKED_BY_NOUN), phrase[0] if phrase else None)


def _names(all_words: Sequence[Word]) -> tuple[int, ...]:
    """Where names stand: capitals, and at the start of a sentence only with a further sign that it is one."""
    found = []
    for at, word in enumerate(all_words):
        if not word.text[0].isupper() or not word.informative or word.stem in _MONTHS_AND_DAYS:
            continue
        starts = at == 0
        followed = at + 1 < len(all_words) and all_words[at + 1].text[0].isupper() and all_words[at + 1].informative
        rare = background().get(word.stem, 0.0) < _RARE_IN_ENGLISH
        if not starts or followed or rare or not word.text[1:].islower():
            found.append(at)
    return tuple(found)


def _answers(all_words: Sequence[Word]) -> dict[Kind, tuple[int, ...]]:
    plain = [word.text.casefold() for word in all_words]
    dates = [
        at
        for at, word in enumerate(all_words)
        if _YEAR.fullmatch(word.stem)
        or plain[at] in _TIMES
        or (plain[at] in _MONTHS_AND_DAYS and word.text[0].isupper())
    ]
    numbers = [at for at, word in enumerate(all_words) if word.stem[0].isdigit() or plain[at] in _MAGNITUDES]
    counted = {*dates, *numbers}
    names = [at for at in _names(all_words) if at not in counted]
    after_preposition = {at + step for at, word in enumerate(plain) if word in _PLACE_WORDS for step in (1, 2)}
    placed = [at for at in after_preposition - counted if at < len(all_words) and all_words[at].informative]
    return {
        Kind.NAME: tuple(names),
        Kind.DATE: tuple(dates),
        Kind.PLACE: tuple(sorted({*placed, *_after_verb(all_words, names)})),
        Kind.NUMBER: tuple(numbers),
        Kind.REASON: tuple(at for at, word in enumerate(plain) if word in _REASON_WORDS),
        Kind.MANNER: tuple(at for at, word in enumerate(plain) if word in _MANNER_WORDS),
    }


def _after_verb(all_words: Sequence[Word], names: Sequence[int]) -> list[int]:
    """Names that a form of "be" introduces: the capital is Paris."""
    linked = [at for at in names if at and all_words[at - 1].text.casefold() in {"is", "was", "are", "were", "the"}]
    return [at for at in linked if any(all_words[i].text.casefold() in AUXILIARIES for i in range(max(0, at - 2), at))]


def _negated(all_words: Sequence[Word]) -> bool:
    return any((plain := word.text.casefold()) in _NEGATIONS or plain.endswith(("n't", "n’t")) for word in all_words)


NAMES = (
    "similarity_best",
    "similarity_mean",
    "similarity_lead",
    "similarity_covering",
    "coverage_union",
    "coverage_best",
    "coverage_nearest",
    "coverage_plain",
    "coverage_loose",
    "missing_most",
    "missing_weight",
    "missing_names",
    "missing_numbers",
    "missing_extreme",
    "noun_covered",
    "answer_in_best",
    "answer_in_nearest",
    "answer_in_any",
    "answer_near",
    "covered_unanswered",
    "similar_unanswered",
    "beyond_question",
    "order_kept",
    "negation_differs",
    "question_words",
    "evidence_sentences",
    "best_is_nearest",
    *(f"asks_{kind}" for kind in Kind),
)


def features(question: str, evidence: Sequence[Evidence], rarity: Callable[[str], float]) -> NDArray[np.float64]:
    """What the probe looks at, shape (len(NAMES),), in the order of NAMES; finite.

    evidence: the sentences in question, closest first, at least one. rarity: WordCounts.rarity of the scope, or of the
    passages' sentences where the evidence comes from those.
    """
    asked = read_question(question)
    read = [read_sentence(held.text) for held in evidence]
    similarities = [1.0 - held.distance / 2.0 for held in evidence]
    weights = {word.stem: rarity(word.stem) for word in asked.words}
    total = sum(weights.values()) or 1.0

    held_by = [{stem for stem in weights if stem in sentence.places} for sentence in read]
    shares = [sum(weights[stem] for stem in held) / total for held in held_by]
    best = max(range(len(read)), key=lambda at: shares[at] + similarities[at])
    substituted = substitutes(asked, read[best])
    covered = set().union(*held_by) | substituted
    missing = weights.keys() - covered
    loose = {stem for stem in missing if len(stem) >= 5 and any(stem[:5] in s.beginnings for s in read)}
    extra = sum(weights[stem] for stem in substituted) / total
    present = [bool(answer_places(asked, sentence)) for sentence in read]

    return np.array(
        [
            similarities[0],
            sum(similarities[:4]) / len(similarities[:4]),
            similarities[0] - sum(similarities) / len(similarities),
            similarities[best],
            sum(weights[stem] for stem in covered) / total,
            shares[best] + extra,
            shares[0] + extra,
            len(covered) / max(len(weights), 1),
            sum(weights[stem] for stem in covered | loose) / total,
            max((weights[stem] for stem in missing), default=0.0),
            min(sum(weights[stem] for stem in missing), 5.0),
            min(len(missing & asked.names), 4),
            min(len(missing & asked.numbers), 3),
            float(bool(missing & _EXTREMES)),
            float(asked.noun is not None and any(asked.noun in sentence.places for sentence in read)),
            float(present[best]),
            float(present[0]),
            float(any(present)),
            _answer_near(asked, read[best], weights, total),
            (shares[best] + extra) * (not present[best]),
            similarities[0] * (not (present[0] or present[best])),
            math.log1p(sum(read[best].stems[at] not in asked.stems for at in read[best].informative)),
            _order_kept(asked, read[best]),
            float(asked.negated != read[best].negated),
            math.log1p(len(weights)),
            math.log1p(len(read)),
            float(best == 0),
            *(float(asked.kind is kind) for kind in Kind),
        ]
    )


def answer_places(asked: Question, sentence: Sentence) -> tuple[int, ...]:
    """Where in a sentence words stand that could answer the question: of the kind it asks for, and not its own."""
    candidates = sentence.answers.get(asked.kind, sentence.informative)
    return tuple(at for at in candidates if sentence.stems[at] not in asked.stems)


def substitutes(asked: Question, sentence: Sentence) -> frozenset[str]:
    """The stems of a yes/no question that a sentence contradicts: it has another name or number in their place.

    "Was it founded in 2018?" is answered by "It was founded in 2010.": the answer is no. Only where nothing else of the
    question is missing from the sentence.
    """
    if asked.kind is not Kind.YES_NO:
        return frozenset()
    missing = frozenset(word.stem for word in asked.words if word.stem not in sentence.places)
    for own, kinds in ((asked.numbers, (Kind.NUMBER, Kind.DATE)), (asked.names, (Kind.NAME,))):
        others = {sentence.stems[at] for kind in kinds for at in sentence.answers[kind]} - asked.stems
        if missing and missing <= own and others:
            return missing
    return frozenset()


def _answer_near(asked: Question, sentence: Sentence, weights: dict[str, float], total: float) -> float:
    """How close the best candidate answer stands to the question's words in the sentence, 0 to 1."""
    anchors = [(weight, sentence.places[stem]) for stem, weight in weights.items() if stem in sentence.places]
    return max(
        (
            sum(weight / (1.0 + min(abs(at - place) for place in places) / _NEARBY) for weight, places in anchors)
            / total
            for at in answer_places(asked, sentence)[:12]
        ),
        default=0.0,
    )


def _order_kept(asked: Question, sentence: Sentence) -> float:
    """The share of the question's neighbouring informative words that stand near one another in the sentence."""
    pairs = [(a.stem, b.stem) for a, b in zip(asked.words, asked.words[1:], strict=False)]

    def places(stem: str) -> Sequence[int]:
        return sentence.places.get(stem, ())[:_PLACES]

    kept = sum(any(abs(i - j) <= 3 for i in places(a) for j in places(b)) for a, b in pairs)
    return kept / len(pairs) if pairs else 0.0
