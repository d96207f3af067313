"""The arithmetic of a ring, and the commands that change its replicated state. Pure."""
