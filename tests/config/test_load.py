"""Configuration from flags, environment and file: precedence, invalid settings, secrets."""

import pytest

from ottla.config import BadConfig, ConfigSource, load_broker_config, print_config
from ottla.config.broker_config import validate_broker_overrides
from ottla.config.load import environment_name
from ottla.config.properties import parse_properties
from ottla.errors import Refused

# The settings of the files that come with Apache Kafka, without their comments.
STOCK_3_ZOOKEEPER = """
broker.id=0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.retention.bytes=1073741824
log.retention.hours=168
#log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""
STOCK_4 = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
STOCK_3_KRAFT = STOCK_4.replace(
    "controller.quorum.bootstrap.servers=localhost:9093", "controller.quorum.voters=1@localhost:9093"
).replace(",CONTROLLER://localhost:9093\n", "\n")


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "server.properties"
        path.write_text(text)
        return str(path)

    return written


def problems_of(**given):
    with pytest.raises(BadConfig) as refused:
        load_broker_config(**given)
    return refused.value.problems


def test_without_settings_the_defaults_are_those_of_kafka():
    config = load_broker_config()
    assert config.broker_id == 1
    assert config.log_retention_ms == 7 * 24 * 3600 * 1000
    assert config.log_segment_bytes == 2**30
    assert config.message_max_bytes == 1048588
    assert config.replica_lag_time_max_ms == 30000
    assert config.offsets_topic_num_partitions == 50
    assert config.offsets_topic_replication_factor == 3
    assert config.group_initial_rebalance_delay_ms == 3000
    assert config.transaction_max_timeout_ms == 900000
    assert config.producer_id_expiration_ms == 86400000
    assert config.leader_imbalance_check_interval_seconds == 300
    assert config.auto_create_topics_enable is True
    assert config.unclean_leader_election_enable is False
    assert config.endpoints[0].address == "127.0.0.1:9092"
    assert config.source("broker.id") is ConfigSource.DEFAULT


@pytest.mark.parametrize("text", [STOCK_3_ZOOKEEPER, STOCK_3_KRAFT, STOCK_4])
def test_the_stock_server_properties_of_kafka_is_accepted(write, text):
    config = load_broker_config(file=write(text))
    assert [listener.name for listener in config.endpoints] == ["PLAINTEXT"]
    assert config.offsets_topic_replication_factor == 1
    assert config.source("log.dirs") is ConfigSource.FILE
    assert "num.network.threads" in config.inert


def test_node_id_is_broker_id(write):
    assert load_broker_config(file=write("node.id=7")).broker_id == 7
    assert load_broker_config(file=write("node.id=7"), flags={"broker.id": "8"}).broker_id == 8
    assert load_broker_config(file=write("broker.id=7"), environment={"OTTLA_NODE_ID": "9"}).broker_id == 9
    assert load_broker_config(file=write("node.id=7\nbroker.id=7")).broker_id == 7
    assert "same setting" in problems_of(file=write("node.id=7\nbroker.id=8"))[0]


def test_flags_come_before_the_environment_and_that_before_the_file(write):
    file = write("num.partitions=2\nlog.retention.bytes=2\nfetch.max.bytes=2000")
    environment = {"OTTLA_NUM_PARTITIONS": "3", "OTTLA_LOG_RETENTION_BYTES": "3"}
    config = load_broker_config(file=file, environment=environment, flags={"num.partitions": "4"})
    assert (config.num_partitions, config.source("num.partitions")) == (4, ConfigSource.FLAG)
    assert (config.log_retention_bytes, config.source("log.retention.bytes")) == (3, ConfigSource.ENVIRONMENT)
    assert (config.fetch_max_bytes, config.source("fetch.max.bytes")) == (2000, ConfigSource.FILE)


def test_synonyms_give_a_value_minutes_before_hours(write):
    assert load_broker_config(flags={"log.retention.hours": "2"}).log_retention_ms == 7_200_000
    assert load_broker_config(flags={"log.retention.hours": "-1"}).log_retention_ms == -1
    three = {"log.retention.hours": "2", "log.retention.minutes": "3"}
    assert load_broker_config(flags=three).log_retention_ms == 180_000
    assert load_broker_config(flags={**three, "log.retention.ms": "4"}).log_retention_ms == 4
    assert load_broker_config(flags={"log.roll.hours": "1"}).log_roll_ms == 3_600_000
    assert load_broker_config(flags={"log.dir": "/one"}).data_dir == "/one"
    assert load_broker_config(flags={"log.dir": "/one", "log.dirs": "/two"}).data_dir == "/two"


def test_the_default_store_is_in_the_data_directory():
    assert load_broker_config(flags={"log.dirs": "/data"}).ottla_store == "embedded:/data/store.db"
    assert load_broker_config(flags={"ottla.store": "embedded:/x.db"}).ottla_store == "embedded:/x.db"
    assert load_broker_config(environment={"OTTLA_STORE": "embedded:/y.db"}).ottla_store == "embedded:/y.db"


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("log.retention.hour", "did you mean log.retention.hours?"),
        ("advertised.listener", "did you mean advertised.listeners?"),
        ("retention.ms", "its default for all topics is log.retention.ms".replace("its", "whose")),
        ("completely.else", "no setting has this name"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(write, name, suggested):
    assert suggested in problems_of(flags={name: "1"})[0]
    assert suggested in problems_of(file=write(f"{name}=1"))[0]


def test_an_unknown_variable_is_refused_with_a_suggestion():
    assert "OTTLA_ADVERTISED_LISTENERS" in problems_of(environment={"OTTLA_ADVERTISED_LISTENER": "x"})[0]
    assert "OTTLA_BROKER_ID" in problems_of(environment={"OTTLA_ID": "1"})[0]


@pytest.mark.parametrize(
    "variable",
    [
        "OTTLA_BOOTSTRAP_SERVERS",
        "OTTLA_LOG_LEVEL",
        "OTTLA_TEST_BOOTSTRAP",
        "OTTLA_PORT",
        "OTTLA_SERVICE_HOST",
        "OTTLA_PORT_9092_TCP_ADDR",
        "OTTLA_BROKER_SERVICE_PORT_KAFKA",
        "OTTLA_QUEUED_MAX_REQUESTS",
        "OTTLA_ZOOKEEPER_CONNECT",
        "NOT_OURS",
    ],
)
def test_reserved_variables_are_ignored(variable):
    load_broker_config(environment={variable: "tcp://10.0.0.1:9092"})


def test_all_problems_are_reported_together(write):
    file = write("num.partitions=x\nlog.cleanup.policy=shred")
    problems = problems_of(file=file, environment={"OTTLA_NOPE": ""}, flags={"listeners": "PLAINTEXT://:1"})
    assert len(problems) == 4
    assert "an integer of at least 1" in problems[1]
    assert "a list of compact or delete" in problems[2]


@pytest.mark.parametrize("text", ["0", "-1", "", "1.0", "many", "2147483648"])
def test_an_invalid_value_is_refused_with_what_is_allowed(text):
    assert "an integer of at least 1" in problems_of(flags={"num.partitions": text})[0]


def test_values_that_contradict_each_other_are_refused():
    flags = {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "5"}
    assert "must be at most group.max.session.timeout.ms" in problems_of(flags=flags)[0]
    assert "one directory" in problems_of(flags={"log.dirs": "/a,/b"})[0]
    assert "-1 to keep them" in problems_of(flags={"log.retention.ms": "0"})[0]
    assert "is not among listeners" in problems_of(flags={"inter.broker.listener.name": "X"})[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("config.providers", "file"),
        ("remote.log.storage.system.enable", "true"),
        ("security.inter.broker.protocol", "SSL"),
        ("client.quota.callback.class", "org.example.Quotas"),
        ("quota.producer.default", "1000"),
        ("cordoned.log.dirs", "*"),
        ("max.connections.per.ip.overrides", "127.0.0.1:0"),
        ("zookeeper.ssl.client.enable", "true"),
        ("listeners", "SASL_SSL://127.0.0.1:9092"),
    ],
)
def test_unsupported_settings_are_refused(name, value):
    assert problems_of(flags={name: value})


SECURITY = [
    "allow.everyone.if.no.acl.found=true",
    "connection.failed.authentication.delay.ms=100",
    "connections.max.reauth.ms=60000",
    "delegation.token.secret.key=secret",
    "listener.name.outside.ssl.keystore.location=/k",
    "password.encoder.secret=secret",
    "principal.builder.class=org.example.Builder",
    "sasl.enabled.mechanisms=SCRAM-SHA-512",
    "sasl.jaas.config=secret",
    "security.providers=org.example.Provider",
    "ssl.client.auth=required",
    "ssl.keystore.location=/k",
    "super.users=User:admin",
    "zookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
    "zookeeper.ssl.keystore.location=/k",
]


@pytest.mark.parametrize("line", SECURITY)
def test_unsupported_security_settings_are_refused(write, line):
    name, _, value = line.partition("=")
    for problem in (*problems_of(flags={name: value}), *problems_of(file=write(line))):
        assert problem.startswith(name)
        assert "cannot be used" in problem
        assert "secret" not in problem.removeprefix(name)
    if name.islower():
        (problem,) = problems_of(environment={environment_name(name): value})
        assert problem.startswith(name)
    assert load_broker_config(flags={name: ""}).inert == {name: ""}, "nobody relies on what was left empty"


@pytest.mark.parametrize(
    ("name", "value"), [("authorizer.class.name", ""), ("remote.log.storage.system.enable", "false")]
)
def test_harmless_values_of_unsupported_settings_are_accepted(name, value):
    assert load_broker_config(flags={name: value}).inert == {name: value}


@pytest.mark.parametrize(
    ("name", "value"), [("num.io.threads", "abc"), ("num.io.threads", "0"), ("log.preallocate", "perhaps")]
)
def test_an_invalid_value_of_an_inert_setting_is_refused(write, name, value):
    """Though the setting has no effect: a file with such a value stops Apache Kafka as well."""
    with pytest.raises(Refused) as refused:
        validate_broker_overrides({name: value}, load_broker_config(), whole_cluster=True)
    assert problems_of(flags={name: value}) == (refused.value.message,)
    assert problems_of(environment={environment_name(name): value}) == (refused.value.message,)
    (problem,) = problems_of(file=write(f"{name}={value}"))
    assert problem.startswith(f"{refused.value.message} in ")


def test_an_empty_value_unsets_what_has_no_default(write):
    config = load_broker_config(file=write("advertised.listeners=\nbroker.rack=\nlog.retention.ms="))
    assert config.advertised_listeners is None
    assert config.broker_rack is None
    assert config.log_retention_ms == 604800000


def test_a_missing_file_is_a_problem(tmp_path):
    assert "No such file" in problems_of(file=str(tmp_path / "none"))[0]


def test_a_file_in_latin_1_is_read_as_java_reads_it(tmp_path):
    path = tmp_path / "latin"
    path.write_bytes("broker.rack=Zürich".encode("latin-1"))
    assert load_broker_config(file=str(path)).broker_rack == "Zürich"


def test_host_and_port_change_the_address_of_the_only_listener(write):
    assert load_broker_config(port=0).endpoints[0].address == "127.0.0.1:0"
    assert load_broker_config(host="::1").endpoints[0].address == "[::1]:9092"
    assert load_broker_config(file=write(STOCK_4), port=19092).endpoints[0].address == "0.0.0.0:19092"
    several = {
        "listeners": "A://127.0.0.1:1,B://127.0.0.1:2",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
    }
    assert "use --set listeners" in problems_of(flags=several, port=3)[0]


def test_a_secret_is_never_shown():
    secret = "hunter2"
    given = {
        "ssl.keystore.password": secret,
        "listener.name.a.plain.sasl.jaas.config": secret,
        "my.own.password": secret,
        "num.partitions": "x",
    }
    assert secret not in "\n".join(problems_of(flags=given))
    auth = f"digest:me:{secret}"
    assert secret not in print_config(load_broker_config(flags={"zookeeper.auth": auth}))


def test_the_printed_configuration_is_read_back_the_same(tmp_path, write):
    config = load_broker_config(file=write(STOCK_4), flags={"broker.rack": "a\\b c", "log.retention.hours": "1"})
    printed = tmp_path / "printed"
    printed.write_text(print_config(config))
    again = load_broker_config(file=str(printed))
    names = parse_properties(printed.read_text())
    assert "log.retention.ms" in names
    assert all(config.get(name) == again.get(name) for name in names)
    assert "# from flag\nbroker.rack=" in printed.read_text()
    assert "# accepted, has no effect\n" in printed.read_text()


def test_variables_have_the_names_of_settings():
    assert environment_name("advertised.listeners") == "OTTLA_ADVERTISED_LISTENERS"
    assert environment_name("ottla.store") == "OTTLA_STORE"
