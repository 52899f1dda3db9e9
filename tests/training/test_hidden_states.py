"""Hidden states of small random models, each family and position, against transformers one prompt at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, PreTrainedTokenizerFast

from scopegate.domain import Evidence, Invalid, Speaker, Turn
from scopegate.gate.retrieval import Case
from scopegate.probe_file import Position, Slots
from scopegate.prompts import load_prompt
from scopegate.training.backbone import Backbone
from scopegate.training.hidden_states import Batch, HiddenStates, batches
from scopegate.training.local import LocalReader
from scopegate.training.vectors import VectorCache
from tests.engine import models

SENTENCES = ["The night ferry leaves from pier 4.", "It takes seven hours.", "Bicycles travel free of charge."]
AFTER = {
    Position.LAST_PROMPT_TOKEN: [],
    Position.UNUSED_TOKEN: ["<|reserved_special_token_0|>"],
    Position.EOS: ["<|eot_id|>"],
}


def case(question: str, sentences: Sequence[str]) -> Case:
    held = tuple(Evidence(str(n), text, 1.0, 0.5, 0.5, None) for n, text in enumerate(sentences))
    return Case(question, held[::-1], held, lambda word: 1.0, None)


CASES = [case("?" * length, SENTENCES[: length % 4]) for length in (90, 1, 30, 7, 55, 2, 3)]


@pytest.fixture(scope="module", params=list(models.FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(tmp_path_factory.mktemp("made") / request.param, request.param).path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(tmp_path_factory.mktemp("llama"), "llama").path


class Counting:
    """A reader that counts the prompts it read."""

    def __init__(self, reader: LocalReader) -> None:
        self._reader = reader
        self.fingerprint = reader.fingerprint
        self.prompts = 0

    def read(self, prompts: Sequence[Sequence[int]]) -> Iterator[Batch]:
        for rows, states in self._reader.read(prompts):
            self.prompts += len(rows)
            yield rows, states


def one_by_one(folder: Path, backbone: Backbone, position: Position) -> NDArray[np.float32]:
    """The same states by another way: the whole model, a prompt at a time, its text rendered here."""
    held = models.Model(folder)
    model, tokenizer = held.reference, held.tokenizer
    states = []
    for each in CASES:
        turns = load_prompt("answerable").render(question=each.question, passages=[f.text for f in each.reading])
        text = "".join(f"{turn.role}: {turn.content}\n" for turn in turns) + "assistant: " + "".join(AFTER[position])
        with torch.inference_mode():
            output = model(torch.tensor([tokenizer(text)["input_ids"]]), output_hidden_states=True)
        states.append(output.hidden_states[-1][0, -1].numpy())
    return np.stack(states)


@pytest.mark.parametrize("position", list(Position))
async def test_batched_states_are_those_of_each_prompt_alone(folder: Path, tmp_path: Path, position: Position) -> None:
    backbone = Backbone(str(folder), position)
    features = HiddenStates(
        backbone, load_prompt("answerable"), LocalReader(backbone), VectorCache(tmp_path / "vectors.db")
    )
    found = await features.of(CASES)
    assert np.abs(found - one_by_one(folder, backbone, position)).max() < 1e-4


async def test_a_second_run_computes_nothing(llama: Path, tmp_path: Path) -> None:
    readers = []

    async def run(position: Position, dtype: torch.dtype = torch.float32, question: str = "?") -> NDArray[np.float32]:
        backbone = Backbone(str(llama), position)
        readers.append(Counting(LocalReader(backbone, dtype)))
        features = HiddenStates(backbone, load_prompt("answerable"), readers[-1], VectorCache(tmp_path / "vectors.db"))
        return await features.of([*CASES, case(question, SENTENCES)])

    first = await run(Position.EOS)
    again = await run(Position.EOS)
    assert np.array_equal(first, again)
    await run(Position.EOS, question="Another?")
    await run(Position.UNUSED_TOKEN)
    halved = await run(Position.EOS, torch.bfloat16)
    assert [reader.prompts for reader in readers] == [len(CASES) + 1, 0, 1, len(CASES) + 1, len(CASES) + 1]
    assert 1e-4 < np.abs(halved - first).max() < 0.2


async def test_other_weights_are_another_model(llama: Path, tmp_path: Path) -> None:
    other = models.make(tmp_path / "other", "llama", seed=1).path
    assert Backbone(str(other), Position.EOS).fingerprint != Backbone(str(llama), Position.EOS).fingerprint


def test_batches_hold_each_row_once_within_their_tokens() -> None:
    lengths = [5, 100, 3, 3, 90, 8, 300, 1]
    planned = batches(lengths, 200)
    assert sorted(row for batch in planned for row in batch) == list(range(len(lengths)))
    assert planned[0] == [6]  # longer than a batch, so alone
    assert all(max(lengths[row] for row in batch) * len(batch) <= 200 for batch in planned[1:])
    assert len(planned) == 3


def test_slots_are_ids_without_text(folder: Path) -> None:
    backbone = Backbone(str(folder), Position.UNUSED_TOKEN)
    size = backbone.config.vocab_size
    assert backbone.slots == Slots(size - 3, size - 2, size - 1)
    assert backbone.token == "<|reserved_special_token_0|>"
    described = backbone.describe()
    assert described["architecture"] == f"{folder.name.capitalize()}ForCausalLM"
    assert (described["vocab_size"], described["hidden_size"], described["revision"]) == (size, 128, None)
    assert described["model"] == folder.name  # a path is nobody's business


def with_tokenizer(folder: Path, reserved: list[str], *, padding: int, eos: str | None = "</s>") -> Path:
    """A model's config and tokenizer without its weights."""
    words = ["<unk>", "</s>", "word", *reserved]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    made: Any = PreTrainedTokenizerFast
    fast = made(tokenizer_object=tokenizer, eos_token=eos)
    fast.add_special_tokens({"additional_special_tokens": reserved} if reserved else {})
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    LlamaConfig(
        vocab_size=len(words) + padding, hidden_size=64, architectures=["LlamaForCausalLM"], max_position_embeddings=9
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "names", ["<|reserved_special_token_{}|>", "[control_{}]", "<SPECIAL_{}>", "<unused{}>", "<|extra_{}|>"]
)
def test_slots_are_reserved_tokens_where_there_is_no_padding(tmp_path: Path, names: str) -> None:
    reserved = [names.format(number) for number in range(10, 14)]
    backbone = Backbone(str(with_tokenizer(tmp_path, reserved, padding=0)), Position.UNUSED_TOKEN)
    assert (backbone.token, backbone.slots) == (reserved[0], Slots(4, 5, 6))


