"""Trains a probe and writes its file; evaluates one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from scopegate.domain import Invalid
from scopegate.gate.head import Head, probability
from scopegate.gate.retrieval import Retriever
from scopegate.probe_file import Description, ProbeFile
from scopegate.training import calibration
from scopegate.training.examples import Example, Split
from scopegate.training.features import Features, cases_of
from scopegate.training.metrics import Metrics, measure
from scopegate.training.network import Recipe, fit


@dataclass(frozen=True, slots=True)
class Scored:
    """A probe's judgement of labelled questions. Both arrays: shape (n,)."""

    probabilities: NDArray[np.float64]
    answerable: NDArray[np.bool_]
    threshold: float

    @property
    def metrics(self) -> Metrics:
        """Its figures."""
        return measure(self.probabilities, self.answerable, self.threshold)


@dataclass(frozen=True, slots=True)
class Trained:
    """A probe's file, the epoch that was kept, and what it makes of its validation and test parts."""

    file: ProbeFile
    epoch: int
    parts: Mapping[str, Scored]


async def train(
    split: Split,
    retriever: Retriever,
    features: Features,
    recipe: Recipe,
    *,
    path: Path,
    name: str,
    data: str,
    wrongly_answered: float,
) -> Trained:
    """Trains on the first part, calibrates and sets the threshold on the second, and writes the file.

    data: what the examples are, with licences. wrongly_answered: the share of unanswerable questions that the threshold
    lets through on the second part. Raises Invalid where features cannot be made, or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # now, and not after an hour of training
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}") from error
    description = Description(name=name, temperature=1.0, threshold=0.5, data=data, **features.describe())
    made = {
        part: (await _features(examples, retriever, features, description.depth), labels(examples))
        for part, examples in (("train", split.train), ("validation", split.validation), ("test", split.test))
    }
    fitted = fit(*made["train"], made["validation"], recipe)
    # Set on the logits that the service computes, to the last bit.
    held, answerable = made["validation"]
    temperature = calibration.temperature(Head(fitted.tensors, 1.0).logits(held), answerable)
    head = Head(fitted.tensors, temperature)
    threshold = calibration.threshold(probability(head.logits(held)), answerable, wrongly_answered)
    parts = {
        part: Scored(probability(head.logits(rows)), truth, threshold)
        for part, (rows, truth) in made.items()
        if part != "train"
    }
    figures = {part: asdict(scored.metrics) for part, scored in parts.items()}
    description = replace(description, temperature=temperature, threshold=threshold, figures=figures)
    return Trained(_written(path, fitted.tensors, description), fitted.epoch, parts)


async def evaluate(file: ProbeFile, examples: Sequence[Example], retriever: Retriever, features: Features) -> Scored:
    """What the probe makes of the examples, at its own threshold. Raises Invalid where they do not fit together."""
    made = features.describe()
    for field in ("kind", "architecture", "hidden_size", "prompt", "position"):
        ours, theirs = getattr(file.description, field), made.get(field)
        if ours != theirs:
            raise Invalid(f"{file.path.name} was trained with the {field} {ours}, and this is {theirs}")
    rows = await _features(examples, retriever, features, file.description.depth)
    return Scored(probability(Head.load(file).logits(rows)), labels(examples), file.description.threshold)


def labels(examples: Iterable[Example]) -> NDArray[np.bool_]:
    """Which of the examples are answerable, shape (n,)."""
    return np.array([example.answerable for example in examples])


def _written(path: Path, tensors: dict[str, NDArray[np.float32]], description: Description) -> ProbeFile:
    try:
        path.write_bytes(save(tensors, metadata=description.metadata()))
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}") from error
    return ProbeFile.read(path)


async def _features(
    examples: Sequence[Example], retriever: Retriever, features: Features, depth: int
) -> NDArray[np.float32]:
    return await features.of(await cases_of(examples, retriever, depth))
