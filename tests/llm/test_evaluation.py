"""Data sets, shares, retrieval, questions with choices and agreement; and that every summary can be shown."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import cohen_kappa_score

from scopegate.domain import Added, Conflict, Invalid, JobKind, Unavailable
from scopegate.evaluation import retrieval
from scopegate.evaluation.agreement import Agreement, generated, read_sheet, sample_size, write_sheets
from scopegate.evaluation.datasets import Document, asked, choices, read_rows
from scopegate.evaluation.plots import draw
from scopegate.evaluation.shares import by_topic, confusion
from scopegate.evaluation.tables import tables
from scopegate.evaluation.work import Evaluate
from scopegate.gate.gate import GateBroken, Judgement, ProbeGate
from scopegate.inference.encoder import Encoder, load_encoder
from scopegate.jobs.work import Item, Work
from scopegate.knowledge import Knowledge
from scopegate.llm.asker import Asker
from scopegate.services import Services
from scopegate.settings import Settings
from tests.scripted import Asked, Said, ScriptedLlm, llm_at
from tests.unit.evaluating import evaluated, facts

TRUTHFUL = {
    "Question": "Which pier does the night ferry to Harwick leave from?",
    "Best Answer": "The night ferry to Harwick leaves from pier 4",
    "Correct Answers": "The night ferry to Harwick leaves from pier 4; It leaves from the fourth pier",
    "Incorrect Answers": "The night ferry to Harwick leaves from pier 9; Lava is hot",
}
BREAD = {
    "Question": "How long does the dough of rye bread rest?",
    "Best Answer": "Overnight",
    "Correct Answers": "Overnight",
    "Incorrect Answers": "Not at all; The dough of wheat bread rests for an hour",
}


# Data sets


@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_read_from_json_lines_packed_or_not(tmp_path: Path, packed: bool) -> None:
    content = b'{"question": "Who?"}\n\n{"question": "When?"}\n'
    path = tmp_path / ("rows.jsonl.gz" if packed else "rows.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert [row["question"] for row in read_rows(path)] == ["Who?", "When?"]


@pytest.mark.parametrize("content", [b"{", b"[1]\n", b"\xff\xfe", b'"text"\n'])
def test_what_is_no_rows_is_invalid(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(Invalid, match=r"rows\.jsonl"):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c"])
def test_only_a_line_feed_ends_a_row(tmp_path: Path, end: str) -> None:
    text = f"Who{end}is it?"
    (tmp_path / "rows.jsonl").write_bytes(json.dumps({"question": text}, ensure_ascii=False).encode() + b"\r\n")
    if end > " ":  # JSON holds no control characters as they are
        assert read_rows(tmp_path / "rows.jsonl") == [{"question": text}]
    (tmp_path / "rows.csv").write_text(f'question\r\n"{text}"\r\n', newline="")
    assert read_rows(tmp_path / "rows.csv") == [{"question": text}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl.gz", gzip.compress(b'{"question": "Who?"}\n' * 100)[:40] + b"\xff" * 40),
        ("rows.json", b"[" * 100_000),
    ],
)
def test_what_is_broken_is_invalid(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Invalid, match=name):
        read_rows(tmp_path / name)


def test_csv_has_labels_in_words_long_texts_and_empty_cells(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    long = "At noon. " * 20_000
    path.write_text(f'question,in_scope,defused,topic,document\nWhen?,False,yes,,"{long}"\nYes,TRUE,maybe,sea,x,more\n')
    first, second = read_rows(path)
    assert first == {"question": "When?", "in_scope": False, "defused": True, "topic": None, "document": long}
    assert second == {"question": "Yes", "in_scope": True, "defused": "maybe", "topic": "sea", "document": "x"}
    assert asked([first])[0].in_scope is False
    with pytest.raises(Invalid, match="row 1: defused: Input should be a valid boolean"):
        asked([second])


def test_a_file_that_is_not_there_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file"):
        read_rows(tmp_path / "rows.jsonl")


def test_questions_find_their_documents_and_topics() -> None:
    known = [Document(id="7", title="Ferries", text="They leave at noon.", topic="sea")]
    (one,) = asked([{"question": "When?", "in_scope": True, "document_id": 7}], known)
    assert (one.document, one.topic, one.id) == ("Ferries\n\nThey leave at noon.", "sea", "1")
    (other,) = asked([{"question": "When?", "answerable": False, "passage": "At noon."}])
    assert (other.document, other.document_id, other.in_scope) == ("At noon.", "At noon.", False)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "When?", "in_scope": True},
        {"question": " ", "in_scope": True, "document": "At noon."},
        {"question": "When?", "in_scope": "yes", "document": "At noon."},
        {"question": "When?", "document": "At noon."},
    ],
)
def test_a_row_that_is_no_question_is_named(row: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="row 2: "):
        asked([{"question": "When?", "in_scope": True, "document": "At noon."}, row])


def test_a_document_that_is_only_named_must_be_known() -> None:
    with pytest.raises(Invalid, match="row 1 names the document '7', and its text is not given"):
        asked([{"question": "When?", "in_scope": True, "document_id": "7"}])


def test_truthful_qa_has_one_right_answer_or_several() -> None:
    (one,) = choices([TRUTHFUL], several=False, seed=0)
    assert len(one.candidates) == 3
    assert [one.candidates[at] for at in one.right] == [TRUTHFUL["Best Answer"]] == [one.gold]
    (several,) = choices([TRUTHFUL], several=True, seed=0)
    assert {several.candidates[at] for at in several.right} == set(TRUTHFUL["Correct Answers"].split("; "))
    assert choices([BREAD], several=False, seed=0)[0].gold == "How long does the dough of rye bread rest? Overnight"
    orders = {choices([TRUTHFUL], several=True, seed=seed)[0].candidates for seed in range(8)}
    assert len(orders) > 1
    assert choices([TRUTHFUL], several=True, seed=3) == choices([TRUTHFUL], several=True, seed=3)


def test_commonsense_qa_med_qa_and_plain_rows() -> None:
    letters = [{"label": "A", "text": "bank"}, {"label": "B", "text": "library"}]
    rows: list[dict[str, Any]] = [
        {"id": "q1", "answerKey": "B", "question": {"stem": "Where are books lent?", "choices": letters}},
        {"question": "Which vitamin is lacking?", "options": {"A": "C", "B": "D"}, "answer": "C", "answer_idx": "A"},
        {"question": "Who?", "candidates": ["Ada", "Boris"], "right": [1], "gold": "It was Boris who did."},
    ]
    found = choices(rows, several=False, seed=0)
    assert [each.candidates[each.right[0]] for each in found] == ["library", "C", "Boris"]
    assert [each.gold for each in found] == [
        "Where are books lent? library",
        "Which vitamin is lacking? C",
        "It was Boris who did.",
    ]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"question": "Who?", "candidates": ["Ada"], "right": [0]},
        {"question": "Who?", "candidates": ["Ada", "Boris"], "right": [2]},
        {"question": "Who?", "candidates": ["Ada", "Boris"], "right": []},
        {"question": "Who?", "candidates": ["Ada", "Boris"], "right": [True]},
        {"question": "Who?", "candidates": ["Ada", "Boris"], "right": 1},
        {"question": "Who?", "candidates": ["Ada", " "], "right": [0]},
        {"question": "Who?", "candidates": "ab", "right": [0]},
        {"question": "Who?", "candidates": ["Ada", "Boris"], "right": [0], "gold": 5},
        {"question": 5, "candidates": ["Ada", "Boris"], "right": [0]},
        {"question": "Who?", "options": {"A": "C", "B": "D"}, "answer_idx": "E"},
    ],
)
def test_a_row_that_is_no_choice_is_named(row: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="row 1 is a question with choices in none"):
        choices([row], several=False, seed=0)


# Shares


def test_topics_average_and_deviation_are_those_of_table_5() -> None:
    """The paper's first row, GPT-3.5 with the basic prompt: 13.89 on average with a deviation of 2.97."""
    topics = [18.06, 10.96, 12.32, 14.27, 13.59, 15.95, 10.15, 18.37, 15.59, 9.63]
    hits = [(f"{n}", at < 100 * share) for n, share in enumerate(topics) for at in range(10_000)]
    found = by_topic(hits)
    assert round(100 * found["average"], 2) == 13.89
    assert round(100 * found["deviation"], 2) == 2.97
    assert by_topic([])["overall"] is None


