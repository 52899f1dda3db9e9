"""`scopegate evaluate` and `scopegate calibrate`: tables on the terminal, and JSON, PNG and SVG in a folder.

They run what the jobs of the same name run, in this process.
"""

# What is heavy to import is imported where it is used, so that --help is quick.
from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from scopegate.domain import Invalid, JobKind

if TYPE_CHECKING:
    from scopegate.jobs.work import Done, Item
    from scopegate.services import Services

app = typer.Typer(
    name="evaluate",
    help="Measure detection, responses, retrieval, answers and labels: tables, JSON, figures.",
    no_args_is_help=True,
)

_AT_ONCE = 4
_WIDEST = 10_000
_NO_PROMISE = 3
_ROWS = "rows.jsonl"
_READY_S = 60
_LLM_S = 30


class Method(StrEnum):
    """The ways of asking for a response."""

    BASIC = "basic"
    TWO_SHOT = "two_shot"
    REASONING = "reasoning"


class Judge(StrEnum):
    """Who detects: votes of the LLM, or the gates."""

    LLM = "llm"
    GATES = "gates"


class Part(StrEnum):
    """What can be left out of answering."""

    HARD = "hard"
    PROBE = "probe"
    SOFT = "soft"
    STEP_BY_STEP = "step_by_step"


Data = Annotated[Path, typer.Argument(help="Rows: .jsonl, .json or .csv, .gz or not.", metavar="DATA")]
Documents = Annotated[
    Path | None, typer.Option(help="Rows of id, text, title and topic, where DATA names documents by document_id.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for summary.json, rows.jsonl and figures.")]
LlmUrl = Annotated[str | None, typer.Option(help="The LLM that answers. [env: SCOPEGATE_LLM_URL]")]
LlmModel = Annotated[str | None, typer.Option(help="Its model. [env: SCOPEGATE_LLM_MODEL]")]
JudgeUrl = Annotated[str | None, typer.Option(help="The LLM that judges. [default: the one that answers]")]
JudgeModel = Annotated[str | None, typer.Option(help="Its model.")]
Votes = Annotated[int, typer.Option(min=1, max=99, help="Of which a majority counts.")]
Seed = Annotated[int, typer.Option(help="Of all random choices.")]
DataDir = Annotated[Path | None, typer.Option(help="Where knowledge is kept. [env: SCOPEGATE_DATA_DIR]")]
DatabaseUrl = Annotated[str | None, typer.Option(help="SQL database instead. [env: SCOPEGATE_DATABASE_URL]")]


@app.command()
def detection(
    data: Data,
    documents: Documents = None,
    by: Annotated[list[Judge] | None, typer.Option(help="Who detects; may be repeated. [default: all]")] = None,
    votes: Votes = 3,
    seed: Seed = 0,
    llm_url: LlmUrl = None,
    llm_model: LlmModel = None,
    judge_url: JudgeUrl = None,
    judge_model: JudgeModel = None,
    output: Output = None,
) -> None:
    """Tell out-of-scope questions from others (ELOQ, figure 2). Rows: question, document, in_scope, topic."""
    options = {"votes": votes, "seed": seed, **({"by": [str(each) for each in by]} if by else {})}
    _evaluate("detection", data, documents, options, output, _llms(llm_url, llm_model, judge_url, judge_model))


@app.command()
def response(
    data: Data,
    documents: Documents = None,
    method: Annotated[
        list[Method] | None, typer.Option(help="How it is asked; may be repeated. [default: all]")
    ] = None,
    votes: Votes = 9,
    examples: Annotated[bool, typer.Option(help="Whether the judge's prompt has examples.")] = True,
    seed: Seed = 0,
    llm_url: LlmUrl = None,
    llm_model: LlmModel = None,
    judge_url: JudgeUrl = None,
    judge_model: JudgeModel = None,
    output: Output = None,
) -> None:
    """Say how often an LLM defuses out-of-scope questions (ELOQ, table 5).

    Rows as for detection. With a response in them, that is judged; with a label defused too, the judge is measured
    against it (table 7).
    """
    methods = [str(each) for each in method or Method]
    options = {"methods": methods, "votes": votes, "examples": "given" if examples else "none", "seed": seed}
    _evaluate("response", data, documents, options, output, _llms(llm_url, llm_model, judge_url, judge_model))


