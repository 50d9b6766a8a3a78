"""Lets the tests import the benchmark, which is run from the checkout and never installed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
