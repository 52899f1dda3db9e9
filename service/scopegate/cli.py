"""The service from a shell: serve it, or work on its data directory directly, beside a running service or not.

Exit codes: 0 answerable, or done; 2 a refusal; 1 an error, in one sentence on stderr.
"""

# What is heavy to import is imported where it is used, so that --help is quick.
from __future__ import annotations

import asyncio
import hashlib
import math
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NoReturn, TypeVar

import typer

from scopegate.evaluate_cli import app as evaluate_app
from scopegate.evaluate_cli import calibrate
from scopegate.probe_cli import app as probe_app

if TYPE_CHECKING:
    from scopegate.api.schemas import GenerateRequest, SourceDocument
    from scopegate.domain import Added, Answer, Check, Evidence, Job, JobKind, NewFact, Verdict
    from scopegate.generation.data_set import DataSet
    from scopegate.services import Services
    from scopegate.settings import Settings

Judged = TypeVar("Judged", "Verdict", "Answer")

REFUSED = 2

# Facts a transaction: few enough for progress to move, many enough for the disk.
_CALL = 1000
_LOADING_S = 60
_LLM_S = 10

# What a job says of itself, beside the data set that it has made.
_JOB = "job.json"
_MOST_TOLD = 20

app = typer.Typer(
    name="scopegate",
    help="Decides, before an LLM answers, whether a question can be answered from the knowledge at hand.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(probe_app)
app.add_typer(evaluate_app)
app.command()(calibrate)

DataDir = Annotated[
    Path | None, typer.Option(help="Where knowledge is kept. [env: SCOPEGATE_DATA_DIR] [default: data]")
]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="SQL database instead of one in the data directory. [env: SCOPEGATE_DATABASE_URL]")
]
LlmUrl = Annotated[str | None, typer.Option(help="An OpenAI-compatible server, as http://host:8000/v1.")]
LlmModel = Annotated[str | None, typer.Option(help="Its model. [default: the first that it lists]")]
InScope = Annotated[str, typer.Option("--scope", help="The body of knowledge.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what the HTTP API would answer.")]
Alpha = Annotated[float | None, typer.Option(help="The hard gate's threshold for this question.")]
K = Annotated[int | None, typer.Option("--k", help="How many facts are evidence for this question.")]


class _RefusedError(Exception):
    """The question may not be answered; what there is to say was said."""


def main() -> None:
    """The console script. A wrong command line is an error like others, 1, since 2 is a refusal."""
    try:
        app()
    except _RefusedError:
        sys.exit(REFUSED)
    except SystemExit as end:
        sys.exit(1 if end.code == REFUSED else end.code)


def _version(asked: bool) -> None:
    if asked:
        from scopegate import __version__

        print(f"scopegate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any free one. [default: 8080]")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    llm_url: LlmUrl = None,
    llm_model: LlmModel = None,
) -> None:
    """Run the HTTP service until it is told to stop; it finishes what is in flight."""
    with _errors():
        import structlog
        import uvicorn

        from scopegate import logs
        from scopegate.app import create_app
        from scopegate.server import Server

        settings = _settings(
            host=host,
            port=port,
            data_dir=data_dir,
            database_url=database_url,
            llm_url=llm_url,
            llm_model=llm_model,
        )
        logs.configure(settings)
        _writable(settings.data_dir)
        listener = _listen(settings.host, settings.port)
        service = create_app(settings)
        config = uvicorn.Config(
            service,
            lifespan="on",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(settings.shutdown_s),
        )
        host, port = listener.getsockname()[:2]
        structlog.get_logger("scopegate").info("listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}")
        # uvicorn stops in order on a signal and then raises it again; having stopped in order, we end with 0.
        signal.signal(signal.SIGTERM, lambda *_: None)
        server = Server(config, service.state.parts.services.jobs)
        with suppress(KeyboardInterrupt):
            server.run([listener])
        if not server.started:
            raise typer.Exit(1)


