"""Why a question cannot be answered: what in it the knowledge does not cover, or what in it says too little."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from scopegate.domain import Confusion, ConfusionType, Evidence, Span
from scopegate.gate.features import AUXILIARIES, QUESTION_WORDS, Kind, read_question, read_sentence, substitutes
from scopegate.words import Word, stem, word_set, words

_PRONOUNS = word_set(
    "he him his she her hers it its they them their theirs this that these those here there himself herself itself"
)
_COMPLEMENTIZERS = word_set("know say says said think thinks believe believes mean means sure so")
_EXPLETIVE = word_set("is are was were be been has have")
_WEATHER = frozenset(map(stem, word_set("rain snow hail drizzle freeze thunder")))
_POSTMODIFIERS = word_set(
    "of in on at from for to between with by that who which whose where when during after before under near"
)
_EXTREMES = word_set("""
    first last next only most least best worst same second third current former
    biggest busiest cheapest cleanest closest coldest coolest darkest deadliest deepest driest earliest easiest farthest
    fastest finest furthest greatest happiest hardest heaviest highest hottest largest latest lightest longest loudest
    lowest narrowest nearest newest oldest poorest purest quickest rarest richest safest sharpest shortest simplest
    slowest smallest steepest strongest tallest thickest thinnest tiniest toughest warmest weakest wealthiest wettest
    widest youngest
    """)
# There is one of each, or the reader of the question lives with it.
_ONE_OF_ITS_KIND = word_set(
    "world sun moon earth sky sea internet web weather future past present universe bible president government "
    "name reason purpose difference meaning point number amount year day time way"
)
# What points to something that was said before.
_POINTING = word_set("one ones same other others another else too also instead former latter both neither either such")
# Persian and emoji are written with them.
_JOINERS = "\u200c\u200d"
_QUOTED = 3
_QUOTED_LENGTH = 80
_EXPLANATION_LENGTH = 300
# Of the words that are missing, one this much more common than the rarest is not what stands in the way.
_TELLING = 0.5


def confusion(
    question: str, evidence: Sequence[Evidence], *, has_history: bool, rarity: Callable[[str], float]
) -> Confusion:
    """Why a refused question cannot be answered from the evidence.

    `ambiguous` where it hangs on a pronoun or a definite phrase that nothing before it explains: those are the spans.
    Otherwise `not_mentioned`: the spans are the runs of informative words that no sentence of the evidence holds; where
    all are held, those that the closest sentence lacks; where it lacks none, the question word that it does not answer.
    Words that are common beside the rarest of those missing are left out. rarity: WordCounts.rarity.
    """
    if not has_history and (hanging := dangling(question, evidence)):
        return Confusion(ConfusionType.AMBIGUOUS, hanging)
    asked = read_question(question)
    read = [read_sentence(held.text) for held in evidence]
    known = {stem for sentence in read for stem in sentence.places}
    missing = {word.stem for word in asked.words} - known
    if not missing and read:
        missing = {word.stem for word in asked.words if word.stem not in read[0].places}
        missing -= substitutes(asked, read[0])
    if not missing:
        return Confusion(ConfusionType.NOT_MENTIONED, _spans(question, asked.asking))
    telling = _TELLING * max(map(rarity, missing))
    named = {stem for stem in missing if rarity(stem) >= telling}
    return Confusion(ConfusionType.NOT_MENTIONED, _spans(question, [w for w in words(question) if w.stem in named]))


def refusal_sentence(confusion: Confusion) -> str:
    """A sentence fit to show a user: it names what is missing, corrects the premise, or asks which is meant."""
    phrases = list(dict.fromkeys(span.text for span in confusion.spans if len(span.text) <= _QUOTED_LENGTH))[:_QUOTED]
    match confusion.type:
        case ConfusionType.NOT_MENTIONED:
            return _missing(phrases)
        case ConfusionType.FALSE_PREMISE:
            return _corrected(phrases, confusion.explanation)
        case ConfusionType.AMBIGUOUS if phrases:
            return f"I cannot tell what {_joined(phrases)} refers to. Which one do you mean?"
        case ConfusionType.AMBIGUOUS:
            return "I cannot tell what exactly the question refers to. What do you mean?"


def visible(character: str) -> bool:
    """Whether it may be shown to a user: it controls neither a terminal nor the direction of text, nor hides."""
    return unicodedata.category(character)[0] != "C" or character in _JOINERS


def one_line(text: str, longest: int = _EXPLANATION_LENGTH) -> str:
    """Text of an LLM as it may be shown to a user: one line without control characters, at most longest characters."""
    shown = " ".join("".join(c if visible(c) else " " for c in text).split())
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"


def located(phrases: Iterable[str], question: str) -> tuple[Span, ...]:
    """Where the phrases stand in the question, in its order, without overlaps; those that do not are left out.

    Case and the width of spaces may differ. A phrase is not looked for inside of words, as "it" in "with".
    """
    taken: list[Span] = []
    for phrase in phrases:
        pattern = r"\s+".join(map(re.escape, phrase.split()))
        found = re.search(rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])", question, re.IGNORECASE) if pattern else None
        if found and all(found.end() <= span.start or span.end <= found.start() for span in taken):
            taken.append(Span(found.start(), found.end(), found.group()))
    return tuple(sorted(taken, key=lambda span: span.start))


def stands_alone(question: str) -> bool:
    """Whether a question needs nothing that was said before it, as far as its words show.

    It does where a pronoun or a definite phrase hangs, where it points to something said ("the same", "another one"),
    or where it is only a part of a question ("And in winter?", "How tall?").
    """
    plain = [word.text.casefold() for word in words(question)]
    if not plain or not _POINTING.isdisjoint(plain) or dangling(question, ()):
        return False
    if plain[0] in {"and", "or", "but", "so", "then"} or plain[:2] in (["what", "about"], ["how", "about"]):
        return False
    said = sum(word.informative for word in words(question))
    if not AUXILIARIES.isdisjoint(plain):
        return said > 0
    return said > 1 and not QUESTION_WORDS.isdisjoint(plain)


def _missing(phrases: Sequence[str]) -> str:
    if not phrases:
        return "What I know does not answer this question."
    first, *_ = phrases[0].casefold().split()
    if first in QUESTION_WORDS:
        return f"What I know about this does not say {phrases[0].lower()}."
    if first in AUXILIARIES:
        return "What I know about this does not say whether it is so."
    return f"I cannot answer this: what I know says nothing about {_joined(phrases)} in this connection."


def _corrected(phrases: Sequence[str], correction: str | None) -> str:
    if correction:
        return f"The question takes something for granted that is not so, as far as I know: {correction}"
    if phrases:
        return f"The question takes {_joined(phrases, 'and')} for granted, and what I know does not support that."
    return "The question takes something for granted that what I know does not support."


def _joined(phrases: Sequence[str], word: str = "or") -> str:
    *others, last = (f"“{phrase}”" for phrase in phrases)
    return f"{', '.join(others)} {word} {last}" if others else last


def _spans(question: str, kept: Sequence[Word]) -> tuple[Span, ...]:
    """The words as spans, neighbours merged."""
    merged: list[tuple[int, int]] = []
    for word in kept:
        if merged and not any(map(str.isalnum, question[merged[-1][1] : word.start])):
            merged[-1] = (merged[-1][0], word.end)
        else:
            merged.append((word.start, word.end))
    return tuple(Span(start, end, question[start:end]) for start, end in merged)


def dangling(question: str, evidence: Sequence[Evidence]) -> tuple[Span, ...]:
    """Pronouns and definite phrases that point to nothing in the question, and to no one thing in the evidence."""
    held = words(question)
    plain = [word.text.casefold() for word in held]
    found: list[Span] = []
    for at, word in enumerate(plain):
        if word in _PRONOUNS and not _explained(held, plain, at):
            found.append(Span(held[at].start, held[at].end, held[at].text))
        elif word == "the" and (phrase := _definite(held, plain, at)) and not _unique(phrase, evidence):
            found.append(Span(held[at].start, phrase[-1].end, question[held[at].start : phrase[-1].end]))
    return tuple(found)


def _explained(held: Sequence[Word], plain: Sequence[str], at: int) -> bool:
    """Whether a pronoun has something before it in the question, or is none."""
    following = plain[at + 1] if at + 1 < len(plain) else ""
    before = plain[at - 1] if at else ""
    if plain[at] in {"this", "that", "these", "those"} and following and held[at + 1].informative:
        return any(word.informative for word in held[:at])
    if plain[at] == "that" and (before in _COMPLEMENTIZERS or (at and held[at - 1].informative)):
        return True
    if plain[at] == "there" and (following in _EXPLETIVE or before in _EXPLETIVE):
        return True
    # "Is it true that ...", "Does it rain in Bergen?": it stands for what follows, or for nothing.
    if plain[at] == "it" and ("that" in plain[at:] or "to" in plain[at:] or _weather(held[at + 1 :])):
        return True
    return any(word.informative and word.text[0].isupper() for word in held[1 if at > 1 else 0 : at]) or (
        sum(word.informative for word in held[:at]) >= 2
    )


def _weather(following: Sequence[Word]) -> bool:
    return bool(following) and following[0].stem in _WEATHER


def _definite(held: Sequence[Word], plain: Sequence[str], at: int) -> tuple[Word, ...] | None:
    """The bare definite phrase that begins at "the": common nouns that nothing after them makes particular."""
    end = at + 1
    while end < len(held) and held[end].informative and plain[end] not in _POSTMODIFIERS:
        end += 1
    phrase = tuple(held[at + 1 : end])
    if not phrase:
        return None
    if any(word.text[0].isupper() or word.text[0].isdigit() for word in phrase):
        return None
    if any(word.text in _EXTREMES for word in phrase):
        return None
    if any(word.text in _ONE_OF_ITS_KIND for word in phrase):
        return None
    if end < len(plain) and plain[end] in _POSTMODIFIERS:
        return None
    # Something particular is named elsewhere: "the company" in "Did Nokia's chairman leave the company?" is Nokia.
    if any(word.informative and word.text[0].isupper() for word in held[1:]):
        return None
    # "did the company announce": the last word is the verb.
    if len(phrase) > 1 and at and plain[at - 1] in {"do", "does", "did"}:
        phrase = phrase[:-1]
    return phrase[:2]


def _unique(phrase: Sequence[Word], evidence: Sequence[Evidence]) -> bool:
    """Whether the evidence knows one such thing: it too just says "the ...", or what it says of them shares a name."""
    stems = [word.stem for word in phrase]
    holding = [sentence for held in evidence if set(stems) <= (sentence := read_sentence(held.text)).places.keys()]
    if any(sentence.stems[at - 1] == "the" for sentence in holding for at in sentence.places[stems[0]] if at):
        return True
    names = [{sentence.stems[at] for at in sentence.answers[Kind.NAME]} for sentence in holding]
    return len(holding) == 1 or bool(names and set.intersection(*names))
