"""The probe inside the LLM's engine: P(in scope) out of the vocabulary's slots, for one token."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scopegate.domain import Invalid, Turn
from scopegate.gate.gate import GateBroken, Seen
from scopegate.gate.retrieval import Case
from scopegate.llm.client import Ask, Llm, by_id
from scopegate.probe_file import Kind, Position, ProbeFile
from scopegate.prompts import Prompt, prompt_at


def turns(prompt: Prompt, case: Case) -> tuple[Turn, ...]:
    """The prompt about a case: its question, and what an LLM reads for it."""
    return prompt.render(question=case.question, passages=[fact.text for fact in case.reading])


class SlotProbe:
    """A probe of hidden states that the LLM's engine runs; a case costs a request of one token.

    Where its prompt is the answer's own, an answer that follows finds the prompt computed in the engine's prefix cache.
    name: tells this probe from others. threshold: passed at or above it.
    """

    # It reads what an answer's LLM reads, and wants no more to be found.
    depth = 1

    def __init__(self, file: ProbeFile, llm: Llm) -> None:
        """Raises Invalid where the file holds another kind of probe, or one trained on another prompt than there is."""
        description = file.description
        if description.kind is not Kind.HIDDEN_STATE:
            raise Invalid(f"{file.path.name} holds a probe of kind {description.kind}, not of hidden states")
        self.name = description.name
        self.threshold = description.threshold
        self._slots = file.slots
        self._file = file
        self._llm = llm
        self._prompt = _prompt(description.prompt, file)

    async def judge(self, case: Case) -> Seen:
        """See Probe."""
        if not case.reading:
            return Seen(0.0)
        token = None if self._file.description.position is Position.LAST_PROMPT_TOKEN else self._file.description.token
        if token is not None and self._llm.capabilities is not None and not self._llm.capabilities.prefill:
            raise GateBroken(
                "the probe reads a token after the prompt, and the LLM server cannot begin a reply with it"
            )
        ask = Ask(turns(self._prompt, case), max_tokens=1, token_ids=self._slots, prefill=token)
        return Seen(self._probability((await self._llm.complete(ask)).first))

    def _probability(self, first: Mapping[str, float]) -> float:
        """P(in scope) from the first token's logprobs, by token.

        Raises GateBroken where the slots are missing, masked, clamped or another probe's.
        """
        try:
            logit = self._file.logit(by_id(first))
        except ValueError as error:
            raise GateBroken(str(error)) from error
        return 1.0 / (1.0 + math.exp(-logit))


def _prompt(prompt_id: str, file: ProbeFile) -> Prompt:
    """The prompt of that id. Raises Invalid where it is not shipped, in that version."""
    try:
        prompt = prompt_at(prompt_id.rpartition("@")[0])
    except Invalid as error:
        raise Invalid(f"{file.path.name} was trained on the prompt {prompt_id!r}, and {error}") from error
    if prompt.id != prompt_id:
        raise Invalid(f"{file.path.name} was trained on the prompt {prompt_id!r}, and this version has {prompt.id!r}")
    if prompt.variables != {"passages", "question"}:
        raise Invalid(f"{file.path.name} was trained on the prompt {prompt_id!r}, which is not about a question")
    return prompt
