"""The embedded probe: P(in scope | question, evidence), judged from features that need no model of language."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scopegate.domain import Evidence, Invalid
from scopegate.gate.features import NAMES, features
from scopegate.gate.gate import Seen
from scopegate.gate.retrieval import Case


class FeatureProbe:
    """One hidden layer over standardised features, calibrated; see its card.

    name: tells this probe from others. threshold: the shipped one, passed at or above it. depth: how many pieces of
    evidence it was trained on, closest first; it looks at no more.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        """Raises Invalid where the model was trained on other features than this build computes."""
        if tuple(model["features"]) != NAMES:
            raise Invalid("the feature probe was trained on other features than this version of scopegate computes")
        self.name: str = model["name"]
        self.threshold: float = model["threshold"]
        self.depth: int = model["depth"]
        self._mean = np.array(model["mean"])
        self._scale = np.array(model["scale"])
        self._hidden = np.array(model["hidden"])
        self._hidden_bias = np.array(model["hidden_bias"])
        self._output = np.array(model["output"])
        self._bias: float = model["bias"]

    @classmethod
    def load(cls, path: Path) -> FeatureProbe:
        """The probe in a file that models/feature-probe/train.py wrote. Raises Invalid where it is none."""
        try:
            return cls(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Invalid(f"{path.name} is not a feature probe: {error}") from error

    async def judge(self, case: Case) -> Seen:
        """See Probe."""
        return Seen(self.score(case.question, case.evidence, case.rarity))

    def score(self, question: str, evidence: Sequence[Evidence], rarity: Callable[[str], float]) -> float:
        """P(in scope | question, evidence), 0 to 1; 0 where there is no evidence.

        evidence: best first. rarity: that of the words in the scope, or in the passages, WordCounts.rarity.
        """
        if not evidence:
            return 0.0
        return 1.0 / (1.0 + math.exp(-self.logit(question, evidence, rarity)))

    def logit(self, question: str, evidence: Sequence[Evidence], rarity: Callable[[str], float]) -> float:
        """Its log odds, -50 to 50. There must be evidence."""
        standard = (features(question, evidence[: self.depth], rarity) - self._mean) / self._scale
        hidden = np.maximum(self._hidden @ standard + self._hidden_bias, 0.0)
        return max(-50.0, min(50.0, float(self._output @ hidden) + self._bias))
