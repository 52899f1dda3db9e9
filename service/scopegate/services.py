"""The service's parts, wired: what the HTTP API and the command line both stand on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from scopegate.answering.answerer import Answerer, Generation
from scopegate.domain import Invalid, JobKind
from scopegate.enrichment.work import Enrich
from scopegate.evaluation.calibration import Calibration
from scopegate.evaluation.work import Evaluate
from scopegate.gate.condense import Condenser
from scopegate.gate.gate import Gate, Probe, ProbeGate
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.gate.hard import HardGate
from scopegate.gate.policy import default_policy
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.reader_probe import ReaderProbe
from scopegate.gate.retrieval import Retriever
from scopegate.gate.sentence_pair import SentencePairProbe
from scopegate.gate.slots import SlotProbe
from scopegate.gate.soft import FastSoftGate, SoftGate
from scopegate.generation.work import Generate
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import load_encoder
from scopegate.inference.reader import Reader, load_reader
from scopegate.jobs import Jobs, Work
from scopegate.knowledge import Knowledge
from scopegate.llm.asker import Asker
from scopegate.llm.roles import Llms
from scopegate.probe_file import Kind, ProbeFile
from scopegate.settings import Settings, models_dir

FEATURES = "feature-probe"
READER = "minilm-reader"
_NEEDS_LLM = "this job needs an LLM, and none is set (SCOPEGATE_LLM_URL)"


class Services:
    """Everything that answers questions, built from the settings.

    llms: None where no LLM is set. Raises Invalid where a setting names a model that is not there.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.embedder = Embedder(load_encoder(settings.embedder, models_dir()), settings)
        self.knowledge = Knowledge(settings, self.embedder)
        file = _probe_file(settings.probe)
        reads = settings.probe == READER or settings.probe.startswith("local:")
        self.reader = Reader(load_reader(settings.probe, models_dir()), settings) if reads else None
        self.llms = Llms.from_settings(settings, file if file and file.description.kind is Kind.HIDDEN_STATE else None)
        probe = self._probe(file)
        gates: list[Gate] = [HardGate(), ProbeGate(probe)]
        condenser = generation = None
        if self.llms is not None:
            judge = self.llms.judge
            soft = FastSoftGate(judge) if settings.llm_judging == "fast" else SoftGate(judge)
            gates.append(soft)
            condenser = Condenser(judge)
            generation = Generation(self.llms, soft, settings)
        defaults = default_policy(settings, (gate.name for gate in gates), probe.threshold)
        retriever = Retriever(self.embedder, settings, condenser)
        deadline_ms = settings.deadline_ms if self.llms is None else settings.llm_deadline_ms
        self.gatekeeper = Gatekeeper(self.knowledge, retriever, gates, defaults, deadline_ms)
        self.answerer = Answerer(self.gatekeeper, generation)
        self.works = self._works()
        self.jobs = Jobs(settings, self.knowledge.database, self.works, _NEEDS_LLM)

    @asynccontextmanager
    async def running(self, follow: Collection[str] | None = None) -> AsyncIterator[None]:
        """Runs them while the context lasts; follow: the scopes to be loaded, None for all.

        Raises Invalid where the data directory cannot be made.
        """
        try:
            if self.llms is not None:
                self.llms.start()
            await self.knowledge.start(follow)
            yield
        finally:
            await self.knowledge.stop()
            await self.embedder.stop()
            if self.reader is not None:
                await self.reader.stop()
            if self.llms is not None:
                await self.llms.stop()

    def not_ready(self) -> list[str]:
        """What is missing before questions can be answered, in words; nothing once all is there."""
        return [*self.knowledge.not_ready(), *(self.llms.not_ready() if self.llms else ())]

    def _works(self) -> dict[JobKind, Work]:
        """The kinds of job that can be done here."""
        parts = (self.gatekeeper, self.knowledge, self.embedder, self.settings)
        works: list[Work] = [Calibration(self.gatekeeper, self.knowledge)]
        if self.llms is None:
            works.append(Evaluate(*parts, answerer=None, judge=None))
        else:
            calls = asyncio.Semaphore(self.settings.job_llm_calls)
            generator, judge = Asker(self.llms.generator, calls), Asker(self.llms.judge, calls)
            works.append(Generate(generator, judge, self.embedder, self.knowledge))
            works.append(Enrich(generator, self.embedder, self.knowledge))
            works.append(Evaluate(*parts, answerer=Asker(self.llms.answerer, calls), judge=judge))
        return {work.kind: work for work in works}

    def _embedded_probe(self) -> Probe:
        shipped = models_dir() / FEATURES / "probe.json"
        if self.reader is None:
            name = self.settings.probe
            if name != FEATURES and not name.endswith(".json"):
                raise Invalid(
                    f"there is no probe {name!r}: it is {READER}, {FEATURES}, a probe's file (.json or .safetensors), "
                    "or local:NAME"
                )
            return FeatureProbe.load(shipped if name == FEATURES else Path(name))
        if self.settings.probe == READER:
            return ReaderProbe.load(models_dir() / READER / "probe.json", self.reader, FeatureProbe.load(shipped))
        return ReaderProbe.uncalibrated(self.reader)

    def _probe(self, file: ProbeFile | None) -> Probe:
        """The probe that the settings name: of features, of sentence embeddings, of an LLM's hidden states."""
        if file is None:
            return self._embedded_probe()
        if file.description.kind is Kind.SENTENCE_PAIR:
            return SentencePairProbe(file, self.embedder)
        if self.llms is None:
            raise Invalid(f"{file.path.name} reads an LLM's hidden states, and no LLM is set (SCOPEGATE_LLM_URL)")
        return SlotProbe(file, self.llms.answerer)


def _probe_file(name: str) -> ProbeFile | None:
    """None where the setting names no .safetensors file. Raises Invalid where that is no probe."""
    if not name.endswith(".safetensors") or name.startswith("local:"):
        return None
    try:
        return ProbeFile.read(Path(name))
    except ValueError as error:
        raise Invalid(str(error)) from error
