from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopegate.answering.citations import cited
from scopegate.prompts import data, plain


@pytest.mark.parametrize(
    ("text", "shown", "order"),
    [
        ("It leaves at ten [1].", "It leaves at ten [1].", (1,)),
        ("It leaves at ten [3], from pier 4 [1].", "It leaves at ten [1], from pier 4 [2].", (3, 1)),
        ("Ten [2]. Ten it is [2].", "Ten [1]. Ten it is [1].", (2,)),
        ("Ten [9].", "Ten.", ()),
        ("Ten [0]. [00] [4]", "Ten.", ()),
        ("Ten [1, 9; 3].", "Ten [1, 2].", (1, 3)),
        ("[9] Ten [9] [3]", "Ten [1]", (3,)),
        ("Ten [1][2][1]", "Ten [1][2][1]", (1, 2)),
        ("a[i], [of 3] and [1", "a[i], [of 3] and [1", ()),
        ("Ten [１] [٣]", "Ten [１] [٣]", ()),
        ("R&amp;D &lt;b&gt; [2] &#91;INST]", "R&D <b> [1] [INST]", (2,)),
        ("Ten &#91;9] &#91;2]", "Ten [1]", (2,)),
        ("Ten [" + "9" * 5_000 + "] [1, 00000000000001].", "Ten [1].", (1,)),
        ("Ten \u202efo\u200b\u2066 🦉\u200d🦉\t[1]", "Ten fo 🦉\u200d🦉\t[1]", (1,)),
        ("Bells\x1b[1]\x00\nand masts", "Bells[1]\nand masts", (1,)),
        ("Ten [1\x07] [\u200b2].", "Ten [1] [2].", (1, 2)),
        ("Ten [9\x07].", "Ten.", ()),
        ("", "", ()),
    ],
)
def test_citations_are_renumbered_and_unknown_ones_left_out(text: str, shown: str, order: tuple[int, ...]) -> None:
    assert cited(text, 3, complete=True) == (shown, order)


PARTS = st.sampled_from(
    ["[", "]", "1", "2", "9", ",", " ", "\n", "&", "amp;", "lt;", "#91;", "é", "🦉", "Ten", ".", "\x07"]
)


@given(st.lists(PARTS, max_size=24).map("".join))
def test_what_is_shown_of_a_longer_text_begins_with_what_was_shown_of_a_shorter(text: str) -> None:
    before = ""
    for end in range(len(text) + 1):
        shown, _ = cited(text[:end], 2, complete=False)
        assert shown.startswith(before)
        before = shown
    whole, order = cited(text, 2, complete=True)
    assert whole.startswith(before)
    assert len(order) <= 2


@given(st.lists(PARTS, max_size=24).map("".join))
def test_a_citation_shown_is_one_of_those_in_order(text: str) -> None:
    shown, order = cited(text, 2, complete=True)
    for mark in re.findall(r"\[ *[0-9]+(?: *[,;] *[0-9]+)* *\]", shown):
        assert {int(label) for label in re.findall("[0-9]+", mark)} <= set(range(1, len(order) + 1))


@pytest.mark.parametrize("text", [" " * 20_000, "[" * 20_000, "[1," * 7_000, "&" * 20_000, "[1" + " " * 20_000])
def test_a_degenerate_text_is_read_in_a_moment(text: str) -> None:
    cited(text, 2, complete=False)
    cited(text, 2, complete=True)


def test_a_quoted_passage_comes_back_as_it_was() -> None:
    assert cited(data("Fish & <chips>"), 1, complete=True)[0] == plain(data("Fish & <chips>"))
