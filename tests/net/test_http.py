"""The HTTP server: pages, refusals, limits."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest

from ottla.local.waiting import until
from ottla.net import http
from ottla.net.http import HttpRequest, HttpServer, Page, parse_request
from tests.cluster.helpers import run


@pytest.mark.parametrize(
    ("head", "asked"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", HttpRequest("/metrics", True)),
        (b"HEAD /readyz?full=1 HTTP/1.0\r\n\r\n", HttpRequest("/readyz", False)),
        (b"GET /metrics HTTP/1.1\n\n", HttpRequest("/metrics", True)),
        (b"POST /metrics HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /\xff HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /metrics\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01\x02\x00\x01\n\n", HTTPStatus.BAD_REQUEST),
    ],
)
def test_a_request_is_read_or_refused(head, asked):
    assert parse_request(head) == asked


async def pages(path):
    if path == "/broken":
        raise RuntimeError("as if it had a mistake")
    if path == "/slow":
        await asyncio.sleep(3600)
    return Page(f"this is {path}\n".encode() * (200_000 if path == "/long" else 1))


def served(test):
    async def main(runtime):
        server = HttpServer(runtime, pages)
        port = (await server.start("127.0.0.1", 0)).port
        try:
            await test(port)
        finally:
            await server.close()
            await asyncio.sleep(0.05)

    run(main)


async def exchange(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


def test_a_page_is_served_and_the_connection_closed():
    async def test(port):
        answer = await exchange(port, b"GET /here HTTP/1.1\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length: 14\r\n" in head
        assert body == b"this is /here\n"
        head_only = await exchange(port, b"HEAD /here HTTP/1.1\r\n\r\n")
        assert head_only == head + b"\r\n\r\n"

    served(test)


def test_a_long_page_arrives_whole():
    async def test(port):
        answer = await exchange(port, b"GET /long HTTP/1.1\r\n\r\n")
        assert answer.count(b"this is /long\n") == 200_000

    served(test)


def test_only_the_first_request_of_a_connection_is_answered():
    async def test(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in b"GET /here HTTP/1.1\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"this is /here\n")
        writer.close()
        twice = await exchange(port, b"GET /here HTTP/1.1\r\n\r\nGET /there HTTP/1.1\r\n\r\n")
        assert twice.count(b"HTTP/1.1 200") == 1

    served(test)


def test_a_request_head_that_is_too_long_is_refused():
    async def test(port):
        answer = await exchange(port, b"GET / HTTP/1.1\r\nX: " + b"x" * (http.REQUEST_BYTES_MAX + 1))
        assert answer.startswith(b"HTTP/1.1 431 ")

    served(test)


def test_an_exception_is_answered_with_500(caplog):
    async def test(port):
        answer = await exchange(port, b"GET /broken HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"mistake" not in answer

    served(test)
    assert "GET /broken failed" in caplog.text


def test_a_silent_client_is_disconnected(monkeypatch):
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.1)

    async def test(port):
        assert await exchange_quietly(port, b"GET /he") == b""

    served(test)


def test_a_response_that_is_not_read_in_time_is_given_up(monkeypatch):
    monkeypatch.setattr(http, "ANSWER_SECONDS_MAX", 0.1)

    async def test(port):
        assert await exchange_quietly(port, b"GET /slow HTTP/1.1\r\n\r\n") == b""

    served(test)


async def exchange_quietly(port, request):
    try:
        return await exchange(port, request)
    except ConnectionResetError:
        return b""


def test_the_number_of_connections_is_limited(monkeypatch):
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)

    async def test(port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert await exchange_quietly(port, b"GET /here HTTP/1.1\r\n\r\n") == b""
        for _, writer in held:
            writer.close()

        async def answered():
            return await exchange_quietly(port, b"GET /here HTTP/1.1\r\n\r\n") != b""

        await until(answered)

    served(test)
