"""The fixtures stand in lib/fixtures.py, where the fault tests find them too."""
from lib.fixtures import *  # noqa: F401,F403
