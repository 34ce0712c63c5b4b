"""Listeners and advertised listeners."""

import pytest

from ottla.config.listeners import (
    REPLICATION,
    Listener,
    inter_broker_listener,
    is_loopback,
    parse_listeners,
    with_address,
)

MAP = ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL")


def listeners(bind, advertised=(), protocols=MAP, not_opened=()):
    opened, problems = parse_listeners(bind, advertised, protocols, not_opened)
    assert not problems
    return opened


def problem_of(bind, advertised=(), protocols=MAP, not_opened=()):
    _, problems = parse_listeners(bind, advertised, protocols, not_opened)
    assert problems
    return "\n".join(problems)


def test_a_listener_advertises_where_it_listens():
    assert listeners(["PLAINTEXT://127.0.0.1:9092"]) == (
        Listener("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT", "127.0.0.1", 9092),
    )


def test_the_advertised_address_replaces_the_bound_one():
    opened = listeners(["PLAINTEXT://0.0.0.0:9092"], ["PLAINTEXT://broker.example:19092"])
    assert opened[0].address == "0.0.0.0:9092"
    assert opened[0].advertised_address == "broker.example:19092"


def test_each_listener_advertises_its_own_address():
    opened = listeners(
        ["PLAINTEXT://127.0.0.1:9092", "INTERNAL://:19092"],
        ["INTERNAL://10.0.0.1:19092"],
        (*MAP, "INTERNAL:PLAINTEXT"),
    )
    assert [each.advertised_address for each in opened] == ["127.0.0.1:9092", "10.0.0.1:19092"]


def test_an_empty_host_is_all_interfaces():
    assert listeners(["PLAINTEXT://:9092"], ["PLAINTEXT://localhost:9092"])[0].host == "0.0.0.0"


def test_ipv6_addresses_are_in_brackets():
    opened = listeners(["PLAINTEXT://[::1]:9092"])
    assert opened[0].host == "::1"
    assert opened[0].address == "[::1]:9092"


def test_listener_names_are_upper_case():
    assert listeners(["plaintext://127.0.0.1:9092"])[0].name == "PLAINTEXT"


def test_port_0_is_advertised_as_the_bound_port():
    opened = listeners(["PLAINTEXT://127.0.0.1:0"])[0]
    assert opened.bound(40001).advertised_address == "127.0.0.1:40001"


def test_an_advertised_port_survives_binding():
    opened = listeners(["PLAINTEXT://127.0.0.1:0"], ["PLAINTEXT://proxy:9000"])[0]
    assert opened.bound(40001).advertised_address == "proxy:9000"


def test_listeners_of_a_kafka_controller_are_not_opened():
    opened = listeners(
        ["PLAINTEXT://:9092", "CONTROLLER://:9093"],
        ["PLAINTEXT://localhost:9092", "CONTROLLER://localhost:9093"],
        not_opened=["CONTROLLER"],
    )
    assert [each.name for each in opened] == ["PLAINTEXT"]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_all_interfaces_without_an_advertised_address_are_refused_with_what_to_set(host):
    assert "set advertised.listeners=PLAINTEXT://HOST:9092" in problem_of([f"PLAINTEXT://{host}:9092"])


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_a_wildcard_address_is_not_advertised(host):
    problem = problem_of(["PLAINTEXT://0.0.0.0:9092"], [f"PLAINTEXT://{host}:9092"])
    assert "advertised.listeners" in problem


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_unsupported_security_protocols_are_refused(protocol):
    assert "does not support yet" in problem_of([f"{protocol}://127.0.0.1:9093"])
    assert "does not support yet" in problem_of(["SAFE://127.0.0.1:9093"], (), (f"SAFE:{protocol}",))


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1",
        "PLAINTEXT://127.0.0.1:",
        "PLAINTEXT://127.0.0.1:x",
        "PLAINTEXT://127.0.0.1:65536",
        "PLAINTEXT://127.0.0.1:-1",
        "PLAINTEXT://::1:9092",
        "PLAINTEXT://[127.0.0.1]:9092",
        "PLAINTEXT://[::1:9092",
        "://127.0.0.1:9092",
        "A B://127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1:" + "9" * 5000,
        "",
    ],
)
def test_an_invalid_listener_is_refused_with_an_example(text):
    assert "NAME://host:port" in problem_of([text])


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        (["PLAINTEXT://127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"], "twice"),
        (["PLAINTEXT://127.0.0.1:1", "OTHER://127.0.0.1:1"], "both want port 1"),
        (["PLAINTEXT://127.0.0.1:1", "OTHER://0.0.0.0:1"], "both want port 1"),
    ],
)
def test_two_listeners_share_neither_name_nor_port(bind, words):
    assert words in problem_of(bind, ["OTHER://h:1"] if len(bind[1]) > 26 else (), (*MAP, "OTHER:PLAINTEXT"))


