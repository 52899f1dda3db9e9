"""A gatekeeper with the gates that need no LLM."""

from __future__ import annotations

from scopegate.gate.gate import Probe, ProbeGate
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.gate.hard import HardGate
from scopegate.gate.policy import default_policy
from scopegate.gate.retrieval import Retriever
from scopegate.inference.embedder import Embedder
from scopegate.knowledge import Knowledge
from scopegate.settings import Settings


def make_gatekeeper(knowledge: Knowledge, embedder: Embedder, probe: Probe, settings: Settings) -> Gatekeeper:
    gates = (HardGate(), ProbeGate(probe))
    defaults = default_policy(settings, (gate.name for gate in gates), probe.threshold)
    return Gatekeeper(knowledge, Retriever(embedder, settings), gates, defaults, settings.deadline_ms)
