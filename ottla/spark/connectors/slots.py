"""Removing the replication slot and the publication of a capture from the database."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql


def drop_slot(options: Mapping[str, str]) -> str:
    given = {name.lower(): value for name, value in options.items()}
    slot = given["slot"]
    publication = given.get("publication") or slot
    with psycopg.connect(given["url"], autocommit=True) as db:
        there = db.execute("select count(*) from pg_replication_slots where slot_name = %s", (slot,)).fetchone()
        if there and there[0]:
            db.execute("select pg_drop_replication_slot(%s)", (slot,))
        db.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(publication)))
    return f"{slot}: removed the replication slot and the publication {publication}"
