"""A classic group under random requests: every request is answered once, and the log has the state."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_group_data import ClassicGroupState
from tests.coordinator.group_scenarios import GROUP, GroupScenario, Token

MEMBERS = "abcd"
PROTOCOLS = ("range", "sticky range", "range sticky", "roundrobin")

member = st.sampled_from(MEMBERS)
join = st.builds(
    "{0} join {1} {2} {3} {4}".format,
    member,
    st.sampled_from(PROTOCOLS),
    st.sampled_from(["", "new", "as=one", "as=two", "new as=one"]),
    st.sampled_from(["", "v=3", "v=8", "meta=other"]),
    st.sampled_from(["", "session=6s rebalance=3s"]),
)
step = st.one_of(
    join,
    join,
    st.builds("{0} sync {1}".format, member, st.just("a=w b=x c=y d=z")),
    st.builds("{0} beat".format, member),
    st.builds("{0} leave".format, member),
    st.builds("{0} commit t:0={1}".format, member, st.integers(0, 9)),
    st.builds("wait {0}s".format, st.sampled_from([0, 1, 3, 7, 20])),
    st.just("reload"),
    st.just("fail not_coordinator"),
    st.just("admin leave as=one"),
    st.just("delete group"),
)


class Watched(GroupScenario):
    """Knows every request that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.do_topics("t=1")
        self.do_set("group.initial.rebalance.delay.ms=1000")
        self.asked: list[Token] = []

    def token(self, member: str) -> Token:
        self.asked.append(super().token(member))
        return self.asked[-1]

    def act(self, words: list[str]) -> None:
        super().act(words)
        self._check_group()

    def _check_group(self) -> None:
        group = self.groups.get(GROUP)
        pending_replies = list(self.groups.pending_replies())
        assert len(pending_replies) == len(set(map(id, pending_replies)))
        assert {id(token) for token in self.asked if not token.answered} == set(map(id, pending_replies))
        if not isinstance(group, ClassicGroup):
            return
        members = list(group.members)
        assert group.members.joining == sum(member.joining is not None for member in members)
        assert group.state is not ClassicGroupState.EMPTY or not members
        assert not members or group.members.candidates(), "all members share a protocol"
        if members and group.members.leader is not None:
            assert group.members.leader in group.members
        assert group.deadline is not None or not members, "nobody stays for ever"
        if pending_replies:
            assert self.groups.deadline is not None, "nobody waits for ever"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, min_size=1, max_size=30))
def test_every_request_is_answered_once_and_the_log_has_the_state(steps: list[str]):
    scenario = Watched()
    for each in steps:
        scenario.act(each.split())
        scenario._check_log()
    scenario.do_wait("1h")
    assert all(token.answered for token in scenario.asked)
    assert scenario.groups.deadline is None
    group = scenario.groups.get(GROUP)
    assert group is None or group.is_empty