@app.command()
def retrieval(
    data: Data,
    documents: Documents = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            help="bm25, embedder, sentences, or local:NAME for a sentence-transformers model; may be repeated. "
            "[default: the first three]"
        ),
    ] = None,
    in_scope: Annotated[bool, typer.Option(help="Whether questions in scope count too.")] = False,
    output: Output = None,
) -> None:
    """Say how near questions lie to their documents: recall and MRR (ELOQ, table 6). Rows as for detection.

    The corpus is all documents, those of --documents too.
    """
    from scopegate.evaluation.retrieval import RETRIEVERS

    options: dict[str, Any] = {"retrievers": list(retriever or RETRIEVERS), "in_scope": in_scope}
    _evaluate("retrieval", data, documents, options, output, {}, corpus=True)


@app.command("multiple-choice")
def multiple_choice(
    data: Data,
    several: Annotated[bool, typer.Option("--several", help="Several are right: TruthfulQA's MC2.")] = False,
    gold: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="Know this share of the right answers, and nothing else; may be repeated."),
    ] = None,
    scope: Annotated[str, typer.Option(help="Without --gold: the body of knowledge that is asked.")] = "default",
    without: Annotated[list[Part] | None, typer.Option(help="What is left out; may be repeated.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, help="The hard gate's threshold.")] = None,
    nearest: Annotated[
        bool,
        typer.Option("--nearest", help="Choose the candidate closest to the evidence, also where there is an LLM."),
    ] = False,
    seed: Seed = 0,
    llm_url: LlmUrl = None,
    llm_model: LlmModel = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    output: Output = None,
) -> None:
    """Answer questions with choices, or refuse them (Learn to Refuse, tables 1 to 4).

    DATA: TruthfulQA's CSV, CommonsenseQA's or MedQA's JSON lines, or rows of question, candidates and right.
    """
    options: dict[str, Any] = {"several": several, "without": [str(each) for each in without or ()], "seed": seed}
    options |= {"alpha": alpha} if alpha is not None else {}
    options |= {"llm": False} if nearest else {}
    options |= {"gold_shares": list(gold)} if gold else {"scope": scope}
    changed = _llms(llm_url, llm_model, None, None)
    if gold:
        _evaluate("multiple_choice", data, None, options, output, changed)
    else:
        changed |= {"data_dir": data_dir, "database_url": database_url}
        _evaluate("multiple_choice", data, None, options, output, changed, scope=scope)


@app.command()
def sheets(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the sheets.")],
    documents: Documents = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Questions to label. [default: after Cochran]")] = None,
    margin: Annotated[float, typer.Option(min=0.001, max=0.5, help="Of error, for the sample's size.")] = 0.05,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="For the sample's size.")] = 0.95,
    groups: Annotated[int, typer.Option(min=1, help="Into which the sample is divided.")] = 3,
    seed: Seed = 0,
) -> None:
    """Draw questions to be labelled by people, and write a CSV for each: two to a group. Rows as for detection."""

    async def work() -> None:
        from scopegate.evaluation.agreement import sample_size, write_sheets

        rows = [each.model_dump() for each in _asked(data, documents)]
        size = sample or sample_size(len(rows), margin, confidence)
        written = write_sheets(rows, output, sample=size, groups=groups, annotators=2, seed=seed)
        print(f"{size} of {len(rows)} questions in {len(written)} sheets; fill in yes or no")
        for path in written:
            print(path)

    _run(work)


@app.command()
def agreement(
    filled: Annotated[list[Path], typer.Argument(help="The sheets, filled in; those of a group begin alike.")],
    data: Annotated[Path, typer.Option(help="The rows the sheets were made of: their labels are the generated ones.")],
    truth: Annotated[Path | None, typer.Option(help="A sheet of what was settled on.")] = None,
    output: Output = None,
) -> None:
    """Say how far people agree with each other and with what was generated (ELOQ, table 3 and figure 1)."""

    def spec() -> dict[str, Any]:
        from scopegate.evaluation.agreement import TRUTH, generated, read_sheet
        from scopegate.evaluation.datasets import read_rows

        labels = [row for path in filled for row in read_sheet(path)]
        if truth is not None:
            labels += [{**row, "annotator": TRUTH} for row in read_sheet(truth)]
        return {"task": "agreement", "dataset": labels + generated(read_rows(data)), "options": {}}

    _measure(spec, output, {})


