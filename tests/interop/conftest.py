"""Fixtures for tests with real clients: each client in turn."""

from __future__ import annotations

import pytest

from tests.harness.topics import admin, make_topic, topic  # noqa: F401 (fixtures)
from tests.interop.clients import CLIENTS, Client


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param
