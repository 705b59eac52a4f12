"""A script's module of settings, of which a callback makes state."""

from __future__ import annotations

from typing import Any

STATE: Any = None
