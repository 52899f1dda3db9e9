"""Calibration as a job: the gates see labelled questions, and thresholds with a guarantee come of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from scopegate.domain import Check, GateName, GateStatus, Invalid, JobKind, OnError, Passage, Policy
from scopegate.evaluation.asking import chunks, judged
from scopegate.evaluation.bounds import covered
from scopegate.evaluation.shares import percent
from scopegate.evaluation.thresholds import ALPHAS, PROBES, Labelled, Setting, calibrate, passes
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.jobs.work import Done, Item
from scopegate.knowledge import Knowledge

_CHUNK = 8
_GATES = (GateName.HARD, GateName.PROBE)
_ASSUMES = (
    "The questions here are a fair draw of those to come, in groups that do not depend on each other; a group is what "
    "shares a `group`, else the same passages, else the same words. The scope's knowledge, embedder and probe stay as "
    "they are."
)


class Calibration:
    """Work on {"scope", "questions": [{"question", "answerable", "passages"?, "group"?}], "max_wrong", "delta",
    "largest_group"?, "apply", "seed"?}.

    Only the hard gate and the probe are asked, as far as the scope's policy asks them; a soft gate behind them can only
    refuse more."""

    kind = JobKind.CALIBRATE

    def __init__(self, gatekeeper: Gatekeeper, knowledge: Knowledge) -> None:
        self._gatekeeper = gatekeeper
        self._knowledge = knowledge

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """See Work. Raises UnknownScope; Invalid where the scope's policy asks neither gate."""
        self._gates(spec)
        return chunks(len(spec["questions"]), _CHUNK)

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work. A row for each question: what the gates saw, null where one gave no judgement."""
        stage("asking the gates")
        gates = self._gates(spec)
        rows = [await self._seen(spec, number, gates) for number in item.body["numbers"]]
        return Done(tuple(rows), {"questions": len(rows), "not_judged": sum(not row["judged"] for row in rows)})

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """See Work. With "apply", a policy that can be promised becomes the scope's."""
        gates = self._gates(spec)
        rows = {int(row["id"]): row for each in done for row in each.rows}
        scope = self._knowledge.scope_of(spec["scope"])
        # As it was when the questions were asked: applied thresholds are no longer what was there before.
        current = next(
            (Setting(row["alpha"], row["probe_threshold"]) for row in rows.values()),
            _current(self._gatekeeper.policy(scope), gates),
        )
        summary = await asyncio.to_thread(_summary, spec, rows, current)
        summary |= {"scope": scope.name, "revision": scope.revision, "embedder": scope.embedder, "applied": False}
        recommended = summary["recommended"]
        if spec.get("apply") and recommended is not None:
            changed = {**scope.policy, **recommended}
            await self._knowledge.put_scope(
                scope.name, policy=changed, overridable="keep", embedder=None, reembed=False
            )
            summary["applied"] = True
        return summary

    def _gates(self, spec: Mapping[str, Any]) -> tuple[GateName, ...]:
        policy = self._gatekeeper.policy(self._knowledge.scope_of(spec["scope"]))
        gates = tuple(gate for gate in _GATES if gate in policy.gates)
        if not gates:
            raise Invalid(
                "the scope's policy asks neither the hard gate nor the probe, so there is no threshold to set"
            )
        return gates

    async def _seen(self, spec: Mapping[str, Any], number: int, gates: tuple[GateName, ...]) -> Mapping[str, Any]:
        asked = spec["questions"][number]
        check = Check(
            asked["question"],
            spec["scope"],
            passages=passages(asked),
            overrides={"gates": gates, "on_error": OnError.REFUSE},
            explain=True,
        )
        current = _current(self._gatekeeper.policy(self._knowledge.scope_of(spec["scope"])), gates)
        verdict = await judged(self._gatekeeper, check)
        results = {result.gate: result for result in verdict.gates}
        return {
            "id": f"{number}",
            "question": asked["question"],
            "answerable": asked["answerable"],
            "group": group(asked),
            "judged": all(result.status is GateStatus.OK for result in results.values()),
            "ratio": results[GateName.HARD].score if GateName.HARD in results else None,
            "probability": results[GateName.PROBE].score if GateName.PROBE in results else None,
            **asdict(current),
        }


def passages(asked: Mapping[str, Any]) -> tuple[Passage, ...] | None:
    """The passages that a row brings: texts, or objects with a text; None where it brings none."""
    brought = asked.get("passages")
    if not brought:
        return None
    told: list[Mapping[str, Any]] = [{"text": each} if isinstance(each, str) else each for each in brought]
    return tuple(
        Passage(each.get("id") or f"p{n}", each["text"], each.get("source"), each.get("confidence", 1.0))
        for n, each in enumerate(told, 1)
    )


def group(asked: Mapping[str, Any]) -> str:
    """What the question depends on: its group, else its passages, else its own words."""
    if asked.get("group") is not None:
        return f"group:{asked['group']}"
    texts = [passage.text for passage in passages(asked) or ()] or [asked["question"].casefold().strip()]
    return "text:" + hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


