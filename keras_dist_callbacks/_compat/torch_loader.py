"""What decides about the order of a torch `DataLoader`, without importing torch where it is not used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_dist_callbacks.base import static

_SAMPLERS = {"SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "BatchSampler"}


def is_loader(source: Any) -> bool:
    """Returns whether it is a `torch.utils.data.DataLoader`, torchdata's `StatefulDataLoader` included."""
    torch = sys.modules.get("torch")
    return torch is not None and static.is_a(source, torch.utils.data.DataLoader)


def order_depends_on_rng_only(source: Any) -> bool:
    """Whether each pass depends on nothing but random states: torch's own samplers over a dataset with an index.

    A dataset with a `state_dict` of its own says that there is more.
    """
    return (
        is_loader(source)
        and static.has(source.dataset, "__getitem__")
        and not static.has(source.dataset, "state_dict")
        and all(sampler is None or _is_torchs(sampler) for sampler in (source.sampler, source.batch_sampler))
    )


def _is_torchs(sampler: Any) -> bool:
    cls = type(sampler)
    return cls.__name__ in _SAMPLERS and cls.__module__.partition(".")[0] in ("torch", "torchdata")


def generators(loader: Any) -> list[Any]:
    """Returns its own generators, each once; without any, it draws from torch's global random state."""
    inner = static.attribute(loader.batch_sampler, "sampler")
    holders = (loader, loader.sampler, loader.batch_sampler, inner)
    found = [static.attribute(holder, "generator") for holder in holders]
    return list({id(generator): generator for generator in found if generator is not None}.values())


def states(found: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Returns what the generators will draw from."""
    return [generator.get_state().cpu().numpy().copy() for generator in found]


def set_states(found: Sequence[Any], saved: Sequence[np.ndarray[Any, Any]]) -> None:
    """Lets the generators continue from what `states` returned.

    Raises:
        ValueError: There are others than then.
    """
    torch = sys.modules["torch"]
    for generator, state in zip(found, saved, strict=True):
        generator.set_state(torch.from_numpy(np.array(state, np.uint8)))
