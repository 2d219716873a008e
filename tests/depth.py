"""How long Hypothesis looks: moderately long, and ``REWARM_TEST_DEPTH=20`` tries twenty times as many examples."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

DEPTH = int(os.environ.get("REWARM_TEST_DEPTH", "1"))


def examples(usual: int) -> int:
    return usual * DEPTH


# Other work on the machine makes single examples slow; what is tested here is right or wrong, not fast.
settings.register_profile(
    "rewarm", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rewarm")
