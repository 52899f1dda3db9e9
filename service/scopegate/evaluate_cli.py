"""`scopegate evaluate` and `scopegate calibrate`: tables on the terminal, and JSON, PNG and SVG in a folder.

They run what the jobs of the same name run, in this process.
"""

# What is heavy to import is imported where it is used, so that --help is quick.
from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from scopegate.domain import Invalid, JobKind

if TYPE_CHECKING:
    from scopegate.jobs.work import Work
    from scopegate.services import Services

app = typer.Typer(
    name="evaluate",
    help="Measure detection, responses, retrieval, answers and labels: tables, JSON, figures.",
    no_args_is_help=True,
)

_AT_ONCE = 4
_WIDEST = 10_000
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

    def rows() -> list[dict[str, Any]]:
        from scopegate.evaluation.agreement import TRUTH, generated, read_sheet
        from scopegate.evaluation.datasets import read_rows

        labels = [row for path in filled for row in read_sheet(path)]
        if truth is not None:
            labels += [{**row, "annotator": TRUTH} for row in read_sheet(truth)]
        return labels + generated(read_rows(data))

    _evaluate_rows("agreement", rows, {}, output, {})


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
    """Find alpha and the probe's threshold from labelled questions, with a guarantee on what is let through."""

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
            return await _done(services.works[JobKind.CALIBRATE], spec, output)

        changed = {"data_dir": data_dir, "database_url": database_url}
        summary = await _with_services(asked, changed, scope)
        _show(summary, output)
        if summary["guarantee"] is None:
            print(f"No promise: {summary['why_not']}.")
            return
        print(summary["guarantee"]["statement"])
        print(summary["guarantee"]["assumes"])
        if apply:
            print(f"It is the policy of scope {scope!r} now.")

    _run(work)


def _labelled(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    question, answerable = row.get("question"), row.get("answerable", row.get("in_scope"))
    if not isinstance(question, str) or not question.strip() or not isinstance(answerable, bool):
        _fail(f"row {number}: it needs a question, and answerable as true or false")
    passages = row.get("passages") or ([row["passage"]] if row.get("passage") else None)
    return {"question": question, "answerable": answerable, "passages": passages, "group": row.get("group")}


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
    def rows() -> list[dict[str, Any]]:
        from scopegate.evaluation.datasets import read_rows

        if task == "multiple_choice":
            return read_rows(data)
        return [each.model_dump() for each in _asked(data, documents)]

    def further() -> dict[str, Any]:
        from scopegate.evaluation.datasets import read_rows

        return {**options, "documents": read_rows(documents)} if corpus and documents is not None else dict(options)

    _evaluate_rows(task, rows, further, output, changed, scope)


def _evaluate_rows(
    task: str,
    rows: Callable[[], list[dict[str, Any]]],
    options: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    output: Path | None,
    changed: Mapping[str, Any],
    scope: str | None = None,
) -> None:
    async def work() -> None:
        spec = {"task": task, "dataset": rows(), "options": options() if callable(options) else options}

        async def evaluated(services: Services) -> dict[str, Any]:
            return await _done(services.works[JobKind.EVALUATE], spec, output)

        _show(await _with_services(evaluated, changed, scope), output)

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
            if services.llms is not None:
                await services.llms.found(_LLM_S)
            return await work(services)


async def _done(work: Work, spec: Mapping[str, Any], output: Path | None) -> dict[str, Any]:
    """Does the work here, a few items at a time; its summary. A failure ends it."""
    from rich.console import Console
    from rich.progress import Progress

    items = await work.items(spec)
    room = asyncio.Semaphore(_AT_ONCE)
    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("starting", total=len(items))

        async def one(item: Any) -> Any:
            async with room:
                done = await work.do(spec, item, lambda stage: bars.update(bar, description=stage))
                bars.advance(bar)
                return done

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in items]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
    done = [task.result() for task in tasks]
    if output is not None:
        from scopegate.api.replies import dump

        output.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
        rows = b"".join(dump(row) + b"\n" for each in done for row in each.rows)
        (output / "rows.jsonl").write_bytes(rows)
    return dict(await work.finish(spec, done))


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
        print(f"{output}: {', '.join(['summary.json', 'rows.jsonl', *figures])}")


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
