"""The gateway: HTTP, JSON, text and keys on one side; token ids to an engine on the other. It never loads torch."""
