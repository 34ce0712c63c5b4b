"""Members of consumer groups, classic and KIP-848: joining, assignors, committed offsets."""
