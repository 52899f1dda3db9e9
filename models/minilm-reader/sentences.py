"""Which sentence answers: by similarity, by words, and by where the reader finds the answer, at several weights.

    python models/minilm-reader/sentences.py DATA_FOLDER [READER_FOLDER]

On held-out SquadShifts: the share of questions for which the sentence that comes first holds the answer.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from calibrate import FACTS, held

from scopegate.answering import extractive
from scopegate.domain import Passage
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.reader_probe import ReaderProbe
from scopegate.gate.retrieval import Retriever
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import load_encoder
from scopegate.inference.reader import OnnxReader, Reader
from scopegate.settings import Settings, models_dir

K = 4
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


async def main(data: Path, folder: Path) -> None:
    settings = Settings()
    embedder = Embedder(load_encoder(settings.embedder, models_dir()), settings)
    reader = Reader(OnnxReader(folder), settings)
    probe = ReaderProbe.uncalibrated(reader, FeatureProbe.load(models_dir() / "feature-probe" / "probe.json"))
    retriever = Retriever(embedder, settings)
    right = dict.fromkeys(("similarity", *WEIGHTS), 0)
    questions = held(data, FACTS)
    for row in questions:
        case = await retriever.from_passages(row["question"], [Passage("1", row["passage"])], probe.depth)
        seen = await probe.judge(case)
        right["similarity"] += any(answer in case.evidence[0].text for answer in row["answers"])
        for weight in WEIGHTS:
            extractive._FOUND = weight
            chosen, _ = extractive.extract(case.question, case.evidence[:K], case.rarity, seen.places)
            right[weight] += any(answer in chosen[0].text for answer in row["answers"])
    for name, count in right.items():
        print(f"{name}: {count / len(questions):.3f} of {len(questions)}")
    await reader.stop()
    await embedder.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent))
