"""Probes of hidden states, as their files describe them; a scripted LLM speaks for their engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scopegate.probe_file import Description, Kind, Position, ProbeFile, Slots


def slot_probe(prompt: str, **changes: Any) -> ProbeFile:
    described: dict[str, Any] = {
        "name": "a probe",
        "kind": Kind.HIDDEN_STATE,
        "architecture": "LlamaForCausalLM",
        "model": "a model",
        "hidden_size": 8,
        "vocab_size": 1000,
        "prompt": prompt,
        "temperature": 1.0,
        "threshold": 0.5,
        "position": Position.LAST_PROMPT_TOKEN,
        "slots": Slots(997, 998, 999),
    }
    return ProbeFile(Path("probe.safetensors"), Description(**described | changes), fingerprint=17.5)
