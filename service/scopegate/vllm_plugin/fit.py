"""Does the probe fit the engine that is about to start?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.config import ModelConfig, VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.tokenizers import cached_tokenizer_from_config

from scopegate.probe_file import ProbeFile
from scopegate.vllm_plugin import configured

# vLLM prints the logs of its own namespace alone.
logger = init_logger("vllm.scopegate")


class Checked(VerifyAndUpdateConfig):
    """vLLM's hook on an architecture: it has the whole configuration, and nothing is loaded yet."""

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """Ends the process, with one sentence, where the probe does not fit."""
        try:
            if file := configured():
                check(file, vllm_config)
        except ValueError as error:
            raise SystemExit(f"scopegate: {error}") from error


def check(file: ProbeFile, config: VllmConfig) -> None:
    """Raises ValueError, in one sentence that names both sides, where the probe does not fit the engine."""
    probe, model = file.description, config.model_config
    revision = getattr(model.hf_config, "_commit_hash", None) or model.revision
    if probe.revision and not revision:
        logger.warning("The model's revision is not known here; the probe %s reads %s.", probe.name, probe.revision)
    for what, wanted, found in (
        ("architecture", probe.architecture, model.architecture),
        ("hidden size", probe.hidden_size, model.get_hidden_size()),
        ("vocabulary size", probe.vocab_size, model.get_vocab_size()),
        ("revision", probe.revision or revision, revision or probe.revision),
        ("quantization", probe.quantization, model.quantization),
        ("logprobs mode", "raw_logprobs", model.logprobs_mode),
        ("speculative decoding", None, config.speculative_config and config.speculative_config.method),
        ("batch-sharded sampling", False, bool(config.parallel_config.enable_batch_sharded_sampling)),
    ):
        if wanted != found:
            raise ValueError(f"the probe {probe.name} needs the {what} {wanted}, but this engine has {found}")
    if probe.layers != (-1,):
        raise ValueError(
            f"the probe {probe.name} reads the layers {probe.layers}, but this engine shows it the last alone, (-1,)"
        )
    if file.path.resolve().parent == Path(model.model).resolve():
        raise ValueError(
            f"the probe {probe.name} must lie outside of the model's folder, "
            "where this engine takes every .safetensors for the model's weights"
        )
    _check_slots(file, model)


def _check_slots(file: ProbeFile, model: ModelConfig) -> None:
    slots = file.slots
    if max(slots) >= model.get_vocab_size():
        raise ValueError(
            f"the probe {file.description.name} needs the slots {slots}, but this engine's ids end at "
            f"{model.get_vocab_size() - 1}: a model without spare ids cannot be probed"
        )
    tokenizer: Any = cached_tokenizer_from_config(model)
    if tokenizer is None:
        return
    # A special token that nobody uses shows no text; twice, since a lone leading space may be dropped.
    used = _control(model) | {slot for slot in slots if tokenizer.decode([slot, slot], skip_special_tokens=True)}
    if taken := sorted(used & set(slots)):
        raise ValueError(
            f"the probe {file.description.name} needs the slots {slots} for itself, "
            f"but this engine's tokenizer and model use {taken}"
        )


def _control(model: ModelConfig) -> set[int]:
    """The ids that begin, end and fill texts."""
    generation = model.try_get_generation_config()
    ids: set[int] = set()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        for value in (getattr(model.hf_text_config, name, None), generation.get(name)):
            ids.update(value if isinstance(value, list) else () if value is None else (value,))
    return ids
