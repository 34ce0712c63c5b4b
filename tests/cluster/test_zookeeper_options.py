"""ZooKeeper options: the address of a store, and the settings."""

from __future__ import annotations

import pytest

from ottla.cluster.zookeeper_options import Address, Credentials, ZooKeeperOptions
from ottla.config import BadConfig, load_broker_config, print_config
from ottla.errors import Fault


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("localhost:2181", "localhost:2181", ""),
        ("localhost", "localhost:2181", ""),
        ("a:1,b:2, c:3", "a:1,b:2,c:3", ""),
        ("a:1/ottla", "a:1", "/ottla"),
        ("a:1,b:2/x/y/", "a:1,b:2", "/x/y"),
        ("a:1/", "a:1", ""),
        ("[::1]:2181/x", "[::1]:2181", "/x"),
    ],
)
def test_an_address_is_servers_and_a_chroot(text, hosts, chroot):
    assert Address.parse(text) == (hosts, chroot)


@pytest.mark.parametrize("text", ["", "/x", "a:b", "a:0", "a:70000", "a:1,,b:2", "a b:1", "a:1:2"])
def test_an_address_that_names_no_server_is_refused(text):
    with pytest.raises(Fault, match="zookeeper:localhost:2181"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["a:1//x", "a:1/x//y", "a:1/../x", "a:1/x\ny"])
def test_an_invalid_chroot_is_refused(text):
    with pytest.raises(Fault, match="cannot be a chroot"):
        Address.parse(text)


def options(**flags):
    return ZooKeeperOptions.of(load_broker_config(flags={name.replace("_", "."): v for name, v in flags.items()}))


def test_settings_have_kafkas_names_and_defaults():
    assert options() == ZooKeeperOptions(18_000, 18_000, None, False)
    assert options(zookeeper_session_timeout_ms="6000") == ZooKeeperOptions(6_000, 6_000, None, False)
    assert options(zookeeper_connection_timeout_ms="9").connection_timeout_ms == 9
    assert options(zookeeper_auth="digest:me:a:b", zookeeper_set_acl="true") == ZooKeeperOptions(
        18_000, 18_000, Credentials("digest", "me", "a:b"), True
    )


def test_the_password_is_not_shown():
    config = load_broker_config(flags={"zookeeper.auth": "sasl:me:s3cret-word"})
    assert "s3cret-word" not in print_config(config)
    assert "s3cret-word" not in repr(ZooKeeperOptions.of(config))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("zookeeper.auth", "s3cret-word", "must be digest:USER:PASSWORD or sasl:USER:PASSWORD"),
        ("zookeeper.auth", "kerberos:a:s3cret-word", "must be digest:USER:PASSWORD or sasl:USER:PASSWORD"),
        ("zookeeper.set.acl", "true", "needs zookeeper.auth"),
        ("zookeeper.session.timeout.ms", "5", "at least 100"),
        ("zookeeper.ssl.client.enable", "true", "TLS"),
    ],
)
def test_invalid_zookeeper_settings_are_refused(name, text, why):
    with pytest.raises(BadConfig, match=why) as caught:
        load_broker_config(flags={name: text})
    assert "s3cret-word" not in str(caught.value)
