"""A data directory on a disk that runs full: clear errors, nothing half kept, and work goes on once there is room."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Server
from tests.llm.eloq import PLACES, World
from tests.scripted import Asked, Said, ScriptedLlm

ROOM = "6m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The tests' data directory as a file system of a few megabytes."""
    folder = tmp_path / "data"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder]).returncode:
        pytest.skip("only a root user who may mount can make a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_said_and_loses_nothing(small_disk: Path, serve: Callable[..., Server]) -> None:
    server = serve()
    kept: list[str] = []
    for call in range(40):
        batch = [f"Crate {call}-{n} stands in hall {n % 7} of the warehouse." for n in range(100)]
        response = server.client.post("/scopes/default/facts", json={"facts": [{"text": text} for text in batch]})
        if response.status_code != 201:
            break
        kept += batch
    assert kept, "there was no room for anything"
    assert response.status_code == 507
    assert response.headers["content-type"] == "application/problem+json"
    assert "room" in response.json()["detail"]
    assert str(small_disk) not in response.text

    verdict = server.client.post("/check", json={"question": kept[0], "policy": {"gates": ["hard"]}}).json()
    assert verdict["decision"] == "ANSWERABLE"
    assert server.client.get("/readyz").status_code == 200
    assert server.client.get("/scopes/default").json()["facts"] == len(kept)

    assert server.stop() == 0  # no room for a snapshot either, which costs nothing but time
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    again = serve()
    assert again.client.get("/scopes/default").json()["facts"] == len(kept)
    assert (
        again.client.post("/scopes/default/facts", json={"facts": [{"text": text} for text in batch]}).status_code
        == 201
    )
    assert again.client.get("/scopes/default").json()["facts"] == len(kept) + 100


def test_a_job_waits_for_room_and_is_whole(small_disk: Path, serve: Callable[..., Server]) -> None:
    world, documents = World(), [place.document for place in PLACES]

    def unhurried(asked: Asked) -> Said | str:
        said = world(asked)
        return said if full or not isinstance(said, str) else Said(said, after_s=3)

    full: list[Path] = []
    with ScriptedLlm(unhurried) as llm:
        server = serve(SCOPEGATE_LLM_URL=llm.url)
        job = server.client.post("/generate-dataset", json={"documents": documents}).json()
        llm.wait_for(3)
        full.append(small_disk / "filler")
        with pytest.raises(OSError, match="No space"):
            full[0].write_bytes(bytes(64 << 20))
        refused = server.client.post("/generate-dataset", json={"documents": documents})
        assert (refused.status_code, "room" in refused.json()["detail"]) == (507, True)
        time.sleep(10)
        waiting = server.client.get(f"/jobs/{job['id']}").json()
        assert (waiting["status"], waiting["progress"]["done"]) == ("running", 0)

        full[0].unlink()
        end = time.monotonic() + 30
        while waiting["finished_at"] is None:
            assert time.monotonic() < end, waiting
            time.sleep(0.1)
            waiting = server.client.get(f"/jobs/{job['id']}").json()
        assert (waiting["status"], waiting["summary"]["given_up"]) == ("succeeded", 0)
        rows = [json.loads(line) for line in server.client.get(f"/jobs/{job['id']}/result").iter_lines()]
        assert {row["document_id"] for row in rows} == {document["id"] for document in documents}
