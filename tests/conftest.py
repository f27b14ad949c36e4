"""Settings for the whole suite."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")
