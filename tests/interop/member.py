"""A member of a classic group made of a socket: for tests that must know every step it takes."""

from __future__ import annotations

from typing import Any

from tests.conftest import Served
from tests.harness.raw import Connection

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH = 9, 5, 4, 5, 8, 8
MEMBER_ID_REQUIRED = 79
NO_ERROR = 0


class RawMember:
    """Knows its id and generation; every method is one request, sent and answered unless it says otherwise."""

    def __init__(self, broker: Served, group_id: str, **settings: Any) -> None:
        self.broker = broker
        self.group_id = group_id
        self.settings = {
            "session_timeout": 10_000,
            "rebalance_timeout": 30_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
            **settings,
        }
        self.member_id = ""
        self.protocol: tuple[str | None, str | None] = (None, None)
        self.generation_id = -1
        self.leads = False
        self.members: list[str] = []
        self.connection = Connection(broker, timeout_s=60)

    def reconnect(self) -> None:
        self.connection.socket.close()
        self.connection = Connection(self.broker, timeout_s=60)

    def close(self) -> None:
        self.connection.socket.close()

    def send_join(self, version: int = JOIN) -> None:
        """Ask to join, and be told the id first if need be; `joined` takes the answer, whenever it comes."""
        fields = {"group_id": self.group_id, "member_id": self.member_id, **self.settings}
        if not self.member_id and version >= 4 and "group_instance_id" not in self.settings:
            reported = self.connection.call("join_group", version, **fields)
            assert reported["error_code"] == MEMBER_ID_REQUIRED
            fields["member_id"] = self.member_id = reported["member_id"]
        self.connection.send_request("join_group", version, fields)

    def joined(self, version: int = JOIN) -> int:
        answer = self.connection.receive_response("join_group", version)
        if answer["error_code"] == NO_ERROR:
            self.member_id, self.generation_id = answer["member_id"], answer["generation_id"]
            self.protocol = self.settings["protocol_type"], answer["protocol_name"]
            self.leads = answer["leader"] == self.member_id
            self.members = [member["member_id"] for member in answer["members"]]
        code: int = answer["error_code"]
        return code

    def join(self, version: int = JOIN) -> int:
        self.send_join(version)
        return self.joined(version)

    def send_sync(self, version: int = SYNC) -> None:
        """A leader gives every member its own id to do."""
        work = [{"member_id": each, "assignment": each.encode()} for each in self.members] if self.leads else []
        spoken = {"protocol_type": self.protocol[0], "protocol_name": self.protocol[1]}
        self.connection.send_request("sync_group", version, {**self._named(), **spoken, "assignments": work})

    def synced(self, version: int = SYNC) -> tuple[int, bytes]:
        answer = self.connection.receive_response("sync_group", version)
        return answer["error_code"], answer["assignment"]

    def sync(self, version: int = SYNC) -> tuple[int, bytes]:
        self.send_sync(version)
        return self.synced(version)

    def _named(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "generation_id": self.generation_id,
            **self._instance(),
        }

    def _instance(self) -> dict[str, Any]:
        return {"group_instance_id": self.settings.get("group_instance_id")}

    def heartbeat(self, version: int = HEARTBEAT) -> int:
        code: int = self.connection.call("heartbeat", version, **self._named())["error_code"]
        return code

    def leave(self, version: int = LEAVE) -> int:
        fields = {"group_id": self.group_id, "member_id": self.member_id}
        fields["members"] = [{"member_id": self.member_id, **self._instance()}]  # type: ignore[assignment]
        code: int = self.connection.call("leave_group", version, **fields)["error_code"]
        return code

    def commit(self, topic: str, offset: int, version: int = COMMIT, **fields: Any) -> int:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": f"note {offset}"}
        answer = self.connection.call(
            "offset_commit",
            version,
            group_id=self.group_id,
            member_id=self.member_id,
            generation_id_or_member_epoch=self.generation_id,
            generation_id=self.generation_id,
            retention_time_ms=-1,
            topics=[{"name": topic, "partitions": [partition], **fields}],
            **self._instance(),
        )
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code
