"""`scopegate probe`: train a probe, evaluate one, or say what its file holds."""

# What is heavy to import is imported where it is used, so that --help is quick and inspect needs no torch.
from __future__ import annotations

import asyncio
import json as json_module
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scopegate.probe_file import Position, ProbeFile

if TYPE_CHECKING:
    from scopegate.gate.retrieval import Retriever
    from scopegate.training.features import Features
    from scopegate.training.probes import Scored
    from scopegate.training.vectors import VectorCache

app = typer.Typer(name="probe", help="Train, evaluate and inspect probes.", no_args_is_help=True)

CACHE = Path.home() / ".cache" / "scopegate" / "features.db"


class Dtype(StrEnum):
    """The numbers that a model computes in."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


Data = Annotated[
    list[Path], typer.Argument(help="Rows of question, passage, answerable and, if known, doc: .jsonl or .jsonl.gz.")
]
ProbePath = Annotated[Path, typer.Argument(help="A probe's .safetensors file.", metavar="PROBE")]
Model = Annotated[
    str | None,
    typer.Option(help="The LLM whose hidden states it reads, by name or folder; without it, sentence embeddings."),
]
Server = Annotated[
    str | None,
    typer.Option(
        help="URL of a vLLM that serves the LLM with --runner pooling --convert embed; without it, torch does."
    ),
]
Revision = Annotated[str | None, typer.Option(help="Of the LLM, where it comes from a hub.")]
Precision = Annotated[Dtype | None, typer.Option(help="[default: bfloat16 on a GPU, float32 on a CPU]")]
Cache = Annotated[Path, typer.Option(help="Where features are kept between runs.", show_default=False)]
Limit = Annotated[int | None, typer.Option(min=1, help="About how many rows of a file to take, whole passages.")]


@app.command()
def train(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The probe's .safetensors file.")],
    name: Annotated[str | None, typer.Option(help="Tells it from other probes. [default: the file's]")] = None,
    note: Annotated[str, typer.Option(help="What the data are, with licences; for the probe's description.")] = "",
    report: Annotated[Path | None, typer.Option(help="Folder for figures. [default: beside the file]")] = None,
    model: Model = None,
    server: Server = None,
    revision: Revision = None,
    dtype: Precision = None,
    position: Annotated[Position, typer.Option(help="The token that is read.")] = Position.LAST_PROMPT_TOKEN,
    prompt: Annotated[str, typer.Option(help="Of those in prompts/, one that takes question and passages.")] = (
        "answerable"
    ),
    depth: Annotated[int, typer.Option(min=1, max=64, help="Sentences of evidence that an embedding stands for.")] = 8,
    wrongly_answered: Annotated[
        float, typer.Option(min=0, max=1, help="Share of unanswerable questions that the threshold lets through.")
    ] = 0.2,
    hidden: Annotated[int, typer.Option(min=1, help="Units of the first layer.")] = 256,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="After the first layer.")] = 0.1,
    learning_rate: Annotated[float, typer.Option(min=1e-9, help="Adam's.")] = 1e-4,
    epochs: Annotated[int, typer.Option(min=1, help="The best on validation is kept.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions a step.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the split, the weights and the order.")] = 0,
    limit: Limit = None,
    cache: Cache = CACHE,
) -> None:
    """Train a probe on labelled questions; write its file and a report."""

    async def work() -> None:
        from scopegate.training import probes
        from scopegate.training.examples import read, split
        from scopegate.training.network import Recipe
        from scopegate.training.report import write_report

        if output.suffix != ".safetensors":
            raise ValueError(f"{output} must end in .safetensors")
        if model is None and (server or revision or dtype):
            raise ValueError("--server, --revision and --dtype are for an LLM's hidden states: they need --model")
        parts = split(read(data, limit), seed)
        llm = None if model is None else _Llm(model, server, revision, dtype, position, prompt)
        async with _source(llm, depth, cache) as (retriever, features):
            trained = await probes.train(
                parts,
                retriever,
                features,
                Recipe(hidden, dropout, learning_rate, epochs, batch_size, seed),
                path=output,
                name=name or output.stem,
                data=note or f"{', '.join(path.name for path in data)}: {len(parts.train)} questions",
                wrongly_answered=wrongly_answered,
            )
        folder = report or output.with_name(f"{output.stem}-report")
        write_report(folder, trained.file.description.name, trained.parts)
        print(f"{output}: epoch {trained.epoch} of {epochs}; its report is in {folder}")
        _table(trained.file, trained.parts)

    _run(work)


@app.command()
def evaluate(
    probe: ProbePath,
    data: Data,
    model: Annotated[str | None, typer.Option(help="The LLM, where it is not found by the name in the file.")] = None,
    server: Server = None,
    dtype: Precision = None,
    limit: Limit = None,
    cache: Cache = CACHE,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how well a probe judges labelled questions, a row for each file."""

    async def work() -> None:
        from scopegate.training import probes
        from scopegate.training.examples import read

        file = ProbeFile.read(probe)
        sets = {path.name.partition(".")[0]: read([path], limit) for path in data}
        async with _source(_llm_of(file, model, server, dtype), file.description.depth, cache) as (retriever, features):
            scored = {
                name: await probes.evaluate(file, examples, retriever, features) for name, examples in sets.items()
            }
        if json:
            print(json_module.dumps({name: asdict(each.metrics) for name, each in scored.items()}, indent=2))
        else:
            _table(file, scored)

    _run(work)


