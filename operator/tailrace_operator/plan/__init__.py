"""What is wanted, what differs, and the next action. Pure."""
