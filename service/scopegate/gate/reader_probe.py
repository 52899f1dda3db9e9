"""The probe that reads: P(in scope) from a small model that looks for the answer in the evidence."""

from __future__ import annotations

import asyncio
import json
import math
import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scopegate.domain import Evidence, Invalid
from scopegate.gate.features import read_question, read_sentence, substitutes
from scopegate.gate.gate import GateBroken, Seen
from scopegate.gate.head import probability
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.retrieval import Case
from scopegate.gate.windows import texts_of, windows
from scopegate.inference.reader import Reader, Reading

# A window of fewer tokens holds hardly a sentence.
_LEAST_ROOM = 32
# Of a request with more to read, the windows with the closest sentences; more of them told answerable questions from
# others no better.
_MOST_WINDOWS = 4
# What is weighed: log odds of the reader and of the feature probe; the logarithm of the number of windows, since the
# best of many looks better than it is; and its product with the feature probe's odds, which sees more of a long text.
SCORES = ("reader", "feature", "windows", "feature_windows")
# How many facts are read where nothing else was found out.
_DEPTH = 4
# Parts of one piece are not quite of the same number of tokens.
_SPARE = 1.1


class _Part(NamedTuple):
    """A piece of evidence, or one of the parts that it is read in, counted from 0."""

    number: int
    piece: Evidence


class ReaderProbe:
    """The reader's log odds and the feature probe's, weighed and calibrated together; see the reader's card.

    Of several windows the one that is likeliest to hold the answer decides. A question for yes or no that the evidence
    says no to, as "Was it in 2018?" where it was in another year, is the feature probe's alone: no place answers it.
    name: tells this probe from others. threshold: passed at or above it. depth: see Gate; fewer facts are read.
    """

    def __init__(self, model: dict[str, Any], reader: Reader, features: FeatureProbe | None) -> None:
        """features: None where the reader counts alone.

        Raises Invalid where the model was calibrated with another reader or another feature probe.
        """
        if (model["reader"], model["features"]) != (reader.fingerprint, features and features.name):
            raise Invalid("the reader probe was calibrated with other models than these")
        self.name: str = model["name"]
        self.threshold: float = model["threshold"]
        self.depth: int = max(model["depth"], features.depth if features else 0)
        self._depth: int = model["depth"]
        self._weights = np.array([model[f"{name}_weight"] for name in SCORES], float)
        self._bias = float(model["bias"])
        self._reader = reader
        self._features = features

    @classmethod
    def uncalibrated(cls, reader: Reader) -> ReaderProbe:
        """A reader of somebody else's by itself: its own odds, and even odds as the threshold."""
        model = {"name": reader.fingerprint, "reader": reader.fingerprint, "features": None}
        alone = {f"{name}_weight": float(name == "reader") for name in SCORES}
        return cls(model | alone | {"bias": 0.0, "threshold": 0.5, "depth": _DEPTH}, reader, None)

    @classmethod
    def load(cls, path: Path, reader: Reader, features: FeatureProbe) -> ReaderProbe:
        """The probe in a file that models/minilm-reader/calibrate.py wrote. Raises Invalid where it is none."""
        try:
            return cls(json.loads(path.read_text("utf-8")), reader, features)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Invalid(f"{path.name} is not a reader probe: {error}") from error

    async def judge(self, case: Case) -> Seen:
        """See Probe. detail: the pieces of evidence in the window that decided, as they were read."""
        if not case.evidence:
            return Seen(0.0, {"window": []})
        odds = 0.0
        if self._features is not None:
            odds = self._features.logit(case.question, case.evidence, case.rarity)
            if _contradicted(case.question, case.evidence[: self._depth]):
                return Seen(float(probability(np.array([odds]))[0]), {"window": []})
        window, read, count = await self.read(case)
        logit = self._weights @ weighed(read.logit, odds, count) + self._bias
        detail = {"window": list(dict.fromkeys(piece.id for piece in window))}
        return Seen(float(probability(np.array([logit]))[0]), detail, _places(window, read))

    async def read(self, case: Case) -> tuple[Sequence[Evidence], Reading, int]:
        """The window that is likeliest to hold the answer, its reading, and how many windows were read.

        There must be evidence. Raises what a gate raises.
        """
        closest = await asyncio.to_thread(self._windows, case)
        readings = await self._reader.read(case.question, [_joined(each) for each in closest])
        if any(math.isnan(read.logit) for read in readings):
            raise GateBroken("the reader's model gave no number")
        window, best = max(zip(closest, readings, strict=True), key=lambda each: each[1].logit)
        return window, best, len(closest)

    def _windows(self, case: Case) -> list[Sequence[Evidence]]:
        """The windows to be read: those with the closest pieces; further parts of a piece after all first ones."""
        room = self._reader.room(case.question)
        if room < _LEAST_ROOM:
            raise GateBroken("the question is so long that the probe has no room to read beside it")
        found: list[Sequence[_Part]] = []
        for text in texts_of(case, self._depth):
            lengths = self._reader.lengths([piece.text for piece in text])
            parts = [part for piece, length in zip(text, lengths, strict=True) for part in _parts(piece, length / room)]
            if len(parts) > len(text):
                lengths = self._reader.lengths([part.piece.text for part in parts])
            found += (parts[each] for each in windows(lengths, room))
        found.sort(key=lambda window: min((part.number, part.piece.ratio) for part in window))
        return [[part.piece for part in window] for window in found[:_MOST_WINDOWS]]


def weighed(reader: float, feature: float, windows: int) -> tuple[float, ...]:
    """The SCORES, of both log odds and of how many windows were read."""
    return reader, feature, math.log(windows), feature * math.log(windows)


def _contradicted(question: str, evidence: Sequence[Evidence]) -> bool:
    """Whether a question for yes or no has a name or a number where the evidence has another."""
    asked = read_question(question)
    return any(substitutes(asked, read_sentence(piece.text)) for piece in evidence)


def _parts(piece: Evidence, rooms: float) -> list[_Part]:
    """The piece; in parts of about as many characters each, between words if it has any, where no window holds it."""
    if rooms <= 1:
        return [_Part(0, piece)]
    width = math.ceil(len(piece.text) / math.ceil(rooms * _SPARE))
    texts = textwrap.wrap(piece.text, width, break_on_hyphens=False)
    return [_Part(number, replace(piece, text=text)) for number, text in enumerate(texts)]


def _joined(window: Sequence[Evidence]) -> str:
    return " ".join(piece.text for piece in window)


def _places(window: Sequence[Evidence], read: Reading) -> dict[str, float]:
    """P(the answer begins in it), given that there is one, of each piece of the window; nothing where nobody says."""
    if not read.places:
        return {}
    # The space between two pieces belongs to the second: some tokens begin with it.
    ends = [end - 1 for end in accumulate(len(piece.text) + 1 for piece in window)]
    places = dict.fromkeys((piece.id for piece in window), 0.0)
    for character, share in read.places:
        places[window[bisect_right(ends, character)].id] += share
    return places
