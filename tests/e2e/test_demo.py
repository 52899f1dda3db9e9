"""`make demo` shows a check, an answer and a refusal, and ends by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "demo" / "demo.py"


def test_the_demo_shows_every_decision_and_ends(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(DEMO)],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    decisions = [line.split()[2] for line in ended.stdout.splitlines() if " decision " in line]
    assert decisions == ["ANSWERABLE", "ANSWER", "REFUSAL"]
    assert list(tmp_path.iterdir()) == []
