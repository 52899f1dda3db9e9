"""A data directory on a disk that runs full: clear errors, nothing half kept, and work goes on once there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Server

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
