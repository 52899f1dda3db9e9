"""Why a question cannot be answered: what in it the knowledge does not cover, or what in it says too little."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scopegate.domain import Confusion, ConfusionType, Evidence, Span
from scopegate.gate.features import Kind, read_question, read_sentence, substitutes
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
_QUOTED = 3
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
    if not has_history and (dangling := _dangling(question, evidence)):
        return Confusion(ConfusionType.AMBIGUOUS, dangling)
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
    """A sentence fit to show a user: it asks which is meant, or names what is missing."""
    phrases = list(dict.fromkeys(f"“{span.text}”" for span in confusion.spans))[:_QUOTED]
    if confusion.type is ConfusionType.AMBIGUOUS:
        return f"I cannot tell what {_joined(phrases)} refers to. Which one do you mean?"
    if not phrases:
        return "What I know does not answer this question."
    if not words(confusion.spans[0].text)[0].informative:
        return f"What I know about this does not say {confusion.spans[0].text.lower()}."
    return f"I cannot answer this: what I know says nothing about {_joined(phrases)} in this connection."


def _joined(phrases: Sequence[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} or {phrases[-1]}"


def _spans(question: str, kept: Sequence[Word]) -> tuple[Span, ...]:
    """The words as spans, neighbours merged."""
    merged: list[tuple[int, int]] = []
    for word in kept:
        if merged and not any(map(str.isalnum, question[merged[-1][1] : word.start])):
            merged[-1] = (merged[-1][0], word.end)
        else:
            merged.append((word.start, word.end))
    return tuple(Span(start, end, question[start:end]) for start, end in merged)


def _dangling(question: str, evidence: Sequence[Evidence]) -> tuple[Span, ...]:
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
