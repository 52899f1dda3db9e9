"""The LLM path on a real engine: what the probe adds to /answer and /check, and what nine votes cost as one request.

    python -m benchmarks.one_pass

vLLM on the CPU (`make test` makes its environment) serves a Llama of about 100 million random parameters. Such a model
writes nothing that can be read, so every reply counts as an answer here, and has a fixed length; all else is the
service's own: the real gatekeeper, gates, prompts, schema and client. What is compared alternates in one run, on
prompts of one length that nobody sent before: only the beginning, which all share, is in the engine's prefix cache.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
from tests.engine import models, probes
from tests.engine.engine import Engine

from benchmarks.corpus import facts, questions
from benchmarks.report import console, milliseconds, table
from benchmarks.server import serving
from scopegate.answering.answerer import Answerer, Generation
from scopegate.answering.shapes import Json, Lines, Shape, Written
from scopegate.domain import Answer, Check, Decision, Passage, Turn
from scopegate.gate.gate import ProbeGate
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.gate.hard import HardGate
from scopegate.gate.policy import default_policy
from scopegate.gate.retrieval import Retriever
from scopegate.gate.slots import SlotProbe, turns
from scopegate.gate.soft import SoftGate
from scopegate.llm.client import Ask, Llm, by_id
from scopegate.llm.roles import Llms
from scopegate.probe_file import ProbeFile, Slots
from scopegate.prompts import Prompt, load_prompt
from scopegate.services import Services
from scopegate.settings import Settings

PAIRS = 24
SENTENCES = 12
WRITTEN = 100  # tokens of a reply
CLIENTS = 16
CHECKS = 64
ROUNDS = 3
VOTES = 9
VOTE_TOKENS = 32
# Every gate before the LLM's passes.
OPEN: Mapping[str, Any] = {"alpha": 10.0, "probe_threshold": 0.0}

Chat = Callable[[Check], AsyncIterator[object]]


class Unread:
    """A shape whose replies all count as answers, at any length.

    A reply under a schema that is cut is none, so the schema goes with the request as if a client had sent it.
    """

    def __init__(self, shape: Lines | Json) -> None:
        self.prompt: Prompt = shape.prompt
        self.around = shape.around
        schema = shape.schema(SENTENCES)
        held = {"json_schema": {"name": "reply", "schema": schema, "strict": True}, "type": "json_schema"}
        self.options: dict[str, Any] = {"max_tokens": WRITTEN - self.around, "ignore_eos": True}
        self.options |= {"response_format": held} if schema else {}

    def schema(self, passages: int) -> None:
        """See Shape."""

    def read(self, text: str, passages: int, *, complete: bool) -> Written:
        return Written((1,), True, f"Said: {text}", "Nothing is read.")


class Fixed(Generation):
    """Writes in one shape."""

    def __init__(self, llms: Llms, soft: SoftGate, settings: Settings, shape: Shape) -> None:
        super().__init__(llms, soft, settings)
        self._fixed = shape

    @property
    def free(self) -> Shape:
        return self._fixed


@dataclass
class Spent:
    """What one of two ways took, a request each: wall seconds, CPU seconds of the engine and this process, and prompt
    tokens that the engine computed."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """The engine, and the service's parts around it."""

    engine: Engine
    file: ProbeFile
    services: Services
    llms: Llms
    checks: Iterator[Check]

    @property
    def llm(self) -> Llm:
        return self.llms.answerer

    def answerer(self, shape: Unread) -> Answerer:
        """One whose probe was trained, so it says, on the shape's prompt."""
        settings = self.services.settings
        described = replace(self.file.description, prompt=shape.prompt.id)
        probe = SlotProbe(replace(self.file, description=described), self.llm)
        soft = SoftGate(self.llms.judge)
        gates = (HardGate(), ProbeGate(probe), soft)
        defaults = default_policy(settings, (gate.name for gate in gates), probe.threshold)
        retriever = Retriever(self.services.embedder, settings)
        gatekeeper = Gatekeeper(self.services.knowledge, retriever, gates, defaults, settings.llm_deadline_ms)
        return Answerer(gatekeeper, Fixed(self.llms, soft, settings, shape))

    async def turns(self, prompt: Prompt, check: Check, **more: str) -> tuple[Turn, ...]:
        """The prompt that a check sends to the LLM."""
        retriever = Retriever(self.services.embedder, self.services.settings)
        case = await retriever.from_passages(check.question, check.passages or (), 1)
        if not more:
            return turns(prompt, case)
        return prompt.render(question=case.question, passages=[fact.text for fact in case.reading], **more)

    def used(self) -> tuple[float, float, float]:
        """So far: wall seconds, CPU seconds, and prompt tokens that the engine did not find in its cache."""
        metrics = self.engine.metrics()
        computed = metrics["vllm:prefix_cache_queries_total"] - metrics["vllm:prefix_cache_hits_total"]
        engine = psutil.Process(self.engine.process.pid)
        processes = [psutil.Process(), engine, *engine.children(recursive=True)]
        cpu = sum(sum(process.cpu_times()[:2]) for process in processes)
        return time.perf_counter(), cpu, computed

    async def alternate(
        self, ways: Mapping[str, Callable[[Check], Awaitable[object]]], rounds: int
    ) -> dict[str, Spent]:
        """Each way once a round, the first to go changing, on checks of its own. Two rounds more warm up."""
        spent = {name: Spent() for name in ways}
        for number in range(-2, rounds):
            for name in list(ways) if number % 2 else list(ways)[::-1]:
                check = next(self.checks)
                before = await asyncio.to_thread(self.used)
                await ways[name](check)
                after = await asyncio.to_thread(self.used)
                if number >= 0:
                    spent[name].wall.append(after[0] - before[0])
                    spent[name].cpu.append(after[1] - before[1])
                    spent[name].computed.append(after[2] - before[2])
        return spent


