"""Network: server, outbound connections, authentication of brokers, a small HTTP server. Frames, not messages."""
