"""How fast hidden states are read through transformers, and what the probe's own network adds.

    python -m benchmarks.hidden_states

On a GPU: a Llama of 8 billion random parameters in bfloat16. Without one: a small shape in float32, which shows that
the command works and says nothing about a GPU. Inputs of 300 tokens, batched as `scopegate probe train` does, beside
one at a time. The share is of the rate that a large matrix product reaches on the same device, moments before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaModel

from benchmarks.report import console, table
from scopegate.training.hidden_states import batches
from scopegate.training.local import CPU_TOKENS, GPU_TOKENS, last_states

TOKENS = 300
HIDDEN = 256
ROUNDS = 3
LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}
SMALL: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1792,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 8_000,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Where it runs, and on what. matrix: the side of the square product that gives the device's rate."""

    device: torch.device
    dtype: torch.dtype
    shape: dict[str, Any]
    batch_tokens: int
    prompts: int
    alone: int
    matrix: int

    @classmethod
    def here(cls) -> Setting:
        if torch.cuda.is_available():
            return cls(torch.device("cuda"), torch.bfloat16, LLAMA_8B, GPU_TOKENS, 540, 64, 8192)
        return cls(torch.device("cpu"), torch.float32, SMALL, CPU_TOKENS, 24, 6, 2048)

    @property
    def named(self) -> str:
        return torch.cuda.get_device_name() if self.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"

    def seconds(self, work: Callable[[], object]) -> float:
        """The least of some rounds, after one to warm up."""
        times = []
        for _ in range(ROUNDS + 1):
            self._wait()
            start = time.perf_counter()
            work()
            self._wait()
            times.append(time.perf_counter() - start)
        return min(times[1:])

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def matrix_rate(setting: Setting) -> float:
    """Operations a second of a large square product."""
    side, times = setting.matrix, 10
    left, right = (torch.randn(side, side, device=setting.device, dtype=setting.dtype) for _ in range(2))

    def work() -> None:
        for _ in range(times):
            left @ right

    return 2 * side**3 * times / setting.seconds(work)


def operations(model: Any) -> float:
    """Operations a token: two for each weight of a matrix, and attention to half of the tokens on average."""
    weights = sum(weight.numel() for layer in model.layers for weight in layer.parameters() if weight.ndim == 2)
    config = model.config
    return float(2 * weights + config.num_hidden_layers * 4 * config.hidden_size * TOKENS / 2)


def made(setting: Setting) -> Any:
    config = LlamaConfig(**setting.shape, max_position_embeddings=4096)
    default = torch.get_default_dtype()
    torch.set_default_dtype(setting.dtype)
    try:
        with setting.device:
            model: Any = LlamaModel(config)
            return model.eval()
    finally:
        torch.set_default_dtype(default)


@torch.inference_mode()
def main() -> None:
    setting = Setting.here()
    torch.manual_seed(0)
    rate = matrix_rate(setting)
    model = made(setting)
    prompts = torch.randint(0, setting.shape["vocab_size"], (setting.prompts, TOKENS)).tolist()
    planned = batches([TOKENS] * len(prompts), setting.batch_tokens)
    together = setting.seconds(lambda: [last_states(model, [prompts[row] for row in rows]) for rows in planned])
    alone = setting.seconds(lambda: [last_states(model, [prompt]) for prompt in prompts[: setting.alone]])
    width, rows = setting.shape["hidden_size"], len(planned[0])
    head = torch.nn.Sequential(torch.nn.Linear(width, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1))
    head = head.to(setting.device)
    states = torch.randn(rows, width, device=setting.device)
    probe = setting.seconds(lambda: [head(states) for _ in range(100)]) / 100
    each = operations(model)

    def row(name: str, seconds: float, tokens: int) -> tuple[str, ...]:
        speed = tokens / seconds
        return name, f"{speed:,.0f}", f"{speed / TOKENS:.1f}", f"{speed * each / rate:.2f}"

    parameters = sum(weight.numel() for weight in model.parameters()) / 1e9
    console.print(
        f"{setting.named}; {setting.dtype}; {parameters:.2f} billion parameters; "
        f"a product of {setting.matrix} by {setting.matrix}: {rate / 1e12:.2f} TFLOP/s"
    )
    table(
        f"Hidden states, inputs of {TOKENS} tokens",
        ("", "tokens/s", "inputs/s", "share of the matrix rate"),
        [
            row(f"batches of {rows}", together, len(prompts) * TOKENS),
            row("one at a time", alone, setting.alone * TOKENS),
        ],
    )
    share = probe / (together / len(planned))
    console.print(f"the probe's network on a batch of {rows}: {probe * 1e3:.3f} ms, {share:.4%} of reading the batch")


if __name__ == "__main__":
    main()
