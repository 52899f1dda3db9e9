"""The extra `local`, on tiny models made on the spot: their weights are random, everything else is real."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import Encoder, load_encoder
from scopegate.knowledge import Knowledge
from scopegate.settings import Settings, models_dir
from tests.unit.facts import SAMPLE, fact

WORDS = sorted({word.strip(".").lower() for text in SAMPLE for word in text.split()})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder / "bert")
    fast.save_pretrained(folder / "bert")
    transformer = Transformer(str(folder / "bert"))
    SentenceTransformer(modules=[transformer, Pooling(32)]).save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def encoder(path: Path) -> Encoder:
    return load_encoder(f"local:{path}", models_dir())


def test_its_vectors_are_those_of_sentence_transformers(path: Path, encoder: Encoder) -> None:
    expected = SentenceTransformer(str(path)).encode(SAMPLE, normalize_embeddings=True)
    vectors = encoder.encode(encoder.tokens(SAMPLE))
    assert encoder.dimension == 32
    assert vectors.dtype == np.float32
    assert np.abs(vectors - expected).max() < 1e-5


def test_a_text_longer_than_the_model_is_cut(encoder: Encoder) -> None:
    assert len(encoder.tokens(["basalt " * 500])[0]) <= 64


def test_other_weights_have_another_fingerprint(path: Path, encoder: Encoder, tmp_path: Path) -> None:
    model = SentenceTransformer(str(path))
    weights = next(model.parameters())
    weights.data += 1
    model.save(str(tmp_path))
    other = load_encoder(f"local:{tmp_path}", models_dir())
    assert other.fingerprint.split("@")[1] != encoder.fingerprint.split("@")[1]
    assert load_encoder(f"local:{path}", models_dir()).fingerprint == encoder.fingerprint


def test_the_same_weights_elsewhere_are_the_same_model(path: Path, encoder: Encoder, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(path, tmp_path / path.name)
    assert load_encoder(f"local:{elsewhere}/", models_dir()).fingerprint == encoder.fingerprint
    assert str(path.parent) not in encoder.fingerprint


def test_a_fingerprint_fits_its_column(path: Path, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(path, tmp_path / ("m" * 255))
    assert len(load_encoder(f"local:{elsewhere}", models_dir()).fingerprint) <= 200


async def test_knowledge_works_on_it(encoder: Encoder, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    embedder = Embedder(encoder, settings)
    knowledge = Knowledge(settings, embedder)
    await knowledge.start()
    await knowledge.ready(20)
    await knowledge.add("default", [fact(text) for text in SAMPLE])
    (vector,) = await embedder.embed([SAMPLE[3]])
    evidence, _ = await (await knowledge.view("default")).nearest(vector, 1)
    assert evidence[0].text == SAMPLE[3]
    await knowledge.stop()
    await embedder.stop()