def test_a_confusion_matrix_and_what_is_read_off_it() -> None:
    found = confusion([(True, True)] * 5 + [(True, False)] * 3 + [(False, True)] * 2 + [(False, False)] * 10)
    assert found["matrix"] == {"true_yes": 5, "false_yes": 2, "false_no": 3, "true_no": 10}
    assert (found["accuracy"], found["precision"], found["recall"]) == (0.75, 5 / 7, 5 / 8)
    assert found["f1"] == pytest.approx(2 * (5 / 7) * (5 / 8) / (5 / 7 + 5 / 8))
    assert confusion([]) | {"matrix": None} == dict.fromkeys(("matrix", "accuracy", "precision", "recall", "f1"))


# Tasks that need no LLM


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    services = Services(Settings(data_dir=tmp_path / "data"))
    async with services.running():
        await services.knowledge.ready(20)
        yield services


@pytest.fixture
def work(services: Services) -> Work:
    return services.works[JobKind.EVALUATE]


DOCUMENTS = {
    "ferry": "The night ferry to Harwick leaves from pier 4. The crossing takes seven hours.",
    "bread": "The dough for rye bread rests overnight. It is baked for an hour.",
    "lava": "Lava flows down the slopes of the volcano. It is as hot as molten iron.",
}
ASKED = [
    {"question": "Who is the captain of the ferry to Harwick?", "document_id": "ferry", "in_scope": False},
    {"question": "Which baker invented rye bread?", "document_id": "bread", "in_scope": False},
    {"question": "Zzz qqq?", "document_id": "lava", "in_scope": False},
    {"question": "How long is the crossing?", "document_id": "bread", "in_scope": True},
]
QUESTIONS = [{**row, "document": DOCUMENTS[str(row["document_id"])]} for row in ASKED]


