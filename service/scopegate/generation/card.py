"""Says of a data set what is in it, how it was made, and what is not known about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scopegate.generation.options import Options

_COLUMNS = {
    "id": "the document's id, 1 for out of scope or 0, a number",
    "document_id": "the document that the question belongs to",
    "topic": "the document's topic, as it was given",
    "question": "the question",
    "in_scope": "whether the document answers it, by most votes",
    "claim": "the invented claim that an out-of-scope question is on",
    "confusion": "why it cannot be answered: not_mentioned, false_premise or ambiguous; null where none is seen",
    "votes": "how often the judge said that the question goes beyond the document (yes), that not (no), or no vote",
    "generator, judge": "the LLMs that wrote and that judged",
    "prompts": "the prompts that the row came of, with their versions",
    "seed": "the job's seed",
    "created_at": "when, in UTC",
}


def card(
    rows: Sequence[Mapping[str, Any]],
    options: Options,
    data_file: str,
    *,
    notes: Sequence[str] = (),
    whole: bool = True,
) -> str:
    """A data-set card in Markdown, with the header that the Hugging Face Hub reads.

    data_file: the file that holds the rows. notes: what was skipped or failed. whole: False while the job goes on, or
    where it was cancelled.
    """
    out_of_scope = [row for row in rows if not row["in_scope"]]
    topics = Counter(row["topic"] or "(none)" for row in rows)
    confusions = Counter(row["confusion"] or "(none seen)" for row in out_of_scope)
    made_by = sorted({f"{row['generator']}, judged by {row['judge']}" for row in rows})
    prompts = sorted({prompt for row in rows for prompt in row["prompts"]})
    lines = [
        "---",
        "task_categories:\n- question-answering\n- text-classification",
        "tags:\n- out-of-scope-questions\n- synthetic",
        f"configs:\n- config_name: default\n  data_files: {data_file}",
        "---",
        "# Questions in and out of scope",
        "" if whole else "**Not the whole set**: the job that makes it has not done all of its documents.\n",
        "For each document, questions that it answers, and questions that look as if it did and that it does not."
        " They were made by guided hallucination (ELOQ, Algorithm 1): claims of the document are masked and guessed"
        " by an LLM that does not see the document; what turns out to be true is removed; each guess left gives a"
        " question; and a question stays where most votes say that the document does not answer it.\n",
        "| | |\n|---|---|",
        f"| documents with questions | {len({row['document_id'] for row in rows})} |",
        f"| in-scope questions | {len(rows) - len(out_of_scope)} |",
        f"| out-of-scope questions | {len(out_of_scope)} |",
        *(f"| confusion: {name} | {count} |" for name, count in sorted(confusions.items())),
        *(f"| topic: {_cell(name)} | {count} |" for name, count in sorted(topics.items())),
        "\n## How it was made\n",
        f"Claims and in-scope questions a document: {options.facts_per_document} and {options.in_scope_questions}."
        f" Rounds: {options.rounds}. Partitions: {options.partitions}. Votes: {options.votes}. Seed: {options.seed}.\n",
        *(f"- Written by {_cell(each)}" for each in made_by),
        *(f"- Prompt {each}" for each in prompts),
        "\n## Columns\n",
        "| column | meaning |\n|---|---|",
        *(f"| {name} | {meaning} |" for name, meaning in _COLUMNS.items()),
        *(["\n## What was skipped or failed\n"] if notes else []),
        *(f"- {_cell(note)}" for note in notes),
        "\n## What is not known\n",
        "No person has checked these labels: they are the majority of an LLM's votes. Guesses may be true of the world,"
        " though the document does not say so. The documents keep the licences that they came with.",
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