def asked() -> Iterator[Check]:
    """Questions about passages of one length, no two alike."""
    made = questions(10**6)
    sentences = facts(10**7)
    for question in made:
        text = " ".join(next(sentences) for _ in range(SENTENCES))
        yield Check(question, passages=(Passage("p", text),), overrides=OPEN, deadline_ms=600_000)


COLUMNS = ["", "wall p50 ms", "CPU p50 ms", "wall ratio p10/50/90", "CPU ratio p10/50/90", "prompt tokens computed"]


def row(name: str, spent: Spent, base: Spent) -> list[str]:
    """A way's line in a table; its ratios are to the base, round by round."""

    def spread(ours: list[float], theirs: list[float]) -> str:
        percentiles = np.percentile(np.array(ours) / np.array(theirs), [10, 50, 90])
        return " ".join(f"{ratio:.3f}" for ratio in percentiles)

    return [
        name,
        milliseconds(spent.wall, 50),
        milliseconds(spent.cpu, 50),
        spread(spent.wall, base.wall),
        spread(spent.cpu, base.cpu),
        f"{np.mean(spent.computed):.1f}",
    ]


async def answers(bench: Bench) -> None:
    """/answer with the probe against the same without, in both shapes."""
    rows = []
    for shape in (Lines("basic"), Json("basic")):
        unread = Unread(shape)
        answering = partial(bench.answerer(unread).chat, options=unread.options, whole=True)

        async def answer(check: Check, *gates: str, chat: Chat = answering) -> None:
            gated = replace(check, overrides={**check.overrides, "gates": gates})
            *_, last = [event async for event in chat(gated)]
            assert isinstance(last, Answer)
            assert last.decision is Decision.ANSWER, last.reason

        async def without(check: Check, answer: Callable[..., Awaitable[None]] = answer) -> None:
            await answer(check, "hard", "soft")

        async def with_probe(check: Check, answer: Callable[..., Awaitable[None]] = answer) -> None:
            await answer(check, "hard", "probe", "soft")

        spent = await bench.alternate({"without": without, "with": with_probe}, PAIRS)
        name = "free" if isinstance(shape, Lines) else "constrained"
        rows += [row(f"{name}, {way} the probe", spent[way], spent["without"]) for way in spent]
    table(f"/answer, {WRITTEN} tokens written, {PAIRS} pairs", COLUMNS, rows)


