"""Windows of whole sentences: nothing left out, nothing too long that can be shorter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopegate.domain import Evidence
from scopegate.gate.retrieval import Case
from scopegate.gate.windows import texts_of, windows


def told(name: str, revision: int | None = None, *reading: str) -> Case:
    held = [Evidence(each, f"{each} is told.", 1.0, 0.5, 0.5, None) for each in (name, *reading)]
    return Case("Who?", tuple(held), tuple(held), lambda _: 1.0, revision)


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([3, 3, 3], [(0, 3)]),
        ([5, 5], [(0, 2)]),
        ([6, 5], [(0, 1), (1, 2)]),
        ([4, 4, 4, 4], [(0, 2), (1, 3), (2, 4)]),
        ([20], [(0, 1)]),
        ([2, 20, 2], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_windows_hold_what_fits_and_overlap_by_a_sentence(lengths: list[int], found: list[tuple[int, int]]) -> None:
    assert [(each.start, each.stop) for each in windows(lengths, 10)] == found


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 40))
def test_every_sentence_is_in_a_window_that_fits(lengths: list[int], room: int) -> None:
    found = windows(lengths, room)
    assert {at for each in found for at in range(each.start, each.stop)} == set(range(len(lengths)))
    for each in found:
        assert sum(lengths[each]) <= room or each.stop - each.start == 1
    starts = [each.start for each in found]
    assert starts == sorted(set(starts))


def test_facts_are_read_together_the_best_ones() -> None:
    (text,) = texts_of(told("a", 3, "b", "c"), 2)
    assert [each.id for each in text] == ["a", "b"]


def test_passages_are_read_each_by_itself_and_their_best_sentences_together() -> None:
    texts = texts_of(told("p#1", None, "p#2", "q#1"), 2)
    assert [[each.id for each in text] for text in texts] == [["p#1", "p#2"], ["q#1"], ["p#1", "p#2"]]
    (alone,) = texts_of(told("p#1", None, "p#2"), 2)
    assert [each.id for each in alone] == ["p#1", "p#2"]
