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
    drafts, sharded = config.speculative_config, config.parallel_config.enable_batch_sharded_sampling
    for what, wanted, found in (
        ("architecture", probe.architecture, model.architecture),
        ("hidden size", probe.hidden_size, model.get_hidden_size()),
        ("vocabulary size", probe.vocab_size, model.get_vocab_size()),
        ("revision", probe.revision or revision, revision or probe.revision),
        ("quantization", probe.quantization or "none", model.quantization or "none"),
        ("layers", probe.layers, (-1,)),
        # Without one, nobody could tell which ids are spare.
        ("a tokenizer", "on", "off" if model.skip_tokenizer_init else "on"),
        ("logprobs mode", "raw_logprobs", model.logprobs_mode),
        ("speculative decoding", "off", drafts.method if drafts else "off"),
        ("batch-sharded sampling", "off", "on" if sharded else "off"),
    ):
        if wanted != found:
            raise ValueError(f"the probe {probe.name} needs {what} {wanted}, but this engine has {found}")
    if file.path.resolve().parent == Path(model.model).resolve():
        raise ValueError(
            f"the probe {probe.name} must lie outside of the model's folder, "
            "where this engine takes every .safetensors for the model's weights"
        )
    if used := _used(file.slots, model):
        raise ValueError(
            f"the probe {probe.name} needs spare slots {file.slots}, but this engine's model uses {used}: "
            "a model without three spare ids cannot be probed"
        )


def _used(slots: tuple[int, ...], model: ModelConfig) -> list[int]:
    """Which of these ids are not spare."""
    tokenizer: Any = cached_tokenizer_from_config(model)
    control = _control(model)
    # A special token that nobody uses shows no text; twice, since a lone leading space may be dropped.
    return [slot for slot in slots if slot in control or tokenizer.decode([slot, slot], skip_special_tokens=True)]


def _control(model: ModelConfig) -> set[int]:
    """The ids that begin, end and fill texts."""
    generation = model.try_get_generation_config()
    ids: set[int] = set()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        for value in (getattr(model.hf_text_config, name, None), generation.get(name)):
            ids.update(value if isinstance(value, list) else () if value is None else (value,))
    return ids
