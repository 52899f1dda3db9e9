"""What an evaluation found, as figures, each as PNG and SVG. Needs matplotlib, from the extra 'evaluate'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scopegate.domain import Invalid

_BLUE, _ORANGE = "#2a6f97", "#d1495b"
_Drawn = Iterator[tuple[str, Callable[[Axes], None]]]


def draw(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws a summary's figures into the folder; returns the PNGs. Raises Invalid where they cannot be written."""
    written = []
    for name, paint in _OF[summary.get("task", "calibration")](summary):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        paint(figure.add_subplot())
        try:
            figure.savefig(folder / f"{name}.png", dpi=150)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        except OSError as error:
            raise Invalid(f"the figures cannot be written to {folder}: {error.strerror}") from error
        written.append(folder / f"{name}.png")
    return written


def _bars(names: Sequence[str], series: Mapping[str, Sequence[float | None]], label: str, axes: Axes) -> None:
    """Grouped bars of shares, in per cent."""
    width = 0.8 / max(len(series), 1)
    for number, (name, values) in enumerate(series.items()):
        places = np.arange(len(names)) + (number - (len(series) - 1) / 2) * width
        axes.bar(places, [np.nan if value is None else 100 * value for value in values], width=width, label=name)
    axes.set_xticks(
        range(len(names)), names, rotation=30 if len(names) > 4 else 0, ha="right" if len(names) > 4 else "center"
    )
    axes.set(ylabel=label, ylim=(0, 100))
    if len(series) > 1:
        axes.legend(fontsize="small")


