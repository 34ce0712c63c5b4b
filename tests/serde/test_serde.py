"""Objects in, objects out: through the serializers alone, through a registry, and through a broker with our client."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ottla.blocking import Consumer, Producer
from ottla.client.consuming.consumer_records import NotDeserialized
from ottla.client.core.serialization import FieldContext
from ottla.serde import (
    AvroDeserializer,
    AvroSerializer,
    JsonDeserializer,
    JsonSerializer,
    RegistryError,
    SchemaRegistry,
    StringDeserializer,
    StringSerializer,
)

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": "string"}, {"name": "oranges", "type": "int"}],
}
LATER_ORDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "gift", "type": "boolean", "default": False}]}
ALICE = {"customer": "alice", "oranges": 2}


class Registry(ThreadingHTTPServer):
    """As much of a schema registry as clients need, with what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.schemas: dict[int, dict] = {}
        self.versions: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.logins: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def register(self, subject: str, body: dict) -> int:
        wanted = {"schema": body["schema"], **{k: body[k] for k in ("schemaType", "references") if body.get(k)}}
        found = next((number for number, known in self.schemas.items() if known == wanted), None)
        if found is None:
            found = 100 + len(self.schemas)
            self.schemas[found] = wanted
        versions = self.versions.setdefault(subject, [])
        if found not in versions:
            versions.append(found)
        return found


