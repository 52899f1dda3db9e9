"""`scopegate evaluate` and `scopegate calibrate` as a shell runs them: tables, files, one sentence where it fails."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scopegate import evaluate_cli, logs
from scopegate.cli import app
from scopegate.domain import Unavailable
from scopegate.evaluation.detection import Detection
from scopegate.jobs.work import Done, Item
from scopegate.llm.asks import LlmAway
from tests.scripted import ScriptedLlm, by_prompt

Run = Callable[..., Result]

FERRY = "The ferry to Harwick leaves from pier 4. The crossing takes seven hours."
ROWS = [
    {"id": "a", "question": "Which pier does the ferry to Harwick leave from?", "document_id": "f", "in_scope": True},
    {"id": "b", "question": "Who is the ferry's captain?", "document_id": "f", "in_scope": False},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    # Loggers would keep the stderr of one run, which is closed after it.
    monkeypatch.setattr(logs, "configure", lambda settings: None)

    def scopegate(*arguments: object, columns: int = 200) -> Result:
        environment = {"COLUMNS": f"{columns}", "SCOPEGATE_DATA_DIR": str(tmp_path / "data")}
        return CliRunner(env=environment).invoke(app, [*map(str, arguments)])

    return scopegate


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "questions.jsonl", ROWS)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return written(tmp_path / "documents.jsonl", [{"id": "f", "text": FERRY, "topic": "sea"}])


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_detection_by_the_gates_prints_writes_and_draws(run: Run, data: Path, documents: Path, tmp_path: Path) -> None:
    ended = run("evaluate", "detection", data, "--documents", documents, "-o", tmp_path / "out")
    assert ended.exit_code == 0, ended.output
    assert "Out-of-scope detection, 2 questions" in ended.stdout
    assert summary(tmp_path / "out")["judges"]["gates"]["by_topic"]["topics"].keys() == {"sea"}
    assert len((tmp_path / "out" / "rows.jsonl").read_text().splitlines()) == 2
    for name in ("detection.png", "detection.svg", "confusion_gates.png"):
        assert (tmp_path / "out" / name).stat().st_size > 1000


def test_responses_of_any_llm_are_judged_by_another(run: Run, data: Path, documents: Path, tmp_path: Path) -> None:
    answers = by_prompt({"You answer questions about": lambda _: "It does not say."})
    judges = by_prompt({"You judge responses": lambda _: "It says so.\nDefused: yes"})
    with ScriptedLlm(answers) as answerer, ScriptedLlm(judges) as judge:
        options = ["--llm-url", answerer.url, "--judge-url", judge.url, "--method", "basic", "--votes", 3]
        ended = run("evaluate", "response", data, "--documents", documents, *options, "-o", tmp_path / "out")
        assert ended.exit_code == 0, ended.output
        assert len(answerer.asked) == len(judge.asked) == 1
    assert summary(tmp_path / "out")["methods"]["basic"]["overall"] == 1.0
    assert "scripted-1" in ended.stdout


def test_retrieval_and_choices_need_no_llm(run: Run, data: Path, documents: Path, tmp_path: Path) -> None:
    ended = run("evaluate", "retrieval", data, "--documents", documents, "--retriever", "bm25")
    assert ended.exit_code == 0, ended.output
    assert "1 questions among 1 documents" in ended.stdout
    choices = written(tmp_path / "choices.jsonl", [{"question": "Who?", "candidates": ["Ada", "Bo"], "right": [0]}])
    ended = run("evaluate", "multiple-choice", choices, "--gold", 0, "--gold", 1, "-o", tmp_path / "out")
    assert ended.exit_code == 0, ended.output
    assert [each["gold_share"] for each in summary(tmp_path / "out")["runs"]] == [0.0, 1.0]
    assert (tmp_path / "out" / "multiple_choice.svg").is_file()


def test_tables_fit_a_terminal_and_are_never_cut(run: Run, tmp_path: Path) -> None:
    rows = [{"question": "Who?", "candidates": ["Ada", "Bo"], "right": [0]}]
    choices = written(tmp_path / "choices.jsonl", rows)
    shares = [option for share in (0, 0.25, 0.5, 0.75, 1) for option in ("--gold", share)]
    ended = run("evaluate", "multiple-choice", choices, *shares, columns=80)
    assert ended.exit_code == 0, ended.output
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for told in ("failed", "had all been answered", "unknown, refused", "0.25", "100.00"):
        assert told in ended.stdout
    ended = run("evaluate", "multiple-choice", choices, *shares, columns=20)
    assert "…" not in ended.stdout
    assert "had all been answered" in ended.stdout


def test_sheets_go_out_and_come_back(run: Run, data: Path, documents: Path, tmp_path: Path) -> None:
    ended = run("evaluate", "sheets", data, "--documents", documents, "--groups", 1, "-o", tmp_path / "sheets")
    assert ended.exit_code == 0, ended.output
    assert "2 of 2 questions in 2 sheets" in ended.stdout
    sheets = sorted((tmp_path / "sheets").iterdir())
    for sheet in sheets:
        rows = list(csv.DictReader(sheet.read_text().splitlines()))
        with sheet.open("w", newline="") as file:
            filled = csv.DictWriter(file, rows[0].keys())
            filled.writeheader()
            for row in rows:
                filled.writerow({**row, "out_of_scope": "yes" if row["id"] == "b" else "no"})
    ended = run("evaluate", "agreement", *sheets, "--data", data, "--truth", sheets[0], "-o", tmp_path / "out")
    assert ended.exit_code == 0, ended.output
    found = summary(tmp_path / "out")
    assert (found["groups"][0]["kappa"], found["groups"][0]["agreed_accuracy"]) == (1.0, 1.0)
    assert found["truth"]["out_of_scope"]["accuracy"] == 1.0


def test_labels_in_a_csv_are_what_they_say(run: Run, tmp_path: Path) -> None:
    people = {name: tmp_path / f"group1_{name}.csv" for name in ("a", "b")}
    for sheet in people.values():
        sheet.write_text("id,out_of_scope\n1,yes\n2,no\n")
    data = tmp_path / "data.csv"
    data.write_text("id,in_scope\n1,False\n2,True\n")
    ended = run("evaluate", "agreement", *people.values(), "--data", data, "-o", tmp_path / "out")
    assert ended.exit_code == 0, ended.output
    assert summary(tmp_path / "out")["groups"][0]["annotator_accuracy"] == {"a": 1.0, "b": 1.0}
    assert f"{tmp_path / 'out'}: summary.json, rows.jsonl\n" in ended.stdout  # there is no truth to draw


def test_a_scope_is_calibrated_and_the_promise_printed(run: Run, tmp_path: Path) -> None:
    assert run("add", "--text", "The ferry to Harwick leaves from pier 4.").exit_code == 0
    rows = [
        {
            "question": f"What does lava {n} weigh?" if n % 2 else f"Which pier does ferry {n} leave from?",
            "answerable": n % 2 == 0,
            "passage": f"The ferry {n} to Harwick leaves from pier {n + 3} at noon.",
        }
        for n in range(60)
    ]
    options = ["--max-wrong", 0.2, "--delta", 0.2]
    data = written(tmp_path / "labels.jsonl", rows)
    ended = run("calibrate", data, *options, "--apply", "-o", tmp_path / "out")
    assert ended.exit_code == 0, ended.output
    assert "With confidence 80%, at most 20% of unanswerable questions" in ended.stdout
    assert "It is the policy of scope 'default' now." in ended.stdout
    assert summary(tmp_path / "out")["applied"]
    for name in ("over_alpha", "precision_recall_alpha", "over_probe_threshold", "risk_coverage", "tried"):
        assert (tmp_path / "out" / f"{name}.png").is_file()
    few = written(tmp_path / "few.jsonl", rows[:8])
    ended = run("calibrate", few, *options)
    assert ended.exit_code == 0
    assert "No promise: 4 groups of unanswerable questions are too few" in ended.stdout
    ended = run("calibrate", few, *options, "--apply")
    assert ended.exit_code == 3
    assert "Nothing is applied: the policy of scope 'default' is what it was." in ended.stdout


@pytest.mark.parametrize(
    ("brought", "sentence"),
    [
        ({"passages": [{"txt": "At noon."}]}, "row 2: passages.0"),
        ({"passages": "At noon."}, "row 2: passages"),
        ({"passage": 5}, "row 2: passages.0"),
        ({"passages": [{"text": "At noon.", "confidence": 0}]}, "row 2: passages.0.confidence"),
        ({"question": " "}, "row 2: question"),
    ],
)
def test_a_labelled_row_is_what_the_api_takes(run: Run, tmp_path: Path, brought: dict[str, Any], sentence: str) -> None:
    rows = [{"question": "When?", "answerable": True, "passages": ["At noon."], "group": 5}]
    ended = run("calibrate", written(tmp_path / "labels.jsonl", [*rows, rows[0] | {"passages": None} | brought]))
    assert ended.exit_code == 1
    assert ended.stderr.startswith(f"scopegate: {sentence}")


def test_what_cannot_be_kept_is_not_begun(run: Run, data: Path, documents: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with ScriptedLlm(lambda _: "Confusing: yes") as llm:
        options = ["--by", "llm", "--llm-url", llm.url, "-o", tmp_path / "file"]
        ended = run("evaluate", "detection", data, "--documents", documents, *options)
        assert not any("Harwick" in asked.user for asked in llm.asked)
    assert ended.exit_code == 1
    assert "file: File exists" in ended.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_an_item_that_fails_costs_no_other(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    do = Detection.do

    async def breaks(self: Detection, spec: Any, item: Item, stage: Any) -> Done:
        if item.key == "4":
            raise Unavailable("the lights are out")
        return await do(self, spec, item, stage)

    monkeypatch.setattr(Detection, "do", breaks)
    data = written(tmp_path / "data.jsonl", [{**ROWS[n % 2], "id": f"{n}", "document": FERRY} for n in range(12)])
    ended = run("evaluate", "detection", data, "-o", tmp_path / "out")
    assert ended.exit_code == 1
    assert "1 of 3 items failed, and what follows is of the others; the first: the lights are out" in ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["0", "1", "2", "3", "8", "9", "10", "11"]
    assert (summary(tmp_path / "out")["questions"], summary(tmp_path / "out")["failed_items"]) == (8, 1)
    assert "Out-of-scope detection, 8 questions" in ended.stdout


def test_an_llm_that_stays_away_ends_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    async def away(self: Detection, spec: Any, item: Item, stage: Any) -> Done:
        begun.append(item.key)
        raise LlmAway("the LLM does not answer")

    monkeypatch.setattr(Detection, "do", away)
    data = written(tmp_path / "data.jsonl", [{**ROWS[0], "id": f"{n}", "document": FERRY} for n in range(80)])
    ended = run("evaluate", "detection", data)
    assert (ended.exit_code, ended.stderr) == (1, "scopegate: the LLM does not answer\n")
    assert len(begun) <= 4


def test_an_llm_that_cannot_be_reached_is_told_with_its_setting(
    run: Run, data: Path, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_cli, "_LLM_S", 0.5)
    with ScriptedLlm(lambda _: "Well.") as llm:
        url = llm.url
    ended = run("evaluate", "detection", data, "--documents", documents, "--llm-url", url)
    assert ended.exit_code == 1
    assert "look at --llm-url, --judge-url, SCOPEGATE_LLM_URL" in ended.stderr
    # What needs no LLM does not wait for it, and files are read before.
    monkeypatch.setattr(evaluate_cli, "_LLM_S", 600)
    monkeypatch.setenv("SCOPEGATE_LLM_URL", url)
    retrieved = run("evaluate", "retrieval", data, "--documents", documents, "--retriever", "bm25")
    assert retrieved.exit_code == 0, retrieved.output
    assert "in none of the layouts" in run("evaluate", "multiple-choice", data, "--gold", 1).stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evaluate", "detection", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (
            ["evaluate", "detection", "DATA"],
            "names the document 'f', and its text is not given; rows that name documents by",
        ),
        (["evaluate", "retrieval", "DATA", "--documents", "DOCUMENTS", "--retriever", "x"], "no retriever 'x'"),
        (["evaluate", "multiple-choice", "DATA", "--gold", "1"], "in none of the layouts"),
        (["evaluate", "multiple-choice", "DATA"], "there is no knowledge in"),
        (["evaluate", "response", "DATA", "--documents", "DOCUMENTS"], "SCOPEGATE_LLM_URL"),
        (["evaluate", "detection", "DATA", "--documents", "DOCUMENTS", "--llm-url", "nonsense"], "must look like http"),
        (["calibrate", "DATA"], "row 1: answerable: Input should be a valid boolean"),
        (["calibrate", "LABELLED"], "there is no knowledge in"),
        (["calibrate", "LABELLED", "--max-wrong", "0"], "lie between 0 and 1"),
    ],
)
def test_what_goes_wrong_is_told_in_one_sentence(
    run: Run, data: Path, documents: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    labelled = written(tmp_path / "labelled.jsonl", [{"question": "Who?", "answerable": True}])
    if arguments[0] == "calibrate":
        data = written(tmp_path / "unlabelled.jsonl", [{"question": "Who?"}])
    paths = {"DATA": data, "DOCUMENTS": documents, "LABELLED": labelled}
    ended = run(*(paths.get(argument, argument) for argument in arguments))
    assert ended.exit_code == 1
    assert ended.stderr.startswith("scopegate: ")
    assert sentence in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
