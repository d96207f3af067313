"""Consumer groups: members, assignment, positions, deliveries. Pure."""
