"""The controller's rules, taken from the settings of the broker that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.cluster.requests import Rules
from ottla.config.broker_config import BrokerConfig, validate_broker_overrides
from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.group_config import validate_group_overrides
from ottla.config.setting import SettingType, text_of
from ottla.config.topic_config import TOPIC_SETTINGS, resolve, validate_topic_overrides

_MIN_IN_SYNC: Final = TOPIC_SETTINGS["min.insync.replicas"]
_UNCLEAN: Final = TOPIC_SETTINGS["unclean.leader.election.enable"]
NOTHING_SET: Final[Mapping[int | None, Mapping[str, str]]] = {}


def rules_of(config: BrokerConfig, overrides: Mapping[int | None, Mapping[str, str]] = NOTHING_SET) -> Rules:
    """`overrides`: the dynamic settings, of single brokers and (None) of all."""

    def check_topic(configs: Mapping[str, str | None]) -> None:
        validate_topic_overrides(configs, config)

    def check_broker(broker: int | None, configs: Mapping[str, str | None]) -> None:
        whole_cluster = broker is None
        beside = [each for whom, each in overrides.items() if (whom is not None) is whole_cluster]
        validate_broker_overrides(configs, config, whole_cluster=whole_cluster, beside=beside)

    def check_group(configs: Mapping[str, str | None]) -> None:
        validate_group_overrides(configs, config)

    def topic_list(name: str) -> str | None:
        setting = TOPIC_SETTINGS.get(name)
        if setting is None or setting.kind is not SettingType.LIST:
            return None
        return text_of(resolve({}, config).get(name)) or ""

    def broker_list(name: str) -> str | None:
        setting = BROKER_SETTINGS.get(name)
        if setting is None or setting.kind is not SettingType.LIST:
            return None
        return text_of(config.get(name)) or ""

    def min_in_sync(configs: Mapping[str, str]) -> int:
        text = configs.get(_MIN_IN_SYNC.name)
        return config.min_insync_replicas if text is None else int(text)

    def unclean(configs: Mapping[str, str]) -> bool:
        text = configs.get(_UNCLEAN.name)
        return config.unclean_leader_election_enable if text is None else bool(_UNCLEAN.parse(text))

    started_with = config.started_with("min.insync.replicas")
    assert isinstance(started_with, int)
    return Rules(
        config.num_partitions,
        config.default_replication_factor,
        check_topic,
        check_broker,
        topic_list,
        broker_list,
        check_group,
        min_in_sync,
        started_with,
        unclean,
        config.auto_leader_rebalance_enable,
        config.leader_imbalance_check_interval_seconds,
        config.leader_imbalance_per_broker_percentage,
    )