async def test_retrieval_finds_the_documents_of_questions(work: Work, tmp_path: Path) -> None:
    spec = {"task": "retrieval", "dataset": QUESTIONS}
    rows, summary = await evaluated(work, spec)
    ranks = {name: [row["rank"] for row in rows if row["retriever"] == name] for name in summary["retrievers"]}
    # A question that no document shares a word with has its own last, not first.
    assert ranks["bm25"] == [1, 1, 3]
    assert ranks["sentences"][:2] == ranks["embedder"][:2] == [1, 1]
    assert summary["retrievers"]["bm25"] == {
        "recall@1": pytest.approx(2 / 3),
        "recall@5": 1.0,
        "recall@10": 1.0,
        "mrr": pytest.approx((1 + 1 + 1 / 3) / 3),
    }
    assert (summary["questions"], summary["documents"]) == (3, 3)
    assert len(tables(summary)) == 1
    assert (draw(summary, tmp_path)[0].with_suffix(".svg")).is_file()


async def test_any_sentence_transformers_model_retrieves(
    work: Work, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the embedded default stands for here: it must find what the service's own finds."""
    asked_for = []

    def load(name: str, models: Path) -> Encoder:
        asked_for.append(name)
        return load_encoder(services.settings.embedder, models)

    monkeypatch.setattr(retrieval, "load_encoder", load)
    options = {"retrievers": ["embedder", "local:some/model"]}
    rows, summary = await evaluated(work, {"task": "retrieval", "dataset": QUESTIONS, "options": options})
    assert asked_for == ["local:some/model"]
    assert summary["retrievers"]["local:some/model"] == summary["retrievers"]["embedder"]
    assert len(rows) == 6


async def test_further_documents_are_in_the_way_and_questions_in_scope_may_count(work: Work) -> None:
    options = {
        "documents": [{"id": "more", "text": "The captain of the ferry to Harwick is on leave."}],
        "retrievers": ["bm25"],
        "in_scope": True,
    }
    rows, summary = await evaluated(work, {"task": "retrieval", "dataset": QUESTIONS, "options": options})
    assert (summary["questions"], summary["documents"]) == (4, 4)
    assert rows[0]["rank"] == 2


@pytest.mark.parametrize("text", ["the of and", "水"])
async def test_documents_without_a_word_to_search_by_are_found_by_none(work: Work, text: str) -> None:
    asked = [{"question": "When?", "in_scope": False, "document_id": f"{n}", "document": text} for n in range(2)]
    spec = {"task": "retrieval", "dataset": asked, "options": {"retrievers": ["bm25"]}}
    rows, _ = await evaluated(work, spec)
    assert [row["rank"] for row in rows] == [2, 2]


async def test_a_document_with_two_texts_is_invalid(work: Work) -> None:
    asked = [{"question": "When?", "in_scope": False, "document_id": "f", "document": text} for text in ("a", "b")]
    with pytest.raises(Invalid, match="the document 'f' has two texts"):
        await work.items({"task": "retrieval", "dataset": asked})


async def test_a_retriever_that_is_not_there_is_invalid(work: Work) -> None:
    with pytest.raises(Invalid, match="no retriever 'elastic'"):
        await work.items({"task": "retrieval", "dataset": QUESTIONS, "options": {"retrievers": ["elastic"]}})


async def test_gold_knowledge_is_answered_from_and_nothing_else(work: Work, services: Services, tmp_path: Path) -> None:
    await services.knowledge.add("default", facts("Lava is hot."))
    spec = {
        "task": "multiple_choice",
        "dataset": [TRUTHFUL, BREAD],
        "options": {"gold_shares": [0.0, 0.5, 1.0], "llm": False},
    }
    rows, summary = await evaluated(work, spec)
    assert [run["gold_share"] for run in summary["runs"]] == [0.0, 0.5, 1.0]
    assert [sum(row["known"] for row in rows if row["share"] == share) for share in (0.0, 0.5, 1.0)] == [0, 1, 2]
    nothing, _, everything = summary["runs"]
    # Nothing is known, not even what the service itself knows.
    assert (nothing["answered"], nothing["refused"]["hard"], nothing["accuracy"]) == (0, 2, None)
    assert nothing["unknown_refused"] == 1.0
    assert everything["known_found"] == 1.0
    assert everything["answered"] >= 1
    assert everything["accuracy"] == 1.0
    assert len(services.knowledge.sizes()) == 1
    assert services.knowledge.sizes()[0].facts == 1
    assert len(tables(summary)) == 1
    assert draw(summary, tmp_path)[0].is_file()


async def test_shares_at_once_are_what_they_are_one_by_one(work: Work) -> None:
    """As the runner of jobs and the command line do them."""
    asked = [
        {"question": f"Where is boat {n}?", "candidates": [f"Boat {n} is at pier {n}", "It sank"], "right": [0]}
        for n in range(8)
    ]
    options = {"gold_shares": [0.25, 0.5, 0.75, 1.0], "llm": False}
    spec = {"task": "multiple_choice", "dataset": asked, "options": options}
    _, alone = await evaluated(work, spec)
    async with asyncio.timeout(60):
        done = await asyncio.gather(*[work.do(spec, item, lambda _: None) for item in await work.items(spec)])
    assert (await work.finish(spec, done))["runs"] == alone["runs"]
    assert alone["runs"][-1]["known_found"] == 1.0


async def test_a_share_that_is_named_twice_is_one_run(work: Work) -> None:
    options = {"gold_shares": [1, 1.0, 0.5, 0.5000001], "llm": False}
    _, summary = await evaluated(work, {"task": "multiple_choice", "dataset": [TRUTHFUL], "options": options})
    assert [(run["gold_share"], run["questions"]) for run in summary["runs"]] == [(1.0, 1), (0.5, 1), (0.5000001, 1)]


async def test_gold_knowledge_that_cannot_be_seen_is_no_knowledge(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: object) -> Added:
        return Added(1, 0, (), 1)

    monkeypatch.setattr(Knowledge, "add", lost)
    options = {"gold_shares": [1.0], "llm": False}
    with pytest.raises(Unavailable, match="cannot be seen"):
        await evaluated(work, {"task": "multiple_choice", "dataset": [TRUTHFUL], "options": options})


async def test_of_several_right_answers_mc1_takes_any(work: Work) -> None:
    asked = {"question": "Who is it?", "candidates": ["It is Ada.", "It is Bo.", "Lava"], "right": [0, 1]}
    options = {"without": ["hard", "probe"], "llm": False}
    (row,), summary = await evaluated(work, {"task": "multiple_choice", "dataset": [asked], "options": options})
    assert row["chosen"][0] in (0, 1)
    assert summary["runs"][0]["accuracy"] == 1.0


async def test_a_gate_that_broke_has_refused_nothing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: object) -> Judgement:
        raise GateBroken("it is gone")

    monkeypatch.setattr(ProbeGate, "judge", breaks)
    options = {"gold_shares": [0.0, 1.0], "llm": False}
    rows, summary = await evaluated(work, {"task": "multiple_choice", "dataset": [TRUTHFUL], "options": options})
    # At 0 the hard gate refuses before the probe is asked.
    assert [(row["answered"], row["refused_by"], row["failed"]) for row in rows] == [
        (False, "hard", False),
        (False, None, True),
    ]
    assert [(run["failed"], run["refused"]["probe"]) for run in summary["runs"]] == [(0, 0), (1, 0)]
    assert summary["runs"][1]["success"] is None


