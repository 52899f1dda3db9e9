"""The command line, as a shell runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs scopegate on a data directory of the test's own."""

    def scopegate(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "scopegate.cli", *arguments],
            env=os.environ | {"SCOPEGATE_DATA_DIR": str(tmp_path / "data"), "COLUMNS": "200"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return scopegate


def fails(ended: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr


def test_knowledge_is_added_asked_and_answered(run: Run) -> None:
    added = run(
        "add", "--text", "The tide mill was rebuilt in 1904.", "--text", "Its miller is Oona.", "--source", "me"
    )
    assert added.returncode == 0, added.stderr
    assert "2 added" in added.stdout

    known = run("check", "When was the tide mill rebuilt?")
    assert known.returncode == 0, known.stderr
    assert known.stdout.startswith("ANSWERABLE")
    assert "1904" in known.stdout
    verdict = json.loads(run("check", "When was the tide mill rebuilt?", "--json").stdout)
    assert verdict["decision"] == "ANSWERABLE"
    assert verdict["evidence"][0]["source"] == "me"

    answer = run("answer", "When was the tide mill rebuilt?")
    assert answer.returncode == 0
    assert answer.stdout.startswith("The tide mill was rebuilt in 1904.")


def test_a_refusal_is_exit_code_2(run: Run) -> None:
    run("add", "--text", "The tide mill was rebuilt in 1904.")
    for command in ("check", "answer"):
        refused = run(command, "Who won the chess tournament in Reykjavik?")
        assert refused.returncode == 2, refused.stderr
        body = run(command, "Who won the chess tournament in Reykjavik?", "--json")
        assert body.returncode == 2
        assert json.loads(body.stdout)["decision"] == "REFUSAL"
    strict = run("check", "When was the tide mill rebuilt?", "--alpha", "0.0001", "--k", "1", "--explain", "--json")
    assert strict.returncode == 2
    assert [gate["status"] for gate in json.loads(strict.stdout)["gates"]] == ["ok", "ok"]


def test_files_are_added_by_their_kind(run: Run, tmp_path: Path) -> None:
    facts = tmp_path / "facts.ndjson"
    facts.write_text("".join(json.dumps({"text": f"Locker {n} is taken."}) + "\n" for n in range(2500)))
    guide = tmp_path / "guide.md"
    guide.write_text("The kiosk sells maps. It takes no cards.")
    added = run("add", str(facts), str(guide), "--scope", "hall", "--json")
    assert added.returncode == 0, added.stderr
    *calls, split = map(json.loads, added.stdout.splitlines())
    assert [call["added"] for call in calls] == [1000, 1000, 500]
    assert (split["sentences"], split["added"]) == (2, 2)

    guide.write_text("The kiosk is closed.")
    assert "1 sentences, 1 of them new, 2 removed" in run("add", str(guide), "--scope", "hall").stdout
    stdin = run("add", "-", "--scope", "hall", stdin='{"text": "The clock is slow."}\n')
    assert "1 added" in stdin.stdout


def test_files_of_long_paths_are_told_apart_and_replaced(run: Run, tmp_path: Path) -> None:
    names = [tmp_path / folder / ("x" * 200) / "guide.md" for folder in ("a" * 200, "b" * 200)]
    for name in names:
        name.parent.mkdir(parents=True)
        name.write_text(f"Here begins folder {name.parts[-3][0]}.")
        assert "1 sentences, 1 of them new, 0 removed" in run("add", str(name)).stdout
    names[0].write_text("Here it ends.")
    assert "1 sentences, 1 of them new, 1 removed" in run("add", str(names[0])).stdout


def test_export_and_import_are_each_other_s_inverse(run: Run, tmp_path: Path) -> None:
    run("add", "--text", "Grüße aus dem Hafen: 港.", "--text", "The crane is blue.", "--scope", "one")
    exported = run("export", "--scope", "one")
    assert exported.returncode == 0
    assert len(exported.stdout.splitlines()) == 2
    file = tmp_path / "one.ndjson"
    assert run("export", "--scope", "one", "--output", str(file)).stdout == ""
    assert file.read_text() == exported.stdout
    assert run("import", str(file), "--scope", "two").returncode == 0
    assert run("export", "--scope", "two").stdout == exported.stdout


def test_asking_makes_no_database(run: Run, tmp_path: Path) -> None:
    for command in (["check", "Anything?"], ["answer", "Anything?"], ["export"]):
        fails(run(*command), "no knowledge", "--data-dir")
    assert not (tmp_path / "data").exists()


def test_errors_are_one_sentence_and_exit_code_1(run: Run, tmp_path: Path) -> None:
    assert run("add", "--text", "The ferry is red.").returncode == 0
    fails(run("check", "Anything?", "--scope", "nowhere"), "nowhere")
    fails(run("check", " "), "question", "blank")
    fails(run("check", "Anything?", "--k", "0"), "policy.k")
    fails(run("check", "Anything?", "--scope", "../x"), "pattern")
    fails(run("export", "--scope", "nowhere"), "nowhere")
    fails(run("add"), "FILES")
    fails(run("add", str(tmp_path / "missing.ndjson")), "missing.ndjson", "No such file")
    (tmp_path / "facts.csv").touch()
    fails(run("add", str(tmp_path / "facts.csv")), ".ndjson")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    fails(run("add", str(tmp_path / "latin.txt")), "UTF-8")
    (tmp_path / "bad.ndjson").write_text('{"text": "Fine."}\n\n{"text": }\n')
    fails(run("add", str(tmp_path / "bad.ndjson"), "--scope", "fresh"), "line.3")
    fails(run("export", "--scope", "fresh"), "fresh")


def test_a_wrong_command_line_is_no_refusal(run: Run) -> None:
    for arguments in (["check"], ["check", "--colour", "Anything?"], ["nonsense"], ["check", "Anything?", "--k", "x"]):
        ended = run(*arguments)
        assert ended.returncode == 1, arguments
        assert ended.stderr


def test_help_and_version_import_nothing_heavy(run: Run) -> None:
    assert run("--version").stdout.startswith("scopegate 0.")
    assert "serve" in run("--help").stdout
    heavy = "{'fastapi', 'numpy', 'onnxruntime', 'faiss', 'sqlalchemy', 'pydantic'}"
    code = f"import sys, scopegate.cli; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
