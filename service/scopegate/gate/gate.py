"""What a gate is: one judgement whether a question may be answered from what was found for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from scopegate.domain import Confusion, GateName, Policy
from scopegate.gate.retrieval import Case


class GateBroken(Exception):
    """A gate could not judge; says why in one sentence that is fit for the verdict."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a gate saw.

    score: see GateResult. confusion: why it refuses, where the gate itself knows. places: see Seen.
    """

    score: float | None
    passed: bool
    detail: Mapping[str, Any] = field(default_factory=dict)
    confusion: Confusion | None = None
    places: Mapping[str, float] = field(default_factory=dict)


class Gate(Protocol):
    """A judgement that a policy can ask for. depth: how many pieces of evidence it wants to see."""

    @property
    def name(self) -> GateName:
        """Which of the gates it is."""

    @property
    def depth(self) -> int:
        """How many pieces of evidence it wants to see, at least."""

    def threshold(self, policy: Policy) -> float:
        """What its score is held against."""

    async def judge(self, case: Case, policy: Policy) -> Judgement:
        """Raises GateBroken or LlmFailed where it cannot judge, Overloaded where it has no room to."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a probe saw.

    score: P(in scope | question, evidence), 0 to 1. detail: what it tells beyond that. places: P(the answer stands in
    it | there is one) of pieces of evidence, by id, from a probe that looks for the answer.
    """

    score: float
    detail: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, float] = field(default_factory=dict)


class Probe(Protocol):
    """A classifier that gives P(in scope | question, evidence): on features, on embeddings, on an LLM's hidden state.

    name: tells this probe from others. threshold: the shipped one, passed at or above it. depth: see Gate.
    """

    @property
    def name(self) -> str:
        """Tells this probe from others."""

    @property
    def threshold(self) -> float:
        """The threshold it was calibrated with."""

    @property
    def depth(self) -> int:
        """How many pieces of evidence it wants to see, at least."""

    async def judge(self, case: Case) -> Seen:
        """The score is 0 where there is no evidence. Raises what a gate raises."""


class ProbeGate:
    """The probe gate, whatever the probe."""

    name = GateName.PROBE

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.depth = probe.depth

    def threshold(self, policy: Policy) -> float:
        """See Gate."""
        return policy.probe_threshold

    async def judge(self, case: Case, policy: Policy) -> Judgement:
        """See Gate."""
        seen = await self.probe.judge(case)
        passed = seen.score >= policy.probe_threshold
        return Judgement(seen.score, passed, {"probe": self.probe.name, **seen.detail}, places=seen.places)
