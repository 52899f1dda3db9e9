"""Runs in vLLM's environment: what the plugin says of each configuration on standard input, a JSON line for each line.

A case: {"probe": what SCOPEGATE_PROBE names, or null, "options": EngineArgs'}. An answer: {"refusal": the sentence or
null, "module": where the Llama class to be served comes from}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from vllm import EngineArgs, ModelRegistry

from scopegate.vllm_plugin import SETTING, register


def answer(case: dict[str, Any]) -> dict[str, str | None]:
    os.environ[SETTING] = case["probe"] or ""
    refusal = None
    try:
        register()
        EngineArgs(**case["options"]).create_engine_config()
    except SystemExit as stopped:
        refusal = str(stopped)
    return {"refusal": refusal, "module": ModelRegistry.models["LlamaForCausalLM"].module_name}


if __name__ == "__main__":
    said = os.fdopen(os.dup(1), "w", buffering=1)  # vLLM logs to standard output
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=said)