@app.command()
def inspect(probe: ProbePath, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what a probe's file says: what it reads, where it fits, how good it was."""

    async def work() -> None:
        file = ProbeFile.read(probe)
        said = {"file": probe.name, "fingerprint": file.fingerprint, **asdict(file.description)}
        if json:
            print(json_module.dumps(said, indent=2))
            return
        for field, value in said.items():
            if value not in (None, "", {}):
                print(f"{field:14} {json_module.dumps(value) if isinstance(value, dict | tuple) else value}")

    _run(work)


@dataclass(frozen=True, slots=True)
class _Llm:
    """Whose hidden states are read, where, and how. server: None for transformers in this process."""

    model: str
    server: str | None
    revision: str | None
    dtype: Dtype | None
    position: Position
    prompt: str


def _llm_of(file: ProbeFile, model: str | None, server: str | None, dtype: Dtype | None) -> _Llm | None:
    """That of a probe, None for one of sentence pairs. model: where the LLM is, if not where it was in training."""
    said = file.description
    if said.position is None:
        return None
    revision = said.revision if model is None else None
    return _Llm(model or said.model, server, revision, dtype, said.position, said.prompt.rpartition("@")[0])


@asynccontextmanager
async def _source(llm: _Llm | None, depth: int, cache: Path) -> AsyncIterator[tuple[Retriever, Features]]:
    """Evidence as the service finds it, and features of it: of sentence embeddings where there is no LLM."""
    from scopegate.gate.retrieval import Retriever
    from scopegate.inference.embedder import Embedder
    from scopegate.inference.encoder import load_encoder
    from scopegate.settings import Settings, models_dir
    from scopegate.training.features import SentencePairs
    from scopegate.training.vectors import CachedEncoder, VectorCache

    settings = Settings(embed_queue=sys.maxsize, max_sentences=sys.maxsize)
    vectors = VectorCache(cache)
    embedder = Embedder(CachedEncoder(load_encoder(settings.embedder, models_dir()), vectors), settings)
    try:
        features = SentencePairs(embedder, depth) if llm is None else _hidden_states(llm, vectors)
        yield Retriever(embedder, settings), features
    finally:
        await embedder.stop()
        vectors.close()


def _hidden_states(llm: _Llm, vectors: VectorCache) -> Features:
    from scopegate.prompts import prompt_at
    from scopegate.training.backbone import Backbone
    from scopegate.training.hidden_states import HiddenStates

    prompt = prompt_at(llm.prompt)
    if prompt.variables != {"question", "passages"}:
        raise ValueError(f"the prompt {prompt.id} takes more than question and passages")
    backbone = Backbone(llm.model, llm.position, llm.revision)
    if llm.server is not None:
        from scopegate.training.pooling import PoolingReader

        return HiddenStates(backbone, prompt, PoolingReader(llm.server), vectors)
    import torch

    from scopegate.training.local import LocalReader

    dtype = None if llm.dtype is None else getattr(torch, llm.dtype)
    return HiddenStates(backbone, prompt, LocalReader(backbone, dtype), vectors)


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs it; what goes wrong is told in one sentence."""
    from scopegate.domain import ScopegateError

    try:
        asyncio.run(work())
    except ImportError as error:
        _fail(f"{error.name} is missing: pip install 'scopegate[train]'")
    except (ScopegateError, ValueError) as error:
        _fail(str(error))


def _fail(sentence: str) -> None:
    print(f"scopegate: {sentence}", file=sys.stderr)
    raise typer.Exit(1)


def _table(file: ProbeFile, sets: Mapping[str, Scored]) -> None:
    from rich.console import Console
    from rich.table import Table

    threshold = file.description.threshold
    shown = Table(title=f"{file.description.name}, passed at {threshold:.3f} or above", title_justify="left")
    for index, column in enumerate(
        ("set", "n", "accuracy", "F1", "AUROC", "ECE", "answerable refused", "wrongly answered")
    ):
        shown.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for name, scored in sets.items():
        found = scored.metrics
        numbers = (found.accuracy, found.f1, found.auroc, found.ece, found.answerable_refused, found.wrongly_answered)
        shown.add_row(name, str(found.questions), *("" if number is None else f"{number:.3f}" for number in numbers))
    Console().print(shown)
