"""Session of `ottla dev`: which replicas may lead after a kill."""

from __future__ import annotations

import subprocess

from ottla.local.cluster import LocalCluster
from ottla.local.detail import Detail
from ottla.local.processes import State
from ottla.local.session import DevSession, not_eligible
from ottla.local.snapshot import NO_BROKER, ClusterSnapshot, PartitionReplicas

ORDERS = ("orders", 0)


def test_a_replica_on_a_killed_broker_may_not_lead(tmp_path):
    session = DevSession(LocalCluster(tmp_path, 3), lambda line: None)
    session.snapshot = ClusterSnapshot(NO_BROKER, (), {ORDERS: PartitionReplicas(NO_BROKER, (1, 2, 3), (3,))})
    session.detail = Detail(eligible={ORDERS: (1, 2)})
    assert (session.may_lead(ORDERS), session.will_not_lead()) == ((1, 2), [])
    for broker_id, ending in ((1, State.STOPPED), (2, State.KILLED), (3, State.KILLED)):
        broker = session.cluster[broker_id]
        broker._ending = ending
        broker._process = subprocess.Popen(["true"])
        broker._process.wait()
        session._note_state(broker)
    assert (session.may_lead(ORDERS), session.will_not_lead()) == ((1,), [2]), "3 is in sync"
    assert "broker 2 was killed" in not_eligible(session.will_not_lead())
