"""Jobs from a shell: a data set that is made, broken off and gone on with; a worker of its own."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.llm.eloq import PLACES, World
from tests.scripted import Asked, Said, ScriptedLlm, until

from scopegate.cli import _write
from scopegate.domain import Job, JobKind, JobProgress, JobStatus
from scopegate.generation.data_set import DataSet
from scopegate.generation.options import Options

OPTIONS = ["--facts-per-document", "6", "--rounds", "2", "--in-scope-questions", "2", "--seed", "7"]


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedLlm]:
    with ScriptedLlm() as llm:
        yield llm


@pytest.fixture
def llm(running: ScriptedLlm) -> ScriptedLlm:
    running.begin_again(World())
    return running


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps(place.document) + "\n" for place in PLACES))
    return path


def start(tmp_path: Path, *arguments: str, llm: ScriptedLlm | None = None, **environment: str) -> subprocess.Popen[str]:
    environment = os.environ | {"SCOPEGATE_DATA_DIR": str(tmp_path / "data"), "COLUMNS": "200"} | environment
    environment["SCOPEGATE_JOB_LEASE_S"] = "1"
    if llm is not None:
        environment["SCOPEGATE_LLM_URL"] = llm.url
    return subprocess.Popen(
        [sys.executable, "-m", "scopegate.cli", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has them, and so all they start, ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_data_set_is_made_broken_off_and_gone_on_with(tmp_path: Path, documents: Path, llm: ScriptedLlm) -> None:
    world = World()

    def stuck(asked: Asked) -> Said | str:
        return Said("Well.", after_s=60) if PLACES[2].name in json.dumps(asked.body) else world(asked)

    llm.begin_again(stuck)
    out = tmp_path / "out"
    command = ("generate", str(documents), "-o", str(out), *OPTIONS)
    first = start(tmp_path, *command, llm=llm)
    until(lambda: done(tmp_path) == 2, 60)
    first.send_signal(signal.SIGKILL)
    end(first)
    llm.begin_again(world)
    code, said, error = end(start(tmp_path, *command, llm=llm))
    assert (code, error.strip()) == (0, "")
    rows = [json.loads(line) for line in (out / "data.jsonl").read_text().splitlines()]
    assert said == f"{len(rows)} questions on 3 documents are in {out}\n"
    assert {row["document_id"] for row in rows} == {place.document["id"] for place in PLACES}
    assert pq.read_table(out / "data.parquet").to_pylist() == rows
    assert json.loads((out / "job.json").read_text())["status"] == "succeeded"
    assert {path.name for path in (out / "eloq").iterdir()} == {
        "news.json",
        "questions.json",
        "silver.csv",
        "README.md",
    }
    asked = {place.name for place in PLACES if any(place.name in json.dumps(asked.body) for asked in llm.asked)}
    assert asked == {PLACES[2].name}, "what was finished was done again"


def done(tmp_path: Path) -> int:
    """How many documents of the only job are finished."""
    try:
        with closing(sqlite3.connect(f"file:{tmp_path}/data/scopegate.db?mode=ro", uri=True)) as database:
            return sum(count for (count,) in database.execute("SELECT done FROM jobs"))
    except sqlite3.OperationalError:
        return 0


def test_jobs_are_listed(tmp_path: Path, documents: Path, llm: ScriptedLlm) -> None:
    code, _, error = end(start(tmp_path, "generate", str(documents), "-o", str(tmp_path / "out"), *OPTIONS, llm=llm))
    assert code == 0, error
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    for columns in ("200", "60"):
        code, out, _ = end(start(tmp_path, "jobs", COLUMNS=columns))
        assert code == 0
        assert job["id"] in out
    code, out, _ = end(start(tmp_path, "jobs"))
    assert "succeeded" in out
    assert "3/3" in out


def test_what_failed_is_done_by_the_same_command_once_the_llm_is_mended(
    tmp_path: Path, documents: Path, llm: ScriptedLlm
) -> None:
    world, out = World(), tmp_path / "out"
    command = ("generate", str(documents), "-o", str(out), *OPTIONS)
    llm.begin_again(lambda _: Said(status=401))
    code, said, error = end(start(tmp_path, *command, llm=llm))
    assert (code, said) == (1, "")
    assert "scopegate: nothing came of 3 items, and 3 of them failed; the first: the LLM server answered with" in error
    assert "status 401; look at its URL, model and key" in error
    assert "Traceback" not in error
    assert '"event"' not in error
    assert not out.exists()

    llm.begin_again(lambda asked: Said(status=403) if PLACES[1].name in json.dumps(asked.body) else world(asked))
    code, said, error = end(start(tmp_path, *command, llm=llm))
    assert code == 0, error
    assert said.endswith(f"questions on 2 documents are in {out}\n")
    assert f"  {PLACES[1].document['id']}: the LLM server answered with status 403" in error
    assert "the same command tries again" in error

    llm.begin_again(world)
    code, said, error = end(start(tmp_path, *command, llm=llm))
    assert (code, error.strip()) == (0, "")
    assert said.endswith(f"questions on 3 documents are in {out}\n")
    assert all(PLACES[0].name not in json.dumps(asked.body) for asked in llm.asked), "what was finished was done again"


def test_what_is_left_out_is_told(tmp_path: Path, documents: Path, llm: ScriptedLlm) -> None:
    with documents.open("a") as file:
        file.write('{"id": "short", "text": "Too short."}\n')
    out = tmp_path / "out"
    code, said, error = end(start(tmp_path, "generate", str(documents), "-o", str(out), *OPTIONS, llm=llm))
    assert code == 0
    assert said.endswith(f"questions on 3 documents are in {out}\n")
    assert error.strip() == "left out, or failed:\n  short: skipped: 2 words, and at least 150 are needed"
    documents.write_text('{"id": "short", "text": "Too short."}\n')
    code, said, error = end(start(tmp_path, "generate", str(documents), "-o", str(tmp_path / "none"), llm=llm))
    assert (code, said) == (1, "")
    assert error.endswith("scopegate: no question came of 1 documents\n")
    assert not (tmp_path / "none").exists()


def test_another_data_set_is_not_overwritten(tmp_path: Path, documents: Path, llm: ScriptedLlm) -> None:
    out = tmp_path / "out"
    command = ("generate", str(documents), "-o", str(out), *OPTIONS)
    assert end(start(tmp_path, *command, llm=llm))[0] == 0
    made = (out / "data.jsonl").read_bytes()
    code, _, error = end(start(tmp_path, *command, "--votes", "5", llm=llm))
    assert code == 1
    assert f"{out} holds another data set; name another folder with -o, or remove {out}/job.json" in error
    assert (out / "data.jsonl").read_bytes() == made
    (out / "job.json").unlink()
    assert end(start(tmp_path, *command, "--votes", "5", llm=llm))[0] == 0


def test_a_data_set_stays_whole_where_its_successor_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("", JobKind.GENERATE, JobStatus.SUCCEEDED, JobProgress(0, 0, None, None), datetime.now(UTC), *[None] * 4)
    rows = [[row | {"created_at": "then"} for row in place.rows(seed=7)] for place in PLACES]
    _write(tmp_path, DataSet(rows[0], [], [], Options(), True), job)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name == "data.jsonl":
            write(self, data[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        _write(tmp_path, DataSet(rows[1], [], [], Options(), True), job)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_interrupt_says_where_it_stands(tmp_path: Path, documents: Path, llm: ScriptedLlm) -> None:
    world = World()
    stuck = Said("Well.", after_s=60)
    llm.begin_again(lambda asked: stuck if PLACES[2].name in json.dumps(asked.body) else world(asked))
    process = start(tmp_path, "generate", str(documents), "-o", str(tmp_path / "out"), *OPTIONS, llm=llm)
    until(lambda: done(tmp_path) == 2, 60)
    process.send_signal(signal.SIGINT)
    code, said, error = end(process)
    assert (code, said) == (130, "")
    assert "scopegate: 2 of 3 documents are done; the same command goes on\n" in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, documents: Path, llm: ScriptedLlm) -> None:
    out = str(tmp_path / "out")

    def lines(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    broken = lines("broken", '{"text": "One."}\n{"text": \n')
    for arguments, with_llm, sentence in (
        ((str(documents),), None, "SCOPEGATE_LLM_URL"),
        ((broken,), llm, f"{broken}, line 2: "),
        ((lines("twice", '{"id": "a", "text": "One."}\n' * 2),), llm, "line 2: the document on line 1 has the id 'a'"),
        ((lines("numbered", '{"id": "d2", "text": "One."}\n{"text": "Two."}'),), llm, "has the id 'd2' already"),
        ((lines("textless", '\n{"id": "a"}\n'),), llm, "textless, line 2: text: Field required"),
        ((lines("list", "[]\n"),), llm, "list, line 1: Input should be a valid dictionary"),
        ((lines("empty", "\n"),), llm, "empty has no documents"),
        ((str(tmp_path / "none.jsonl"),), llm, "No such file"),
        ((), llm, "exactly one"),
        ((str(documents), "--votes", "0"), llm, "scopegate: --votes: Input should be greater than or equal to 1"),
        ((str(documents), "--facts-per-document", "101"), llm, "scopegate: --facts-per-document: "),
        (("--scope", "nowhere"), llm, "no scope"),
        (("--scope", " "), llm, "scopegate: --scope: "),
    ):
        code, said, error = end(start(tmp_path, "generate", *arguments, "-o", out, llm=with_llm))
        assert (code, said) == (1, ""), arguments
        assert sentence in error, error
        assert "Traceback" not in error
        assert not Path(out).exists()


def test_an_llm_that_is_not_there_is_told_after_the_documents_are_read(
    tmp_path: Path, documents: Path, llm: ScriptedLlm
) -> None:
    nowhere = ("-o", str(tmp_path / "out"), "--llm-url", "http://127.0.0.1:9/v1")
    code, _, error = end(start(tmp_path, "generate", str(documents), *nowhere))
    assert code == 1
    assert "could not be reached" in error
    assert "look at --llm-url" in error
    documents.write_text("{")
    begun = time.monotonic()
    code, _, error = end(start(tmp_path, "generate", str(documents), *nowhere))
    assert (code, "line 1" in error) == (1, True)
    assert time.monotonic() - begun < 8


def test_a_worker_ends_in_order_when_told_to(tmp_path: Path, llm: ScriptedLlm) -> None:
    worker = start(tmp_path, "worker", llm=llm)
    assert worker.stderr is not None
    lines = iter(worker.stderr.readline, "")
    assert any('"event":"working"' in line for line in lines)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    worker.communicate()
