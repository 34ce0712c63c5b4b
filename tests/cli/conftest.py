"""Fixtures for tests of commands."""

from __future__ import annotations

import pytest

from tests.cli.commands import Ottla


@pytest.fixture
def ottla(broker) -> Ottla:
    return Ottla(broker.bootstrap)


@pytest.fixture
def topic(ottla, fresh_name) -> str:
    """A topic of three partitions."""
    name = fresh_name()
    ottla("topics", "create", name, "--partitions", "3")
    return name