def test_two_families_or_two_addresses_may_share_a_port():
    assert len(listeners(["A://127.0.0.1:1", "B://[::1]:1"], (), ("A:PLAINTEXT", "B:PLAINTEXT"))) == 2
    assert len(listeners(["A://127.0.0.1:1", "B://127.0.0.2:1"], (), ("A:PLAINTEXT", "B:PLAINTEXT"))) == 2
    assert len(listeners(["A://127.0.0.1:0", "B://127.0.0.1:0"], (), ("A:PLAINTEXT", "B:PLAINTEXT"))) == 2


def test_a_name_without_a_protocol_is_refused_with_what_to_set():
    assert "INTERNAL:PLAINTEXT" in problem_of(["INTERNAL://127.0.0.1:1"])


@pytest.mark.parametrize("entry", ["INTERNAL", "INTERNAL:TCP", ":PLAINTEXT"])
def test_an_invalid_entry_of_the_protocol_map_is_refused(entry):
    assert "listener.security.protocol.map" in problem_of(["PLAINTEXT://127.0.0.1:1"], (), (entry,))


def test_an_advertised_listener_without_a_listener_is_refused():
    assert "OTHER is not among listeners" in problem_of(["PLAINTEXT://127.0.0.1:1"], ["OTHER://h:1"])


def test_having_no_listener_is_refused():
    assert "none to open" in problem_of(["CONTROLLER://:9093"], not_opened=["CONTROLLER"])


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("127.evil.example", False),
        ("host", False),
    ],
)
def test_loopback_addresses_are_recognized(host, loopback):
    assert is_loopback(host) is loopback


def test_the_inter_broker_listener_is_the_named_one():
    opened = listeners(["A://127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"], (), (*MAP, "A:PLAINTEXT"))
    assert inter_broker_listener(opened, "a") == (opened[0], [])
    missing, problems = inter_broker_listener(opened, "B")
    assert missing is None
    assert problems == ["inter.broker.listener.name: B is not among listeners, which are A, PLAINTEXT"]


def test_without_a_name_there_is_a_separate_inter_broker_listener():
    opened = listeners(["A://:1", "PLAINTEXT://127.0.0.1:2"], ["A://broker.example:1"], (*MAP, "A:PLAINTEXT"))
    own, problems = inter_broker_listener(opened, None)
    assert not problems
    assert own == Listener(REPLICATION, "0.0.0.0", 0, "SASL_PLAINTEXT", "broker.example", 0)
    assert own.bound(4711).advertised_address == "broker.example:4711"


def test_the_name_of_the_separate_inter_broker_listener_is_reserved():
    opened = listeners(["REPLICATION://127.0.0.1:1"], (), (*MAP, "REPLICATION:PLAINTEXT"))
    assert inter_broker_listener(opened, "REPLICATION") == (opened[0], [])
    _, problems = inter_broker_listener(opened, None)
    assert "set inter.broker.listener.name=REPLICATION" in problems[0]


def test_host_and_port_change_the_only_listener():
    assert with_address(["A://h:1"], (), None, 0) == ("A://h:0",)
    assert with_address(["A://h:1"], (), "::1", None) == ("A://[::1]:1",)
    assert with_address(["A://h:1", "CONTROLLER://:2"], ["CONTROLLER"], None, 3) == ("A://h:3",)
    assert with_address(["A://h:1", "B://h:2"], (), None, 3) is None
