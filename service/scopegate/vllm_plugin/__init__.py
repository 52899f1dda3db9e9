"""Runs inside vLLM: adds the probe that SCOPEGATE_PROBE names to the model, read out through three vocabulary slots.

Entry point of the group vllm.general_plugins. It needs nothing of scopegate but the probe's file format, so that
`pip install --no-deps scopegate` in vLLM's own environment is enough.
"""

from __future__ import annotations

import os
from pathlib import Path

from scopegate.probe_file import Kind, ProbeFile

SETTING = "SCOPEGATE_PROBE"
ARCHITECTURES = {
    "LlamaForCausalLM": "ProbedLlama",
    "MistralForCausalLM": "ProbedMistral",
    "Qwen2ForCausalLM": "ProbedQwen2",
    "Qwen3ForCausalLM": "ProbedQwen3",
}


def configured() -> ProbeFile | None:
    """The probe of hidden states that the setting names; None where it names none, or another kind of probe.

    Raises ValueError, in one sentence, where the file cannot be read.
    """
    path = Path(os.environ.get(SETTING, ""))
    if path.suffix != ".safetensors":
        return None
    file = ProbeFile.read(path)
    return file if file.description.kind is Kind.HIDDEN_STATE else None


def register() -> None:
    """Puts the probed class in the place of its architecture, and has every engine checked against the probe.

    vLLM calls it in each of its processes, before it knows which model is served. Ends the process, with one sentence,
    where the probe is unreadable or reads an architecture that has no probed class.
    """
    try:
        file = configured()
    except ValueError as error:
        raise SystemExit(f"scopegate: {error}") from error
    if file is None:
        return
    architecture = file.description.architecture
    if architecture not in ARCHITECTURES:
        raise SystemExit(
            f"scopegate: the probe {file.description.name} is for {architecture}; "
            f"the engine can be probed in {', '.join(ARCHITECTURES)}"
        )

    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from scopegate.vllm_plugin.fit import Checked

    ModelRegistry.register_model(architecture, f"scopegate.vllm_plugin.models:{ARCHITECTURES[architecture]}")
    # Every architecture gets the check: it is what stops an engine that serves another model than the probe's.
    MODELS_CONFIG_MAP.update(dict.fromkeys(ModelRegistry.get_supported_archs(), Checked))