class Answers(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def answer(self, reported: dict, status: int = 200) -> None:
        data = json.dumps(reported).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.note()
        subject = self.path.split("?")[0].split("/")[2]
        number = self.server.register(subject, body)
        version = self.server.versions[subject].index(number) + 1
        self.answer({"id": number, "subject": subject, "version": version, **self.server.schemas[number]})

    def do_GET(self) -> None:
        self.note()
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[0] == "schemas" and int(parts[2]) in self.server.schemas:
            self.answer(self.server.schemas[int(parts[2])])
        elif parts[0] == "subjects" and parts[1] in self.server.versions:
            number = self.server.versions[parts[1]][-1 if parts[3] == "latest" else int(parts[3]) - 1]
            self.answer({"id": number, **self.server.schemas[number]})
        else:
            self.answer({"error_code": 40403, "message": "Schema not found"}, 404)

    def note(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.logins.append(self.headers.get("Authorization"))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


VALUE = FieldContext("orders", "value", ())


def test_strings_and_json_come_back_as_they_were():
    assert StringDeserializer()(StringSerializer()("grüß dich")) == "grüß dich"
    assert StringDeserializer("latin-1")(StringSerializer("latin-1")("ü")) == "ü"
    assert JsonDeserializer()(JsonSerializer()({"a": [1, None, "ü"]})) == {"a": [1, None, "ü"]}
    for converter in (StringSerializer(), StringDeserializer(), JsonSerializer(), JsonDeserializer()):
        assert converter(None) is None


def test_avro_without_a_registry_is_avro_alone():
    data = AvroSerializer(ORDER)(ALICE)
    assert data == b"\x0aalice\x04"
    assert AvroDeserializer(schema=json.dumps(ORDER))(data) == ALICE
    with pytest.raises(ValueError, match="without a schema"):
        AvroDeserializer()


def test_avro_with_a_registry_says_which_schema_it_has(registry):
    serialize = AvroSerializer(ORDER, registry=registry.url)
    data = serialize(ALICE, VALUE)
    assert data is not None
    assert data[:5] == b"\0\0\0\0\x64"
    assert serialize(ALICE, VALUE) == data
    deserialize = AvroDeserializer(registry.url)
    assert [deserialize(data), deserialize(data)] == [ALICE, ALICE]
    assert registry.asked == ["POST /subjects/orders-value/versions", "GET /schemas/ids/100"]


def test_a_reader_sees_old_records_as_its_own_schema_has_them(registry):
    data = AvroSerializer(ORDER, registry=registry.url, subject="any")(ALICE)
    assert AvroDeserializer(registry.url, schema=LATER_ORDER)(data) == {**ALICE, "gift": False}


def test_a_schema_may_build_on_others(registry):
    inner = registry.register("order", {"schema": json.dumps(ORDER)})
    outer = {"type": "record", "name": "Parcel", "fields": [{"name": "order", "type": "Order"}]}
    references = [{"name": "Order", "subject": "order", "version": 1}]
    number = registry.register("parcel", {"schema": json.dumps(outer), "references": references})
    assert inner != number
    data = b"\0" + number.to_bytes(4, "big") + AvroSerializer(ORDER)(ALICE)
    assert AvroDeserializer(registry.url)(data) == {"order": ALICE}


def test_json_with_a_registry_is_framed_and_read_either_way(registry):
    schema = {"type": "object"}
    data = JsonSerializer(schema, registry=SchemaRegistry(registry.url))(ALICE, VALUE)
    assert data is not None
    assert data[0] == 0
    assert registry.schemas[100]["schemaType"] == "JSON"
    assert JsonDeserializer()(data) == ALICE
    assert JsonDeserializer()(data[5:]) == ALICE


def test_a_registry_that_refuses_or_does_not_answer_is_reported(registry):
    with pytest.raises(RegistryError, match="Schema not found") as refused:
        SchemaRegistry(registry.url).schema(7)
    assert (refused.value.status, refused.value.code) == (404, 40403)
    assert refused.value.not_found
    with pytest.raises(RegistryError, match="does not answer") as silent:
        SchemaRegistry("http://127.0.0.1:1").schema(7)
    assert not silent.value.not_found
    with pytest.raises(ValueError, match="for example"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(ValueError, match="subject="):
        AvroSerializer(ORDER, registry=registry.url)(ALICE)
    with pytest.raises(ValueError, match="no schema id"):
        AvroDeserializer(registry.url)(b"plain")


def test_a_registry_may_ask_for_a_login(registry):
    with pytest.raises(RegistryError):
        SchemaRegistry(registry.url.replace("//", "//me:se%3Acret@")).schema(7)
    assert registry.logins == ["Basic bWU6c2U6Y3JldA=="]


def test_our_client_passes_the_topic_to_serializers(ottla_topic, registry):
    server = ottla_topic.bootstrap_servers
    with Producer(
        server, key_serializer=StringSerializer(), value_serializer=AvroSerializer(ORDER, registry=registry.url)
    ) as producer:
        producer.send_and_wait(ottla_topic, ALICE, key="alice")
    assert list(registry.versions) == [f"{ottla_topic}-value"]
    [record] = ottla_topic.consume(
        1, key_deserializer=StringDeserializer(), value_deserializer=AvroDeserializer(registry.url)
    )
    assert (record.key, record.value) == ("alice", ALICE)


def test_plain_functions_serve_as_well(ottla_topic):
    ottla_topic.produce([("k", '{"a": 1}')], value_serializer=lambda text: text.encode(), key_serializer=str.encode)
    [record] = ottla_topic.consume(1, value_deserializer=json.loads, key_deserializer=bytes.decode)
    assert (record.key, record.value) == ("k", {"a": 1})


def test_the_serializers_of_confluent_plug_in_unchanged(ottla_topic):
    from confluent_kafka.serialization import IntegerDeserializer, IntegerSerializer
    from confluent_kafka.serialization import StringSerializer as TheirStrings

    ottla_topic.produce([("alice", 42)], key_serializer=TheirStrings(), value_serializer=IntegerSerializer())
    [record] = ottla_topic.consume(1, value_deserializer=IntegerDeserializer())
    assert (record.key, record.value) == (b"alice", 42)


def test_confluent_serializers_with_a_registry_plug_in_unchanged(ottla_topic, registry):
    from confluent_kafka import serialization

    with warnings.catch_warnings(record=True):  # what they import complains of what it imports, whatever filters say
        from confluent_kafka import schema_registry
        from confluent_kafka.schema_registry import avro

    with schema_registry.SchemaRegistryClient({"url": registry.url}) as client:
        with Producer(
            ottla_topic.bootstrap_servers,
            key_serializer=serialization.StringSerializer(),
            value_serializer=avro.AvroSerializer(client, json.dumps(ORDER)),
        ) as producer:
            producer.send_and_wait(ottla_topic, ALICE, key="alice")
        [theirs] = ottla_topic.consume(
            1,
            key_deserializer=serialization.StringDeserializer(),
            value_deserializer=avro.AvroDeserializer(client),
        )
    [ours] = ottla_topic.consume(1, value_deserializer=AvroDeserializer(registry.url))
    assert (theirs.key, theirs.value) == ("alice", ALICE)
    assert (ours.key, ours.value) == (b"alice", ALICE)


def test_deserialization_errors_name_partition_and_offset(ottla_topic, registry):
    ottla_topic.produce(b"no avro")
    with Consumer(
        ottla_topic,
        bootstrap_servers=ottla_topic.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=AvroDeserializer(registry.url),
    ) as consumer:
        with pytest.raises(NotDeserialized, match="no schema id") as failed:
            consumer.getone()
        assert failed.value.offset == 0
