"""The generated schema: equals the generator's output, agrees with the table of APIs, and imports quickly."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from kio.schema.index import api_key_map

from ottla.wire.apis import APIS, PRODUCE
from ottla.wire.messages import message_class
from ottla.wire.tree import Struct
from tools.generate_messages import API_KEYS, SCHEMA, generate


def test_the_committed_schema_is_what_the_generator_writes():
    written = generate()
    assert {path.name for path in SCHEMA.glob("*.py")} == set(written)
    for name, source in written.items():
        assert (SCHEMA / name).read_text() == source, f"{name}: run tools/generate_messages.py"


def test_the_table_of_apis_covers_the_schema():
    assert set(APIS) == {key for key in API_KEYS if key in api_key_map}


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_the_table_of_apis_agrees_with_the_schema(api):
    for kind in ("request", "response"):
        cls = message_class(api.key, kind)
        low, high = cls.VERSIONS
        assert (api.key, kind, api.flexible_from) == (cls.API_KEY, cls.KIND, cls.FLEXIBLE_FROM)
        assert low <= api.min <= api.max <= high
        assert api.advertised_min == (0 if api.key == PRODUCE else None)


def test_every_class_can_be_made_of_its_defaults_and_none_is_shared():
    for path in SCHEMA.glob("[a-z]*.py"):
        for cls in vars(import_module(f"ottla.wire.schema.{path.stem}")).values():
            if isinstance(cls, type) and issubclass(cls, Struct):
                first, second = cls(), cls()
                assert first == second
                assert [line.split()[0] for line in cls.FIELDS] == list(cls.__slots__)
                for name in cls.__slots__:
                    if isinstance(getattr(first, name), list | Struct):
                        assert getattr(first, name) is not getattr(second, name)


def test_reading_messages_needs_neither_kio_nor_dataclasses_nor_a_compression_library():
    program = (
        "import sys; from ottla.wire import messages, frame, records;"
        "messages.message_class(3, 'request');"
        "print(*{'kio', 'dataclasses', 'cramjam', 'asyncio'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
