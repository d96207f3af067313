"""Decisions that the blocking and the asyncio client share: batching, routing, retries. No I/O."""
