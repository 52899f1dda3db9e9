"""The probe's file, and what is made of an engine's logprobs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from scopegate.probe_file import FLOOR, MOST, Description, Kind, Position, ProbeFile, Slots

WIDTH, HIDDEN = 6, 4
DESCRIPTION = {
    "name": "ferry",
    "kind": "hidden_state",
    "architecture": "LlamaForCausalLM",
    "model": "tiny",
    "hidden_size": WIDTH,
    "vocab_size": 103,
    "prompt": "judge@1",
    "temperature": 1.5,
    "threshold": 0.4,
    "position": "unused_token",
    "token": "<|reserved|>",
    "slots": {"a": 100, "b": 101, "c": 102},
}
FERRY = Description(
    **DESCRIPTION  # type: ignore[arg-type]
    | {"kind": Kind.HIDDEN_STATE, "position": Position.UNUSED_TOKEN, "slots": Slots(100, 101, 102)}
)


def tensors(width: int = WIDTH, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    shapes = {"mean": (width,), "scale": (width,), "hidden": (HIDDEN, width), "hidden_bias": (HIDDEN,)}
    shapes |= {"output": (HIDDEN,), "bias": (1,)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def written(path: Path, seed: int = 0, **changes: Any) -> Path:
    """A file whose header is DESCRIPTION, but for the changes; None takes a field away."""
    header = {name: value for name, value in ({"format": 1} | DESCRIPTION | changes).items() if value is not None}
    save_file(tensors(seed=seed), path, {"scopegate": json.dumps(header)})
    return path


@pytest.fixture
def file(tmp_path: Path) -> ProbeFile:
    return ProbeFile.read(written(tmp_path / "probe.safetensors"))


def logprobs(file: ProbeFile, logit: float, top: float = 2.5, total: float = 4.0) -> dict[int, float]:
    """What an engine says: float32, after a softmax over logits whose highest is top."""
    floor = np.float32(top - FLOOR)
    logits = floor + np.array([np.clip(logit, -MOST, MOST), 0, file.fingerprint], np.float32)
    return dict(zip((100, 101, 102), (logits - np.float32(total)).tolist(), strict=True))


def test_a_description_survives_being_written_and_read(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "probe.safetensors", FERRY.metadata())
    assert ProbeFile.read(tmp_path / "probe.safetensors").description == FERRY


def test_a_hand_written_header_is_read_with_its_defaults(file: ProbeFile) -> None:
    assert file.description == FERRY
    assert file.description.layers == (-1,)
    assert file.slots == (100, 101, 102)


def test_a_sentence_pair_reads_three_times_the_embeddings_width(tmp_path: Path) -> None:
    pair = DESCRIPTION | {"kind": Kind.SENTENCE_PAIR, "slots": None, "position": None, "vocab_size": 0, "token": None}
    description = Description(**pair)  # type: ignore[arg-type]
    save_file(tensors(3 * WIDTH), tmp_path / "pair.safetensors", description.metadata())
    file = ProbeFile.read(tmp_path / "pair.safetensors")
    assert file.description == description
    with pytest.raises(ValueError, match="the probe ferry has no slots"):
        file.logit({})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "not of format 1"),
        ({"colour": "red"}, "unknown fields: colour"),
        ({"name": None}, "'name'"),
        ({"kind": "soft"}, "'soft' is not a valid Kind"),
        ({"position": "first"}, "'first' is not a valid Position"),
        ({"position": None}, "needs its position and its slots"),
        ({"slots": None}, "needs its position and its slots"),
        ({"slots": {"a": 100}}, "missing 2 required positional arguments"),
        ({"slots": {"a": 100, "b": 101, "c": 103}}, "three ids below 103"),
        ({"slots": {"a": -1, "b": 101, "c": 102}}, "three ids below 103"),
        ({"slots": {"a": 101, "b": 101, "c": 102}}, "three ids below 103"),
        ({"slots": {"a": "x", "b": 101, "c": 102}}, "not supported between"),
        ({"hidden_size": 7}, r"mean has shape \(6,\), not \(7,\)"),
        ({"layers": [-1, -2]}, r"mean has shape \(6,\), not \(12,\)"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"temperature": math.inf}, "temperature must be above 0"),
        ({"temperature": math.nan}, "temperature must be above 0"),
        ({"temperature": "warm"}, "not supported between"),
        ({"threshold": 1.1}, "threshold from 0 to 1"),
        ({"depth": 0}, "depth 1 or more"),
    ],
)
def test_a_header_that_makes_no_sense(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^odd.safetensors does not describe a probe: .*{message}"):
        ProbeFile.read(written(tmp_path / "odd.safetensors", **changes))


@pytest.mark.parametrize("header", ["", "[1]", "null", '"probe"', "{"])
def test_a_header_that_is_no_object(tmp_path: Path, header: str) -> None:
    save_file(tensors(), tmp_path / "odd.safetensors", {"scopegate": header})
    with pytest.raises(ValueError, match="does not describe a probe"):
        ProbeFile.read(tmp_path / "odd.safetensors")


def test_tensors_that_are_missing_of_another_type_or_shape(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    for name in tensors():
        save_file({key: value for key, value in tensors().items() if key != name}, path, FERRY.metadata())
        with pytest.raises(ValueError, match=f"lacks the float32 tensors {name}$"):
            ProbeFile.read(path)
        save_file(tensors() | {name: tensors()[name].astype(np.float16)}, path, FERRY.metadata())
        with pytest.raises(ValueError, match=f"lacks the float32 tensors {name}$"):
            ProbeFile.read(path)
        save_file(tensors() | {name: np.zeros((2, 3, 5), np.float32)}, path, FERRY.metadata())
        with pytest.raises(ValueError, match="has shape"):
            ProbeFile.read(path)


def test_files_that_are_no_probe(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:-4])
    (tmp_path / "text.safetensors").write_text("a probe")
    save_file(tensors(), tmp_path / "bare.safetensors")
    for name in ("cut", "text", "missing"):
        with pytest.raises(ValueError, match=f"^{name}.safetensors cannot be read as a probe"):
            ProbeFile.read(tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"^bare.safetensors is a safetensors file, but not a probe"):
        ProbeFile.read(tmp_path / "bare.safetensors")


def test_a_fingerprint_is_the_files_own(tmp_path: Path) -> None:
    """Of all its bytes: another weight or another threshold makes another one."""
    first = ProbeFile.read(written(tmp_path / "a.safetensors")).fingerprint
    assert ProbeFile.read(written(tmp_path / "b.safetensors")).fingerprint == first
    others = [ProbeFile.read(written(tmp_path / "c.safetensors", seed=seed)).fingerprint for seed in range(1, 20)]
    others.append(ProbeFile.read(written(tmp_path / "d.safetensors", threshold=0.41)).fingerprint)
    assert first not in others
    assert len(set(others)) == len(others)
    assert all(1 <= value < 129 and value * 64 % 1 == 0 for value in [first, *others])


@given(logit=st.floats(-MOST, MOST), top=st.floats(-500, 500), total=st.floats(0, 20))
def test_the_logit_survives_float32_and_the_softmax(
    tmp_path_factory: pytest.TempPathFactory, logit: float, top: float, total: float
) -> None:
    file = ProbeFile.read(written(tmp_path_factory.getbasetemp() / "float32.safetensors"))
    assert file.logit(logprobs(file, logit, top, top + total)) == pytest.approx(logit, abs=5e-4)


def test_a_logit_beyond_the_clamp_arrives_as_the_clamp(file: ProbeFile) -> None:
    assert file.logit(logprobs(file, 1000)) == pytest.approx(MOST, abs=5e-4)
    assert file.logit(logprobs(file, -1000)) == pytest.approx(-MOST, abs=5e-4)


@pytest.mark.parametrize("gone", [100, 101, 102])
@pytest.mark.parametrize("value", [None, -math.inf, math.nan])
def test_a_slot_that_is_missing_or_no_number(file: ProbeFile, gone: int, value: float | None) -> None:
    said = logprobs(file, 1.0)
    if value is None:
        del said[gone]
    else:
        said[gone] = value
    with pytest.raises(ValueError, match=rf"no logprob for the probe's slots \[{gone}\]"):
        file.logit(said)


@pytest.mark.parametrize("masked", [(100,), (101,), (102,), (100, 101), (100, 102), (101, 102), (100, 101, 102)])
@pytest.mark.parametrize("value", [-9999.0, -3.4e38, -1e4, 0.0])
def test_masked_or_clamped_slots_never_make_a_logit(file: ProbeFile, masked: tuple[int, ...], value: float) -> None:
    """-9999 is what vLLM makes of minus infinity over HTTP; a grammar masks all three."""
    with pytest.raises(ValueError, match="masked"):
        file.logit(logprobs(file, 1.0) | dict.fromkeys(masked, value))


def test_another_probes_slots_and_a_model_without_a_probe(file: ProbeFile, tmp_path: Path) -> None:
    other = ProbeFile.read(written(tmp_path / "other.safetensors", seed=1))
    with pytest.raises(ValueError, match="fingerprint"):
        file.logit(logprobs(other, 1.0))
    with pytest.raises(ValueError, match="fingerprint"):
        file.logit({100: -12.1, 101: -11.7, 102: -12.4})


def test_logits_so_large_that_float32_loses_the_probes_are_told(file: ProbeFile) -> None:
    """The fingerprint is rounded as the logit is."""
    for top in (1e5, 1e6, 1e7):
        try:
            assert file.logit(logprobs(file, 1.2345, top, top)) == pytest.approx(1.2345, abs=0.02)
        except ValueError as error:
            assert "fingerprint" in str(error)  # noqa: PT017
    with pytest.raises(ValueError, match="fingerprint"):
        file.logit(logprobs(file, 1.2345, 1e9, 1e9))
