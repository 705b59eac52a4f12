"""Loaders of torch and torchdata over the tiny model's data, each made again by a call, as a new process would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import tiny

torch = pytest.importorskip("torch")
loading = pytest.importorskip("torch.utils.data")


def rows() -> Any:
    x, y = tiny.data()
    return loading.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def generator() -> Any:
    return torch.Generator().manual_seed(5)


def stateful(dataset: Any, **options: Any) -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader")
    return module.StatefulDataLoader(dataset, batch_size=tiny.BATCH, **options)


def plain(dataset: Any, **options: Any) -> Any:
    return loading.DataLoader(dataset, batch_size=tiny.BATCH, **options)


class Counting(loading.Dataset):
    """Keeps a state of its own, and says so."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return tiny.ROWS

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        x, y = rows()[index]
        return x + self.read / 100, y

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]


def weighted() -> Any:
    return loading.WeightedRandomSampler([1.0, 3.0] * (tiny.ROWS // 2), tiny.ROWS, generator=generator())


LOADERS: dict[str, Callable[[], Any]] = {
    "DataLoader in order": lambda: plain(rows()),
    "DataLoader that shuffles": lambda: plain(rows(), shuffle=True),
    "DataLoader with a generator": lambda: plain(rows(), shuffle=True, generator=generator()),
    "DataLoader whose sampler has one": lambda: plain(rows(), sampler=weighted()),
    "StatefulDataLoader that shuffles": lambda: stateful(rows(), shuffle=True),
    "StatefulDataLoader with a generator": lambda: stateful(rows(), shuffle=True, generator=generator()),
}
