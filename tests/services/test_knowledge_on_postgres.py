"""Everything that knowledge promises, on Postgres; and what happens when Postgres goes away."""

from __future__ import annotations

import asyncio

import pytest

from scopegate.domain import Unavailable
from scopegate.inference.embedder import Embedder
from tests.services.conftest import Postgres
from tests.unit.conftest import OpenKnowledge
from tests.unit.facts import SAMPLE, fact
from tests.unit.test_knowledge import *  # noqa: F403 the same promises, collected again for this database
from tests.unit.test_knowledge import nearest


async def test_a_check_outlives_the_database_and_a_write_says_that_it_is_gone(
    open_knowledge: OpenKnowledge, embedder: Embedder, postgres: Postgres
) -> None:
    async with open_knowledge() as knowledge:
        await knowledge.add("default", [fact(text) for text in SAMPLE])
        await asyncio.to_thread(postgres.stop, "immediate")
        try:
            with pytest.raises(Unavailable):
                await knowledge.add("default", [fact("One more.")])
            assert (await nearest(knowledge, embedder, "octopus hearts"))[0] == SAMPLE[4]
            async with asyncio.timeout(5):
                while not knowledge.not_ready():
                    await asyncio.sleep(0.01)
        finally:
            await asyncio.to_thread(postgres.start)
        async with asyncio.timeout(5):
            while knowledge.not_ready():
                await asyncio.sleep(0.01)
        assert (await knowledge.add("default", [fact("One more.")])).revision == 2


async def test_two_processes_may_migrate_at_once(open_knowledge: OpenKnowledge) -> None:
    async with open_knowledge() as here, open_knowledge() as there:
        await here.add("default", [fact(SAMPLE[0])])
        await there.add("default", [fact(SAMPLE[1])])
        assert (await here.scope("default")).revision == 2
