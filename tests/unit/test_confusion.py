from __future__ import annotations

import pytest

from scopegate.domain import Confusion, ConfusionType, Span
from scopegate.gate.confusion import confusion, located, one_line, refusal_sentence
from scopegate.words import WordCounts
from tests.unit.evidence import said

rarity = WordCounts().rarity


def seen(question: str, *sentences: str, has_history: bool = False) -> tuple[ConfusionType, list[str]]:
    found = confusion(question, said(*sentences), has_history=has_history, rarity=rarity)
    for span in found.spans:
        assert question[span.start : span.end] == span.text
    return found.type, [span.text for span in found.spans]


@pytest.mark.parametrize(
    ("question", "sentence", "spans"),
    [
        ("Where is the capital of China?", "The capital of Norway is Oslo.", ["China"]),
        ("Who built the Norra Länken tunnel in 1999?", "A tunnel was built in 1985.", ["Norra Länken", "1999"]),
        ("Ära: who wrote Tähti?", "Somebody wrote a poem.", ["Ära", "Tähti"]),
        ("🦉 Who feeds owls?", "Nobody feeds cats.", ["owls"]),
        ("Where is Solvik?", "Solvik was founded in 1910.", ["Where"]),
        ("How many cows has Solvik?", "Solvik has cows.", ["How many"]),
    ],
)
def test_names_what_is_not_covered(question: str, sentence: str, spans: list[str]) -> None:
    assert seen(question, sentence) == (ConfusionType.NOT_MENTIONED, spans)


def test_covered_by_several_but_not_by_the_closest_names_what_that_one_lacks() -> None:
    found = seen("Who repaired the organ of Bergen?", "The organ is old.", "Ola repaired a clock in Bergen.")
    assert found == (ConfusionType.NOT_MENTIONED, ["repaired", "Bergen"])


def test_common_words_are_not_named_beside_a_rare_one() -> None:
    found = seen("Who built a large house in Uzhhorod?", "Basalt floats.")
    assert found == (ConfusionType.NOT_MENTIONED, ["Uzhhorod"])


def test_with_no_evidence_every_informative_word_is_missing() -> None:
    assert seen("Who repaired an organ?") == (ConfusionType.NOT_MENTIONED, ["repaired", "organ"])


@pytest.mark.parametrize(
    ("question", "spans"),
    [
        ("When was it founded?", ["it"]),
        ("What did the company announce?", ["the company"]),
        ("Who is he?", ["he"]),
        ("Why did they leave that village?", ["they"]),
        ("Where was this photograph taken?", ["this"]),
        ("When does it close?", ["it"]),
        ("Who planted the forest?", ["the forest"]),
        ("What did the guest leave?", ["the guest"]),
        ("Who wrote the test?", ["the test"]),
        ("Who wrote the request?", ["the request"]),
    ],
)
def test_hanging_on_something_unsaid_is_ambiguous(question: str, spans: list[str]) -> None:
    assert seen(question, "Basalt is a volcanic rock.") == (ConfusionType.AMBIGUOUS, spans)


@pytest.mark.parametrize(
    "question",
    [
        "What is the capital of Norway?",
        "What is the largest city in Norway?",
        "Who was the first woman that climbed it to the top of Everest?",
        "When did Marie Curie win her second prize?",
        "How far is the moon?",
        "Is there a ferry from Bergen?",
        "Is it true that basalt floats?",
        "Which rock is it that floats?",
        "Does it rain in Bergen?",
        "How often is it snowing in May?",
        "Who climbed the tallest?",
        "Did Nokia's chairman leave the company?",
    ],
)
def test_what_explains_itself_is_not_ambiguous(question: str) -> None:
    assert seen(question, "Basalt is a volcanic rock.")[0] is ConfusionType.NOT_MENTIONED


def test_history_explains_what_a_pronoun_means() -> None:
    found = seen("When was it founded?", "Basalt is a volcanic rock.", has_history=True)
    assert found == (ConfusionType.NOT_MENTIONED, ["founded"])


def test_one_such_thing_in_the_evidence_is_what_is_meant_and_several_are_not() -> None:
    one = "Kongsberg is a company in Norway."
    assert seen("What did the company announce?", one)[0] is ConfusionType.NOT_MENTIONED
    several = (one, "Volvo is a company in Sweden.")
    assert seen("What did the company announce?", *several)[0] is ConfusionType.AMBIGUOUS


