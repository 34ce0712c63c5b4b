"""Schema registry: its client, over HTTP as Confluent's, and Confluent's wire format.

Answers are cached for good: an id never changes its schema. So a registry is asked once for each schema, and the caller
waits for it then, also where the client is asynchronous.

The wire format is a zero byte, the schema's id in four bytes, then the data. The writer has registered its schema as a
version of a subject. By default the subject is named after the topic: `orders-value`, `orders-key`.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final, NamedTuple, Protocol

AVRO: Final = "AVRO"
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
NOT_FOUND: Final = (40401, 40402, 40403)
"""The registry's own codes: it has no such subject, version or schema."""
_FRAME: Final = struct.Struct(">bI")
MAGIC: Final = 0


class RegistryError(Exception):
    """An error of the registry, or it could not be reached. `status` is that of HTTP, `code` the registry's own; 0:
    none."""

    def __init__(self, message: str, status: int = 0, code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def not_found(self) -> bool:
        """The registry does not have the requested schema. Any other 404 may come from a server that is no registry."""
        return self.code in NOT_FOUND


class RegisteredSchema(NamedTuple):
    text: str
    kind: str = AVRO
    references: tuple[tuple[str, str, int], ...] = ()
    """Name, subject and version of each schema that this one builds on."""


class SchemaRegistry:
    """`http://user:password@host:8081` logs in. Safe to share between threads."""

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a registry; for example http://localhost:8081")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.url = f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path.rstrip('/')}"
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE}
        if parts.username is not None:
            login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        self._guard = threading.Lock()
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, RegisteredSchema] = {}

    def register(self, subject: str, schema: str, kind: str = AVRO) -> int:
        """The id of this schema as a version of the subject; a new version, if it is not there yet."""
        with self._guard:
            known = self._ids.get((subject, schema))
        if known is not None:
            return known
        body: dict[str, Any] = {"schema": schema} if kind == AVRO else {"schema": schema, "schemaType": kind}
        answer = self._ask("POST", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)
        with self._guard:
            self._ids[subject, schema] = answer["id"]
        return int(answer["id"])

    def schema(self, schema_id: int) -> RegisteredSchema:
        with self._guard:
            known = self._schemas.get(schema_id)
        if known is not None:
            return known
        found = self._schema_of(self._ask("GET", f"/schemas/ids/{schema_id}"))
        with self._guard:
            self._schemas[schema_id] = found
        return found

    def version(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"
        return self._schema_of(self._ask("GET", path))

    @staticmethod
    def _schema_of(answer: dict[str, Any]) -> RegisteredSchema:
        references = answer.get("references") or []
        named = tuple((each["name"], each["subject"], each["version"]) for each in references)
        return RegisteredSchema(answer["schema"], answer.get("schemaType", AVRO), named)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                raise _refusal(refused, f"{method} {path}") from None
        except (OSError, ValueError) as failure:
            reason = getattr(failure, "reason", failure)
            raise RegistryError(f"the schema registry at {self.url} does not answer: {reason}") from None


def _refusal(refused: urllib.error.HTTPError, what: str) -> RegistryError:
    try:
        parsed = json.load(refused)
        message, code = parsed["message"], parsed["error_code"]
        return RegistryError(f"the schema registry refused {what}: {message}", refused.code, code)
    except (ValueError, KeyError, TypeError):
        return RegistryError(f"the schema registry refused {what}: {refused.code} {refused.reason}", refused.code)


def registry_of(given: SchemaRegistry | str) -> SchemaRegistry:
    return SchemaRegistry(given) if isinstance(given, str) else given


class SerializationContext(Protocol):
    """The context that clients pass: as here, or confluent-kafka's `SerializationContext`."""

    @property
    def topic(self) -> str: ...

    @property
    def field(self) -> str:
        """`key` or `value`."""


class Framing:
    """Registers a schema at its first use, once for each subject."""

    def __init__(self, registry: SchemaRegistry | str, schema: str, kind: str, subject: str | None) -> None:
        self._registry = registry_of(registry)
        self._schema = schema
        self._kind = kind
        self._subject = subject

    def framed(self, data: bytes, context: SerializationContext | None) -> bytes:
        subject = self._subject
        if subject is None:
            if context is None:
                raise ValueError("there is no topic to name the subject after: give one, subject=...")
            subject = f"{context.topic}-{context.field}"
        return _FRAME.pack(MAGIC, self._registry.register(subject, self._schema, self._kind)) + data


def unframed(data: bytes) -> tuple[int, bytes]:
    """The schema's id, and the encoded data."""
    if len(data) < _FRAME.size or data[0] != MAGIC:
        raise ValueError(f"no schema id stands before the data: it begins with {bytes(data[:5])!r}")
    return _FRAME.unpack_from(data)[1], data[_FRAME.size :]
