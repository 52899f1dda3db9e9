"""A probe that does not fit stops the engine, in one sentence that names both sides."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from scopegate.probe_file import Kind, Slots
from tests.engine import models, probes
from tests.engine.engine import PYTHON, ROOT, Engine, environment

VLLM, OURS = "vllm.model_executor.models.llama", "scopegate.vllm_plugin.models"
NGRAM = {"method": "ngram", "num_speculative_tokens": 2}


@dataclass(frozen=True)
class Plugin:
    """The plugin in a process of vLLM's environment, asked about one configuration after the other."""

    process: subprocess.Popen[str]
    model: models.Model

    def says(self, probe: Path | None, **options: Any) -> dict[str, str | None]:
        case = {
            "probe": probe and str(probe),
            "options": {"model": str(self.model.path), "max_model_len": 512} | options,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process ended: its log is above"
        return dict(json.loads(answer))

    def refuses(self, probe: Path, **options: Any) -> str:
        refusal = self.says(probe, **options)["refusal"]
        assert refusal is not None
        assert refusal.startswith("scopegate: ")
        assert "\n" not in refusal
        return refusal


@pytest.fixture(scope="module")
def plugin(llama: models.Model) -> Iterator[Plugin]:
    command = [PYTHON, "-m", "tests.engine.fits"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment(None), **pipes) as process:  # type: ignore[call-overload]
        yield Plugin(process, llama)


def test_without_a_probe_of_hidden_states_the_plugin_does_nothing(plugin: Plugin, tmp_path: Path) -> None:
    """First, since what it registers stays in the process."""
    tensors = load_file(probes.make(tmp_path / "fits.safetensors", plugin.model).path)
    for name in ("mean", "scale", "hidden"):
        tensors[name] = tensors[name].repeat(3, axis=-1)
    pair = tmp_path / "pair.safetensors"
    save_file(tensors, pair, probes.described(plugin.model, kind=Kind.SENTENCE_PAIR).metadata())
    for probe in (None, tmp_path / "no-such.json", pair):
        assert plugin.says(probe) == {"refusal": None, "module": VLLM}


def test_a_probe_that_fits_takes_the_place_of_its_architecture(plugin: Plugin, tmp_path: Path) -> None:
    assert plugin.says(probes.make(tmp_path / "fits.safetensors", plugin.model).path) == {
        "refusal": None,
        "module": OURS,
    }


@pytest.mark.parametrize(
    ("changes", "sides"),
    [
        ({"architecture": "MistralForCausalLM"}, "architecture MistralForCausalLM, but .* has LlamaForCausalLM"),
        ({"architecture": "GPT2LMHeadModel"}, "is for GPT2LMHeadModel; the engine can be probed in LlamaForCausalLM,"),
        ({"hidden_size": 64}, "hidden size 64, but this engine has 128"),
        ({"vocab_size": 400}, "vocabulary size 400, but this engine has 3.."),
        ({"quantization": "fp8"}, "quantization fp8, but this engine has none"),
        ({"layers": (-1, -2)}, r"layers \(-1, -2\), but this engine has \(-1,\)"),
    ],
)
def test_a_probe_of_another_model(plugin: Plugin, tmp_path: Path, changes: dict[str, Any], sides: str) -> None:
    file = probes.make(tmp_path / "other.safetensors", plugin.model, **changes)
    refusal = plugin.refuses(file.path)
    assert re.search(sides, refusal)
    assert "the probe other" in refusal


@pytest.mark.parametrize("used", [40, 1])
def test_slots_that_are_a_word_or_the_end_of_a_text(plugin: Plugin, tmp_path: Path, used: int) -> None:
    _, b, c = plugin.model.slots
    file = probes.make(tmp_path / "greedy.safetensors", plugin.model, slots=Slots(used, b, c))
    assert f"needs spare slots ({used}, {b}, {c}), but this engine's model uses [{used}]" in plugin.refuses(file.path)


@pytest.mark.parametrize(
    ("options", "sides"),
    [
        ({"logprobs_mode": "processed_logprobs"}, "logprobs mode raw_logprobs, but .* has processed_logprobs"),
        ({"logprobs_mode": "raw_logits"}, "logprobs mode raw_logprobs, but this engine has raw_logits"),
        ({"speculative_config": NGRAM}, "speculative decoding off, but this engine has ngram"),
        ({"enable_batch_sharded_sampling": True}, "batch-sharded sampling off, but this engine has on"),
        ({"model_impl": "transformers"}, "architecture LlamaForCausalLM, but .* has TransformersForCausalLM"),
        ({"skip_tokenizer_init": True}, "a tokenizer on, but this engine has off"),
        ({"revision": "0ld"}, "revision n3w, but this engine has 0ld"),
    ],
)
def test_an_engine_that_the_probe_cannot_be_read_from(
    plugin: Plugin, tmp_path: Path, options: dict[str, Any], sides: str
) -> None:
    file = probes.make(tmp_path / "probe.safetensors", plugin.model, revision="n3w")
    assert re.search(sides, plugin.refuses(file.path, **options))


def test_what_fits_although_it_looks_odd(plugin: Plugin, tmp_path: Path) -> None:
    """A reserved token as a slot, and a model in a folder, which does not say its revision."""
    reserved = plugin.model.tokenizer.convert_tokens_to_ids(models.UNUSED)
    _, b, c = plugin.model.slots
    file = probes.make(tmp_path / "odd.safetensors", plugin.model, slots=Slots(reserved, b, c), revision="n3w")
    assert plugin.says(file.path)["refusal"] is None


def test_a_damaged_file(plugin: Plugin, tmp_path: Path) -> None:
    whole = probes.make(tmp_path / "whole.safetensors", plugin.model).path
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:-100])
    bare = tmp_path / "bare.safetensors"
    save_file(load_file(whole), bare)
    assert "cut.safetensors cannot be read as a probe" in plugin.refuses(cut)
    assert "bare.safetensors is a safetensors file, but not a probe" in plugin.refuses(bare)
    assert "missing.safetensors cannot be read as a probe" in plugin.refuses(tmp_path / "missing.safetensors")


def test_a_file_among_the_models_weights(plugin: Plugin) -> None:
    file = probes.make(plugin.model.path / "probe.safetensors", plugin.model)
    try:
        assert "must lie outside of the model's folder" in plugin.refuses(file.path)
    finally:
        file.path.unlink()


def test_a_real_engine_ends_on_another_architecture(llama: models.Model, tmp_path: Path) -> None:
    file = probes.make(tmp_path / "foreign.safetensors", llama, architecture="Qwen3ForCausalLM")
    log = Engine(llama.path, file.path).refused()
    assert "needs architecture Qwen3ForCausalLM, but this engine has LlamaForCausalLM" in log.splitlines()[-1]
    assert "Traceback" not in log


def test_a_real_engine_ends_on_a_damaged_file(llama: models.Model, tmp_path: Path) -> None:
    """It passes through the loader that only logs what other plugins raise."""
    (tmp_path / "cut.safetensors").write_bytes(b"{}")
    log = Engine(llama.path, tmp_path / "cut.safetensors").refused()
    assert "cut.safetensors cannot be read as a probe" in log.splitlines()[-1]
    assert "Traceback" not in log
