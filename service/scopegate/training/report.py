"""A folder that tells how good a probe is: its figures as JSON, and two plots, each as PNG and SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scopegate.domain import Invalid
from scopegate.training.metrics import bins
from scopegate.training.probes import Scored

_COLOUR = "#2a6f97"


def write_report(folder: Path, name: str, parts: Mapping[str, Scored]) -> None:
    """metrics.json over all parts; reliability and confusion of the part "test". Raises Invalid where it cannot."""
    test = parts["test"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = {part: asdict(scored.metrics) for part, scored in parts.items()}
        (folder / "metrics.json").write_text(json.dumps({"probe": name, **figures}, indent=2) + "\n", "utf-8")
        for plot, draw in (("reliability", _reliability), ("confusion", _confusion)):
            figure = Figure(figsize=(4.5, 4.5), layout="constrained")
            axes = figure.add_subplot()
            draw(axes, test)
            axes.set_title(f"{name}: {plot}, {len(test.answerable)} questions")
            figure.savefig(folder / f"{plot}.png", dpi=150)
            figure.savefig(folder / f"{plot}.svg", metadata={"Date": None})
    except OSError as error:
        raise Invalid(f"the report {folder} cannot be written: {error.strerror}") from error


def _reliability(axes: Axes, scored: Scored) -> None:
    held = bins(scored.probabilities, scored.answerable)
    most = max(each.questions for each in held)
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="calibrated")
    axes.bar(
        [each.probability for each in held],
        [each.questions / most for each in held],
        width=0.04,
        color=_COLOUR,
        alpha=0.2,
        label="questions, relative",
    )
    axes.plot(
        [each.probability for each in held],
        [each.answerable for each in held],
        marker="o",
        color=_COLOUR,
        label=f"probe, ECE {scored.metrics.ece:.3f}",
    )
    axes.axvline(scored.threshold, color="black", linewidth=0.8, label=f"threshold {scored.threshold:.2f}")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="P(in scope)", ylabel="share answerable")
    axes.legend(loc="upper left", fontsize="small")


def _confusion(axes: Axes, scored: Scored) -> None:
    passed = scored.probabilities >= scored.threshold
    counts = np.array([[(passed[truth] == said).sum() for said in (True, False)] for truth in _classes(scored)])
    axes.imshow(counts, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if count > counts.max() / 2 else "black"
        axes.text(column, row, f"{count}", ha="center", va="center", color=colour)
    axes.set_xticks([0, 1], ["passed", "refused"])
    axes.set_yticks([0, 1], ["answerable", "unanswerable"])


def _classes(scored: Scored) -> tuple[np.ndarray, np.ndarray]:
    return scored.answerable, ~scored.answerable