def _matrix(matrix: Mapping[str, int], title: str, axes: Axes) -> None:
    """Rows: the truth; columns: what was said."""
    counts = np.array([[matrix["true_yes"], matrix["false_no"]], [matrix["false_yes"], matrix["true_no"]]])
    axes.imshow(counts, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if count > counts.max() / 2 else "black"
        axes.text(column, row, f"{count}", ha="center", va="center", color=colour)
    axes.set_xticks([0, 1], ["yes", "no"])
    axes.set_yticks([0, 1], ["yes", "no"])
    axes.set(xlabel="said", ylabel="truth", title=title)


def _topics(rows: Mapping[str, Mapping[str, Any]], label: str) -> Callable[[Axes], None]:
    topics = sorted({topic for row in rows.values() for topic in row["topics"]})
    series = {name: [*(row["topics"].get(topic) for topic in topics), row["overall"]] for name, row in rows.items()}
    return partial(_bars, [*topics, "all"], series, label)


def _detection(summary: Mapping[str, Any]) -> _Drawn:
    judges = summary["judges"]
    yield "detection", _topics({name: found["by_topic"] for name, found in judges.items()}, "accuracy, %")
    for name, found in judges.items():
        yield f"confusion_{name}", partial(_matrix, found["matrix"], f"out of scope: {name}")


def _response(summary: Mapping[str, Any]) -> _Drawn:
    yield "response", _topics(summary["methods"], "defused, %")
    if judges := summary["judges"]:
        names = [f"{row['votes']} votes, examples {row['examples']}" for row in judges]
        series = {"accuracy": [row["accuracy_of_all"] for row in judges]}
        yield "judges", partial(_bars, names, series, "accuracy against people, %")


def _retrieval(summary: Mapping[str, Any]) -> _Drawn:
    columns = ("recall@1", "recall@5", "recall@10", "mrr")
    series = {name: [row[column] for column in columns] for name, row in summary["retrievers"].items()}
    yield "retrieval", partial(_bars, columns, series, "%")


def _multiple_choice(summary: Mapping[str, Any]) -> _Drawn:
    runs = summary["runs"]
    if any(run["gold_share"] is None for run in runs):
        names = ["answered", "right, of those", "right, had all been answered"]
        series = {
            "": [
                share
                for run in runs
                for share in (run["answered"] / run["questions"], run["accuracy"], run["accuracy_unrefused"])
            ]
        }
        yield "multiple_choice", partial(_bars, names, series, "%")
        return

    def paint(axes: Axes) -> None:
        places = [run["gold_share"] for run in runs]
        answered = [100 * run["answered"] / run["questions"] for run in runs]
        axes.plot(places, answered, marker="o", color=_BLUE, label="answered")
        scored = [(place, 100 * run["accuracy"]) for place, run in zip(places, runs, strict=True) if run["answered"]]
        axes.plot([x for x, _ in scored], [y for _, y in scored], marker="s", color=_ORANGE, label="right, of those")
        axes.plot(
            places,
            [100 * run["accuracy_unrefused"] for run in runs],
            linestyle=":",
            color="grey",
            label="right, had all been answered",
        )
        axes.set(xlabel="share of gold knowledge", ylabel="%", ylim=(0, 102))
        axes.legend(fontsize="small")

    yield "multiple_choice", paint


def _agreement(summary: Mapping[str, Any]) -> _Drawn:
    for label, row in summary["truth"].items():
        if row["accuracy"] is not None:
            yield f"confusion_{label}", partial(_matrix, row["matrix"], label.replace("_", " "))


def _calibration(summary: Mapping[str, Any]) -> _Drawn:
    for name, rows in (("alpha", summary["over_alpha"]), ("probe_threshold", summary["over_probe_threshold"])):
        if rows:
            yield f"over_{name}", partial(_over, name, rows)
            yield f"precision_recall_{name}", partial(_precision_recall, rows)
    yield "risk_coverage", partial(_risk_coverage, summary)
    if summary["tried"]:
        yield "tried", partial(_tried, summary)


def _over(name: str, rows: Sequence[Mapping[str, Any]], axes: Axes) -> None:
    axes.plot([row[name] for row in rows], [row["refusals"] for row in rows], color=_BLUE, label="questions refused")
    axes.set(xlabel=name.replace("_", " "), ylabel="questions refused")
    beside = axes.twinx()
    told = [row for row in rows if row["accuracy"] is not None]
    beside.plot([row[name] for row in told], [100 * row["accuracy"] for row in told], color=_ORANGE, label="accuracy")
    beside.set(ylabel="answerable, of those answered, %", ylim=(0, 100))
    axes.legend(
        *[a + b for a, b in zip(axes.get_legend_handles_labels(), beside.get_legend_handles_labels(), strict=True)],
        fontsize="small",
    )


def _precision_recall(rows: Sequence[Mapping[str, Any]], axes: Axes) -> None:
    told = [row for row in rows if row["accuracy"] is not None and row["recall"] is not None]
    axes.plot([100 * row["recall"] for row in told], [100 * row["accuracy"] for row in told], color=_BLUE)
    axes.set(xlabel="recall: answered, of the answerable, %", ylabel="precision: answerable, of those answered, %")


def _risk_coverage(summary: Mapping[str, Any], axes: Axes) -> None:
    rows, by = summary["risk_coverage"], "P(in scope)" if summary["over_probe_threshold"] else "S/C"
    axes.plot([100 * row["coverage"] for row in rows], [100 * row["risk"] for row in rows], color=_BLUE, marker=".")
    axes.set(xlabel=f"coverage: answered, surest by {by} alone first, %")
    axes.set(ylabel="risk: unanswerable, of those answered, %", ylim=(0, None))


def _tried(summary: Mapping[str, Any], axes: Axes) -> None:
    for kept, colour, label in ((True, _BLUE, "shown to keep the promise"), (False, "grey", "not shown")):
        rows = [row for row in summary["tried"] if row["kept"] is kept and None not in (row["wrong"], row["refused"])]
        axes.scatter(
            [100 * row["wrong"] for row in rows],
            [100 * row["refused"] for row in rows],
            s=12,
            color=colour,
            label=label,
        )
    if (at := summary["at_recommended"]) is not None and at["refused"] is not None:
        axes.scatter([100 * at["wrong"]], [100 * at["refused"]], marker="*", s=120, color=_ORANGE, label="recommended")
    if summary["guarantee"] is not None:
        axes.axvline(100 * summary["guarantee"]["max_wrong"], color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="unanswerable let through, %", ylabel="answerable refused, %")
    axes.legend(fontsize="small")


_OF: Mapping[str, Callable[[Mapping[str, Any]], _Drawn]] = {
    "detection": _detection,
    "response": _response,
    "retrieval": _retrieval,
    "multiple_choice": _multiple_choice,
    "agreement": _agreement,
    "calibration": _calibration,
}
