"""How long hypothesis searches: a few examples here, hundreds under ``--hypothesis-profile=abuse``."""

from hypothesis import HealthCheck, settings

settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.register_profile(
    "abuse", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
