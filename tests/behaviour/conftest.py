"""Fixtures for tests of behaviour across modules; see tests.harness."""

from __future__ import annotations

from tests.harness.topics import admin, brokers, make_topic, shared_brokers, topic  # noqa: F401
from tests.interop.conftest import client  # noqa: F401
