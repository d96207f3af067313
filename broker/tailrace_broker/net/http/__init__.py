"""HTTP/1.1: connections, requests, answers, the router, problems."""
