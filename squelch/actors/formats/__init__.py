"""The formats in which models speak: messages to ids, and sampled ids to reasoning, content and calls of tools."""
