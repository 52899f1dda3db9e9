"""What stands in for an LLM's good sense is read by the service's own parsers."""

from __future__ import annotations

import pytest

from scopegate.answering.shapes import Json, Lines, Shape
from scopegate.llm.client import Ask
from tests.good_sense import GoodSense, Known
from tests.scripted import ScriptedLlm, llm_at

BELL = "The storm bell hangs in the east <tower>."
QUESTION = "Where does the storm bell hang?"
SENSE = GoodSense({QUESTION: Known("In the east tower.", (BELL,), phrases=("the storm bell",))})


@pytest.mark.parametrize("method", ["basic", "two_shot", "reasoning"])
@pytest.mark.parametrize("kind", [Json, Lines])
async def test_it_answers_in_every_shape(kind: type[Json] | type[Lines], method: str) -> None:
    shape: Shape = kind(method)
    with ScriptedLlm(SENSE.script()) as server:
        async with llm_at(server) as llm:
            for passages, can in ((("Ferries leave at ten.", BELL), True), (("Ferries leave at ten.",), False)):
                turns = shape.prompt.render(passages=passages, question=QUESTION)
                reply = await llm.complete(Ask(turns, 200, schema=shape.schema(len(passages))))
                written = shape.read(reply.texts[0], len(passages), complete=True)
                assert written.can_answer is can
                assert written.evidence == ((2,) if can else ())
                assert written.answer.startswith("In the east tower." if can else "")
                assert (written.phrases == ("the storm bell",)) is not can
