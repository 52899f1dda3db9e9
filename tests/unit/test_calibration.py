"""Thresholds with a guarantee: the tests behind it, how often it is broken, and calibration as a job."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from scopegate.domain import GateName, Invalid, UnknownScope
from scopegate.evaluation import thresholds
from scopegate.evaluation.bounds import fewest, p_values
from scopegate.evaluation.calibration import Calibration, group, risk_coverage
from scopegate.evaluation.thresholds import ALPHAS, PROBES, Labelled, Setting, calibrate, divided, passes
from scopegate.services import Services
from scopegate.settings import Settings
from tests.unit.evaluating import evaluated, facts

DRAWS = 200


def pool(seed: int, groups: int, most: int, likeness: float) -> Labelled:
    """Questions in groups of 1 to `most`, half of them answerable, alike within a group as far as likeness says."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, groups)
    place = np.repeat(np.arange(groups), sizes)
    answerable = rng.random(len(place)) < 0.5
    common = rng.normal(size=groups)[place]
    own = math.sqrt(likeness) * common + math.sqrt(1 - likeness) * rng.normal(size=len(place))
    probability = 1 / (1 + np.exp(-1.5 * (own + 1.8 * answerable - 0.9)))
    ratio = np.clip(1.3 - 0.3 * (0.3 * common + rng.normal(size=len(place)) + answerable), 0.01, 4.0)
    return Labelled(ratio, probability, answerable, tuple(map(str, place)))


def drawn(whole: Labelled, groups: int, rng: np.random.Generator) -> Labelled:
    """A calibration set: groups of the pool, with replacement, each draw a group of its own."""
    names = np.array(whole.group).astype(int)
    order = np.argsort(names, kind="stable")
    starts = np.searchsorted(names[order], np.arange(names.max() + 2))
    rows, called = [], []
    for number, at in enumerate(rng.integers(0, names.max() + 1, groups)):
        held = order[starts[at] : starts[at + 1]]
        rows.append(held)
        called += [str(number)] * len(held)
    kept = np.concatenate(rows)
    return Labelled(whole.ratio[kept], whole.probability[kept], whole.answerable[kept], tuple(called))


def test_single_questions_are_tested_by_the_binomials_tail() -> None:
    let_through = np.zeros((200, 21), int)
    for wrong in range(21):
        let_through[:wrong, wrong] = 1
    found = p_values(let_through, np.ones(200, int), 0.07, 0.1, 1)
    assert found == pytest.approx(binom.cdf(np.arange(21), 200, 0.07))


@pytest.mark.parametrize(("most", "delta"), [(0.05, 0.1), (0.2, 0.05), (0.01, 0.01), (0.9, 0.5)])
def test_the_fewest_questions_that_can_show_anything(most: float, delta: float) -> None:
    assert fewest(np.ones(1, int), most, delta, 1) == math.ceil(math.log(delta) / math.log1p(-most))


def test_the_fewest_groups_that_can_show_anything() -> None:
    sizes = np.array([3, 1, 2])
    least = fewest(sizes, 0.05, 0.1, 3)
    assert p_values(np.zeros((least, 1), int), np.resize(sizes, least), 0.05, 0.1, 3)[0] <= 0.1
    assert p_values(np.zeros((least - 1, 1), int), np.resize(sizes, least - 1), 0.05, 0.1, 3)[0] > 0.1


@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
def test_a_bet_on_groups_seldom_wins_against_the_truth(alike: float) -> None:
    """Where exactly the share `most` is let through, p is at most delta in at most a share delta of all draws."""
    rng = np.random.default_rng(5)
    wins = 0
    for _ in range(DRAWS):
        sizes = rng.integers(1, 8, 120)
        whole = rng.random(120) < alike
        together = (rng.random(120) < 0.15) * sizes
        let_through = np.where(whole, together, rng.binomial(sizes, 0.15))
        wins += p_values(let_through[:, None], sizes, 0.15, 0.1, 7)[0] <= 0.1
    assert wins / DRAWS <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / DRAWS)


