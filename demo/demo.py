"""Starts a service on a fresh data directory, gives it sample knowledge, asks it three questions, and stops it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel

HERE = Path(__file__).parent
QUESTIONS = [
    ("check", "Who built the lighthouse?", "A question that the knowledge covers"),
    ("answer", "When does the ferry leave Port Alder?", "The same, answered with its evidence"),
    ("answer", "Who built the hotel?", "A question that looks alike, and that nothing here answers"),
]

console = Console()


def call(method: str, url: str, body: bytes | None = None, kind: str = "application/json") -> Any:
    """One request; the parsed body of its response."""
    request = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)  # noqa: S310 our own server
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return json.loads(response.read())


def wait_until_ready(url: str, service: subprocess.Popen[bytes]) -> None:
    """Returns once /readyz says so. Raises SystemExit where the service ends or takes a minute."""
    for _ in range(600):
        if service.poll() is not None:
            sys.exit(f"the service ended with code {service.returncode}")
        try:
            call("GET", f"{url}/readyz")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    sys.exit("the service was not ready within a minute")


def seen(gate: dict[str, Any]) -> str:
    """What a gate saw, in a line."""
    score = "not asked" if gate["score"] is None else f"{gate['score']:.2f}"
    return f"{gate['gate']}: {score}, threshold {gate['threshold']:.2f}"


def show(url: str, endpoint: str, question: str, why: str) -> None:
    """Asks a question and shows what came back."""
    body = {"question": question}
    reply = call("POST", f"{url}/{endpoint}", json.dumps(body).encode())
    refused = reply["decision"] == "REFUSAL"
    lines = [f"[bold]{why}[/]", f"POST /{endpoint} {json.dumps(body)}", ""]
    lines.append(f"decision  [bold {'red' if refused else 'green'}]{reply['decision']}[/]")
    if reply.get("answer"):
        lines.append(f"answer    {reply['answer']}")
    if reply.get("refusal"):
        lines.append(f"refusal   {reply['refusal']}")
    lines.append(f"reason    {reply['reason']}")
    lines += [f"gate      {seen(gate)}" for gate in reply.get("verdict", reply)["gates"]]
    lines += [
        f"evidence  “{evidence['text']}” ({evidence['source']}, S/C {evidence['ratio']:.2f})"
        for evidence in reply["evidence"][:1]
    ]
    console.print(Panel("\n".join(lines), border_style="red" if refused else "green"))


def main() -> None:
    """The demonstration."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    program = Path(sys.executable).parent / "scopegate"
    settings = {name: value for name, value in os.environ.items() if not name.startswith("SCOPEGATE_")}
    with tempfile.TemporaryDirectory() as data:
        start = time.perf_counter()
        command = [program, "serve", "--port", str(port), "--data-dir", data]
        service = subprocess.Popen(command, env=settings | {"SCOPEGATE_LOG_LEVEL": "warning"})
        try:
            wait_until_ready(url, service)
            console.print(
                f"The service is ready after {time.perf_counter() - start:.1f} s: no GPU, no LLM, no network."
            )
            facts = (HERE / "knowledge.ndjson").read_bytes()
            added = call("POST", f"{url}/scopes/default/facts", facts, "application/x-ndjson")
            console.print(f"It has taken in {added['added']} facts from {HERE.name}/knowledge.ndjson.\n")
            for endpoint, question, why in QUESTIONS:
                show(url, endpoint, question, why)
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(timeout=60)
    console.print(
        "\nGo on with:\n"
        "  make serve                                      # a service that keeps running, on port 8080\n"
        "  .venv/bin/scopegate add demo/knowledge.ndjson   # the sample knowledge, into its data directory\n"
        "  curl -s localhost:8080/check -H 'Content-Type: application/json' "
        '-d \'{"question": "How tall is the lighthouse?"}\'\n'
        "  http://127.0.0.1:8080/docs                      # every call, to try\n",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
