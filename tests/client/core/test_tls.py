"""TLS on one side only, with real TLS: client and broker report the reason."""

from __future__ import annotations

import asyncio
import datetime
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ottla.client.admin import Admin
from ottla.client.errors import HungUp
from ottla.local.waiting import wait_for
from tests.cli.commands import Ottla
from tests.client.clients import run
from tests.conftest import StartBroker


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed, with its key, for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def tls_port(certificate: Path) -> Iterator[int]:
    """A server that expects a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed: the test is over
                return
            with connection:
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_the_server_of_these_tests_speaks_tls(tls_port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", tls_port)) as plain, context.wrap_socket(plain) as secured:
        assert secured.version() in ("TLSv1.2", "TLSv1.3")


def test_a_client_that_meets_tls_gets_a_hint(tls_port):
    async def scenario() -> None:
        with pytest.raises(HungUp, match="closed the connection before it said anything") as refused:
            async with Admin(f"127.0.0.1:{tls_port}", default_api_timeout_ms=1000):
                pass
        assert "expect TLS?" in str(refused.value.hint)

    run(scenario())


def test_a_command_that_meets_tls_says_what_to_do_and_ends(tls_port):
    for command in (["topics", "list"], ["consume", "t"], ["produce", "t"]):
        done = Ottla(f"127.0.0.1:{tls_port}").run(*command, given="x\n")
        assert done.exit_code == 75, done.output
        assert f"127.0.0.1:{tls_port} closed the connection before it said anything" in done.output
        assert "Does that port expect TLS? This client speaks PLAINTEXT only." in done.output


def test_a_command_refuses_to_speak_tls(tls_port):
    done = Ottla(f"127.0.0.1:{tls_port}").run("topics", "list", "-X", "security.protocol=SSL")
    assert done.exit_code == 2
    assert "this client speaks PLAINTEXT only" in done.output


def test_a_client_with_tls_on_a_plaintext_port_is_recognised_by_the_broker(start_broker: StartBroker):
    process = start_broker()

    async def scenario() -> None:
        context = ssl.create_default_context()
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection(process.host, process.port, ssl=context)

    asyncio.run(scenario())
    reported = r"a frame of \d+ bytes \(at most \d+ are accepted\); this looks like TLS"
    wait_for(lambda: re.search(reported, process.log_text()), "the broker's word about it")
