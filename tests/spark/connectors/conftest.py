"""One PostgreSQL for the tests of the connectors, and a fresh database on it for each test."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.actors.local_postgres import LocalPostgres, NoPostgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    pytest.importorskip("psycopg", reason="needs psycopg: make test installs it")
    # Not below pytest's own directory, which nobody but its owner may enter: the server may run as somebody else.
    directory = Path(tempfile.mkdtemp(prefix="ottla-tests-postgres-"))
    try:
        server = LocalPostgres(directory, settings={"fsync": "off", "max_slot_wal_keep_size": "64MB"}).start()
    except NoPostgres as reason:
        shutil.rmtree(directory, ignore_errors=True)
        if os.environ.get("OTTLA_TEST_NEEDS_POSTGRES"):
            raise
        pytest.skip(str(reason))
    yield server
    server.stop("immediate")
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def database(postgres: LocalPostgres) -> Iterator[str]:
    """The address of a database for this test alone."""
    import psycopg

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute(f"create database {name}")
    yield postgres.url.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(postgres.url, autocommit=True) as db:
        slots = (
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s and not active"
        )
        db.execute(slots, (name,))
        db.execute(f"drop database {name} with (force)")
