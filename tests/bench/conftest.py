"""The harness is tested with one thread: its problems are tiny, and the machine may be busy."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    pass
