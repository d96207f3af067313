"""The HTTP API: `routes` is the table; one module a resource."""