@app.command()
def worker(
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    redis_url: Annotated[
        str | None, typer.Option(help="Where the service tells of jobs. [env: SCOPEGATE_REDIS_URL]")
    ] = None,
    items: Annotated[
        int | None, typer.Option(min=1, help="Items, as documents, in hand at once. [default: 16]")
    ] = None,
    llm_url: LlmUrl = None,
    llm_model: LlmModel = None,
) -> None:
    """Work on jobs, apart from the service that takes them, until told to stop; what is in hand is given back."""

    async def working(settings: Settings) -> None:
        import structlog

        from scopegate.services import Services

        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        services = Services(settings)
        async with services.running(), services.jobs.working():
            structlog.get_logger("scopegate").info("working", items=settings.job_items)
            await stop.wait()

    with _errors():
        from scopegate import logs

        settings = _settings(
            data_dir=data_dir,
            database_url=database_url,
            redis_url=redis_url,
            job_items=items,
            llm_url=llm_url,
            llm_model=llm_model,
        )
        if settings.job_items == 0:
            _fail("a worker has something in hand; --items or SCOPEGATE_JOB_ITEMS says how much")
        logs.configure(settings)
        _writable(settings.data_dir)
        asyncio.run(working(settings))


@app.command()
def generate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the data set.")],
    file: Annotated[Path | None, typer.Argument(help="Documents, a line of JSON each; - for stdin.")] = None,
    scope: Annotated[str | None, typer.Option(help="The documents of a scope instead of a file's.")] = None,
    facts_per_document: Annotated[int, typer.Option(help="Claims taken out of each document.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds of masking and recovering them.")] = 3,
    partitions: Annotated[int, typer.Option(help="Parts that are masked one after the other.")] = 3,
    in_scope_questions: Annotated[int, typer.Option(help="Questions that the document answers.")] = 5,
    votes: Annotated[int, typer.Option(help="Of the judge, on each question.")] = 3,
    seed: Annotated[int, typer.Option(help="Of all random choices.")] = 0,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    llm_url: LlmUrl = None,
    llm_model: LlmModel = None,
    json: AsJson = False,
) -> None:
    """Make questions of documents: some that they answer, some that only seem so. The same command again goes on."""

    async def work(services: Services) -> None:
        from scopegate.domain import JobKind, JobStatus
        from scopegate.generation.data_set import DataSet

        if services.llms is not None:
            await services.llms.found(_LLM_S)
        if missing := services.not_ready():
            _fail("; ".join(missing) + "; look at --llm-url, --llm-model and SCOPEGATE_LLM_API_KEY")
        if scope is not None:
            await services.knowledge.scope(scope)
        with _folder(output):
            await _holds_no_other(services, output, request.spec())
            job = await _same_job(services, JobKind.GENERATE, request.spec(), output)
            job = await _worked_on(services, job)
            data_set = await DataSet.of(services.jobs, job)
            if data_set.rows:
                await asyncio.to_thread(_write, output, data_set, job)
        _print_left_out(data_set, job)
        if json:
            _print_json(job)
        elif data_set.rows:
            documents = len({row["document_id"] for row in data_set.rows})
            print(f"{len(data_set.rows)} questions on {documents} documents are in {output}")
        if job.status is not JobStatus.SUCCEEDED:
            _fail(job.error or f"the job was cancelled; the same command goes on, and what it has made is in {output}")
        if not data_set.rows:
            _fail(f"no question came of {job.progress.done} documents")

    with _errors():
        request = _generation(
            file,
            scope,
            facts_per_document=facts_per_document,
            rounds=rounds,
            partitions=partitions,
            in_scope_questions=in_scope_questions,
            votes=votes,
            seed=seed,
        )
    _run(work, scope or "default", data_dir, database_url, makes=True, llm_url=llm_url, llm_model=llm_model)


@app.command()
def jobs(
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    json: AsJson = False,
) -> None:
    """List jobs, the latest first."""

    async def work(services: Services) -> None:
        page = await services.jobs.jobs(limit, None, None, None)
        if json:
            _print_json(page)
        else:
            _print_jobs(page.items)

    _run(work, "default", data_dir, database_url, makes=False)


