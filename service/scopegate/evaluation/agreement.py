"""How far people agree with each other and with generated labels (ELOQ, section 3.4, table 3, figure 1)."""

from __future__ import annotations

import csv
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

from scopegate.domain import Invalid
from scopegate.evaluation.datasets import read_rows
from scopegate.evaluation.shares import confusion, share
from scopegate.jobs.work import Done, Item

LABELS = ("out_of_scope", "defused")
GENERATED, TRUTH = "generated", "truth"
COLUMNS = ("id", "document", "question", "response", *LABELS)
_OF_RESPONSES = ("response", "defused")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def sample_size(population: int, margin: float = 0.05, confidence: float = 0.95, share_expected: float = 0.5) -> int:
    """How many of so many questions to label, so that a share found on them is within `margin` (Cochran, 1977, 4.1).

    share_expected: of what is looked for; 0.5 is the safe guess. margin, confidence: between 0 and 1.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    unlimited = z**2 * share_expected * (1 - share_expected) / margin**2
    return math.ceil(unlimited / (1 + (unlimited - 1) / population))


def write_sheets(
    rows: Sequence[Mapping[str, Any]], folder: Path, *, sample: int, groups: int, annotators: int, seed: int
) -> list[Path]:
    """Draws questions, divides them evenly into groups, and writes a sheet for each annotator of each group to fill in.

    rows: id, document, question and, if known, response. Sheets are CSV with the COLUMNS, without those about responses
    where there are none, the labels empty, and tell nothing of what was generated. Raises Invalid where the folder
    cannot be written or holds such sheets, the sample is too large, or an id stands for two rows.
    """
    if not groups <= sample <= len(rows):
        raise Invalid(f"the sample must be {groups} to {len(rows)} of the {len(rows)} questions")
    _ids(rows)
    asked = [name for name in COLUMNS if name not in _OF_RESPONSES or any(row.get("response") for row in rows)]
    drawn = random.Random(seed).sample(list(rows), sample)  # noqa: S311 - a draw, no secret
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for group in range(groups):
            for number in range(annotators):
                path = folder / f"group{group + 1}_annotator{group * annotators + number + 1}.csv"
                with path.open("x", encoding="utf-8", newline="") as file:
                    sheet = csv.DictWriter(file, asked, restval="", extrasaction="ignore")
                    sheet.writeheader()
                    for row in drawn[group::groups]:
                        kept = {name: row.get(name) or "" for name in asked if name not in LABELS}
                        sheet.writerow({name: _harmless(str(value)) for name, value in kept.items()})
                written.append(path)
    except FileExistsError as error:
        raise Invalid(f"{error.filename} is there already, and people may have filled it in") from error
    except OSError as error:
        raise Invalid(f"the sheets cannot be written to {folder}: {error.strerror}") from error
    return written


def read_sheet(path: Path) -> list[dict[str, Any]]:
    """A filled-in sheet as rows of the task; its name's parts before and after "_" are group and annotator.

    Raises Invalid where a label is neither yes, no nor empty, or the columns are others.
    """
    group, _, annotator = path.stem.partition("_")
    labels = []
    for number, row in enumerate(read_rows(path), 2):
        if not row.get("id") or "out_of_scope" not in row:
            raise Invalid(f"{path}, line {number}: it needs the columns id and {LABELS[0]}, and an id")
        said = {label: row.get(label) for label in LABELS}
        if any(label is not None and type(label) is not bool for label in said.values()):
            raise Invalid(f"{path}, line {number}: a label is yes, no, or empty")
        labels.append({"id": _as_it_was(row["id"]), "group": group, "annotator": annotator or group, **said})
    return labels


def generated(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was generated, as rows of the task: of the rows that sheets were made of.

    Raises Invalid, naming the row, where a label is neither true nor false, or an id stands for two rows.
    """
    labels = []
    for number, (name, row) in enumerate(zip(_ids(rows), rows, strict=True), 1):
        in_scope, defused = row.get("in_scope", row.get("answerable")), row.get("defused")
        if any(type(label) not in {bool, type(None)} for label in (in_scope, defused)):
            raise Invalid(f"row {number}: in_scope and defused are true or false")
        out_of_scope = None if in_scope is None else not in_scope
        labels.append({"id": name, "annotator": GENERATED, "out_of_scope": out_of_scope, "defused": defused})
    return labels


