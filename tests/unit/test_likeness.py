from __future__ import annotations

import pytest

from scopegate.inference.embedder import Embedder
from scopegate.inference.likeness import originals

WHO = "Who was the architect that designed the Tern House on Heron Island?"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (WHO, True),
        ("What is the name of the architect who designed the Tern House on Heron Island?", True),
        ("Who is the owner of the Tern House on Heron Island?", False),
        ("What does the Tern House on Heron Island serve for breakfast?", False),
    ],
)
async def test_another_wording_is_no_other_question(embedder: Embedder, other: str, same: bool) -> None:
    assert await originals(embedder, [WHO, other]) == [0, 0 if same else 1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Which awards did Baker win in Oslo in 2017?", "Which awards did Baker win in Oslo in 2018?"),
        ("The museum is open on Mondays.", "The museum is not open on Mondays."),
        ("The ferry carries 40 cars.", "The ferry carries 400 cars."),
        ("The bell doesn't ring at night.", "The bell rings at night."),
    ],
)
async def test_what_differs_in_a_number_or_a_not_says_another_thing(embedder: Embedder, one: str, other: str) -> None:
    assert await originals(embedder, [one, other]) == [0, 1]


async def test_each_is_known_by_the_first_that_says_it(embedder: Embedder) -> None:
    assert await originals(embedder, []) == []
    texts = [WHO, "The ferry carries 40 cars.", WHO.upper(), "The ferry carries 40 cars", WHO]
    assert await originals(embedder, texts) == [0, 1, 0, 1, 0]
