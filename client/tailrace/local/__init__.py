"""Brokers and rings as processes on this machine, for `tailrace dev` and `make up`."""
