"""HTTP: requests -> the broker's verbs, results and errors -> answers. Knows nothing of disks."""
