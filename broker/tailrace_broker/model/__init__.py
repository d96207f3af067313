"""Plain values: ids, topics, errors. Imports nothing of ours but `tailrace.wire`."""
