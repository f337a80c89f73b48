"""H8 on NATS: every scenario of the embedded bus once more, with nothing outside but a plain NATS client."""
from test_hydration_protocol import *  # noqa: F401,F403 pylint: disable=wildcard-import,unused-wildcard-import