def test_a_model_without_spare_ids_is_refused(tmp_path: Path) -> None:
    folder = str(with_tokenizer(tmp_path / "full", [], padding=2))
    with pytest.raises(Invalid, match="has no 3 spare token ids"):
        Backbone(folder, Position.LAST_PROMPT_TOKEN)
    with pytest.raises(Invalid, match="no reserved special token"):
        Backbone(folder, Position.UNUSED_TOKEN)
    folder = str(with_tokenizer(tmp_path / "endless", [], padding=3, eos=None))
    with pytest.raises(Invalid, match="no end-of-text token"):
        Backbone(folder, Position.EOS)


def test_what_is_no_causal_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        Backbone(str(tmp_path), Position.EOS)
    folder = with_tokenizer(tmp_path / "bert", [], padding=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaModel"]}))
    with pytest.raises(Invalid, match="only causal language models"):
        Backbone(str(folder), Position.EOS)


def test_a_prompt_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    backbone = Backbone(str(with_tokenizer(tmp_path, [], padding=3)), Position.EOS)
    assert backbone.ids([Turn(Speaker.USER, "word " * 8)]) == [*[2] * 8, 1]
    with pytest.raises(Invalid, match="has 12 tokens, and the model"):
        backbone.ids([Turn(Speaker.USER, "word " * 11)])


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path, [], padding=3)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(Invalid, match="chat template"):
        Backbone(str(folder), Position.EOS).ids([Turn(Speaker.USER, "word")])
