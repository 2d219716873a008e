"""What Prometheus scrapes. Requests add to plain numbers; the exposition is made when somebody asks.

prometheus_client's own counters take a lock and several calls each time; this is one dictionary entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class Counter:
    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0) + 1

    def collect(self) -> Metric:
        family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class Histogram:
    def __init__(self, name: str, text: str, labels: tuple[str, ...], bounds_s: tuple[float, ...]) -> None:
        self.name, self.text, self.labels, self.bounds_s = name, text, labels, bounds_s
        self.values: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observe(self, seconds: float, *labels: str) -> None:
        entry = self.values.get(labels)
        if entry is None:
            entry = self.values[labels] = ([0] * (len(self.bounds_s) + 1), [0.0])
        entry[0][bisect_left(self.bounds_s, seconds)] += 1
        entry[1][0] += seconds

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for labels, (counts, total) in self.values.items():
            buckets, running = [], 0
            for bound, count in zip((*map(str, self.bounds_s), "+Inf"), counts, strict=True):
                running += count
                buckets.append((bound, float(running)))
            family.add_metric(labels, buckets, total[0])
        return family


Gauge = tuple[str, str, tuple[str, ...], Callable[[], dict[tuple[str, ...], float]]]
"""Name, text, label names, and a function that gives the values by labels."""


class Metrics(Collector):
    def __init__(self) -> None:
        self.requests = Counter("rewarm_requests", "Finished requests", ("model", "endpoint", "status", "start"))
        self.errors = Counter("rewarm_errors", "Typed errors that clients were given", ("code", "model"))
        self.fallbacks = Counter(
            "rewarm_fallbacks", "Requests that another model was to answer, and why", ("from", "to", "reason")
        )
        self.wait = Histogram("rewarm_wait_seconds", "Time held before an engine took the request", ("model",), LONG_S)
        self.first_byte = Histogram(
            "rewarm_first_byte_seconds",
            "Time to the engine's first byte, holding included",
            ("model", "start"),
            SHORT_S,
        )
        self.duration = Histogram("rewarm_request_seconds", "Time to the end of the answer", ("model",), LONG_S)
        self.wakes = Histogram(
            "rewarm_wake_seconds", "How long models took to wake, as far as seen", ("model", "tier"), LONG_S
        )
        self._gauges: list[Gauge] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def gauge(
        self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], dict[tuple[str, ...], float]]
    ) -> None:
        self._gauges.append((name, text, labels, read))

    def collect(self) -> Iterable[Metric]:
        for series in (
            self.requests,
            self.errors,
            self.fallbacks,
            self.wait,
            self.first_byte,
            self.duration,
            self.wakes,
        ):
            yield series.collect()
        for name, text, labels, read in self._gauges:
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, number in read().items():
                family.add_metric(values, number)
            yield family

    def exposition(self) -> bytes:
        return generate_latest(self._registry)
