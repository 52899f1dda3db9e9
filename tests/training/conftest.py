"""No test here asks a hub; the library reads this when it is imported."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