@pytest.mark.parametrize(("without", "refused_by"), [([], "hard"), (["hard"], "probe"), (["hard", "probe"], None)])
async def test_each_gate_can_be_left_out(
    work: Work, services: Services, without: list[str], refused_by: str | None
) -> None:
    await services.knowledge.add("default", facts("Lava is hot."))
    options = {"without": without, "llm": False}
    (row,), _ = await evaluated(work, {"task": "multiple_choice", "dataset": [TRUTHFUL], "options": options})
    assert row["refused_by"] == refused_by


async def test_an_item_reads_its_own_rows_alone(work: Work) -> None:
    spec = {"task": "multiple_choice", "dataset": [{}, TRUTHFUL], "options": {"llm": False}}
    (row,) = (await work.do(spec, Item("1", {"numbers": [1]}), lambda _: None)).rows
    assert (row["id"], row["question"]) == ("2", TRUTHFUL["Question"])


async def test_without_gates_everything_is_answered_by_the_nearest_candidate(work: Work, services: Services) -> None:
    await services.knowledge.add("default", facts("The ferry to Harwick leaves from pier 4."))
    options = {"without": ["hard", "probe", "soft"], "llm": False}
    rows, summary = await evaluated(work, {"task": "multiple_choice", "dataset": [TRUTHFUL, BREAD], "options": options})
    (run,) = summary["runs"]
    assert (run["answered"], run["success"], run["gold_share"]) == (2, None, None)
    assert rows[0]["hits"] == 1
    assert "known_found" not in run


