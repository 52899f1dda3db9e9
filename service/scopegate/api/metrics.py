"""What Prometheus is told. Labels take few values: routes rather than paths, a scope only where it is sized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scopegate.domain import GateStatus, Verdict
from scopegate.services import Services

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The figures of one app, in a registry of its own."""

    def __init__(self, services: Services) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "scopegate_requests", "Requests answered", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "scopegate_request_seconds", "Time to answer", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.in_flight = Gauge("scopegate_requests_in_flight", "Requests being answered", registry=self.registry)
        self._decisions = Counter(
            "scopegate_decisions", "Questions judged", ["decision", "refused_by"], registry=self.registry
        )
        self._gates = Counter("scopegate_gate_results", "What gates saw", ["gate", "status"], registry=self.registry)
        self._gate_seconds = Histogram(
            "scopegate_gate_seconds", "Time a gate took", ["gate"], buckets=_SECONDS, registry=self.registry
        )
        queue = Gauge("scopegate_embed_queue", "Texts that wait to be embedded", registry=self.registry)
        queue.set_function(lambda: services.embedder.waiting)
        if (reader := services.reader) is not None:
            pairs = Gauge("scopegate_read_queue", "Windows that wait for the reader", registry=self.registry)
            pairs.set_function(lambda: reader.waiting)
        self.registry.register(_Scopes(services))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def judged(self, verdict: Verdict) -> None:
        """Counts a verdict and what its gates saw."""
        self._decisions.labels(verdict.decision, verdict.refused_by or "none").inc()
        for result in verdict.gates:
            self._gates.labels(result.gate, result.status).inc()
            if result.status is not GateStatus.SKIPPED:
                self._gate_seconds.labels(result.gate).observe(result.elapsed_ms / 1000)


class _Scopes(Collector):
    """The size and revision of every loaded scope, read when asked."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> Iterable[Metric]:
        return _scope_families()

    def collect(self) -> Iterator[Metric]:
        facts, revision = _scope_families()
        for size in self._services.knowledge.sizes():
            facts.add_metric([size.scope], size.facts)
            revision.add_metric([size.scope], size.revision)
        yield facts
        yield revision


def _scope_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("scopegate_index_facts", "Facts in a scope's index", labels=["scope"]),
        GaugeMetricFamily("scopegate_index_revision", "The revision a scope's index has", labels=["scope"]),
    )
