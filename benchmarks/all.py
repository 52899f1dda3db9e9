"""Every benchmark, one after the other."""

import subprocess
import sys

for name in ("embedder", "reader", "check", "start", "ingest", "index", "chat", "one_pass", "jobs", "hidden_states"):
    print(f"\n$ python -m benchmarks.{name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