def _current(policy: Policy, gates: Collection[GateName]) -> Setting:
    return Setting(
        policy.alpha if GateName.HARD in gates else None,
        policy.probe_threshold if GateName.PROBE in gates else None,
    )


def _summary(spec: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]], current: Setting) -> dict[str, Any]:
    most, delta = spec["max_wrong"], spec["delta"]
    seen, unjudged = labelled(spec["questions"], rows)
    hard, probe = current.alpha is not None, current.probe_threshold is not None
    found = calibrate(
        seen,
        hard=hard,
        probe=probe,
        most=most,
        delta=delta,
        seed=spec.get("seed", 0),
        largest=spec.get("largest_group") or 1,
    )
    recommended, guarantee = None, None
    if found.recommended is not None:
        recommended = _given(found.recommended)
        guarantee = {
            "statement": _statement(most, delta, covered(found.largest)),
            "max_wrong": most,
            "delta": delta,
            "method": "Learn then Test (Angelopoulos et al., 2021), "
            + ("binomial tails" if found.largest == 1 else "bets on groups (Waudby-Smith and Ramdas, 2024)"),
            "assumes": _ASSUMES,
        }
    return {
        "recommended": recommended,
        "guarantee": guarantee,
        "why_not": found.why,
        "questions": len(seen.answerable),
        "answerable": int(seen.answerable.sum()),
        "unanswerable": int((~seen.answerable).sum()),
        "groups": len(set(seen.group)),
        "not_judged": unjudged,
        "proven_on": {"groups": found.proven_on[0], "unanswerable": found.proven_on[1]},
        "at_current": _shares(seen, current),
        "at_recommended": None if found.recommended is None else _shares(seen, found.recommended),
        "tried": [
            {**_given(each.setting), **asdict(each), "setting": None} | _shares(seen, each.setting)
            for each in found.tried
        ],
        "over_alpha": [_shares(seen, Setting(float(alpha), None)) for alpha in ALPHAS] if hard else [],
        "over_probe_threshold": [_shares(seen, Setting(None, float(each))) for each in PROBES] if probe else [],
        "risk_coverage": risk_coverage(seen, current),
    }


def _statement(most: float, delta: float, most_alike: int) -> str:
    condition = "no two" if most_alike == 1 else f"no more than {most_alike}"
    return (
        f"With confidence {percent(1 - delta)}, at most {percent(most)} of unanswerable questions like these are let "
        f"through, as long as {condition} of them depend on each other."
    )


def labelled(questions: Sequence[Mapping[str, Any]], rows: Mapping[int, Mapping[str, Any]]) -> tuple[Labelled, int]:
    """What the gates saw. A question that they did not judge counts as decided wrongly, whatever the thresholds."""
    ratio, probability, unjudged = [], [], 0
    for number, asked in enumerate(questions):
        row = rows.get(number)
        if row is None or not row["judged"]:
            unjudged += 1
            ratio.append(np.inf if asked["answerable"] else 0.0)
            probability.append(-1.0 if asked["answerable"] else 1.0)
        else:
            ratio.append(np.inf if row["ratio"] is None else row["ratio"])
            probability.append(0.0 if row["probability"] is None else row["probability"])
    answerable = np.array([asked["answerable"] for asked in questions], bool)
    groups = tuple(map(group, questions))
    return Labelled(np.array(ratio, float), np.array(probability, float), answerable, groups), unjudged


def _given(setting: Setting) -> dict[str, float]:
    return {name: value for name, value in asdict(setting).items() if value is not None}


def _shares(seen: Labelled, setting: Setting) -> dict[str, Any]:
    """What happens to these questions; null where there are none to take a share of.

    wrong: of the unanswerable ones, let through. refused: of the answerable ones. accuracy, the paper's precision: of
    those answered, answerable. recall: of the answerable ones, answered.
    """
    passed = passes(seen, setting)
    let_through, answered = int((passed & ~seen.answerable).sum()), int((passed & seen.answerable).sum())
    unanswerable, answerable = int((~seen.answerable).sum()), int(seen.answerable.sum())
    return {
        **_given(setting),
        "refusals": int((~passed).sum()),
        "wrong": let_through / unanswerable if unanswerable else None,
        "refused": 1 - answered / answerable if answerable else None,
        "accuracy": answered / (answered + let_through) if answered + let_through else None,
        "recall": answered / answerable if answerable else None,
    }


def risk_coverage(seen: Labelled, current: Setting) -> list[dict[str, float]]:
    """Of the surest share of all questions (coverage), the share that is unanswerable (risk), at 50 places at most.

    Surest by P(in scope), and by min S/C where there is no probe. Questions that score the same come together.
    """
    score = -seen.probability if current.probe_threshold is not None else seen.ratio
    order = np.argsort(score, kind="stable")
    wrong = np.cumsum(~seen.answerable[order])
    ends = np.append(np.flatnonzero(score[order][1:] != score[order][:-1]), len(order) - 1) + 1
    places = ends[np.unique(np.linspace(0, len(ends) - 1, min(50, len(ends))).round().astype(int))]
    return [{"coverage": place / len(order), "risk": float(wrong[place - 1]) / place} for place in map(int, places)]
