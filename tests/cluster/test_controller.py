"""The controller's decisions on topics, as text: each line is a request and, after the arrow, its result.

A partition reads leader@leader_epoch in_sync/replicas; `-` means no leader. A refused request reads as its error code.
"""

from __future__ import annotations

import pytest

from ottla.cluster import controller, layout
from ottla.cluster.image import BrokerRegistration, Endpoint, Image
from ottla.cluster.requests import (
    PartitionsSpec,
    Rules,
    TopicSpec,
)
from ottla.errors import ErrorCode, Refused
from tests.cluster.world import World


class Story:
    def __init__(self) -> None:
        self.world = World(racks=False)
        self.rules = Rules(partitions=2, replication_factor=1, check_topic=only_known, topic_list=lists.get)

    def tell(self, text: str) -> None:
        for line in text.strip().splitlines():
            act, _, expected = (part.strip() for part in line.partition("->"))
            for each in act.split("·"):
                command, *words = each.split()
                seen = getattr(self, command)(*words)
            if expected:
                assert seen == expected, line

    def brokers(self, *words: str) -> None:
        for word in words:
            self.register(word)

    def register(self, word: str, show: str = "") -> str:
        self.world.register(int(word))
        return self.settle(show)

    def lose(self, word: str, show: str = "") -> str:
        self.world.lose(int(word))
        return self.show(show)

    def settle(self, show: str = "") -> str:
        self.world.settle()
        return self.show(show)

    def create(self, name: str, *options: str) -> str:
        given = dict(option.split("=") for option in options)
        spec = TopicSpec(
            name.strip("'"),
            int(given.get("partitions", -1)),
            int(given.get("replicas", -1)),
            [(n, ids(part)) for n, part in enumerate(given["on"].split("|"))] if "on" in given else (),
            {given["set"].partition(":")[0]: given["set"].partition(":")[2]} if "set" in given else {},
        )
        decision = controller.create_topics(
            self.world.image, [spec], [layout.new_id(self.world.random.randbytes(16))], self.rules
        )
        self.world.commit(decision.changes)
        return self.answer(decision.results[0], spec.name)

    def grow(self, name: str, partitions: str, on: str = "") -> str:
        assignments = [ids(part) for part in on.removeprefix("on=").split("|")] if on else None
        spec = PartitionsSpec(name, int(partitions), assignments)
        decision = controller.create_partitions(self.world.image, [spec], self.rules)
        self.world.commit(decision.changes)
        return self.answer(decision.results[0], name)

    def delete(self, name: str) -> str:
        decision = controller.delete_topics(self.world.image, [name])
        self.world.commit(decision.changes)
        return decision.results[0].code.name

    def half_delete(self, name: str) -> None:
        self.world.half_delete(name)

    def topics(self) -> str:
        return " ".join(sorted(self.world.image.topics)) or "none"

    def show(self, name: str) -> str:
        if not name:
            return ""
        partitions = self.world.image.topics[name].partitions
        return "  ".join(
            f"{'-' if p.leader < 0 else p.leader}@{p.leader_epoch} {text(p.in_sync)}/{text(p.replicas)}"
            for p in partitions
        )

    def answer(self, result, name: str) -> str:
        return self.show(name) if result.code is ErrorCode.none else result.code.name


def ids(text_: str) -> list[int]:
    return [int(word) for word in text_.split(",") if word]


def text(ids_) -> str:
    return ",".join(map(str, ids_))


lists = {"cleanup.policy": "delete"}


def only_known(configs) -> None:
    for name, value in configs.items():
        if name not in ("retention.ms", "cleanup.policy") or value is None:
            raise Refused(ErrorCode.invalid_config, f"no such thing as {name}={value}")


