"""What `kdc watch --openmetrics` writes: a text file for Prometheus' node exporter, or another reader of its format."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cli.watching import JobView


def write(look: JobView, file: Path, now: float) -> None:
    """Replaces the file by what was seen.

    Args:
        look: What was seen.
        file: A local file.
        now: When, in seconds since 1970.

    Raises:
        ConfigError: The client library of Prometheus is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, write_to_textfile
    except ImportError as error:
        raise ConfigError(
            "--openmetrics needs Prometheus' client library: pip install 'keras-dist-callbacks[metrics]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(_Families(look, now))
    write_to_textfile(str(file), registry)


class _Families:
    def __init__(self, look: JobView, now: float) -> None:
        self._look, self._now = look, now

    def collect(self) -> Iterator[Any]:
        """What Prometheus' registry asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        look = self._look
        label = {"backup_dir": look.url}

        def gauge(name: str, text: str, value: float | None) -> Iterator[Any]:
            if value is not None:
                family = GaugeMetricFamily(name, text, labels=list(label))
                family.add_metric(list(label.values()), value)
                yield family

        yield from gauge("kdc_goodput_ratio", "Share of training in all time so far.", look.goodput)
        yield from gauge("kdc_steps_at_risk", "Steps that a kill would cost, estimated.", look.steps_at_risk)
        last = None if look.backup_age is None else self._now - look.backup_age
        yield from gauge("kdc_last_backup_timestamp_seconds", "When the newest backup was made.", last)
        badput = CounterMetricFamily("kdc_badput_seconds", "Time without progress.", labels=[*label, "type"])
        for category, seconds in look.seconds.items():
            if category != "training":
                badput.add_metric([*label.values(), category], seconds)
        yield badput
        restarts = CounterMetricFamily("kdc_restarts", "Starts after the first.", labels=[*label, "reason"])
        for reason, count in collections.Counter(end or "killed" for end in look.ends[:-1]).items():
            restarts.add_metric([*label.values(), reason], count)
        yield restarts
