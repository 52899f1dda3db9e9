"""From the settings, a scope's own policy and a request's overrides to the policy that holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from scopegate.domain import GateName, Mode, OnError, Policy
from scopegate.settings import Settings


def default_policy(settings: Settings, gates: Iterable[GateName], probe_threshold: float) -> Policy:
    """The policy of a scope that says nothing else: every gate that there is, the probe at its own threshold."""
    return Policy(
        settings.alpha,
        probe_threshold,
        settings.k,
        tuple(sorted(gates, key=list(GateName).index)),
        mode=settings.mode,
        on_error=settings.on_error,
    )


def overridden(policy: Policy, fields: Mapping[str, Any]) -> Policy:
    """The policy with the given fields in place of its own; enums may come as their names."""
    changed = dict(fields)
    if "gates" in changed:
        changed["gates"] = tuple(sorted(map(GateName, changed["gates"]), key=list(GateName).index))
    if "mode" in changed:
        changed["mode"] = Mode(changed["mode"])
    if "on_error" in changed:
        changed["on_error"] = OnError(changed["on_error"])
    return replace(policy, **changed)
