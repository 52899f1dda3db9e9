"""`scopegate probe` as a shell runs it, on a task that can be learnt."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scopegate.cli import app
from scopegate.domain import Passage
from scopegate.gate.retrieval import Retriever
from scopegate.gate.sentence_pair import SentencePairProbe
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import load_encoder
from scopegate.probe_file import Kind, Position, ProbeFile
from scopegate.settings import Settings, models_dir
from scopegate.training.examples import read
from tests.engine import models

Run = Callable[..., Result]

FERRY = ["The ferry leaves from pier 4.", "The crossing takes seven hours.", "Bicycles travel free on the ferry."]
BREAD = ["The dough rests overnight.", "Rye bread keeps for a week.", "The oven is heated to 250 degrees."]
FIGURES = {
    "questions",
    "answerable",
    "accuracy",
    "f1",
    "auroc",
    "ece",
    "answerable_refused",
    "wrongly_answered",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs scopegate probe, in this process, with a cache of this module's own."""
    cache = tmp_path_factory.mktemp("cache") / "features.db"

    def probe(*arguments: object) -> Result:
        given = ["probe", *map(str, arguments)]
        if arguments[0] in {"train", "evaluate"}:
            given += ["--cache", str(cache)]
        return CliRunner(env={"COLUMNS": "200"}).invoke(app, given)

    return probe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions about ferries, on passages about ferries or about bread."""
    random = Random(0)
    rows = [
        {
            "question": f"{random.choice(['When', 'From where', 'How fast'])} does ferry {number} go?",
            "passage": " ".join(random.sample(FERRY if number % 2 else BREAD, 2)) + f" So says note {number}.",
            "answerable": number % 2 == 1,
            "doc": f"note {number // 2}",
        }
        for number in range(240)
    ]
    path = tmp_path_factory.mktemp("data") / "notes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def pair(run: Run, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe of sentence pairs."""
    path = tmp_path_factory.mktemp("pair") / "ferries.safetensors"
    ended = run("train", data, "-o", path, "--depth", 3, "--wrongly-answered", 0.1, "--note", "made up, CC0")
    assert ended.exit_code == 0, ended.stderr
    return path


def test_a_probe_is_trained_with_its_report(pair: Path) -> None:
    said = ProbeFile.read(pair).description
    assert (said.name, said.kind, said.depth, said.data) == ("ferries", Kind.SENTENCE_PAIR, 3, "made up, CC0")
    assert said.figures is not None
    assert said.figures["test"]["accuracy"] > 0.9
    assert said.figures["validation"]["wrongly_answered"] <= 0.1
    report = pair.with_name("ferries-report")
    written = json.loads((report / "metrics.json").read_text())
    assert written == {"probe": "ferries", **said.figures}
    assert set(written["test"]) == FIGURES
    for plot in ("reliability", "confusion"):
        assert (report / f"{plot}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (report / f"{plot}.svg").read_text()


def test_evaluate_gives_a_row_a_file(run: Run, pair: Path, data: Path, tmp_path: Path) -> None:
    one_kind = tmp_path / "more.jsonl"
    one_kind.write_text(data.read_text().splitlines()[1] + "\n")
    ended = run("evaluate", pair, data, one_kind)
    assert ended.exit_code == 0, ended.stderr
    assert all(word in ended.stdout for word in ("ferries", "AUROC", "notes", "more"))
    figures = json.loads(run("evaluate", pair, data, one_kind, "--json").stdout)
    assert figures["notes"]["questions"] == 240
    assert figures["notes"]["auroc"] > 0.95
    assert figures["more"]["auroc"] is None


async def test_the_service_judges_as_evaluate_does(run: Run, pair: Path, data: Path) -> None:
    examples = read([data])
    settings = Settings()
    embedder = Embedder(load_encoder("minilm-l6-int8", models_dir()), settings)
    probe = SentencePairProbe.load(pair, embedder)
    retriever = Retriever(embedder, settings)
    right = 0
    for example in examples:
        case = await retriever.from_passages(example.question, [Passage("1", example.passage)], probe.depth)
        right += ((await probe.judge(case)).score >= probe.threshold) is example.answerable
    await embedder.stop()
    ended = await asyncio.to_thread(run, "evaluate", pair, data, "--json")
    assert json.loads(ended.stdout)["notes"]["accuracy"] == right / len(examples)


def test_inspect_needs_no_torch(pair: Path) -> None:
    script = "import sys; sys.modules['torch'] = None; from scopegate.cli import main; sys.argv[1:] = {}; main()"
    ended = subprocess.run(
        [sys.executable, "-c", script.format(["probe", "inspect", str(pair)])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert all(word in ended.stdout for word in ("sentence_pair", "minilm-l6-int8@", "made up, CC0", "accuracy"))


def test_a_probe_of_hidden_states(run: Run, data: Path, tmp_path: Path) -> None:
    position = Position.UNUSED_TOKEN
    model = models.make(tmp_path / "llama", "llama").path
    path = tmp_path / "llm.safetensors"
    options = ("--model", model, "--position", position, "--epochs", 2, "--limit", 160)
    ended = run("train", data, "-o", path, *options)
    assert ended.exit_code == 0, ended.stderr
    said: dict[str, Any] = json.loads(run("inspect", path, "--json").stdout)
    assert said["architecture"] == "LlamaForCausalLM"
    assert (said["kind"], said["position"], said["prompt"]) == ("hidden_state", position, "answerable@1")
    assert said["slots"].keys() == {"a", "b", "c"}
    assert said["figures"]["test"]["questions"] >= 14
    evaluated = run("evaluate", path, data, "--model", model, "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    elsewhere = run("evaluate", path, data)
    assert elsewhere.exit_code == 1
    assert "the model llama cannot be read" in elsewhere.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "missing.jsonl", "-o", "p.safetensors"], "missing.jsonl cannot be read"),
        (["train", "DATA", "-o", "p.pt"], "p.pt must end in .safetensors"),
        (["train", "DATA", "-o", "DATA/p.safetensors"], "cannot be written"),
        (["train", "DATA", "-o", "p.safetensors", "--server", "http://127.0.0.1:9"], "they need --model"),
        (["train", "DATA", "-o", "p.safetensors", "--model", "nowhere"], "the model nowhere cannot be read"),
        (["train", "DATA", "-o", "p.safetensors", "--model", "MODEL", "--prompt", "judge"], "more than question"),
        (["train", "DATA", "-o", "p.safetensors", "--model", "MODEL", "--prompt", "x"], "there is no prompt 'x'"),
        (["train", "DATA", "-o", "p.safetensors", "--model", "MODEL", "--server", "http://127.0.0.1:9"], "be asked"),
        (["evaluate", "DATA", "DATA"], "cannot be read as a probe"),
        (["inspect", "missing.safetensors"], "cannot be read as a probe"),
    ],
)
def test_bad_input_is_told_in_a_sentence(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "MODEL" in arguments:
        models.make(tmp_path / "model", "llama")
    given = [each.replace("DATA", str(data)).replace("MODEL", str(tmp_path / "model")) for each in arguments]
    ended = run(*given)
    assert ended.exit_code == 1
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("scopegate: ")
    assert said in ended.stderr
