"""The shell of `core.node`: its disk, its timers, its connections with other brokers."""
