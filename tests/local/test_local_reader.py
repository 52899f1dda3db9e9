"""Checkpoints that read (extra `local`), tiny ones made on the spot: their weights are random, the rest is real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForQuestionAnswering,
)

from scopegate.domain import Check, GateName, GateStatus, Invalid, Passage
from scopegate.inference.reader import ReadingModel, load_reader
from scopegate.services import Services
from scopegate.settings import Settings, models_dir
from tests.unit.facts import SAMPLE

QUESTION = "Who wrote it?"
WORDS = sorted({word.strip(".?").lower() for text in [*SAMPLE, QUESTION] for word in text.split()} | {".", "?"})
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 130,
    "initializer_range": 0.5,
}
MOST = 120


def bert(kind: type[Any], **given: Any) -> Callable[[int], Any]:
    return lambda size: kind(BertConfig(vocab_size=size, **SMALL, **given))


CHECKPOINTS: dict[str, Callable[[int], Any]] = {
    "bert that points": bert(BertForQuestionAnswering),
    "roberta that points": lambda size: RobertaForQuestionAnswering(
        RobertaConfig(vocab_size=size, pad_token_id=0, type_vocab_size=1, **SMALL)
    ),
    "bert with one output": bert(BertForSequenceClassification, num_labels=1),
    "bert with two outputs": bert(BertForSequenceClassification, num_labels=2),
    "deberta with labels": lambda size: DebertaV2ForSequenceClassification(
        DebertaV2Config(
            vocab_size=size, **SMALL, id2label={0: "ANSWERABLE", 1: "unclear", 2: "unanswerable"}, type_vocab_size=0
        )
    ),
}


def save(folder: Path, make: Callable[[int], Any]) -> Path:
    """A checkpoint with a tokenizer of words, in the way of its family."""
    torch.manual_seed(1)
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = make(len(vocabulary))
    types = int(model.config.type_vocab_size > 1)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{types} [SEP]:{types}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=MOST,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"][:: 1 if types else 2],
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=CHECKPOINTS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model"), CHECKPOINTS[request.param])


@pytest.fixture(scope="module")
def model(path: Path) -> ReadingModel:
    return load_reader(f"local:{path}", models_dir())


def expected(path: Path, question: str, passage: str) -> float:
    """The log odds, by transformers alone."""
    kind = json.loads((path / "config.json").read_text())["architectures"][0]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    model = globals()[kind].from_pretrained(path).eval()
    encoded = tokenizer(question, passage, return_tensors="pt", truncation="only_second", max_length=MOST)
    with torch.inference_mode():
        output = model(**encoded)
    if "QuestionAnswering" in kind:
        held = torch.tensor([place == 1 for place in encoded.sequence_ids(0)])
        starts = output.start_logits[0]
        return float(torch.logsumexp(starts[held], 0) - starts[0])
    logits = output.logits[0]
    if len(logits) == 1:
        return float(logits[0])
    if len(logits) == 2:
        return float(logits[1] - logits[0])
    return float(torch.log_softmax(logits, 0)[0].exp().logit())


def test_its_odds_are_those_of_transformers(path: Path, model: ReadingModel) -> None:
    for passage in SAMPLE:
        (read,) = model.read([model.pair(QUESTION, passage)])
        assert read.logit == pytest.approx(expected(path, QUESTION, passage), abs=1e-4)


def test_a_reading_does_not_depend_on_its_neighbours(model: ReadingModel) -> None:
    pairs = [model.pair(QUESTION, " ".join(SAMPLE[:count])) for count in range(1, len(SAMPLE) + 1)]
    together = model.read(pairs)
    for pair, read in zip(pairs, together, strict=True):
        (alone,) = model.read([pair])
        assert read.logit == pytest.approx(alone.logit, abs=1e-4)


def test_places_are_of_the_passage_where_the_model_points(path: Path, model: ReadingModel) -> None:
    passage = SAMPLE[0]
    (read,) = model.read([model.pair(QUESTION, passage)])
    if "QuestionAnswering" not in (path / "config.json").read_text():
        assert read.places == ()
        return
    assert sum(share for _, share in read.places) == pytest.approx(1.0)
    words = Tokenizer.from_file(str(path / "tokenizer.json")).encode(passage, add_special_tokens=False)
    assert [at for at, _ in read.places] == [begin for begin, _ in words.offsets]


def test_a_passage_is_cut_where_the_room_ends(model: ReadingModel) -> None:
    room = model.room(QUESTION)
    pair = model.pair(QUESTION, "basalt " * 500)
    assert sum(pair.passage) == room
    assert len(pair) == MOST
    assert model.lengths(["basalt " * 500]) == [500]


def test_other_weights_have_another_fingerprint(path: Path, model: ReadingModel, tmp_path: Path) -> None:
    assert load_reader(f"local:{path}", models_dir()).fingerprint == model.fingerprint
    kind = json.loads((path / "config.json").read_text())["architectures"][0]
    other = globals()[kind].from_pretrained(path)
    next(other.parameters()).data += 1
    other.save_pretrained(tmp_path)
    PreTrainedTokenizerFast.from_pretrained(path).save_pretrained(tmp_path)
    assert load_reader(f"local:{tmp_path}", models_dir()).fingerprint.split("@")[1] != model.fingerprint.split("@")[1]


async def test_the_service_judges_by_it(path: Path, model: ReadingModel, tmp_path: Path) -> None:
    services = Services(Settings(data_dir=tmp_path, probe=f"local:{path}", alpha=4))
    async with services.running():
        await services.knowledge.ready(30)
        check = Check(QUESTION, passages=(Passage("p", SAMPLE[0]),), deadline_ms=60_000)
        verdict = await services.gatekeeper.check(check)
    probe = next(result for result in verdict.gates if result.gate is GateName.PROBE)
    (read,) = model.read([model.pair(QUESTION, SAMPLE[0])])
    assert probe.status is GateStatus.OK
    assert probe.score == pytest.approx(torch.tensor(read.logit).sigmoid().item(), abs=1e-4)
    assert probe.threshold == 0.5
    assert probe.detail["probe"] == model.fingerprint


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (bert(BertForMaskedLM), "no reader"),
        (bert(BertForSequenceClassification, num_labels=3), "none of the labels LABEL_0, LABEL_1, LABEL_2"),
        (
            bert(BertForSequenceClassification, id2label={0: "agree", 1: "neutral", 2: "contradiction"}),
            "none of the labels agree",
        ),
        (
            bert(BertForSequenceClassification, id2label={0: "NEGATIVE", 1: "POSITIVE"}),
            "none of the labels NEGATIVE, POSITIVE",
        ),
    ],
)
def test_what_cannot_read_is_refused(make: Callable[[int], Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=says):
        load_reader(f"local:{save(tmp_path, make)}", models_dir())


def test_a_checkpoint_without_weights_is_refused(tmp_path: Path) -> None:
    (save(tmp_path, bert(BertForQuestionAnswering)) / "model.safetensors").unlink()
    with pytest.raises(Invalid, match="no model that reads can be loaded"):
        load_reader(f"local:{tmp_path}", models_dir())


def test_a_checkpoint_that_lacks_its_head_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path, bert(BertForQuestionAnswering)) / "model.safetensors"
    save_file({key: tensor for key, tensor in load_file(file).items() if "qa_outputs" not in key}, file)
    with pytest.raises(Invalid, match=r"lacks weights: qa_outputs\.bias, qa_outputs\.weight"):
        load_reader(f"local:{tmp_path}", models_dir())


def test_a_checkpoint_that_is_damaged_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path, bert(BertForQuestionAnswering)) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(Invalid, match="no model that reads can be loaded"):
        load_reader(f"local:{tmp_path}", models_dir())


def test_a_checkpoint_that_knows_fewer_tokens_than_its_tokenizer_is_refused(tmp_path: Path) -> None:
    save(tmp_path, lambda size: bert(BertForQuestionAnswering)(3))
    with pytest.raises(Invalid, match="no model that reads can be loaded"):
        load_reader(f"local:{tmp_path}", models_dir())


def test_none_of_a_checkpoints_own_code_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    folder = save(tmp_path, bert(BertForQuestionAnswering))
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.Config", "AutoModelForQuestionAnswering": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": own, "model_type": "own"}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    with pytest.raises(Invalid, match="no model that reads can be loaded"):
        load_reader(f"local:{folder}", models_dir())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("names", [("entailment", "not_entailment"), ("has_answer", "no_answer"), ("Yes", "No")])
def test_the_label_that_says_yes_counts_wherever_it_stands(names: tuple[str, str], tmp_path: Path) -> None:
    odds = []
    for at, (first, second) in enumerate([names, names[::-1]]):
        make = bert(BertForSequenceClassification, id2label={0: first, 1: second})
        model = load_reader(f"local:{save(tmp_path / f'{at}', make)}", models_dir())
        (read,) = model.read([model.pair(QUESTION, SAMPLE[0])])
        odds.append(read.logit)
    assert odds[0] == pytest.approx(-odds[1], abs=1e-4)
    assert odds[0] != 0.0


def test_a_classifier_needs_no_token_in_front(tmp_path: Path) -> None:
    folder = save(tmp_path, bert(BertForSequenceClassification, num_labels=1))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$A [SEP] $B:1 [SEP]:1", special_tokens=[("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    model = load_reader(f"local:{folder}", models_dir())
    (read,) = model.read([model.pair(QUESTION, SAMPLE[0])])
    assert read.logit == pytest.approx(expected(folder, QUESTION, SAMPLE[0]), abs=1e-4)


def test_segments_are_as_the_tokenizer_numbers_them(tmp_path: Path) -> None:
    """Some have one segment, and say so for every token."""
    folder = save(tmp_path, CHECKPOINTS["roberta that points"])
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = load_reader(f"local:{folder}", models_dir())
    (read,) = model.read([model.pair(QUESTION, SAMPLE[0])])
    assert set(model.pair(QUESTION, SAMPLE[0]).types) == {0}
    assert read.logit == pytest.approx(expected(folder, QUESTION, SAMPLE[0]), abs=1e-4)


def test_a_special_token_in_a_text_is_what_somebody_wrote(model: ReadingModel) -> None:
    pair = model.pair("Who [SEP] wrote it?", f"[CLS] [SEP] {SAMPLE[0]}")
    plain = model.pair(QUESTION, SAMPLE[0])
    assert [pair.ids.count(special) for special in (2, 3)] == [plain.ids.count(special) for special in (2, 3)]


def test_a_checkpoint_that_cannot_pad_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, bert(BertForQuestionAnswering))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(Invalid, match="pads nothing"):
        load_reader(f"local:{tmp_path}", models_dir())


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no model that reads can be loaded"):
        load_reader(f"local:{tmp_path / 'nothing'}", models_dir())