async def reused(bench: Bench) -> None:
    """What an answer's request computes of its prompt again after the probe's."""
    again: dict[str, list[float]] = {"JSON": [], "lines": []}
    for _ in range(PAIRS):
        for name, shape in (("JSON", Json("basic")), ("lines", Lines("basic"))):
            asked = await bench.turns(shape.prompt, next(bench.checks))
            await bench.llm.complete(Ask(asked, 1, token_ids=bench.file.slots))
            before = await asyncio.to_thread(bench.used)
            await bench.llm.complete(Ask(asked, 1, schema=shape.schema(SENTENCES)))
            again[name].append((await asyncio.to_thread(bench.used))[2] - before[2])
    rows = [[name, f"{np.mean(each):.1f}", f"{max(each):.0f}"] for name, each in again.items()]
    table(f"Prompt tokens computed again for the answer, {PAIRS} prompts", ["", "mean", "most"], rows)


async def ways(bench: Bench, shape: Lines | Json) -> None:
    """To the probe, straight to the engine: with a token first, or with the first token of the reply.

    Under a schema the latter takes a grammar that admits the slots in the first place.
    """
    schema = shape.schema(SENTENCES)
    slots = bench.file.slots
    riding: dict[str, Any] = {"ignore_eos": True}
    if schema is not None:
        admitted = {"type": "or", "elements": [{"type": "token", "token": slot} for slot in slots]}
        sequence = [{"type": "optional", "content": admitted}, {"type": "json_schema", "json_schema": schema}]
        riding["response_format"] = {"type": "structural_tag", "format": {"type": "sequence", "elements": sequence}}

    async def written(asked: tuple[Turn, ...]) -> None:
        await read(Ask(asked, WRITTEN, schema=schema, options={"ignore_eos": True}))

    async def read(ask: Ask) -> Mapping[str, float]:
        first: Mapping[str, float] = {}
        async with bench.llm.stream(ask) as pieces:
            async for piece in pieces:
                first = first or piece.first
        return first

    async def without(check: Check) -> None:
        await written(await bench.turns(shape.prompt, check))

    async def token_first(check: Check) -> None:
        asked = await bench.turns(shape.prompt, check)
        bench.file.logit(by_id((await bench.llm.complete(Ask(asked, 1, token_ids=slots))).first))
        await written(asked)

    async def with_reply(check: Check) -> None:
        asked = await bench.turns(shape.prompt, check)
        bench.file.logit(by_id(await read(Ask(asked, WRITTEN, token_ids=slots, options=riding))))

    spent = await bench.alternate({"no probe": without, "a token first": token_first, "with reply": with_reply}, PAIRS)
    rows = [row(name, spent[name], spent["no probe"]) for name in spent]
    name = "lines" if schema is None else "JSON"
    table(f"The ways to the probe, {name}, {WRITTEN} tokens written, {PAIRS} rounds", COLUMNS, rows)


