"""What an evaluation found, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

Titled = tuple[str, Table]


def tables(summary: Mapping[str, Any]) -> list[Titled]:
    """The tables of a task's summary, or of a calibration's, with their titles."""
    made: list[Titled] = _OF[summary.get("task", "calibration")](summary)
    return made


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Titled:
    """Texts stay as they are, counts are counts, shares are per cent, and what does not exist is left empty."""
    shown = Table()
    for number, column in enumerate(columns):
        shown.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*map(_cell, row))
    return title, shown


def _by_measure(title: str, corner: str, runs: Mapping[str, Mapping[str, Any]]) -> Titled:
    """A row for each measure and a column for each run: there are many of the ones and few of the others."""
    measures = dict.fromkeys(measure for run in runs.values() for measure in run)
    rows = [(measure, *(run.get(measure) for run in runs.values())) for measure in measures]
    return _table(title, (corner, *runs), rows)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{100 * value:.2f}" if isinstance(value, float) else str(value)


def _by_topic(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Titled:
    topics = sorted({topic for row in rows.values() for topic in row["topics"]})
    all_topics = ("average", "deviation", "overall", "questions")
    runs = {
        name: {topic: row["topics"].get(topic) for topic in topics} | {f"({each})": row[each] for each in all_topics}
        for name, row in rows.items()
    }
    return _by_measure(title, "%", runs)


def _detection(summary: Mapping[str, Any]) -> list[Titled]:
    judges = summary["judges"]
    measures = ("accuracy", "precision", "recall", "f1", "undecided")
    runs = {name: {measure: found[measure] for measure in measures} for name, found in judges.items()}
    return [
        _by_measure(f"Out-of-scope detection, {summary['questions']} questions", "%", runs),
        _by_topic("Accuracy by topic", {name: found["by_topic"] for name, found in judges.items()}),
    ]


def _response(summary: Mapping[str, Any]) -> list[Titled]:
    title = f"Defused by {summary['answerer']}, as {summary['judge']} judges with {summary['votes']} votes"
    found = [_by_topic(title, summary["methods"])]
    if summary["judges"]:
        found.append(
            _table(
                "The judge against people",
                ("examples", "votes", "accuracy %", "precision", "recall", "undecided"),
                [
                    (
                        row["examples"],
                        row["votes"],
                        row["accuracy_of_all"],
                        row["precision"],
                        row["recall"],
                        row["undecided"],
                    )
                    for row in summary["judges"]
                ],
            )
        )
    return found


def _retrieval(summary: Mapping[str, Any]) -> list[Titled]:
    columns = ("recall@1", "recall@5", "recall@10", "mrr")
    return [
        _table(
            f"{summary['questions']} questions among {summary['documents']} documents",
            ("retriever, %", *columns),
            [(name, *(row[column] for column in columns)) for name, row in summary["retrievers"].items()],
        )
    ]


def _multiple_choice(summary: Mapping[str, Any]) -> list[Titled]:
    without = f", without {', '.join(summary['without'])}" if summary["without"] else ""
    runs = {}
    for run in summary["runs"]:
        shown = {
            "questions": run["questions"],
            "answered": run["answered"],
            **{f"refused: {part}": run["refused"][part] for part in ("hard", "probe", "soft")},
            "failed": run["failed"],
            "accuracy %": run["accuracy"],
            "had all been answered": run["accuracy_unrefused"],
            "refusals that were right": run["success"],
        }
        if run["gold_share"] is not None:
            shown |= {
                "known, answered": run["known_answered"],
                "unknown, refused": run["unknown_refused"],
                "right fact found": run["known_found"],
            }
        runs["all" if run["gold_share"] is None else f"{run['gold_share']}"] = shown
    corner = "" if "all" in runs else "gold share"
    return [_by_measure(f"{summary['kind'].upper()}, chosen by {summary['chosen_by']}{without}", corner, runs)]


def _agreement(summary: Mapping[str, Any]) -> list[Titled]:
    rows = []
    for row in summary["groups"]:
        if all(accuracy is None for accuracy in row["annotator_accuracy"].values()):
            continue
        for number, (annotator, accuracy) in enumerate(row["annotator_accuracy"].items()):
            first = number == 0
            rows.append(
                (
                    row["label"] if first else "",
                    row["group"] if first else "",
                    f"{row['kappa']:.4f}" if first and row["kappa"] is not None else None,
                    annotator,
                    accuracy,
                    row["agreed_accuracy"] if first else None,
                )
            )
    columns = ("label", "group", "Cohen's κ", "annotator", "accuracy %", "both agree")
    truth = [
        (label, row["accuracy"], *row["matrix"].values())
        for label, row in summary["truth"].items()
        if row["accuracy"] is not None
    ]
    unmatched = f"; {summary['unmatched']} labels are of other questions" if summary["unmatched"] else ""
    found = [_table(f"People and generated labels{unmatched}", columns, rows)]
    if truth:
        found.append(
            _table("Against the truth", ("label", "accuracy %", "yes", "wrongly yes", "wrongly no", "no"), truth)
        )
    return found


def _calibration(summary: Mapping[str, Any]) -> list[Titled]:
    runs = {}
    for name in ("current", "recommended"):
        if (row := summary[f"at_{name}"]) is not None:
            runs[name] = {
                **{each: f"{row[each]:.3f}" for each in ("alpha", "probe_threshold") if each in row},
                "unanswerable let through %": row["wrong"],
                "answerable refused %": row["refused"],
                "of those answered, answerable %": row["accuracy"],
            }
    title = f"{summary['answerable']} answerable and {summary['unanswerable']} unanswerable questions"
    return [_by_measure(title, "thresholds", runs)]


_OF = {
    "detection": _detection,
    "response": _response,
    "retrieval": _retrieval,
    "multiple_choice": _multiple_choice,
    "agreement": _agreement,
    "calibration": _calibration,
}
