"""Jobs from a shell: a data set that is made, broken off and gone on with; a worker of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.llm.eloq import PLACES, World
from tests.scripted import Asked, Said, ScriptedLlm, until

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


def start(tmp_path: Path, *arguments: str, llm: ScriptedLlm | None = None) -> subprocess.Popen[str]:
    environment = os.environ | {"SCOPEGATE_DATA_DIR": str(tmp_path / "data"), "COLUMNS": "200"}
    environment["SCOPEGATE_JOB_LEASE_S"] = "1"
    if llm is not None:
        environment["SCOPEGATE_LLM_URL"] = llm.url
    return subprocess.Popen(
        [sys.executable, "-m", "scopegate.cli", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
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
    code, out, _ = end(start(tmp_path, "jobs"))
    assert code == 0
    assert "succeeded" in out
    assert "3/3" in out


def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, documents: Path, llm: ScriptedLlm) -> None:
    out = str(tmp_path / "out")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "One."}\n{"text": \n')
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"id": "a", "text": "One."}\n' * 2)
    for arguments, with_llm, sentence in (
        ((str(documents),), None, "SCOPEGATE_LLM_URL"),
        ((str(broken),), llm, "line 2"),
        ((str(twice),), llm, "same id"),
        ((str(tmp_path / "none.jsonl"),), llm, "No such file"),
        ((), llm, "exactly one"),
        ((str(documents), "--votes", "0"), llm, "votes"),
        (("--scope", "nowhere"), llm, "no scope"),
    ):
        code, said, error = end(start(tmp_path, "generate", *arguments, "-o", out, llm=with_llm))
        assert (code, said) == (1, ""), arguments
        assert sentence in error
        assert "Traceback" not in error


def test_a_worker_ends_in_order_when_told_to(tmp_path: Path, llm: ScriptedLlm) -> None:
    worker = start(tmp_path, "worker", llm=llm)
    assert worker.stderr is not None
    lines = iter(worker.stderr.readline, "")
    assert any('"event":"working"' in line for line in lines)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    worker.communicate()
