"""Fixtures for tests of commands."""

from __future__ import annotations

import pytest

from tests.cli.commands import Ottla


@pytest.fixture
def ottla(ottla_server) -> Ottla:
    """On a broker in this process, where groups begin at once."""
    return Ottla(ottla_server.bootstrap_servers)


@pytest.fixture
def topic(ottla, fresh_name) -> str:
    """A topic of three partitions."""
    name = fresh_name()
    ottla("topics", "create", name, "--partitions", "3")
    return name