def test_a_bet_on_groups_wins_where_little_is_let_through() -> None:
    sizes = np.full(150, 3)
    let_through = np.zeros((150, 1), int)
    let_through[::20] = 1
    assert p_values(let_through, sizes, 0.1, 0.1, 3)[0] < 0.01


def test_no_group_is_worth_more_for_saying_the_same_thrice() -> None:
    """Three questions of a group that always fare alike show no more than one: here too little."""
    few = fewest(np.ones(1, int), 0.1, 0.1, 1) - 1
    assert p_values(np.zeros((few, 1), int), np.full(few, 3), 0.1, 0.1, 3)[0] > 0.1


def test_a_bet_fears_the_largest_group_to_come_and_not_only_those_seen() -> None:
    """Rare groups of 15 are let through whole, at 5.1 % of all questions; single ones never are."""
    rng = np.random.default_rng(0)
    rare = 0.05 / (15 * 0.95 + 0.05) * 1.02
    wins = {1: 0, 15: 0}
    for _ in range(DRAWS):
        large = rng.random(60) < rare
        sizes = np.where(large, 15, 1)
        for largest in wins:
            found = p_values(np.where(large, 15, 0)[:, None], sizes, 0.05, 0.1, max(largest, sizes.max()))
            wins[largest] += found[0] <= 0.1
    assert wins[1] / DRAWS > 0.5  # what comes of believing that there are no larger ones
    assert wins[15] / DRAWS <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / DRAWS)


@pytest.mark.parametrize(
    ("most_in_group", "likeness", "hard", "max_wrong", "groups"),
    [(1, 0.0, False, 0.1, 200), (1, 0.0, True, 0.1, 250), (6, 0.5, False, 0.15, 120), (6, 0.9, True, 0.2, 120)],
)
def test_the_promise_is_broken_no_more_often_than_it_says(
    most_in_group: int, likeness: float, hard: bool, max_wrong: float, groups: int
) -> None:
    """The pool is the population: its own share of unanswerable questions let through is the truth."""
    delta = 0.1
    whole = pool(1, 800, most_in_group, likeness)
    rng = np.random.default_rng(2)
    broken = promised = 0
    refused = []
    for draw in range(DRAWS):
        found = calibrate(drawn(whole, groups, rng), hard=hard, probe=True, most=max_wrong, delta=delta, seed=draw)
        if found.recommended is None:
            continue
        promised += 1
        answered = passes(whole, found.recommended)
        broken += answered[~whole.answerable].mean() > max_wrong
        refused.append(1 - answered[whole.answerable].mean())
    assert broken / DRAWS <= delta + 3 * math.sqrt(delta * (1 - delta) / DRAWS)
    # It promises something, and does not do so by refusing everything.
    assert promised > 0.9 * DRAWS
    assert np.mean(refused) < 0.75


def test_a_threshold_that_ignored_the_groups_would_break_its_promise() -> None:
    """What the test above would catch: each question of a group taken for an independent one."""
    whole = pool(1, 800, 15, 0.98)
    rng = np.random.default_rng(2)
    broken = 0
    for _ in range(DRAWS):
        seen = drawn(whole, 40, rng)
        alone = Labelled(seen.ratio, seen.probability, seen.answerable, tuple(map(str, range(len(seen.group)))))
        found = calibrate(alone, hard=False, probe=True, most=0.15, delta=0.1)
        if found.recommended is not None:
            broken += passes(whole, found.recommended)[~whole.answerable].mean() > 0.15
    assert broken / DRAWS > 0.1 + 3 * math.sqrt(0.1 * 0.9 / DRAWS)


