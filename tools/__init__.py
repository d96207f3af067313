"""Programs of the people who make and release Tailrace; no part of a package or an image."""
