"""`ottla configs`."""

from __future__ import annotations


def test_settings_are_described_changed_and_returned_to_their_defaults(ottla, topic):
    assert ottla("configs", "describe", "topic", topic) == "all settings have their default value; --all shows them\n"
    ottla("configs", "set", "topic", topic, "retention.ms=1000", "cleanup.policy=compact")
    entries = {each["name"]: each for each in ottla.json("configs", "describe", "topic", topic)}
    assert entries["retention.ms"] == {
        "name": "retention.ms", "value": "1000", "source": "topic", "read_only": False, "sensitive": False,
        "no_effect": False,
    }  # fmt: skip
    assert ["cleanup.policy", "compact", "topic"] in [
        line.split() for line in ottla("configs", "describe", "topic", topic).splitlines()
    ]
    ottla("configs", "unset", "topic", topic, "retention.ms", "cleanup.policy")
    assert ottla.json("configs", "describe", "topic", topic) == []
    assert len(ottla.json("configs", "describe", "topic", topic, "--all")) > 20


def test_a_broker_and_all_brokers_have_settings(ottla):
    assert any(each["name"] == "broker.id" for each in ottla.json("configs", "describe", "broker", "1", "--all"))
    assert isinstance(ottla.json("configs", "describe", "broker", "all"), list)
    assert "there is no broker 77" in ottla("configs", "describe", "broker", "77", status=1)
    ottla("configs", "set", "broker", "all", "log.retention.ms=86400000")
    ottla("configs", "unset", "broker", "all", "log.retention.ms")
    assert "error: broker all: " in ottla("configs", "set", "broker", "all", "broker.id=7", status=1)


def test_wrong_settings_are_refused(ottla, topic):
    assert "retention.ms" in ottla("configs", "set", "topic", topic, "retention.ms=x", status=1)
    assert "`ottla configs set`" in ottla("configs", "unset", "topic", topic, "retention.ms=5", status=2)
    assert "`ottla topics list`" in ottla("configs", "describe", "topic", "no-such-topic", status=1)


def test_a_setting_without_effect_is_accepted_and_marked(ottla):
    ottla("configs", "set", "broker", "all", "num.io.threads=16")
    shown = [line for line in ottla("configs", "describe", "broker", "all").splitlines() if "num.io.threads" in line]
    assert [line.split(maxsplit=2) for line in shown] == [
        ["num.io.threads", "16", "all brokers, dynamic; has no effect"]
    ]
    (row,) = (each for each in ottla.json("configs", "describe", "broker", "1") if each["name"] == "num.io.threads")
    assert (row["value"], row["no_effect"]) == ("16", True)
    ottla("configs", "unset", "broker", "all", "num.io.threads")
    assert "num.io.threads" not in ottla("configs", "describe", "broker", "all")
    assert "does not speak TLS" in ottla("configs", "set", "broker", "1", "ssl.keystore.location=/k", status=1)


def test_a_group_has_its_own_settings(ottla):
    assert (
        ottla("configs", "describe", "group", "kitchen") == "all settings have their default value; --all shows them\n"
    )
    ottla("configs", "set", "group", "kitchen", "consumer.session.timeout.ms=50000")
    (row,) = ottla.json("configs", "describe", "group", "kitchen")
    assert (row["name"], row["value"], row["source"]) == ("consumer.session.timeout.ms", "50000", "group")
    assert "45000" in ottla("configs", "set", "group", "kitchen", "consumer.session.timeout.ms=5", status=1)
    ottla("configs", "unset", "group", "kitchen", "consumer.session.timeout.ms")
    assert ottla.json("configs", "describe", "group", "kitchen") == []


def test_the_level_of_a_logger_is_changed(ottla):
    ottla("configs", "set", "logger", "1", "ottla.cluster.view=DEBUG")
    (row,) = (each for each in ottla.json("configs", "describe", "logger", "1") if each["name"] == "ottla.cluster.view")
    assert (row["value"], row["source"]) == ("DEBUG", "logger")
    ottla("configs", "unset", "logger", "1", "ottla.cluster.view")
    assert "does not exist" in ottla("configs", "set", "logger", "1", "no.such=DEBUG", status=1)