def test_after_the_first_setting_that_fails_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one whose own p-value is small: that it is there to be found is chance, more often than delta."""

    def p_values_of(let_through: NDArray[np.int64], *_: object) -> NDArray[np.float64]:
        found = np.full(let_through.shape[1], 0.01)
        found[1::3] = 0.5
        return found

    monkeypatch.setattr(thresholds, "p_values", p_values_of)
    found = calibrate(pool(4, 200, 1, 0.0), hard=False, probe=True, most=0.1, delta=0.1)
    assert [each.kept for each in found.tried] == [True, *[False] * (len(PROBES) - 1)]
    assert [each.p_value for each in found.tried[:4]] == [0.01, 0.5, 0.01, 0.01]


def test_what_proves_has_no_say_in_the_order() -> None:
    """The groups that prove may fare as they will: the two thresholds' settings are tried in the same order."""
    whole = pool(4, 300, 3, 0.5)
    _, proof = divided({name for name, known in zip(whole.group, whole.answerable, strict=True) if not known}, 7)
    proves = np.isin(whole.group, proof)
    rng = np.random.default_rng(0)
    other = Labelled(
        np.where(proves, rng.random(len(proves)), whole.ratio),
        np.where(proves, rng.random(len(proves)), whole.probability),
        whole.answerable,
        whole.group,
    )
    orders = [
        [each.setting for each in calibrate(seen, hard=True, probe=True, most=0.9, delta=0.1, seed=7).tried]
        for seen in (whole, other)
    ]
    assert len(orders[0]) > 10
    assert orders[0] == orders[1]


def test_too_few_labels_promise_nothing() -> None:
    found = calibrate(pool(3, 60, 1, 0.0), hard=False, probe=True, most=0.05, delta=0.1)
    assert found.recommended is None
    assert found.tried == ()
    assert "too few to promise anything" in str(found.why)
    assert "takes 45 or more like these, with none let through" in str(found.why)