def test_what_the_evidence_too_calls_just_the_harbour_is_what_is_meant() -> None:
    sentences = ("Seals rest north of the harbour.", "Bergen has a harbour.")
    assert seen("How deep is the harbour?", *sentences) == (ConfusionType.NOT_MENTIONED, ["How deep"])


def at(*texts: str) -> tuple[Span, ...]:
    return tuple(Span(0, len(text), text) for text in texts)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            Confusion(ConfusionType.NOT_MENTIONED, at("China")),
            "I cannot answer this: what I know says nothing about “China” in this connection.",
        ),
        (
            Confusion(ConfusionType.NOT_MENTIONED, at("China", "1999", "China")),
            "I cannot answer this: what I know says nothing about “China” or “1999” in this connection.",
        ),
        (Confusion(ConfusionType.NOT_MENTIONED, at("Where")), "What I know about this does not say where."),
        (Confusion(ConfusionType.NOT_MENTIONED, at("How deep")), "What I know about this does not say how deep."),
        (Confusion(ConfusionType.NOT_MENTIONED, ()), "What I know does not answer this question."),
        (
            Confusion(ConfusionType.AMBIGUOUS, at("the company")),
            "I cannot tell what “the company” refers to. Which one do you mean?",
        ),
        (
            Confusion(ConfusionType.AMBIGUOUS, at("it", "the team")),
            "I cannot tell what “it” or “the team” refers to. Which one do you mean?",
        ),
        (
            Confusion(ConfusionType.AMBIGUOUS, ()),
            "I cannot tell what exactly the question refers to. What do you mean?",
        ),
        (
            Confusion(ConfusionType.NOT_MENTIONED, at("the harbour")),
            "I cannot answer this: what I know says nothing about “the harbour” in this connection.",
        ),
        (
            Confusion(ConfusionType.NOT_MENTIONED, at("Is")),
            "What I know about this does not say whether it is so.",
        ),
        (
            Confusion(ConfusionType.NOT_MENTIONED, at("🦉")),
            "I cannot answer this: what I know says nothing about “🦉” in this connection.",
        ),
        (
            Confusion(ConfusionType.NOT_MENTIONED, at("word " * 30)),
            "What I know does not answer this question.",
        ),
        (
            Confusion(ConfusionType.FALSE_PREMISE, at("built in 1920"), "The lighthouse was built in 1887."),
            "The question takes something for granted that is not so, as far as I know: "
            "The lighthouse was built in 1887.",
        ),
        (
            Confusion(ConfusionType.FALSE_PREMISE, at("built in 1920", "the keeper")),
            "The question takes “built in 1920” and “the keeper” for granted, and what I know does not support that.",
        ),
        (
            Confusion(ConfusionType.FALSE_PREMISE, ()),
            "The question takes something for granted that what I know does not support.",
        ),
    ],
)
def test_refusal_sentence(found: Confusion, sentence: str) -> None:
    assert refusal_sentence(found) == sentence


@pytest.mark.parametrize(
    ("phrases", "question", "spans"),
    [
        (["bell", "tower"], "Does the tower have a bell?", [(9, 14), (22, 26)]),
        (["THE  tower"], "Does the\ntower lean?", [(5, 14)]),
        (["it"], "Who sails with it?", [(15, 17)]),
        (["it", "with it"], "Who sails with it?", [(15, 17)]),
        (["a+b", "(c)"], "Is a+b more than (c)?", [(3, 6), (17, 20)]),
        (["首都"], "中国の首都はどこですか", [(3, 5)]),
        (["𝄞"], "🦉 𝄞 who?", [(2, 3)]),
        (["lighthouse", "", " "], "Who sails?", []),
    ],
)
def test_phrases_are_located(phrases: list[str], question: str, spans: list[tuple[int, int]]) -> None:
    found = located(phrases, question)
    assert [(span.start, span.end) for span in found] == spans
    assert [span.text for span in found] == [question[start:end] for start, end in spans]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("It was\r\nbuilt\tin 1887.\x00", "It was built in 1887."),
        ("\x1b[2J\u202egnihton\u2066", "[2J gnihton"),
        ("می\u200cشود", "می\u200cشود"),
        ("x" * 301, "x" * 299 + "…"),
        ("x" * 300, "x" * 300),
        ("\n \t", ""),
    ],
)
def test_text_of_an_llm_is_shown_as_one_bounded_line(text: str, shown: str) -> None:
    assert one_line(text) == shown