@app.command()
def add(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Facts (.ndjson, .jsonl), documents to be split (.txt, .md), or - for facts on stdin."),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A fact, in a sentence; may be repeated.")] = None,
    source: Annotated[str | None, typer.Option(help="Where the facts given by --text come from.")] = None,
    scope: InScope = "default",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: AsJson = False,
) -> None:
    """Add knowledge to a scope, which is made where it is new. A file added again replaces what it gave."""

    async def work(services: Services) -> None:
        from scopegate.api.schemas import DocumentsRequest, FactsRequest

        if not files and not text:
            _fail("give FILES or --text")
        if text:
            given = _valid(FactsRequest, {"facts": [{"text": sentence, "source": source} for sentence in text]})
            _added(await services.knowledge.add(scope, [fact.to_domain() for fact in given.facts]), json)
        for path in files or ():
            if str(path) == "-" or path.suffix in {".ndjson", ".jsonl"}:
                await _add_lines(services, scope, path, json)
            elif path.suffix in {".txt", ".md"}:
                try:
                    text_of_file = path.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    _fail(f"{path} is not in UTF-8")
                document = {"id": _document_id(path), "source": str(path), "text": text_of_file}
                request = _valid(DocumentsRequest, {"documents": [document]})
                split = await services.knowledge.add_documents(scope, [each.to_domain() for each in request.documents])
                if json:
                    _print_json(split)
                else:
                    print(f"{path}: {split.sentences} sentences, {split.added} of them new, {split.removed} removed")
            else:
                _fail(f"{path}: what is added ends in .ndjson, .jsonl, .txt or .md")

    _run(work, scope, data_dir, database_url, makes=True)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="What export wrote; - for stdin.")],
    scope: InScope = "default",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: AsJson = False,
) -> None:
    """Take in facts that export wrote, with their ids, provenances and times."""

    async def work(services: Services) -> None:
        await _add_lines(services, scope, file, json)

    _run(work, scope, data_dir, database_url, makes=True)