async def checks(bench: Bench, folder: Path) -> None:
    """/check with the probe, through the service as a process, against its prompts sent straight to the engine."""
    prompt = load_prompt("answer_text", method="basic")
    rates: dict[str, list[float]] = {"straight": [], "/check": []}
    settings = {"llm_url": f"{bench.engine.url}/v1", "probe": str(bench.file.path)}
    with serving(folder, **settings) as server:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CLIENTS)) as client:

            async def post(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
                async with client.post(url, json=body) as response:
                    response.raise_for_status()
                    said: dict[str, Any] = await response.json()
                    return said

            async def check(asked: Check) -> None:
                policy = {**OPEN, "gates": ["hard", "probe"]}
                passages = [{"text": passage.text} for passage in asked.passages or ()]
                body = {"question": asked.question, "passages": passages, "policy": policy, "deadline_ms": 60_000}
                verdict = await post(f"{server.url}/check", body)
                assert verdict["gates"][1]["status"] == "ok", verdict["gates"]

            async def straight(messages: list[dict[str, str]]) -> None:
                body = {"model": "model", "messages": messages, "max_tokens": 1, "temperature": 0.0}
                await post(f"{bench.engine.url}/v1/chat/completions", body)

            for number in range(ROUNDS + 1):
                drawn = [next(bench.checks) for _ in range(2 * CHECKS)]
                said = [await bench.turns(prompt, each) for each in drawn[CHECKS:]]
                messages = [[{"role": str(turn.role), "content": turn.content} for turn in each] for each in said]
                work = {
                    "/check": [partial(check, each) for each in drawn[:CHECKS]],
                    "straight": [partial(straight, each) for each in messages],
                }
                for name in sorted(work, reverse=number % 2 == 0):
                    seconds = await driven(work[name])
                    if number:  # the first round warms up
                        rates[name].append(CHECKS / seconds)
    rows = [[name, f"{np.mean(each):.2f}", f"{min(each):.2f} to {max(each):.2f}"] for name, each in rates.items()]
    table(f"One-token prompts, {CLIENTS} clients, {ROUNDS} rounds of {CHECKS}", ["", "requests/s", "rounds"], rows)
    console.print(f"/check with the probe / straight: {np.mean(rates['/check']) / np.mean(rates['straight']):.3f}")


async def driven(work: Sequence[Callable[[], Awaitable[None]]]) -> float:
    """Does the work with all clients; wall seconds."""
    waiting = iter(work)

    async def client() -> None:
        for each in waiting:
            await each()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - start


async def votes(bench: Bench) -> None:
    """Nine votes as one request against nine requests at the same time, and one after the other."""
    prompt = load_prompt("judge")

    async def ask(check: Check, n: int) -> Ask:
        asked = await bench.turns(prompt, check, error="")
        return Ask(asked, VOTE_TOKENS, 0.7, n, options={"ignore_eos": True})

    async def one(check: Check) -> None:
        reply = await bench.llm.complete(await ask(check, VOTES))
        assert len(reply.texts) == VOTES

    async def together(check: Check) -> None:
        asked = await ask(check, 1)
        await asyncio.gather(*(bench.llm.complete(asked) for _ in range(VOTES)))

    async def in_turn(check: Check) -> None:
        asked = await ask(check, 1)
        for _ in range(VOTES):
            await bench.llm.complete(asked)

    spent = await bench.alternate({"one": one, "together": together, "in turn": in_turn}, PAIRS // 3)
    names = {"one": "one request, n = 9", "together": "nine at once", "in turn": "nine in turn"}
    rows = [row(name, spent[way], spent["one"]) for way, name in names.items()]
    table(f"{VOTES} votes of {VOTE_TOKENS} tokens, {PAIRS // 3} rounds", COLUMNS, rows)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Bench]:
    """An engine with the probe, and the service's parts in this process."""
    sample = asked()
    texts = [
        f"{check.question} {passage.text}"
        for check in (next(sample) for _ in range(200))
        for passage in check.passages or ()
    ]
    for prompt in (Lines("basic").prompt, Json("basic").prompt, load_prompt("judge")):
        texts += [turn.content for turn in prompt.render(**dict.fromkeys(prompt.variables, "ferry"))] * 20
    model = models.make(folder / "model", "llama", shape=models.LARGE, texts=texts)
    named = model.tokenizer.convert_tokens_to_ids(models.NAMED)
    prompt = load_prompt("answer_text", method="basic")
    file = probes.make(folder / "probe.safetensors", model, prompt=prompt.id, slots=Slots(*named))
    # One thread, so that CPU seconds are work and not waiting for one another.
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with Engine(model.path, file.path, "--max-model-len", "4096") as engine:
        settings = Settings(
            data_dir=folder / "data", llm_url=f"{engine.url}/v1", probe=file.path, llm_deadline_ms=60_000
        )
        services = Services(settings)
        llms = services.llms
        assert llms is not None
        async with services.running():
            await services.knowledge.ready(60)
            await llms.answerer.find_out(file)
            bench = Bench(engine, file, services, llms, asked())
            turns = await bench.turns(prompt, next(bench.checks))
            reply = await llms.answerer.complete(Ask(turns, 1))
            console.print(f"A prompt has {reply.usage.prompt if reply.usage else 0} tokens.")
            yield bench


async def measure(folder: Path) -> None:
    """Everything, in turn."""
    (folder / "service").mkdir()
    async with running(folder) as bench:
        await reused(bench)
        await answers(bench)
        for shape in (Lines("basic"), Json("basic")):
            await ways(bench, shape)
        await votes(bench)
        await checks(bench, folder / "service")


def main() -> None:
    """Runs it in a scratch folder."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
