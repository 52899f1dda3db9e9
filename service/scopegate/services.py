"""The service's parts, wired: what the HTTP API and the command line both stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from scopegate.answering.answerer import Answerer
from scopegate.gate.gate import ProbeGate
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.gate.hard import HardGate
from scopegate.gate.policy import default_policy
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.retrieval import Retriever
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import load_encoder
from scopegate.knowledge import Knowledge
from scopegate.settings import Settings, models_dir


class Services:
    """Everything that answers questions, built from the settings.

    Raises Invalid where a setting names a model that is not there.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.embedder = Embedder(load_encoder(settings.embedder, models_dir()), settings)
        self.knowledge = Knowledge(settings, self.embedder)
        probe = FeatureProbe.load(settings.probe or models_dir() / "feature-probe" / "probe.json")
        gates = (HardGate(), ProbeGate(probe))
        defaults = default_policy(settings, (gate.name for gate in gates), probe.threshold)
        retriever = Retriever(self.embedder, settings)
        self.gatekeeper = Gatekeeper(self.knowledge, retriever, gates, defaults, settings.deadline_ms)
        self.answerer = Answerer(self.gatekeeper)

    @asynccontextmanager
    async def running(self, follow: Collection[str] | None = None) -> AsyncIterator[None]:
        """Runs them while the context lasts; follow: the scopes to be loaded, None for all.

        Raises Invalid where the data directory cannot be made.
        """
        try:
            await self.knowledge.start(follow)
            yield
        finally:
            await self.knowledge.stop()
            await self.embedder.stop()
