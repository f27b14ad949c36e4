"""Settings for the whole suite. ``HYPOTHESIS_PROFILE=thorough`` looks at twenty times as many examples."""

import os

from hypothesis import HealthCheck, settings

default = settings(max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", default)
settings.register_profile("thorough", default, max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
