"""Where a partition's log ends, what its producers have sent, what retention removes. Pure."""
