"""What an evaluation found, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table


def tables(summary: Mapping[str, Any]) -> list[Table]:
    """The tables of a task's summary, or of a calibration's."""
    made: list[Table] = _OF[summary.get("task", "calibration")](summary)
    return made


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Texts stay as they are, counts are counts, shares are per cent, and what does not exist is left empty."""
    shown = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        shown.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        shown.add_row(*map(_cell, row))
    return shown


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{100 * value:.2f}" if isinstance(value, float) else str(value)


def _by_topic(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    topics = sorted({topic for row in rows.values() for topic in row["topics"]})
    columns = ("%", *topics, "average", "deviation", "overall", "questions")
    return _table(
        title,
        columns,
        [
            (
                name,
                *(row["topics"].get(topic) for topic in topics),
                row["average"],
                row["deviation"],
                row["overall"],
                row["questions"],
            )
            for name, row in rows.items()
        ],
    )


def _detection(summary: Mapping[str, Any]) -> list[Table]:
    judges = summary["judges"]
    return [
        _table(
            f"Out-of-scope detection, {summary['questions']} questions",
            ("judge, %", "accuracy", "precision", "recall", "F1", "undecided"),
            [
                (name, found["accuracy"], found["precision"], found["recall"], found["f1"], found["undecided"])
                for name, found in judges.items()
            ],
        ),
        _by_topic("Accuracy by topic", {name: found["by_topic"] for name, found in judges.items()}),
    ]


def _response(summary: Mapping[str, Any]) -> list[Table]:
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


def _retrieval(summary: Mapping[str, Any]) -> list[Table]:
    columns = ("recall@1", "recall@5", "recall@10", "mrr")
    return [
        _table(
            f"{summary['questions']} questions among {summary['documents']} documents",
            ("retriever, %", *columns),
            [(name, *(row[column] for column in columns)) for name, row in summary["retrievers"].items()],
        )
    ]


def _multiple_choice(summary: Mapping[str, Any]) -> list[Table]:
    without = f", without {', '.join(summary['without'])}" if summary["without"] else ""
    columns = [
        "gold share",
        "questions",
        "answered",
        "accuracy %",
        "unrefused",
        "refusals right",
        "hard",
        "probe",
        "soft",
    ]
    gold = any(run["gold_share"] is not None for run in summary["runs"])
    if gold:
        columns += ["known answered", "unknown refused", "right fact found"]
    rows = [
        (
            "" if run["gold_share"] is None else f"{run['gold_share']:g}",
            run["questions"],
            run["answered"],
            run["accuracy"],
            run["accuracy_unrefused"],
            run["success"],
            *(run["refused"][part] for part in ("hard", "probe", "soft")),
            *((run["known_answered"], run["unknown_refused"], run["known_found"]) if gold else ()),
        )
        for run in summary["runs"]
    ]
    return [_table(f"{summary['kind'].upper()}, chosen by {summary['chosen_by']}{without}", columns, rows)]


def _agreement(summary: Mapping[str, Any]) -> list[Table]:
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
    columns = ("label", "group", "Cohen's κ", "annotator", "accuracy %", "where both agree")
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


def _calibration(summary: Mapping[str, Any]) -> list[Table]:
    rows = []
    for name in ("at_current", "at_recommended"):
        if (row := summary[name]) is not None:
            thresholds = [f"{row[each]:.3f}" if each in row else None for each in ("alpha", "probe_threshold")]
            shares = [row[each] for each in ("wrong", "refused", "accuracy")]
            rows.append((name.removeprefix("at_"), *thresholds, *shares))
    title = f"{summary['answerable']} answerable and {summary['unanswerable']} unanswerable questions"
    columns = ("thresholds", "alpha", "probe", "unanswerable let through %", "answerable refused", "answered rightly")
    return [_table(title, columns, rows)]


_OF = {
    "detection": _detection,
    "response": _response,
    "retrieval": _retrieval,
    "multiple_choice": _multiple_choice,
    "agreement": _agreement,
    "calibration": _calibration,
}
