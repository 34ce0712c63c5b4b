"""Group and transaction coordinators: pure state machines over the partitions of internal topics."""
