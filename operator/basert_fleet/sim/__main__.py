"""`python -m basert_fleet.sim`: the same program as the console script `basert-sim`."""

from __future__ import annotations

import sys

from basert_fleet.sim.main import main

sys.exit(main())
