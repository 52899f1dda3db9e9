"""The service as a process: bounds, stopping in order, logs, and a shell beside it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

if TYPE_CHECKING:
    from tests.conftest import Server

FACTS = json.dumps({"facts": [{"text": "The storm bell hangs in the east tower."}]}).encode()
QUESTION = {"question": "Where does the storm bell hang?", "policy": {"gates": ["hard"]}}


class Upload:
    """A request whose body is sent by and by."""

    def __init__(self, server: Server, path: str = "/scopes/default/facts") -> None:
        url = urlsplit(server.url)
        self._socket = socket.create_connection((url.hostname, url.port), 20)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._socket.sendall(head.encode())

    def send(self, piece: bytes) -> None:
        self._socket.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))

    def finish(self) -> int:
        self._socket.sendall(b"0\r\n\r\n")
        return self.status()

    def status(self) -> int:
        return int(self._socket.recv(65536).split()[1])

    def close(self) -> None:
        self._socket.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def in_flight(server: Server) -> int:
    lines = server.client.get("/metrics").text.splitlines()
    return int(float(next(line for line in lines if line.startswith("scopegate_requests_in_flight ")).split()[1]))


def test_a_stop_finishes_what_is_in_flight(serve: Callable[..., Server]) -> None:
    server = serve()
    upload = Upload(server)
    upload.send(FACTS[:20])
    until(lambda: in_flight(server) == 2)
    server.process.send_signal(signal.SIGTERM)

    def refuses() -> bool:
        try:
            httpx.get(f"{server.url}/livez")
        except httpx.ConnectError:
            return True
        return False

    until(refuses)
    assert server.process.poll() is None
    upload.send(FACTS[20:])
    assert upload.finish() == 201
    upload.close()
    assert server.ended() == 0

    again = serve()
    assert again.client.post("/check", json=QUESTION).json()["decision"] == "ANSWERABLE"
    assert again.stop() == 0


def test_a_stop_waits_only_so_long(serve: Callable[..., Server]) -> None:
    server = serve(SCOPEGATE_SHUTDOWN_S="1")
    upload = Upload(server)
    upload.send(FACTS[:20])
    until(lambda: in_flight(server) == 2)
    started = time.monotonic()
    assert server.stop() == 0
    assert 1 <= time.monotonic() - started < 8
    upload.close()


def test_an_interrupt_is_a_stop_too(serve: Callable[..., Server]) -> None:
    assert serve().stop(signal.SIGINT) == 0


def test_one_request_too_many_is_503_at_once(serve: Callable[..., Server]) -> None:
    server = serve(SCOPEGATE_MAX_REQUESTS="1")
    upload = Upload(server)
    upload.send(FACTS[:20])
    until(lambda: in_flight(server) == 2)
    started = time.monotonic()
    answer = server.client.post("/check", json=QUESTION)
    assert time.monotonic() - started < 1
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-request-id"]
    assert answer.json()["type"] == "urn:scopegate:overloaded"
    assert server.client.get("/livez").status_code == 200
    upload.send(FACTS[20:])
    assert upload.finish() == 201
    upload.close()
    assert server.client.post("/check", json=QUESTION).status_code == 200


def test_an_upload_that_grows_too_large_is_cut_off(serve: Callable[..., Server]) -> None:
    server = serve(SCOPEGATE_MAX_BODY="10000")
    upload = Upload(server)
    for _ in range(11):
        upload.send(b" " * 1000)
    assert upload.status() == 413
    upload.close()
    announced = server.client.post("/check", content=b" " * 10_001, headers={"Content-Type": "application/json"})
    assert announced.status_code == 413


def test_an_upload_that_never_ends_frees_its_place(serve: Callable[..., Server]) -> None:
    server = serve(SCOPEGATE_BODY_TIMEOUT_S="0.5", SCOPEGATE_MAX_REQUESTS="1")
    upload = Upload(server)
    upload.send(FACTS[:20])
    until(lambda: in_flight(server) == 2)
    assert server.client.post("/check", json=QUESTION).status_code == 503
    assert upload.status() == 408
    upload.close()
    until(lambda: in_flight(server) == 1)
    assert server.client.post("/check", json=QUESTION).status_code == 200


def test_a_client_that_goes_away_leaves_nothing(serve: Callable[..., Server]) -> None:
    server = serve()
    upload = Upload(server)
    upload.send(FACTS[:-1])
    until(lambda: in_flight(server) == 2)
    upload.close()
    until(lambda: in_flight(server) == 1)
    until(lambda: any(line.get("status") == 499 for line in server.log))
    assert server.client.get("/scopes/default").json()["facts"] == 0


def test_paths_no_client_would_send(serve: Callable[..., Server]) -> None:
    url = urlsplit(serve().url)
    for path in ("/scopes/../scopes", "/scopes/..", "//scopes", "/scopes/%2e%2e/x", "/scopes/%ff", "/scopes/%00"):
        with socket.create_connection((url.hostname, url.port), 10) as raw, raw.makefile("rb") as answer:
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            head = answer.read()
        assert int(head.split()[1]) in {404, 422}, path
        assert b"application/problem+json" in head, path


def test_every_line_of_the_log_is_json_with_the_request_s_id(serve: Callable[..., Server]) -> None:
    server = serve()
    server.client.post("/check", json=QUESTION, headers={"X-Request-ID": "trace-me"})
    server.client.get("/livez")
    server.stop()
    (line,) = [line for line in server.log if line.get("event") == "request"]
    assert line["request_id"] == "trace-me"
    assert (line["method"], line["path"], line["status"], line["level"]) == ("POST", "/check", 200, "info")
    assert line["timestamp"].endswith("Z")
    assert any("Shutting down" in each["event"] for each in server.log)
    assert "storm bell" not in json.dumps(server.log)


def test_what_a_shell_adds_the_service_knows(serve: Callable[..., Server]) -> None:
    server = serve()
    assert server.client.post("/check", json=QUESTION).json()["decision"] == "REFUSAL"
    sentence = "The storm bell hangs in the east tower."
    command = ["add", "--data-dir", str(server.data_dir), "--text", sentence]
    subprocess.run([sys.executable, "-m", "scopegate.cli", *command], check=True)
    until(lambda: bool(server.client.post("/check", json=QUESTION).json()["decision"] == "ANSWERABLE"))


def test_a_fact_may_go_while_it_is_being_checked(serve: Callable[..., Server]) -> None:
    server = serve()
    fact = {"facts": [{"id": "bell", "text": "The storm bell hangs in the east tower."}]}
    over = threading.Event()

    def ask() -> list[httpx.Response]:
        answers = []
        with httpx.Client(base_url=server.url, timeout=30) as client:
            while not over.is_set():
                answers += [client.post(path, json=QUESTION) for path in ("/check", "/answer")]
        return answers

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for _ in range(15):
                assert server.client.post("/scopes/default/facts", json=fact).status_code == 201
                assert server.client.post("/check", json=QUESTION).json()["decision"] == "ANSWERABLE"
                assert server.client.delete("/scopes/default/facts/bell").status_code == 204
                gone = server.client.post("/check", json=QUESTION).json()
                assert (gone["decision"], gone["evidence"]) == ("REFUSAL", [])
        finally:
            over.set()
        answers = [answer for asked in asking for answer in asked.result()]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["decision"] for answer in answers} == {"ANSWERABLE", "ANSWER", "REFUSAL"}
    for answer in answers:
        judged = answer.json()
        assert bool(judged["evidence"]) == (judged["decision"] != "REFUSAL")


def test_the_service_answers_while_a_shell_adds(serve: Callable[..., Server]) -> None:
    server = serve()
    lines = "".join(json.dumps({"text": f"Locker {n} holds parcel {n * 7}."}) + "\n" for n in range(3000))
    command = [sys.executable, "-m", "scopegate.cli", "add", "-", "--data-dir", str(server.data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as adding:
        assert adding.stdin is not None
        adding.stdin.write(lines)
        adding.stdin.close()
        statuses = []
        while adding.poll() is None:
            statuses.append(server.client.post("/check", json=QUESTION).status_code)
            time.sleep(0.01)
    assert adding.returncode == 0
    assert len(statuses) > 20
    assert set(statuses) == {200}
    last = {"question": "Locker 2999 holds parcel 20993.", "policy": {"gates": ["hard"], "k": 1}}
    until(lambda: bool("20993" in server.client.post("/check", json=last).text.split('"evidence"')[1]))


def fails(*arguments: str, **environment: str) -> str:
    """Runs serve, which must end at once with one sentence; returns it."""
    ended = subprocess.run(
        [sys.executable, "-m", "scopegate.cli", "serve", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("scopegate: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in fails("--port", port, "--data-dir", str(tmp_path))
    (tmp_path / "file").touch()
    assert "cannot be written" in fails("--data-dir", str(tmp_path / "file"))
    assert "entry 1" in fails("--port", "0", "--data-dir", str(tmp_path), SCOPEGATE_API_KEYS="owner:hush")
    assert "no embedder" in fails("--port", "0", "--data-dir", str(tmp_path), SCOPEGATE_EMBEDDER="nonesuch")
    assert "port" in fails("--port", "70000", "--data-dir", str(tmp_path))
    unreadable = fails("--port", "0", "--data-dir", str(tmp_path), "--database-url", "post gres//me:hush@host")
    assert "database URL" in unreadable
    assert "hush" not in unreadable
    assert "alpha" in fails("--data-dir", str(tmp_path), SCOPEGATE_ALPHA="-1")
