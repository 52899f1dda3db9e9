"""Work done to its end, as a worker would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from scopegate.domain import NewFact, Origin, Provenance
from scopegate.jobs.work import Work


async def evaluated(work: Work, spec: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The rows and the summary, through JSON, as they are stored."""
    items = await work.items(spec)
    assert len({item.key for item in items}) == len(items)
    orjson.dumps([item.body for item in items])
    done = [await work.do(spec, item, lambda _: None) for item in items]
    rows = orjson.loads(orjson.dumps([row for each in done for row in each.rows]))
    summary = orjson.loads(orjson.dumps(await work.finish(spec, done)))
    assert orjson.loads(orjson.dumps(await work.finish(spec, done))) | {
        "revision": None,
        "applied": None,
    } == summary | {
        "revision": None,
        "applied": None,
    }
    return rows, summary


def facts(*texts: str) -> list[NewFact]:
    return [NewFact(text, (Provenance(Origin.MANUAL, None, None, 1.0),)) for text in texts]
