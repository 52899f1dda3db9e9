"""kill -9 in the middle of heavy writing, again and again: what was acknowledged stays, and no half of anything."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable

import httpx

from tests.conftest import Server

CRASHES = 50
BATCH = 20


class Writer(threading.Thread):
    """Adds batches of facts and replaces a document, one after the other, until the server dies."""

    def __init__(self, server: Server, numbers: itertools.count[int]) -> None:
        super().__init__(daemon=True)
        self._client = httpx.Client(base_url=server.url, timeout=10)
        self._numbers = numbers
        self.batches: list[list[str]] = []
        self.unacknowledged: list[str] = []
        self.document: tuple[str, str] | None = None

    def run(self) -> None:
        try:
            while True:
                number = next(self._numbers)
                batch = [f"Locker {number}-{n} holds parcel {number * BATCH + n}." for n in range(BATCH)]
                self.unacknowledged = batch
                self._client.post(
                    "/scopes/default/facts", json={"facts": [{"text": text} for text in batch]}
                ).raise_for_status()
                self.batches.append(batch)
                first, second = f"Notice {number} begins here.", f"Notice {number} ends here."
                self.document = None
                document = {"id": "notice", "text": f"{first} {second}"}
                self._client.post("/scopes/default/documents", json={"documents": [document]}).raise_for_status()
                self.document = (first, second)
        except httpx.TransportError:
            pass
        finally:
            self._client.close()


def exported(server: Server) -> list[str]:
    lines = server.client.get("/scopes/default/export").iter_lines()
    return [httpx.Response(200, text=line).json()["text"] for line in lines]


def test_acknowledged_facts_survive_kill_9(serve: Callable[..., Server]) -> None:
    rng = random.Random(7)
    numbers = itertools.count()
    acknowledged: list[list[str]] = []
    begun: list[list[str]] = []
    server = serve()
    for crash in range(CRASHES):
        writer = Writer(server, numbers)
        writer.start()
        time.sleep(rng.uniform(0.02, 0.6))
        server.stop(signal.SIGKILL)
        writer.join(20)
        acknowledged += writer.batches
        begun.append(writer.unacknowledged)
        server = serve()
        held = exported(server)
        known = set(held)
        assert len(held) == len(known)
        for batch in acknowledged:
            assert known.issuperset(batch), f"crash {crash} lost an acknowledged batch"
        for batch in begun:
            assert len(known.intersection(batch)) in {0, len(batch)}, f"crash {crash} left half a batch"
        notices = sorted(text for text in held if text.startswith("Notice"))
        if writer.document:
            assert set(notices) == set(writer.document)
        assert len(notices) in {0, 2}
        assert len({notice.split()[1] for notice in notices}) <= 1
        if writer.batches:
            question = writer.batches[-1][rng.randrange(BATCH)]
            verdict = server.client.post("/check", json={"question": question, "policy": {"gates": ["hard"]}}).json()
            assert verdict["decision"] == "ANSWERABLE"
            assert verdict["evidence"][0]["text"] == question
    assert len(acknowledged) > CRASHES / 2, "hardly anything was written: this shows nothing"
