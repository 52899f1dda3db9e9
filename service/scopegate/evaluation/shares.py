"""Shares, over all and by topic."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any


def percent(share: float) -> str:
    """As it was given: a promise is not rounded."""
    return f"{100 * share:.10g}%"


def share(hits: Sequence[bool]) -> float | None:
    """The share of hits; None of nothing."""
    return sum(hits) / len(hits) if hits else None


def by_topic(hits: Iterable[tuple[str | None, bool]]) -> dict[str, Any]:
    """The share of hits in each topic, and the topics' average and standard deviation, as in ELOQ's table 5.

    overall: of all questions alike. The deviation is that of these topics, not of a sample; rows without a topic count
    overall alone.
    """
    held: dict[str | None, list[bool]] = defaultdict(list)
    for topic, hit in hits:
        held[topic].append(hit)
    topics = {topic: sum(each) / len(each) for topic, each in sorted(held.items(), key=str) if topic is not None}
    average = sum(topics.values()) / len(topics) if topics else None
    deviation = None
    if average is not None:
        deviation = math.sqrt(sum((each - average) ** 2 for each in topics.values()) / len(topics))
    every = [hit for each in held.values() for hit in each]
    return {
        "questions": len(every),
        "overall": share(every),
        "topics": topics,
        "average": average,
        "deviation": deviation,
    }


def confusion(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """Of pairs (truth, said): the confusion matrix and what is read off it; None where a share is of nothing."""
    true_yes = sum(truth and said for truth, said in pairs)
    false_yes = sum(said and not truth for truth, said in pairs)
    false_no = sum(truth and not said for truth, said in pairs)
    true_no = len(pairs) - true_yes - false_yes - false_no
    precision = true_yes / (true_yes + false_yes) if true_yes + false_yes else None
    recall = true_yes / (true_yes + false_no) if true_yes + false_no else None
    return {
        "matrix": {"true_yes": true_yes, "false_yes": false_yes, "false_no": false_no, "true_no": true_no},
        "accuracy": (true_yes + true_no) / len(pairs) if pairs else None,
        "precision": precision,
        "recall": recall,
        "f1": 2 * true_yes / (2 * true_yes + false_yes + false_no) if true_yes + false_yes + false_no else None,
    }