STORIES = {
    "a topic is led from its first replicas and in sync": """
        brokers 1 2 3
        create t partitions=3 replicas=2      -> 1@0 1,2/1,2  2@0 2,3/2,3  3@0 3,1/3,1
        create one                            -> 1@0 1/1  2@0 2/2
    """,
    "leaders are spread over topics as well as within one": """
        brokers 1 2 3
        create a partitions=1 replicas=1      -> 1@0 1/1
        create b partitions=1 replicas=1      -> 2@0 2/2
        create c partitions=1 replicas=1      -> 3@0 3/3
    """,
    "replicas are where they are asked to be": """
        brokers 1 2 3
        create t on=3,1|2,3                   -> 3@0 3,1/3,1  2@0 2,3/2,3
        create u on=1,1                       -> invalid_replica_assignment
        create v on=1,9                       -> invalid_replica_assignment
        create w on=1,2|3                     -> invalid_replica_assignment
        create x on=|1                        -> invalid_replica_assignment
        create y on=1 partitions=1            -> invalid_request
        create z on=1 replicas=1              -> invalid_request
        topics                                -> t
    """,
    "what cannot be is refused": """
        brokers 1
        create t partitions=0 replicas=1      -> invalid_partitions
        create t partitions=-2 replicas=1     -> invalid_partitions
        create t partitions=1 replicas=999    -> invalid_replication_factor
        create t partitions=1 replicas=0      -> invalid_replication_factor
        create t set=nonsense:1               -> invalid_config
        create t set=retention.ms:1           -> 1@0 1/1  1@0 1/1
        create t                              -> topic_already_exists
        topics                                -> t
    """,
    "names that metrics cannot tell apart collide": """
        brokers 1
        create a.b                            -> 1@0 1/1  1@0 1/1
        create a_b                            -> invalid_topic_exception
        create a.c                            -> 1@0 1/1  1@0 1/1
        create ab                             -> 1@0 1/1  1@0 1/1
        delete a.b                            -> none
        create a_b                            -> 1@0 1/1  1@0 1/1
    """,
    "a lone broker leads again after a restart, one epoch later": """
        brokers 1
        create t partitions=2                 -> 1@0 1/1  1@0 1/1
        lose 1 t                              -> -@1 1/1  -@1 1/1
        register 1 t                          -> 1@2 1/1  1@2 1/1
        register 1 t                          -> 1@3 1/1  1@3 1/1
    """,
    "a lost leader is followed by an in-sync replica, in the order of the replicas": """
        brokers 1 2 3
        create t on=1,2,3                     -> 1@0 1,2,3/1,2,3
        lose 1 t                              -> 2@1 2,3/1,2,3
        lose 3 t                              -> 2@1 2/1,2,3
        lose 2 t                              -> -@2 2/1,2,3
        register 1 t                          -> -@2 2/1,2,3
        register 2 t                          -> 2@3 2/1,2,3
    """,
    "a leader that restarted unnoticed gives way to one that did not": """
        brokers 1 2
        create t on=1,2                       -> 1@0 1,2/1,2
        register 1 t                          -> 2@1 1,2/1,2
    """,
    "a follower that is lost leaves the in-sync set and the leader stays": """
        brokers 1 2
        create t on=1,2                       -> 1@0 1,2/1,2
        lose 2 t                              -> 1@0 1/1,2
    """,
    "a topic grows on the brokers where it would have begun": """
        brokers 1 2 3
        create t partitions=2 replicas=2      -> 1@0 1,2/1,2  2@0 2,3/2,3
        grow t 3                              -> 1@0 1,2/1,2  2@0 2,3/2,3  3@0 3,1/3,1
        grow t 4 on=2,1                       -> 1@0 1,2/1,2  2@0 2,3/2,3  3@0 3,1/3,1  2@0 2,1/2,1
        grow t 4                              -> invalid_partitions
        grow t 2                              -> invalid_partitions
        grow t 6 on=1,2                       -> invalid_replica_assignment
        grow t 5 on=1                         -> invalid_replica_assignment
        grow t 10001                          -> invalid_partitions
        grow nothing 4                        -> unknown_topic_or_partition
    """,
    "a topic whose deletion was interrupted is not seen, and its name is free when the next controller is done": """
        brokers 1
        create t partitions=600 replicas=1
        half_delete t
        topics                                -> none
        create t                              -> topic_already_exists
        delete t                              -> unknown_topic_or_partition
        settle
        create t                              -> 1@0 1/1  1@0 1/1
    """,
}


@pytest.mark.parametrize("story", STORIES)
def test_story(story):
    Story().tell(STORIES[story])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\x00b", "x" * 250, "ümlaut", "new\nline", "two words", "a:b"]
)
def test_an_invalid_topic_name_is_refused(name):
    image = Image(brokers={1: BrokerRegistration(1, 1, (Endpoint("A", "h", 1),))})
    (result,) = controller.create_topics(image, [TopicSpec(name, 1, 1)], [bytes(16)], Rules()).results
    assert result.code is ErrorCode.invalid_topic_exception
    assert result.message is not None
    assert len(result.message) < 400


def test_the_longest_name_is_249_characters():
    controller.check_topic_name("x" * 249)


def test_a_topic_named_twice_in_one_request_is_not_created():
    image = Image(brokers={1: BrokerRegistration(1, 1, (Endpoint("A", "h", 1),))})
    specs = [TopicSpec("a", 1, 1), TopicSpec("b", 1, 1), TopicSpec("a", 1, 1), TopicSpec("b.x"), TopicSpec("b_x")]
    decision = controller.create_topics(image, specs, [bytes([n]) * 16 for n in range(5)], Rules())
    codes = [result.code.name for result in decision.results]
    assert codes == ["invalid_request", "none", "invalid_request", "none", "invalid_topic_exception"]


def test_without_brokers_no_topic_is_created():
    (result,) = controller.create_topics(Image(), [TopicSpec("a", 1, 1)], [bytes(16)], Rules()).results
    assert result.code is ErrorCode.invalid_replication_factor
