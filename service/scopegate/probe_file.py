"""The file of a trained probe: a safetensors file that says in its own header what it is and where it fits.

The service and the engine's plugin both read it, so this module needs nothing but safetensors.

Tensors: mean (d,), scale (d,), hidden (h, d), hidden_bias (h,), output (h,), bias (1,), all float32. For features x of
shape (d,), z = (x - mean) / scale, the logit is s = (output · relu(hidden z + hidden_bias) + bias) / temperature, and
P(in scope) = 1 / (1 + exp(-s)): the two-layer probe of ELOQ, section 4.2, calibrated.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

TENSORS = ("mean", "scale", "hidden", "hidden_bias", "output", "bias")
FORMAT = 1

# In the engine, the probe's three slots stand this far below the row's highest logit: the likeliest of them 871 below,
# e^-43 of the maximum at temperature 20, and near enough for float32 to keep the logit to 2e-4.
FLOOR = 1000.0
# The logit is clamped to this on the way, so a value beyond it is none of ours.
MOST = 30.0
# Fingerprints are multiples of this, from 1 to 129: 8,192 of them. One that arrives within a third of a step also says
# that the logit beside it was not rounded by more.
_STEP = 1 / 64

_KEY = "scopegate"


class Kind(StrEnum):
    """What a probe reads: an LLM's hidden state, or a pair of sentence embeddings [u; v; |u - v|]."""

    HIDDEN_STATE = "hidden_state"
    SENTENCE_PAIR = "sentence_pair"


class Position(StrEnum):
    """The token whose hidden state is read: the prompt's last, a reserved one after it, or end-of-text after it."""

    LAST_PROMPT_TOKEN = "last_prompt_token"  # noqa: S105
    UNUSED_TOKEN = "unused_token"  # noqa: S105
    EOS = "eos"


@dataclass(frozen=True, slots=True)
class Slots:
    """Token ids that no text encodes to: a carries the logit, b the floor, c the fingerprint."""

    a: int
    b: int
    c: int


@dataclass(frozen=True, slots=True)
class Description:
    """What a probe is, as its file's header says.

    name: tells this probe from others. model: what the backbone was called when it was trained; revision and
    quantization: its own, None where unknown or none. architecture: as in the model's config, or the embedder's
    fingerprint for a sentence pair. hidden_size: of the backbone; vocab_size: of its config, 0 for a sentence pair.
    prompt: NAME@VERSION of the prompt it was trained on, empty for a sentence pair. depth: how many pieces of
    evidence it reads, best first. token: the text of the reserved or end-of-text token that
    position asks for. layers: the hidden states it reads, -1 the final one. threshold: passed at or above it.
    data: what it was trained on, with licences. figures: what it scored, by set.
    """

    name: str
    kind: Kind
    architecture: str
    model: str
    hidden_size: int
    prompt: str
    temperature: float
    threshold: float
    depth: int = 8
    vocab_size: int = 0
    revision: str | None = None
    quantization: str | None = None
    position: Position | None = None
    token: str | None = None
    layers: tuple[int, ...] = (-1,)
    slots: Slots | None = None
    data: str = ""
    figures: Mapping[str, Any] | None = None

    def metadata(self) -> dict[str, str]:
        """The header to save tensors with."""
        return {_KEY: json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)}


@dataclass(frozen=True, slots=True)
class ProbeFile:
    """A probe's file, described. fingerprint: made from all of its bytes, 1 to 129; what slot c carries."""

    path: Path
    description: Description
    fingerprint: float

    @classmethod
    def read(cls, path: Path) -> ProbeFile:
        """Raises ValueError, in one sentence, where the file is missing, damaged, or no probe of this format."""
        if path.suffix != ".safetensors":
            raise ValueError(f"{path.name} cannot be read as a probe: it is no .safetensors file")
        try:
            digest = hashlib.sha256(path.read_bytes()).digest()
            with safe_open(path, framework="np") as opened:
                header = (opened.metadata() or {}).get(_KEY)
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
                shapes = {name: tuple(part.get_shape()) for name, part in slices.items() if part.get_dtype() == "F32"}
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{path.name} cannot be read as a probe: {error}") from error
        if header is None:
            raise ValueError(f"{path.name} is a safetensors file, but not a probe of scopegate")
        try:
            description = _described(json.loads(header))
            _check(description, shapes)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path.name} does not describe a probe: {error}") from error
        return cls(path, description, 1.0 + int.from_bytes(digest[:2]) % 8192 * _STEP)

    @property
    def slots(self) -> tuple[int, int, int]:
        """The ids (a, b, c). Raises ValueError where the probe has none."""
        slots = self.description.slots
        if slots is None:
            raise ValueError(f"the probe {self.description.name} has no slots to be read from")
        return slots.a, slots.b, slots.c

    def logit(self, logprobs: Mapping[int, float]) -> float:
        """The probe's logit, from the first token's logprobs by token id.

        Raises ValueError, in one sentence, where the slots are missing, masked, clamped or another probe's: that is a
        broken gate, never a probability.
        """
        a, b, c = self.slots
        if missing := [at for at in (a, b, c) if not math.isfinite(logprobs.get(at, math.nan))]:
            raise ValueError(f"the engine gave no logprob for the probe's slots {missing}: does it run the plugin?")
        fingerprint = logprobs[c] - logprobs[b]
        logit = logprobs[a] - logprobs[b]
        if abs(fingerprint - self.fingerprint) > _STEP / 3:
            raise ValueError(
                "the engine's slots do not carry this probe's fingerprint: they are masked, clamped, or another probe's"
            )
        if abs(logit) > MOST + 0.01:
            raise ValueError("the engine's slot for the probe's logit is masked or clamped")
        return logit


def _described(header: Any) -> Description:
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    if unknown := header.keys() - {field.name for field in fields(Description)}:
        raise ValueError(f"it has unknown fields: {', '.join(sorted(unknown))}")
    header["kind"] = Kind(header["kind"])
    header["position"] = None if header.get("position") is None else Position(header["position"])
    header["slots"] = None if header.get("slots") is None else Slots(**header["slots"])
    header["layers"] = tuple(header.get("layers", (-1,)))
    return Description(**header)


def _check(description: Description, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if missing := [name for name in TENSORS if name not in shapes]:
        raise ValueError(f"it lacks the float32 tensors {', '.join(missing)}")
    width = description.hidden_size * (3 if description.kind is Kind.SENTENCE_PAIR else len(description.layers))
    hidden = shapes["output"]
    if len(hidden) != 1:
        raise ValueError(f"the tensor output has shape {hidden}, not (h,)")
    expected = {
        "mean": (width,),
        "scale": (width,),
        "hidden": (*hidden, width),
        "hidden_bias": hidden,
        "bias": (1,),
    }
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise ValueError(f"the tensor {name} has shape {shapes[name]}, not {shape}")
    if not (0 < description.temperature < math.inf and 0 <= description.threshold <= 1 and description.depth >= 1):
        raise ValueError("temperature must be above 0, threshold from 0 to 1, and depth 1 or more")
    if description.kind is Kind.HIDDEN_STATE:
        if description.slots is None or description.position is None:
            raise ValueError("a probe of hidden states needs its position and its slots")
        slots = asdict(description.slots).values()
        if len(set(slots)) < len(slots) or not all(0 <= slot < description.vocab_size for slot in slots):
            raise ValueError(f"its slots must be three ids below {description.vocab_size}, each another")