class Agreement:
    """A task on labels: rows of id, annotator, out_of_scope and defused (true, false, or null), and, of people, group.

    The annotators "generated" and "truth" are what was generated and what was settled on. Two people label a group.
    """

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """See Work. Raises Invalid where rows are no labels, a group has not two people, nothing was generated, or
        people have said nothing."""
        people, fixed = _labels(spec["dataset"])
        if not fixed[GENERATED]:
            raise Invalid("no row has the annotator 'generated', with which people are compared")
        for group, labels in people.items():
            if len(labels) != 2:
                raise Invalid(f"group {group!r} has {len(labels)} annotators, and agreement is between two")
        theirs = [row for group in people.values() for labels in group.values() for row in labels.values()]
        if all(row.get(label) is None for row in theirs for label in LABELS):
            raise Invalid("no label is filled in")
        return [Item("agreement", {})]

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work. A row for each label and each group, annotator or matrix of table 3 and figure 1."""
        stage("comparing")
        people, fixed = _labels(spec["dataset"])
        rows: list[dict[str, Any]] = []
        for label in LABELS:
            generated = _of(fixed[GENERATED], label)
            truth = _of(fixed[TRUTH], label)
            for group, annotators in people.items():
                (first, one), (second, other) = ((name, _of(each, label)) for name, each in annotators.items())
                shared = sorted(one.keys() & other.keys())
                agreed = {key: one[key] for key in shared if one[key] == other[key]}
                rows.append(
                    {
                        "label": label,
                        "group": group,
                        "questions": len(shared),
                        "kappa": _kappa([one[key] for key in shared], [other[key] for key in shared]),
                        "annotator_accuracy": {
                            first: _accuracy(generated, one),
                            second: _accuracy(generated, other),
                        },
                        "agreed_accuracy": _accuracy(generated, agreed),
                    }
                )
            both = sorted(generated.keys() & truth.keys())
            rows.append({"label": label, "group": None, **confusion([(truth[key], generated[key]) for key in both])})
        return Done(tuple(rows), {"labels": len(spec["dataset"])})

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """See Work. unmatched: people's labels of questions that are not among those generated."""
        rows = [row for each in done for row in each.rows]
        people, fixed = _labels(spec["dataset"])
        theirs = [name for group in people.values() for labels in group.values() for name in labels]
        return {
            "task": "agreement",
            "unmatched": sum(name not in fixed[GENERATED] for name in theirs),
            "groups": [row for row in rows if row["group"] is not None],
            "truth": {row["label"]: row for row in rows if row["group"] is None},
        }


_Labels = dict[str, Mapping[str, Any]]


def _labels(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[str, _Labels]], dict[str, _Labels]]:
    """People's labels by group, annotator and question, and the fixed ones by whose they are and question."""
    people: defaultdict[str, dict[str, _Labels]] = defaultdict(dict)
    fixed: dict[str, _Labels] = {GENERATED: {}, TRUTH: {}}
    for number, row in enumerate(rows, 1):
        if (
            not row.get("id")
            or not row.get("annotator")
            or any(type(row.get(each)) not in {bool, type(None)} for each in LABELS)
        ):
            raise Invalid(
                f"row {number} is no label: it needs id, annotator, and {' or '.join(LABELS)} as true or false"
            )
        if row["annotator"] in fixed:
            fixed[row["annotator"]][str(row["id"])] = row
        elif not row.get("group"):
            raise Invalid(f"row {number} has no group, which says whose labels are compared")
        else:
            people[str(row["group"])].setdefault(str(row["annotator"]), {})[str(row["id"])] = row
    if not people:
        raise Invalid("no row is a person's label")
    return people, fixed


def _of(labels: _Labels, label: str) -> dict[str, bool]:
    return {key: row[label] for key, row in labels.items() if row.get(label) is not None}


def _accuracy(said: Mapping[str, bool], truth: Mapping[str, bool]) -> float | None:
    return share([said[key] == held for key, held in truth.items() if key in said])


def _kappa(one: Sequence[bool], other: Sequence[bool]) -> float | None:
    """Cohen's kappa; None where it is not defined: nothing was labelled, or everything alike by both."""
    if not one or len({*one, *other}) < 2:
        return None
    try:
        from sklearn.metrics import cohen_kappa_score
    except ImportError as error:
        raise Invalid("agreement needs the extra 'evaluate': pip install 'scopegate[evaluate]'") from error
    return float(cohen_kappa_score(one, other))


def _ids(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of the rows, or their places. Raises Invalid where two are the same."""
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        name = str(number if row.get("id") is None else row["id"]).strip()
        if seen.setdefault(name, number) != number:
            raise Invalid(f"rows {seen[name]} and {number} have the same id, {name!r}")
    return list(seen)


def _harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _as_it_was(text: str) -> str:
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA) else text
