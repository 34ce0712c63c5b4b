"""Metadata of a client: by scenarios, and with random responses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.core.metadata import Leader, Metadata, MetadataSettings
from ottla.errors import ErrorCode
from ottla.wire.schema.metadata import MetadataRequest
from tests.client.core_scenarios import Scenario, scenarios


class MetadataScenario(Scenario):
    def do_refused(self) -> None:
        self.metadata.refresh()

    def do_want_all(self) -> None:
        self.metadata.want_all()

    def do_forget(self, topic: str) -> None:
        self.metadata.forget(topic)

    def do_making(self, topic: str) -> None:
        self.metadata = Metadata([("a", 1), ("b", 2)], MetadataSettings(allow_auto_create_topics=True))
        self.do_use(topic)

    def do_use(self, topic: str) -> None:
        self.metadata.want(topic, self.now)

    def do_busy(self, *topics: str) -> None:
        self.metadata.in_use = lambda: topics

    def do_await(self, topic: str) -> None:
        self.waiting = self.metadata.awaited(topic)
        self.waiting.__enter__()

    def do_error(self, topic: str, code: str, kind: str) -> None:
        assert self.metadata.error(topic) is ErrorCode[code]
        refusal = self.metadata.refusal(topic)
        assert (refusal is not None) == (kind == "refused")

    def do_obstacle(self, partition: str, *words: str) -> None:
        assert " ".join(words) in self.metadata.obstacle(partition[:-1], int(partition[-1]))

    def do_reachable(self, node: str, answer: str) -> None:
        assert self.metadata.reachable(int(node), self.now) == (answer == "yes")


@pytest.mark.parametrize("lines", scenarios("client_metadata.txt"))
def test_scenario(lines):
    MetadataScenario().run(lines)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.booleans()), max_size=20))
def test_a_leader_epoch_never_goes_back(reported):
    scenario = MetadataScenario()
    scenario.do_cluster("t0=1@0")
    highest = Leader(1, 0)
    for node, epoch, hint in reported:
        if hint:
            scenario.metadata.hinted("t", 0, Leader(node, epoch), [])
            news = epoch > highest.epoch
        else:
            scenario.metadata.refresh()
            scenario.now += 10
            (send,) = scenario.metadata.decide(scenario.now)
            scenario.metadata.answered(send, scenario.metadata_of([f"t0={node}@{epoch}"]), scenario.now)
            news = epoch >= highest.epoch
        if news:
            highest = Leader(node, epoch)
        assert scenario.metadata.leader("t", 0) == highest


def test_only_a_topic_that_is_missing_is_made_by_being_asked_about():
    scenario = Scenario()
    metadata = Metadata([("a", 1)], MetadataSettings(allow_auto_create_topics=True))
    metadata.in_use = lambda: ["t"]
    metadata.want("t", 100.0)
    for now, reported, creates in (
        (100.0, "t=leader_not_available", True),
        (101.0, "t0=1@0", True),
        (102.0, "t=unknown_topic_or_partition", False),
        (103.0, "t0=1@0", True),
        (104.0, "t0=1@0", False),
    ):
        metadata.refresh()
        (send,) = metadata.decide(now)
        assert isinstance(send.request, MetadataRequest)
        assert send.request.allow_auto_topic_creation == creates, reported
        metadata.answered(send, scenario.metadata_of(["brokers=1", reported]), now)


def test_a_topic_is_known_by_its_id_too():
    scenario = MetadataScenario()
    scenario.do_cluster("t0=1@0")
    known = scenario.metadata.topic("t")
    assert known is not None
    assert scenario.metadata.name_of(known.id) == "t"
    assert Metadata([("a", 1)]).name_of(known.id) is None