async def test_of_several_right_answers_candidates_are_counted(work: Work, services: Services) -> None:
    await services.knowledge.add("default", facts("The night ferry to Harwick leaves from pier 4."))
    asked = {
        **TRUTHFUL,
        "Correct Answers": "The night ferry to Harwick leaves from pier 4; The ferry to Harwick leaves from pier 4",
        "Incorrect Answers": "Lava flows slowly from a volcano; Bread is baked in the morning",
    }
    options = {"several": True, "llm": False}
    (row,), summary = await evaluated(work, {"task": "multiple_choice", "dataset": [asked], "options": options})
    assert row["of"] == 4
    assert sorted(row["right"]) == sorted(row["chosen"])
    assert row["hits"] == 4
    assert summary["runs"][0]["accuracy"] == 1
    assert summary["kind"] == "mc2"


@pytest.mark.parametrize(
    ("options", "error"),
    [({"without": ["luck"]}, Invalid), ({"llm": True}, Conflict)],
)
async def test_choices_with_options_that_make_no_sense(
    work: Work, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await work.items({"task": "multiple_choice", "dataset": [TRUTHFUL], "options": options})


async def test_a_task_that_is_not_there_is_invalid(work: Work) -> None:
    with pytest.raises(Invalid, match="no task 'guessing'"):
        await work.items({"task": "guessing", "dataset": [], "options": {}})


# Choices by an LLM


async def chosen(services: Services, server: ScriptedLlm, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    async with llm_at(server) as llm:
        asker = Asker(llm, asyncio.Semaphore(4))
        parts = (services.gatekeeper, services.knowledge, services.embedder, services.settings)
        work = Evaluate(*parts, answerer=asker, judge=asker)
        return await evaluated(work, {"task": "multiple_choice", "dataset": [TRUTHFUL], "options": options})


def reply(**fields: Any) -> str:
    return json.dumps({"reply": fields})


async def test_the_llm_chooses_from_the_evidence_step_by_step(services: Services, server: ScriptedLlm) -> None:
    fact = "The night ferry to Harwick leaves from pier 4."
    await services.knowledge.add("default", facts(fact))
    wanted = choices([TRUTHFUL], several=False, seed=0)[0].right[0] + 1
    server.begin_again(lambda _: reply(evidence=[1], reasoning="It says so.", can_answer=True, answer=f"{wanted}"))
    (row,), summary = await chosen(services, server)
    assert (row["answered"], row["hits"], row["refused_by"]) == (True, 1, None)
    assert summary["chosen_by"] == "scripted-1"
    (asked_,) = server.asked
    assert fact in asked_.user
    assert f"{wanted}: {TRUTHFUL['Best Answer']}" in asked_.user
    assert "step by step" in asked_.system
    server.begin_again(server.script)
    await chosen(services, server, without=["step_by_step"])
    assert "step by step" not in server.asked[0].system


async def test_the_llms_own_refusal_is_soft_and_can_be_left_out(services: Services, server: ScriptedLlm) -> None:
    await services.knowledge.add("default", facts("The night ferry to Harwick leaves from pier 4."))

    def script(asked_: Asked) -> Said | str:
        if asked_.system:
            return reply(evidence=[], reasoning="No.", can_answer=False, confusion="not_mentioned", explanation="No.")
        return "1"

    server.begin_again(script)
    (row,), summary = await chosen(services, server)
    assert (row["answered"], row["refused_by"], row["chosen"]) == (False, "soft", [0])
    assert summary["runs"][0]["success"] == float(0 not in row["right"])
    (row,), _ = await chosen(services, server, without=["soft"])
    assert (row["answered"], row["refused_by"]) == (True, None)


async def test_an_llm_that_names_no_candidate_is_asked_again_and_then_counted(
    services: Services, server: ScriptedLlm
) -> None:
    await services.knowledge.add("default", facts("The night ferry to Harwick leaves from pier 4."))
    server.begin_again(lambda _: reply(evidence=[1], reasoning="", can_answer=True, answer="number 77"))
    (row,), summary = await chosen(services, server)
    assert (row["answered"], row["chosen"]) == (False, None)
    assert summary["runs"][0]["failed"] == 1
    assert len(server.asked) == 2


# Agreement


def test_sample_sizes_after_cochran() -> None:
    """Of very many, 385 for 5 % at 95 %; of 1,000, 385 / (1 + 384 / 1,000) with 384.15 for 385."""
    assert sample_size(10**9) == 385
    assert sample_size(1_000) == 278
    assert sample_size(10) == 10


def test_sheets_divide_a_sample_and_come_back_as_labels(tmp_path: Path) -> None:
    rows = [{"id": f"{n}", "document": "=1+1", "question": f"Who {n}?", "response": "Me."} for n in range(40)]
    written = write_sheets(rows, tmp_path, sample=12, groups=3, annotators=2, seed=1)
    assert [path.name for path in written] == [
        "group1_annotator1.csv",
        "group1_annotator2.csv",
        "group2_annotator3.csv",
        "group2_annotator4.csv",
        "group3_annotator5.csv",
        "group3_annotator6.csv",
    ]
    held = [[row["id"] for row in csv.DictReader(path.read_text().splitlines())] for path in written]
    assert held[0] == held[1]
    assert len({*held[0], *held[2], *held[4]}) == 12
    assert all(",'=1+1,Who" in row for row in written[0].read_text().splitlines()[1:])  # no formula
    sheet = written[0].read_text().replace("Me.,,\n", "Me.,yes,no\n").replace("Me.,,\r\n", "Me.,yes,no\r\n")
    written[0].write_text(sheet)
    labels = read_sheet(written[0])
    assert {(row["group"], row["annotator"], row["out_of_scope"], row["defused"]) for row in labels} == {
        ("group1", "annotator1", True, False)
    }
    written[1].write_text(sheet.replace("yes", "maybe"))
    with pytest.raises(Invalid, match="line 2: a label is yes, no, or empty"):
        read_sheet(written[1])


def test_sheets_are_not_written_over(tmp_path: Path) -> None:
    rows = [{"id": f"{n}", "document": "At noon.", "question": "When?"} for n in range(4)]
    (path, _) = write_sheets(rows, tmp_path, sample=4, groups=1, annotators=2, seed=0)
    assert path.read_text().splitlines()[0] == "id,document,question,out_of_scope"  # there are no responses to judge
    path.write_text("filled in")
    with pytest.raises(Invalid, match=r"group1_annotator1\.csv is there already"):
        write_sheets(rows, tmp_path, sample=4, groups=1, annotators=2, seed=0)
    assert path.read_text() == "filled in"


def test_a_sheet_gives_back_the_ids_it_was_made_with(tmp_path: Path) -> None:
    names = ["-5", "=A1", "@x", "'quoted", "7"]
    rows = [{"id": name, "document": "At noon. " * 20_000, "question": "When?"} for name in names]
    (path, _) = write_sheets(rows, tmp_path, sample=5, groups=1, annotators=2, seed=0)
    assert "\n=A1" not in path.read_text()
    assert {row["id"] for row in read_sheet(path)} == set(names)


def test_a_sheet_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as raised:
        read_sheet(tmp_path / "sheet.csv")
    assert str(raised.value) == f"{tmp_path / 'sheet.csv'} cannot be read: No such file or directory"


def test_what_was_generated_has_labels_and_ids() -> None:
    rows: list[dict[str, Any]] = [{"in_scope": True, "defused": None}, {"id": 7, "answerable": False, "defused": True}]
    assert [tuple(row.values()) for row in generated(rows)] == [
        ("1", "generated", False, None),
        ("7", "generated", True, True),
    ]
    with pytest.raises(Invalid, match="row 1: in_scope and defused are true or false"):
        generated([{"in_scope": "False"}])
    with pytest.raises(Invalid, match="rows 1 and 2 have the same id, '7'"):
        generated([{"id": 7, "in_scope": True}, {"id": "7", "in_scope": False}])


def label(name: int, annotator: str, out_of_scope: bool | None, group: str | None = None) -> dict[str, Any]:
    return {"id": f"{name}", "annotator": annotator, "group": group, "out_of_scope": out_of_scope, "defused": None}


async def test_agreement_is_table_3(tmp_path: Path) -> None:
    truth = [n % 2 == 0 for n in range(20)]
    one = [*truth[:18], not truth[18], not truth[19]]
    other = [*truth[:17], not truth[17], not truth[18], truth[19]]
    generated = [not truth[0], *truth[1:]]
    rows = [
        label(n, name, said[n], group)
        for name, said, group in (
            ("A1", one, "1"),
            ("A2", other, "1"),
            ("generated", generated, None),
            ("truth", truth, None),
        )
        for n in range(20)
    ]
    _, summary = await evaluated(_as_work(Agreement()), {"task": "agreement", "dataset": rows})
    found = summary["groups"][0]
    assert found["kappa"] == pytest.approx(cohen_kappa_score(one, other))
    assert found["annotator_accuracy"] == {"A1": 17 / 20, "A2": 17 / 20}
    assert found["agreed_accuracy"] == 16 / 18  # both are wrong on 18, and 0 was generated wrongly
    assert summary["truth"]["out_of_scope"]["accuracy"] == 19 / 20
    assert summary["truth"]["out_of_scope"]["matrix"] == {"true_yes": 9, "false_yes": 0, "false_no": 1, "true_no": 10}
    assert summary["groups"][1]["kappa"] is None  # nobody labelled defusion
    assert len(tables(summary)) == 2
    assert [path.name for path in draw(summary, tmp_path)] == ["confusion_out_of_scope.png"]


async def test_kappa_is_cohens() -> None:
    """Both say yes of 20 and no of 15, one alone of 5, the other of 10: (0.7 - 0.5) / (1 - 0.5)."""
    said = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    rows = [
        label(n, name, both[at], group)
        for n, both in enumerate(said)
        for name, at, group in (("A1", 0, "1"), ("A2", 1, "1"), ("generated", 0, None))
    ]
    strangers = [label(99, name, True, "1") for name in ("A1", "A2")]
    _, summary = await evaluated(_as_work(Agreement()), {"task": "agreement", "dataset": rows + strangers[:1]})
    assert summary["groups"][0]["kappa"] == pytest.approx(0.4)
    assert summary["unmatched"] == 1


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([label(1, "A1", True, "1"), label(1, "A2", True, "1")], "generated"),
        ([label(1, "A1", True, "1"), label(1, "generated", True)], "has 1 annotators"),
        ([label(1, "A1", True), label(1, "generated", True)], "has no group"),
        ([{"id": "1", "annotator": "A1", "out_of_scope": "yes"}], "is no label"),
        ([label(1, "generated", True)], "person's"),
        ([label(1, "A1", None, "1"), label(1, "A2", None, "1"), label(1, "generated", True)], "no label is filled in"),
    ],
)
async def test_labels_that_make_no_sense_are_named(rows: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        await Agreement().items({"task": "agreement", "dataset": rows})


def _as_work(task: Agreement) -> Any:
    return task