def calibrate(
    data: Annotated[
        Path, typer.Argument(help="Rows: question, answerable, and, if known, passages (or passage) and group.")
    ],
    scope: Annotated[str, typer.Option(help="Whose policy is calibrated, and whose knowledge is asked.")] = "default",
    max_wrong: Annotated[float, typer.Option(help="The most unanswerable questions to let through, a share.")] = 0.05,
    delta: Annotated[float, typer.Option(help="How likely the promise may be wrong.")] = 0.1,
    largest_group: Annotated[
        int | None,
        typer.Option(min=1, help="Unanswerable questions to come that depend on each other. [default: as here]"),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Make it the scope's policy.")] = False,
    seed: Seed = 0,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    output: Output = None,
) -> None:
    """Find alpha and the probe's threshold from labelled questions, with a guarantee on what is let through.

    Exit code 3: nothing can be promised, and so --apply has applied nothing.
    """

    async def work() -> None:
        from scopegate.evaluation.datasets import read_rows

        if not (0 < max_wrong < 1 and 0 < delta < 1):
            _fail("--max-wrong and --delta lie between 0 and 1")
        questions = [_labelled(row, number) for number, row in enumerate(read_rows(data), 1)]
        spec = {
            "scope": scope,
            "questions": questions,
            "max_wrong": max_wrong,
            "delta": delta,
            "largest_group": largest_group,
            "apply": apply,
            "seed": seed,
        }

        async def asked(services: Services) -> dict[str, Any]:
            return await _done(services, JobKind.CALIBRATE, spec, output)

        changed = {"data_dir": data_dir, "database_url": database_url}
        summary = await _with_services(asked, changed, scope)
        _show(summary, output)
        if summary["guarantee"] is None:
            print(f"No promise: {summary['why_not']}.")
            if apply:
                print(f"Nothing is applied: the policy of scope {scope!r} is what it was.")
                raise typer.Exit(_NO_PROMISE)
            return
        print(summary["guarantee"]["statement"])
        print(summary["guarantee"]["assumes"])
        if apply:
            print(f"It is the policy of scope {scope!r} now.")

    _run(work)


def _labelled(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A row as the API takes it; its passages may also be texts, or one text."""
    from scopegate.api.evaluation_schemas import CalibrationQuestion
    from scopegate.evaluation.datasets import valid

    group, passages = row.get("group"), row.get("passages")
    if passages is None and row.get("passage") is not None:
        passages = [row["passage"]]
    if isinstance(passages, list):
        passages = [{"text": each} if isinstance(each, str) else each for each in passages]
    given = {
        "question": row.get("question"),
        "answerable": row.get("answerable", row.get("in_scope")),
        "passages": passages,
        "group": None if group is None else str(group),
    }
    return valid(CalibrationQuestion, given, number).model_dump(mode="json")


def _llms(llm_url: str | None, llm_model: str | None, judge_url: str | None, judge_model: str | None) -> dict[str, Any]:
    return {"llm_url": llm_url, "llm_model": llm_model, "llm_judge_url": judge_url, "llm_judge_model": judge_model}


def _asked(data: Path, documents: Path | None) -> list[Any]:
    from scopegate.evaluation import datasets

    known = [] if documents is None else datasets.documents(datasets.read_rows(documents))
    rows = datasets.read_rows(data)
    try:
        return datasets.asked(rows, known)
    except Invalid as error:
        if documents is None and any("document_id" in row or "doc" in row for row in rows):
            raise Invalid(f"{error}; rows that name documents by document_id need --documents FILE") from None
        raise


def _evaluate(
    task: str,
    data: Path,
    documents: Path | None,
    options: Mapping[str, Any],
    output: Path | None,
    changed: Mapping[str, Any],
    *,
    scope: str | None = None,
    corpus: bool = False,
) -> None:
    def spec() -> dict[str, Any]:
        from scopegate.evaluation.datasets import read_rows

        choices = task == "multiple_choice"
        rows = read_rows(data) if choices else [each.model_dump() for each in _asked(data, documents)]
        further = {"documents": read_rows(documents)} if corpus and documents is not None else {}
        return {"task": task, "dataset": rows, "options": {**options, **further}}

    _measure(spec, output, changed, scope)


def _measure(
    made: Callable[[], dict[str, Any]], output: Path | None, changed: Mapping[str, Any], scope: str | None = None
) -> None:
    """Does what the spec says, which is made first, shows what came of it, and writes it."""

    async def work() -> None:
        spec = made()

        async def evaluated(services: Services) -> dict[str, Any]:
            return await _done(services, JobKind.EVALUATE, spec, output)

        summary = await _with_services(evaluated, changed, scope)
        _show(summary, output)
        if summary.get("failed_items"):
            raise typer.Exit(1)

    _run(work)


async def _with_services(
    work: Callable[[Services], Awaitable[dict[str, Any]]], changed: Mapping[str, Any], scope: str | None
) -> dict[str, Any]:
    """What work makes of the service's parts: on its knowledge where a scope is named, else on none."""
    from pydantic import ValidationError

    from scopegate import logs
    from scopegate.services import Services
    from scopegate.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        given = {name: value for name, value in changed.items() if value is not None}
        if scope is None:
            given |= {"data_dir": Path(folder), "database_url": None}
        try:
            settings = Settings(**given)
        except ValidationError as error:
            _fail("; ".join(f"setting {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()))
        if scope is not None and settings.database_url is None and not settings.database_file.is_file():
            _fail(f"there is no knowledge in {settings.data_dir}; --data-dir or SCOPEGATE_DATA_DIR says where it is")
        logs.configure(settings.model_copy(update={"log_level": "warning"}))
        services = Services(settings)
        async with services.running([scope or "default"]):
            await services.knowledge.ready(_READY_S)
            return await work(services)


async def _done(services: Services, kind: JobKind, spec: Mapping[str, Any], output: Path | None) -> dict[str, Any]:
    """Does the work here, a few items at a time; its summary.

    Items that fail are counted and passed over, and an LLM that stays away ends it: the summary is of the others.
    Raises what the first of them raised where all fail.
    """
    from rich.console import Console
    from rich.progress import Progress

    from scopegate.api.replies import dump
    from scopegate.domain import ScopegateError
    from scopegate.llm.asker import side_by_side
    from scopegate.llm.asks import LlmAway, LlmFailed

    work = services.works[kind]
    items = await work.items(spec)
    await _llm_found(services, spec)
    room = asyncio.Semaphore(_AT_ONCE)
    failures: list[Exception] = []
    silent = not sys.stderr.isatty()
    with _rows(output) as file, Progress(console=Console(stderr=True), transient=True, disable=silent) as bars:
        bar = bars.add_task("starting", total=len(items))

        async def one(item: Item) -> Done | None:
            async with room:
                if any(isinstance(failure, LlmAway) for failure in failures):
                    return None
                try:
                    done = await work.do(spec, item, lambda stage: bars.update(bar, description=stage))
                except (ScopegateError, LlmFailed) as error:
                    failures.append(error)
                    return None
                file.write(b"".join(dump(row) + b"\n" for row in done.rows))
                file.flush()
                bars.advance(bar)
                return done

        done = [each for each in await side_by_side([one(item) for item in items]) if each is not None]
    if failures and not done:
        raise failures[0]
    if output is not None:  # in their order, now that all are there
        rows = b"".join(dump(row) + b"\n" for each in done for row in each.rows)
        (output / _ROWS).write_bytes(rows)
    summary = dict(await work.finish(spec, done))
    if failures:
        summary["failed_items"] = len(items) - len(done)
        left = f"{len(items) - len(done)} of {len(items)} items failed, and what follows is of the others"
        print(f"scopegate: {left}; the first: {failures[0]}", file=sys.stderr)
    return summary


async def _llm_found(services: Services, spec: Mapping[str, Any]) -> None:
    """Waits for the LLM, where one is set and this may ask it."""
    if services.llms is None or spec.get("task") in {"retrieval", "agreement"}:
        return
    await services.llms.found(_LLM_S)
    # Calibration asks no LLM, unless its hidden states are the probe's.
    if "task" in spec and (missing := services.llms.not_ready()):
        _fail(f"{'; '.join(missing)}: look at --llm-url, --judge-url, SCOPEGATE_LLM_URL and the model's name")


def _rows(output: Path | None) -> AbstractContextManager[IO[bytes]]:
    """Where rows go as they come; made first, so that no work is done that could not be kept."""
    if output is None:
        return nullcontext(BytesIO())
    output.mkdir(parents=True, exist_ok=True)
    return (output / _ROWS).open("wb")


def _show(summary: Mapping[str, Any], output: Path | None) -> None:
    from rich.console import Console

    from scopegate.api.replies import dump
    from scopegate.evaluation.tables import tables

    # As wide as they are: what is cut off to fit into a terminal cannot be read anywhere.
    console = Console(width=_WIDEST)
    for title, table in tables(summary):
        print(title)
        console.print(table)
    if output is not None:
        (output / "summary.json").write_bytes(dump(summary) + b"\n")
        from scopegate.evaluation.plots import draw

        figures: Sequence[str] = [f"{path.stem} (.png, .svg)" for path in draw(summary, output)]
        print(f"{output}: {', '.join(['summary.json', _ROWS, *figures])}")


def _run(work: Callable[[], Any]) -> None:
    """Runs it; what goes wrong is told in one sentence."""
    from scopegate.domain import ScopegateError
    from scopegate.llm.asks import LlmFailed

    try:
        asyncio.run(work())
    except ImportError as error:
        _fail(f"{error.name} is missing: pip install 'scopegate[evaluate]'")
    except (ScopegateError, LlmFailed) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(sentence: str) -> NoReturn:
    print(f"scopegate: {sentence}", file=sys.stderr)
    raise typer.Exit(1)
