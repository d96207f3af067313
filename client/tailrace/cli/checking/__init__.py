"""What `tailrace doctor` checks."""