@pytest.mark.parametrize(("size", "hard"), [(1, True), (3, False), (3, True)])
def test_as_many_groups_as_it_takes_are_enough(size: int, hard: bool) -> None:
    """Of questions that the gates always refuse, beside one that they do not."""

    def seen(groups: int) -> Labelled:
        count = groups * size
        names = (*(str(n // size) for n in range(count)), "answerable")
        answerable = np.arange(count + 1) == count
        return Labelled(np.where(answerable, 0.1, 9.0), np.where(answerable, 1.0, 0.0), answerable, names)

    few = calibrate(seen(30), hard=hard, probe=True, most=0.05, delta=0.1)
    told = re.search(r"takes (\d+) or more", str(few.why))
    assert told
    assert ("up to 3 questions depend on each other" in str(few.why)) == (size == 3)
    enough = calibrate(seen(int(told[1])), hard=hard, probe=True, most=0.05, delta=0.1)
    assert enough.recommended is not None
    nearly = calibrate(seen(int(told[1]) - 1), hard=hard, probe=True, most=0.05, delta=0.1)
    assert "too few" in str(nearly.why)


def test_the_largest_group_counts_wherever_it_is() -> None:
    """Also among those that find the order; and more may be feared than are here."""
    whole = pool(4, 120, 3, 0.5)
    assert calibrate(whole, hard=True, probe=True, most=0.3, delta=0.1, largest=9).largest == 9
    ones = pool(4, 120, 1, 0.0)
    search, _ = divided({name for name, known in zip(ones.group, ones.answerable, strict=True) if not known}, 0)
    alike = tuple(search[0] if name in search[:4] else name for name in ones.group)
    seen = Labelled(ones.ratio, ones.probability, ones.answerable, alike)
    assert calibrate(seen, hard=True, probe=True, most=0.3, delta=0.1).largest == 4


def test_no_unanswerable_question_promises_nothing() -> None:
    seen = Labelled(np.zeros(3), np.ones(3), np.ones(3, bool), ("a", "b", "c"))
    assert calibrate(seen, hard=True, probe=True, most=0.05, delta=0.1).recommended is None


def test_gates_that_tell_nothing_apart_promise_nothing_but_refusing() -> None:
    rng = np.random.default_rng(0)
    seen = Labelled(np.full(400, 0.5), np.full(400, 0.5), rng.random(400) < 0.5, tuple(map(str, range(400))))
    found = calibrate(seen, hard=True, probe=True, most=0.05, delta=0.1)
    assert found.recommended is None
    assert "do not tell them apart" in str(found.why)


def test_one_gate_is_tried_from_the_strictest_threshold_on() -> None:
    found = calibrate(pool(4, 400, 1, 0.0), hard=False, probe=True, most=0.1, delta=0.1)
    assert [each.setting for each in found.tried] == [Setting(None, float(threshold)) for threshold in PROBES]
    kept = [each.kept for each in found.tried]
    assert kept == sorted(kept, reverse=True)
    assert found.largest == 1


def test_what_a_question_depends_on() -> None:
    passages = [{"text": "The ferry leaves at eight."}]
    assert group({"question": "Who?", "group": "a"}) == group({"question": "When?", "group": "a"})
    assert group({"question": "Who?", "passages": passages}) == group({"question": "When?", "passages": passages})
    assert group({"question": "Who?"}) == group({"question": "who? "})
    assert group({"question": "Who?"}) != group({"question": "When?"})


def test_questions_that_score_the_same_are_answered_together() -> None:
    """Whatever their order: a gate that says the same of all of them is no surer of the first."""
    seen = Labelled(np.full(100, 0.5), np.full(100, 0.5), np.arange(100) < 50, tuple(map(str, range(100))))
    assert risk_coverage(seen, Setting(1.0, 0.5)) == [{"coverage": 1.0, "risk": 0.5}]
    surer = Labelled(seen.ratio, np.where(np.arange(100) < 25, 0.9, 0.5), seen.answerable, seen.group)
    assert risk_coverage(surer, Setting(1.0, 0.5)) == [{"coverage": 0.25, "risk": 0.0}, {"coverage": 1.0, "risk": 0.5}]
    nearer = Labelled(np.where(np.arange(100) < 50, 0.2, 0.7), seen.probability, seen.answerable, seen.group)
    assert risk_coverage(nearer, Setting(1.0, None))[0] == {"coverage": 0.5, "risk": 0.0}


# As a job


@pytest.fixture
async def services(settings: Settings) -> AsyncIterator[Services]:
    services = Services(settings)
    async with services.running():
        await services.knowledge.ready(20)
        await services.knowledge.add("default", facts("The night ferry to Harwick leaves from pier 4."))
        yield services


def questions(count: int) -> list[dict[str, Any]]:
    """In turn one that its own passage answers, and one that asks for something else entirely."""
    asked: list[dict[str, Any]] = []
    for n in range(count):
        passages = [{"text": f"The ferry number {n} to Harwick leaves from pier {n + 3} at noon."}]
        if n % 2:
            asked.append(
                {"question": f"What does lava in volcano {n} weigh?", "answerable": False, "passages": passages}
            )
        else:
            question = f"Which pier does the ferry number {n} to Harwick leave from?"
            asked.append({"question": question, "answerable": True, "passages": passages})
    return asked


def spec(asked: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    return {"scope": "default", "questions": asked, "max_wrong": 0.2, "delta": 0.2, "apply": False, **changed}


def calibration(services: Services) -> Calibration:
    return Calibration(services.gatekeeper, services.knowledge)


async def test_a_calibration_gives_a_policy_its_promise_and_curves(services: Services) -> None:
    rows, summary = await evaluated(calibration(services), spec(questions(60)))
    assert [row["answerable"] for row in rows] == [True, False] * 30
    assert all(row["judged"] and row["ratio"] > 0 and 0 <= row["probability"] <= 1 for row in rows)
    assert (summary["answerable"], summary["unanswerable"], summary["groups"]) == (30, 30, 60)
    assert summary["guarantee"]["statement"] == (
        "With confidence 80%, at most 20% of unanswerable questions like these are let through, "
        "as long as no two of them depend on each other."
    )
    assert summary["recommended"].keys() == {"alpha", "probe_threshold"}
    assert summary["at_recommended"]["wrong"] <= 0.2
    assert summary["at_recommended"]["refused"] < 0.2
    over = [(row["alpha"], row["refusals"]) for row in summary["over_alpha"]]
    assert over == [(alpha, sum(row["ratio"] >= alpha for row in rows)) for alpha in ALPHAS]
    (middle,) = [row for row in summary["over_probe_threshold"] if row["probe_threshold"] == 0.5]
    through = [row["answerable"] for row in rows if row["probability"] >= 0.5]
    assert middle == {
        "probe_threshold": 0.5,
        "refusals": 60 - len(through),
        "wrong": through.count(False) / 30,
        "refused": pytest.approx(1 - through.count(True) / 30),
        "accuracy": through.count(True) / len(through),
        "recall": through.count(True) / 30,
    }
    assert summary["risk_coverage"][-1] == {"coverage": 1.0, "risk": 0.5}
    assert not summary["applied"]
    assert services.knowledge.scope_of("default").policy == {}


async def test_a_promise_is_told_as_it_is_and_not_rounded(services: Services) -> None:
    _, summary = await evaluated(calibration(services), spec(questions(60), max_wrong=0.325, delta=0.001))
    assert summary["guarantee"]["statement"].startswith("With confidence 99.9%, at most 32.5% of unanswerable")
    _, summary = await evaluated(calibration(services), spec(questions(4), max_wrong=0.0004, delta=0.025))
    assert "at most 0.04% are let through, at confidence 97.5%" in summary["why_not"]


async def test_a_calibration_is_applied_on_request_and_keeps_the_rest_of_the_policy(services: Services) -> None:
    await services.knowledge.put_scope("default", policy={"k": 7}, overridable=("k",), embedder=None, reembed=False)
    _, summary = await evaluated(calibration(services), spec(questions(60), apply=True))
    assert summary["applied"]
    scope = services.knowledge.scope_of("default")
    assert scope.policy == {"k": 7, **summary["recommended"]}
    assert scope.overridable == ("k",)


async def test_without_a_promise_nothing_is_applied(services: Services) -> None:
    _, summary = await evaluated(calibration(services), spec(questions(10), apply=True))
    assert (summary["guarantee"], summary["recommended"], summary["applied"]) == (None, None, False)
    assert "too few" in summary["why_not"]
    assert services.knowledge.scope_of("default").policy == {}


async def test_questions_without_passages_are_asked_of_the_scope(services: Services) -> None:
    asked = [
        {"question": "Which pier does the night ferry to Harwick leave from?", "answerable": True},
        {"question": "What does lava weigh?", "answerable": False},
    ]
    rows, _ = await evaluated(calibration(services), spec(asked))
    assert rows[0]["ratio"] < 0.6 < rows[1]["ratio"]


async def test_only_the_gates_that_the_policy_asks_are_calibrated(services: Services) -> None:
    policy = {"gates": ["probe"]}
    await services.knowledge.put_scope("default", policy=policy, overridable="keep", embedder=None, reembed=False)
    rows, summary = await evaluated(calibration(services), spec(questions(60)))
    assert {row["ratio"] for row in rows} == {None}
    assert summary["recommended"].keys() == {"probe_threshold"}
    assert summary["over_alpha"] == []


async def test_what_was_not_judged_counts_as_decided_wrongly(services: Services) -> None:
    """Rows of an item that failed are missing at the end: every such unanswerable question counts as let through."""
    work, asked = calibration(services), spec(questions(60))
    items = await work.items(asked)
    done = [await work.do(asked, item, lambda _: None) for item in items[2:]]
    summary = await work.finish(asked, done)
    assert summary["not_judged"] == 16
    assert summary["at_current"]["wrong"] >= 8 / 30
    assert summary["guarantee"] is None


async def test_a_scope_that_is_not_there_cannot_be_calibrated(services: Services) -> None:
    with pytest.raises(UnknownScope):
        await calibration(services).items(spec(questions(2), scope="nowhere"))


async def test_a_scope_without_thresholds_cannot_be_calibrated(services: Services) -> None:
    policy = {"gates": [GateName.SOFT]}
    await services.knowledge.put_scope("default", policy=policy, overridable="keep", embedder=None, reembed=False)
    with pytest.raises(Invalid, match="neither the hard gate nor the probe"):
        await calibration(services).items(spec(questions(2)))