@app.command()
def export(
    scope: InScope = "default",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of stdout.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write every fact of a scope with its provenances, a line of JSON each."""

    async def work(services: Services) -> None:
        from scopegate.api.replies import dump

        total = (await services.knowledge.scope(scope)).facts
        with output.open("wb") if output else _stdout() as file, _progress(f"export {scope}", total) as advance:
            async for fact in services.knowledge.export(scope):
                file.write(dump(fact) + b"\n")
                advance(1)

    _run(work, scope, data_dir, database_url, makes=False)


@app.command()
def check(
    question: Annotated[str, typer.Argument(help="What somebody asks.")],
    scope: InScope = "default",
    alpha: Alpha = None,
    k: K = None,
    explain: Annotated[bool, typer.Option("--explain", help="Run every gate, even after a refusal.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: AsJson = False,
) -> None:
    """Say whether a question may be answered from what a scope knows. Exit code 2: it may not."""

    async def work(services: Services) -> None:
        verdict = await services.gatekeeper.check(_question(question, scope, alpha, k, explain))
        _decided(verdict, _print_verdict, json)

    _run(work, scope, data_dir, database_url, makes=False, asks=True)


@app.command()
def answer(
    question: Annotated[str, typer.Argument(help="What somebody asks.")],
    scope: InScope = "default",
    alpha: Alpha = None,
    k: K = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: AsJson = False,
) -> None:
    """Answer a question from what a scope knows, with the evidence, or refuse. Exit code 2: refused."""

    async def work(services: Services) -> None:
        answered = await services.answerer.answer(_question(question, scope, alpha, k, False))
        _decided(answered, _print_answer, json)

    _run(work, scope, data_dir, database_url, makes=False, asks=True)


# Settings and errors


def _settings(**given: Any) -> Settings:
    from pydantic import ValidationError

    from scopegate.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        # The messages alone: what was set may be a secret.
        _fail("; ".join(f"setting {_way(detail['loc'])}: {detail['msg']}" for detail in error.errors()))


def _way(loc: Iterable[str | int]) -> str:
    return ".".join(str(step) for step in loc)


def _sentences(details: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(": ".join(filter(None, (_way(detail["loc"]), detail["msg"]))) for detail in details)


def _fail(sentence: str) -> NoReturn:
    print(f"scopegate: {sentence}", file=sys.stderr)
    raise typer.Exit(1)


@contextmanager
def _errors() -> Iterator[None]:
    """Tells what went wrong in one sentence."""
    from fastapi.exceptions import RequestValidationError

    from scopegate.domain import ScopegateError

    try:
        yield
    except RequestValidationError as error:
        _fail(_sentences(error.errors()))
    except ScopegateError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        _fail(f"the data directory {folder} cannot be written: {error.strerror}")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        _fail(f"cannot listen on {host} port {port}: {error.strerror}")


# Working on the data directory


def _run(
    work: Callable[[Services], Awaitable[None]],
    scope: str,
    data_dir: Path | None,
    database_url: str | None,
    *,
    makes: bool,
    asks: bool = False,
    **given: Any,
) -> None:
    """Runs work on the parts, once the scope is loaded.

    makes: also where there is no database yet. asks: once the LLM, where one is set, has answered. given: settings.
    """

    async def running(settings: Settings) -> None:
        from scopegate.services import Services

        services = Services(settings)
        async with services.running([scope]):
            await services.knowledge.ready(_LOADING_S)
            if asks and services.llms is not None:
                await services.llms.found(_LLM_S)
            await work(services)

    with _errors():
        from scopegate import logs
        from scopegate.api.schemas import ScopeName

        _valid(ScopeName, scope)
        settings = _settings(data_dir=data_dir, database_url=database_url, **given)
        if not makes and settings.database_url is None and not settings.database_file.is_file():
            _fail(f"there is no knowledge in {settings.data_dir}; --data-dir or SCOPEGATE_DATA_DIR says where it is")
        logs.configure(settings.model_copy(update={"log_level": "warning"}))
        asyncio.run(running(settings))


def _valid(kind: Any, value: Any) -> Any:
    """The value as that type, checked as HTTP checks it."""
    from fastapi.exceptions import RequestValidationError
    from pydantic import TypeAdapter, ValidationError

    from scopegate.api.problems import details

    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise RequestValidationError(details(error)) from None


def _question(question: str, scope: str, alpha: float | None, k: int | None, explain: bool) -> Check:
    from scopegate.api.schemas import CheckRequest

    policy = {name: value for name, value in (("alpha", alpha), ("k", k)) if value is not None}
    request: CheckRequest = _valid(
        CheckRequest, {"question": question, "scope": scope, "policy": policy, "explain": explain}
    )
    return request.to_domain()


def _document_id(path: Path) -> str:
    """The path, by which a file is known when it is added again; of a long one its end, told apart by its digest."""
    from scopegate.api.schemas import MAX_DOCUMENT_ID

    name = str(path)
    if len(name) <= MAX_DOCUMENT_ID:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
    return f"{digest}:{name[len(digest) + 1 - MAX_DOCUMENT_ID :]}"


async def _add_lines(services: Services, scope: str, path: Path, json: bool) -> None:
    """Adds the facts of an NDJSON file, some at a time; where a line is wrong, what came before it stays."""
    from scopegate.api.body import facts_of_lines

    size = 0 if str(path) == "-" else path.stat().st_size  # noqa: ASYNC240
    done = 0
    with _stdin() if str(path) == "-" else path.open("rb") as file, _progress(f"add {path}", size) as advance:
        while lines := list(islice(file, _CALL)):
            if not all(map(bytes.isspace, lines)):
                facts: list[NewFact] = facts_of_lines(lines, done + 1)
                _added(await services.knowledge.add(scope, facts), json)
            done += len(lines)
            advance(sum(map(len, lines)))


def _stdin() -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer)


def _stdout() -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdout.buffer)


# Jobs


def _generation(file: Path | None, scope: str | None, **options: int) -> GenerateRequest:
    """What generate is asked for. What is wrong is told by its line in the file, or by its option."""
    from fastapi.exceptions import RequestValidationError

    from scopegate.api.schemas import GenerateRequest

    if (file is None) == (scope is None):
        _fail("give exactly one of FILE and --scope")
    documents = None if file is None else _documents(file)
    try:
        request: GenerateRequest = _valid(GenerateRequest, {"documents": documents, "scope": scope} | options)
    except RequestValidationError as error:
        wrong = error.errors()[0]
        name = wrong["loc"][0]
        _fail(f"{file if name == 'documents' else '--' + name.replace('_', '-')}: {wrong['msg']}")
    return request


def _documents(path: Path) -> list[SourceDocument]:
    """The documents of a file, a line of JSON each."""
    import orjson
    from fastapi.exceptions import RequestValidationError

    from scopegate.api.schemas import SourceDocument

    found: list[SourceDocument] = []
    lines: dict[str, int] = {}
    with _stdin() if str(path) == "-" else path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.isspace():
                continue
            try:
                document: SourceDocument = _valid(SourceDocument, orjson.loads(text))
            except orjson.JSONDecodeError as error:
                _fail(f"{path}, line {number}: {error}")
            except RequestValidationError as error:
                _fail(f"{path}, line {number}: {_sentences(error.errors())}")
            found.append(document)
            id_ = document.id or f"d{len(found)}"
            if (first := lines.setdefault(id_, number)) != number:
                _fail(f"{path}, line {number}: the document on line {first} has the id {id_!r} already")
    if not found:
        _fail(f"{path} has no documents, a line of JSON each")
    return found


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Makes the folder; it goes again where nothing was put into it."""
    made = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if made:
            with suppress(OSError):
                path.rmdir()


async def _holds_no_other(services: Services, folder: Path, spec: Mapping[str, Any]) -> None:
    """Fails where the folder holds what was made for another request."""
    import orjson

    from scopegate.domain import UnknownJob

    try:
        held = orjson.loads(await asyncio.to_thread((folder / _JOB).read_bytes))
        _, known = await services.jobs.spec(held["id"])
    except FileNotFoundError:
        return
    except (UnknownJob, ValueError, TypeError, LookupError):
        known = {}
    if known != spec:
        _fail(f"{folder} holds another data set; name another folder with -o, or remove {folder / _JOB} to replace it")


async def _same_job(services: Services, kind: JobKind, spec: Mapping[str, Any], output: Path) -> Job:
    """The job that this request and folder have made already, else a new one; what failed in it is done anew."""
    import orjson

    folder = await asyncio.to_thread(output.resolve)
    asked = orjson.dumps([str(folder), spec], option=orjson.OPT_SORT_KEYS)
    job, _ = await services.jobs.submit(kind, spec, f"cli:{hashlib.sha256(asked).hexdigest()}")
    return await services.jobs.resume(job.id)


async def _worked_on(services: Services, job: Job) -> Job:
    """The job once it has ended; says where it stands where it is interrupted."""
    try:
        async with services.jobs.working(only=job.id):
            return await _followed(services, job)
    except asyncio.CancelledError:
        progress = (await services.jobs.job(job.id)).progress
        total = "?" if progress.total is None else progress.total
        print(f"scopegate: {progress.done} of {total} documents are done; the same command goes on", file=sys.stderr)
        raise


async def _followed(services: Services, job: Job) -> Job:
    """The job once it has ended, with a bar on stderr meanwhile while a person looks on."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(job.kind, total=None)
        async for seen in services.jobs.follow(job.id):
            job = seen.job
            said = {"description": job.progress.stage} if job.progress.stage else {}
            bars.update(task, completed=job.progress.done, total=job.progress.total, **said)  # type: ignore[arg-type]
    return job


def _write(folder: Path, data_set: DataSet, job: Job) -> None:
    """The data set in every form, its card, and what the job says of itself; what was there stays until all is made."""
    from scopegate.api.replies import dump
    from scopegate.domain import Invalid
    from scopegate.generation.output import CARD, JSONL, PARQUET

    files = {f"eloq/{name}": content for name, content in data_set.eloq().items()}
    files |= {JSONL: data_set.jsonl(), CARD: data_set.card(JSONL).encode(), _JOB: dump(job) + b"\n"}
    try:
        files[PARQUET] = data_set.parquet()
    except Invalid as error:
        print(f"scopegate: {PARQUET} is left out: {error}", file=sys.stderr)
    (folder / "eloq").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as made:
        (Path(made) / "eloq").mkdir()
        for name, content in files.items():
            (Path(made) / name).write_bytes(content)
        for name in files:
            (Path(made) / name).replace(folder / name)


def _print_left_out(data_set: DataSet, job: Job) -> None:
    """What was skipped or failed, and why, on stderr."""
    failed = [f"{each['item']}: {each['error']}" for each in (job.summary or {}).get("failures", ())]
    told = [*failed, *data_set.notes]
    if told:
        print("left out, or failed:", *told[:_MOST_TOLD], sep="\n  ", file=sys.stderr)
    if len(told) > _MOST_TOLD:
        print(f"  and {len(told) - _MOST_TOLD} more", file=sys.stderr)
    if failed:
        print("the same command tries again what failed", file=sys.stderr)


def _print_jobs(found: Sequence[Job]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    # An id is there to be copied, however narrow the terminal.
    whole = Column("id", no_wrap=True, min_width=26)
    listed = Table(whole, "kind", Column("status", no_wrap=True), "done", "stage", "created")
    for job in found:
        progress = job.progress
        done = f"{progress.done}/{'?' if progress.total is None else progress.total}"
        made = job.created_at.isoformat(" ", "seconds")
        listed.add_row(job.id, job.kind, job.status, done, Text(job.error or progress.stage or ""), made)
    Console().print(listed)


# Showing


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[float], None]]:
    """A bar on stderr while a person looks on; total 0 where it is not known."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total or None)
        yield lambda amount: bars.advance(task, amount)


def _print_json(body: Any) -> None:
    from scopegate.api.replies import dump

    print(dump(body).decode())


def _added(added: Added, json: bool) -> None:
    if json:
        _print_json(added)
    else:
        print(f"{added.added} added, {added.duplicates} known already")


def _decided(decided: Judged, show: Callable[[Judged], None], json: bool) -> None:
    """Prints a verdict or an answer; a refusal ends the program with its exit code."""
    from scopegate.domain import Decision

    if json:
        _print_json(decided)
    else:
        show(decided)
    if decided.decision is Decision.REFUSAL:
        raise _RefusedError


def _print_answer(answer: Answer) -> None:
    print(answer.refusal if answer.answer is None else answer.answer)
    _print_evidence(answer.evidence)


def _print_verdict(verdict: Verdict) -> None:
    from rich.console import Console
    from rich.table import Table

    print(f"{verdict.decision}: {verdict.reason}")
    if verdict.confusion is not None and verdict.confusion.spans:
        print("not covered: " + ", ".join(span.text for span in verdict.confusion.spans))
    gates = Table("gate", "passed", "score", "threshold", "status", "ms")
    for result in verdict.gates:
        gates.add_row(
            result.gate,
            {None: "", True: "yes", False: "no"}[result.passed],
            "" if result.score is None else f"{result.score:.3f}",
            f"{result.threshold:.3f}",
            result.status,
            f"{result.elapsed_ms:.1f}",
        )
    Console().print(gates)
    _print_evidence(verdict.evidence)


def _print_evidence(evidence: Sequence[Evidence]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not evidence:
        return
    found = Table("S/C", "C", "evidence", "source")
    for fact in evidence:
        found.add_row(f"{fact.ratio:.3f}", f"{fact.confidence:.2f}", Text(fact.text), Text(fact.source or ""))
    Console().print(found)


if __name__ == "__main__":
    main()
