"""An installed wheel works from any folder: what it needs of models is inside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel, and nothing else, was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", folder / "dist", ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    pip("install", "--no-deps", "--target", folder / "installed", wheel)
    return folder / "installed"


def run(installed: Path, folder: Path, *command: str) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_its_models_are_its_own(installed: Path, tmp_path: Path) -> None:
    code = "from scopegate.settings import models_dir; print(models_dir())"
    models = Path(run(installed, tmp_path, "-c", code).strip())
    assert models == installed / "scopegate" / "models"
    assert (models / "minilm-l6-int8" / "model.onnx").is_file()
    assert (models / "feature-probe" / "probe.json").is_file()
    assert {"model.onnx", "tokenizer.json", "probe.json"} <= {
        path.name for path in (models / "minilm-reader").iterdir()
    }
    assert (models / "minilm-reader" / "model.onnx").stat().st_size < 40e6


def test_it_answers_from_any_folder(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path, "-m", "scopegate.cli", "--version").startswith("scopegate ")
    run(installed, tmp_path, "-m", "scopegate.cli", "add", "--text", "The tide mill was rebuilt in 1904.")
    known = run(installed, tmp_path, "-m", "scopegate.cli", "check", "When was the tide mill rebuilt?")
    assert known.startswith("ANSWERABLE")
    assert (tmp_path / "data" / "scopegate.db").is_file()
